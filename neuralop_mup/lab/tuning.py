"""Train a model on data (``train``), or tune a small model first (``tune``)."""

import ast
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from neuralop_mup._version import __version__
from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import Diverged, MupError
from neuralop_mup.lab.accuracy import Accuracy, accuracy
from neuralop_mup.lab.decisions import Decided, decide
from neuralop_mup.lab.engines import cuda_devices
from neuralop_mup.lab.files import check_room, writing
from neuralop_mup.lab.outcome import execute, is_complete
from neuralop_mup.lab.records import Records
from neuralop_mup.lab.report import write_report
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.score import Predictor
from neuralop_mup.lab.settings import available_device
from neuralop_mup.lab.study import Study
from neuralop_mup.lab.sweeps import train_missing
from neuralop_mup.lab.target import Tuned, load_target
from neuralop_mup.lab.training import FNOs, function_name, variable_of
from neuralop_mup.lab.wording import params

#: Arguments of the functions below that decide how runs are trained, or that `decide` receives in another form.
_NOT_DECIDED = ("rule", "compare", "lr", "seed", "n_workers", "executor", "progress")


def train(
    build: Callable[..., nn.Module],
    data: Any,
    *,
    target: Mapping[str, Any],
    folder: str | Path,
    base: Mapping[str, Any] | None = None,
    read: Mapping[str, Any] | None = None,
    loss: Any = None,
    score: Any = None,
    rule: str = DEFAULT_RULE,
    optimizer: Any = "soap",
    lr: float | None = None,
    epochs: int = 50,
    batch_size: int = 20,
    seed: int = 0,
    processor: Any = None,
    device: str = "auto",
    progress: bool = True,
    weight_decay: float | None = None,
    beta2: float | None = None,
    schedule: str | None = None,
    clip_spectral: float | None = None,
    aux_lr: float | None = None,
    soap: Mapping[str, Any] | None = None,
    init_mult: Mapping[str, float] | None = None,
) -> Tuned:
    """Train a model on data with MuSOAP, without tuning. The learning rate follows from the number of steps.

    The training runs in this process. Repeating the call resumes an interrupted training.

    Parameters
    ----------
    build : callable
        ``build(**target)`` returns a new model with its usual initialization.
    data : path, list, tuple, dict or callable
        The data, in one of these forms:

        * a file, a folder, a pattern such as ``"runs/*.h5"``, or a list of these
          (:class:`~neuralop_mup.lab.problems.OwnData`);
        * arrays ``(x, y)`` or a dict of them, an xarray Dataset or a DataArray, which are read and split like a file;
        * ``(train, val)`` or ``(train, val, test)``, or a dict with these keys, of files, loaders, data sets or arrays
          ``(x, y)``;
        * a problem from :mod:`neuralop_mup.lab.problems`, or its ``ProblemData`` of tensors;
        * a function that returns one of these.

        Arrays are tensors or NumPy arrays. Without "val", part of the training data is used for validation. Test data is
        never used for selection. Batches are pairs, or dicts with "x" and "y". Data sets of neuralop have a processor.
    target : mapping
        Arguments of ``build`` for the model.
    folder : str or Path
        Folder for the weights, the data processor and the report, which :func:`neuralop_mup.load_tuned` reads.
    base : mapping, optional
        Arguments of ``build`` that differ in the base model, that is, at the size for which the learning rate is meant, such
        as ``{"hidden_channels": 32}``. The base model is not trained. Default: the reference size of
        :func:`neuralop_mup.parametrize`.
    read : mapping, optional
        Options for files and arrays: ``x`` and ``y`` (keys), ``dims``, ``time_step``, ``history``, ``rollout``,
        ``split``, ``shuffle``, ``n_train``, ``every``, ``crop``, ``uneven``, ``join``, ``nan`` and
        ``in_memory`` (:class:`~neuralop_mup.lab.problems.OwnData`). The report shows how the data was read.
    loss : str, callable or dict, optional
        The training loss. ``"l2"`` (the default for maps) and ``"h1"`` are relative errors. ``"floored-l2"`` (the default
        for trajectories) is a relative error with a floor and ``"mse"`` a squared error, both of fields that this package
        normalizes; runs are still compared by the relative L2 error. You can also pass a function
        ``loss(y_pred, y, **batch)`` that sums over the batch, as for neuralop's Trainer, or a dict of names to functions or
        to (weight, function). The first loss is the validation error.
    score : str or callable, optional
        Additional error for the report, which does not affect the training. It is stored with the run, so another score
        requires a new training. ``"l2"``, ``"h1"``, ``"vrmse"`` (from The Well) and ``"nrmse"`` (from PDEBench) are means
        over the validation samples. ``"rollout:50"`` is the relative error of a rollout of fifty steps on trajectories
        (``read={"time_step": 1}``), as the geometric mean over the steps. You can also pass a function ``score(model,
        data)``. The inputs and outputs of ``model`` are in the units of the data, ``data`` yields batches in these units,
        and ``data.states(i)`` is state ``i`` of each trajectory. The function must return a nonnegative number; infinity and
        NaN mean that the model failed.
    rule : str, default "operator-norm"
        μP rule (see :func:`neuralop_mup.parametrize`).
    optimizer : str, class or callable, default "soap"
        "soap", "adam", "adamw", "neuralop-adamw" or "sgd"; a class of this package or its name, such as "MuSOAP"; or a
        function ``(model, lr, steps)`` that returns your optimizer for a model in μP, or its import path
        ``"package.module.function"``.
    lr : float, optional
        Learning rate of the base model. Default: the value of the formula for the number of steps, or the optimizer's
        default if it has no formula.
    epochs : int, default 50
        Number of epochs.
    batch_size : int, default 20
        Number of samples in a batch. Loaders use their own batch size.
    seed : int, default 0
        Seed for the weights and for the order of the samples.
    processor : neuralop DataProcessor, optional
        Data processor that normalizes batches, which is copied. By default, a processor is fitted to the training data if
        this comes from arrays or files, and loaders have none. Without a processor, ``Tuned.predict`` raises an error.
    device : str, default "auto"
        A torch device. ``"auto"`` selects a GPU if there is one, otherwise the CPU.
    progress : bool, default True
        Whether to show progress on stderr and print the choices and the result.
    weight_decay : float, optional
        Weight decay. Default: the default of the optimizer.
    beta2 : float, optional
        Second beta of Adam-like optimizers. Default: 0.999.
    schedule : str, optional
        Learning-rate schedule: "cosine" (the default), "constant", "halve:50" (halved every 50 epochs) or "halve:100,150"
        (halved after these epochs).
    clip_spectral : float, optional
        Value at which the entries of the gradients of spectral kernels are clipped. Default: no clipping.
    aux_lr : float, optional
        Learning rate of ``soap`` for parameters other than kernels and hidden matrices, such as biases and readouts.
        Default: the default of the optimizer.
    soap : mapping, optional
        Additional arguments of :class:`neuralop_mup.MuSOAP`.
    init_mult : mapping, optional
        Initialization multipliers by role, relative to neuralop's initialization. Default: ``{"kernel": 0.1}`` for
        ``soap``, and none for the other optimizers.

    Returns
    -------
    Tuned
        The trained model, with ``.predict``, ``.model``, ``.processor``, ``.split``, ``.results`` and ``.report``. The
        report contains the errors by sample, channel and time, and a figure of test samples.

    Raises
    ------
    MupError
        If the data or the size cannot be used, if the folder cannot be written or its disk is full, or if the run did not
        complete.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> def build(**size):
    ...     return FNO(in_channels=1, out_channels=1, **size)
    >>> x, target = torch.randn(120, 1, 16), {"hidden_channels": 32, "n_modes": (8,)}
    >>> how = {"epochs": 2, "progress": False}
    >>> trained = nm.train(build, (x, x.roll(1, -1)), target=target, folder="runs", **how)
    >>> trained.predict(x[:2]).shape, trained.report.name
    (torch.Size([2, 1, 16]), 'report.md')
    """
    arguments = {**locals()}
    run = partial(_train_one, progress=progress)
    space = None if lr is None else {"lr": [lr]}
    return _train_and_report(train, arguments, run, search=False, rules=(rule,), seeds=(seed,), space=space)


def tune(
    build: Callable[..., nn.Module],
    data: Any,
    *,
    target: Mapping[str, Any],
    folder: str | Path,
    base: Mapping[str, Any] | None = None,
    read: Mapping[str, Any] | None = None,
    loss: Any = None,
    score: Any = None,
    space: Mapping[str, Any] | None = None,
    rule: str = DEFAULT_RULE,
    compare: Sequence[str] = (),
    optimizer: Any = "soap",
    epochs: int = 50,
    batch_size: int = 20,
    seeds: Iterable[int] = (0,),
    processor: Any = None,
    device: str = "auto",
    n_workers: int | None = None,
    progress: bool = True,
    weight_decay: float | None = None,
    beta2: float | None = None,
    schedule: str | None = None,
    clip_spectral: float | None = None,
    aux_lr: float | None = None,
    soap: Mapping[str, Any] | None = None,
    init_mult: Mapping[str, float] | None = None,
    executor: Any = None,
) -> Tuned:
    """Tune the learning rate on a small model, and train the large model with it.

    The function prints its choices with their reasons.

    Parameters
    ----------
    build : callable
        ``build(**size)`` returns a new model with its usual initialization. Define the function at the top level of a
        module, so that worker processes can import it.
    data : path, list, tuple, dict or callable
        The data, in one of these forms:

        * a file, a folder, a pattern such as ``"runs/*.h5"``, or a list of these
          (:class:`~neuralop_mup.lab.problems.OwnData`);
        * arrays ``(x, y)`` or a dict of them, an xarray Dataset or a DataArray, which are read and split like a file;
        * ``(train, val)`` or ``(train, val, test)``, or a dict with these keys, of files, loaders, data sets or arrays
          ``(x, y)``;
        * a problem from :mod:`neuralop_mup.lab.problems`, or its ``ProblemData`` of tensors;
        * a function that returns one of these.

        Arrays are tensors or NumPy arrays. Without "val", part of the training data is used for validation. Test data is
        never used for selection. Batches are pairs, or dicts with "x" and "y". Data sets of neuralop have a processor.
    target : mapping
        Arguments of ``build`` for the large model.
    folder : str or Path
        Folder for the runs, the target's weights, the data processor and the report. Repeating the call resumes the study,
        and :func:`load_tuned` loads the target. Calls with the same folder reuse identical runs.
    base : mapping, optional
        Arguments of ``build`` that differ in the small model, the proxy. Default: a quarter of the target's width (at least
        16; half of a width up to 16), and as many modes as needed to capture 99.9 % of the targets' energy.
    read : mapping, optional
        Options for files and arrays: ``x`` and ``y`` (keys), ``dims``, ``time_step``, ``history``, ``rollout``, ``split``,
        ``shuffle``, ``n_train``, ``every``, ``crop``, ``uneven``, ``join``, ``nan`` and ``in_memory``
        (:class:`~neuralop_mup.lab.problems.OwnData`). The report shows how the data was read.
    loss : str, callable or dict, optional
        The training loss. ``"l2"`` (the default for maps) and ``"h1"`` are relative errors. ``"floored-l2"`` (the default
        for trajectories) is a relative error with a floor and ``"mse"`` a squared error, both of fields that this package
        normalizes; runs are still compared by the relative L2 error. You can also pass a function
        ``loss(y_pred, y, **batch)`` that sums over the batch, as for neuralop's Trainer, or a dict of names to functions or
        to (weight, function). The first loss is the validation error.
    score : str or callable, optional
        Error that is used to select hyperparameters instead of the validation error. ``"l2"``, ``"h1"``, ``"vrmse"`` (from
        The Well) and ``"nrmse"`` (from PDEBench) are means over the validation samples. ``"rollout:50"`` is the relative
        error of a rollout of fifty steps on trajectories (``read={"time_step": 1}``), as the geometric mean over the steps.
        You can also pass a function ``score(model, data)``. The inputs and outputs of ``model`` are in the units of the
        data, ``data`` yields batches in these units, and ``data.states(i)`` is state ``i`` of each trajectory. The function
        must return a nonnegative number; infinity and NaN mean that the model failed.
    space : mapping, optional
        Maps hyperparameters, ``lr`` and for example ``lr_mult.spectral``, to the values to try. Default: five learning rates
        in factors of 2 around the value of the formula for the number of steps (see :class:`neuralop_mup.MuSOAP`), or 1e-3
        to 6.4e-2 for an optimizer without a formula. The default learning rates are interpolated with a parabola.
    rule : str, default "operator-norm"
        μP rule (see :func:`neuralop_mup.parametrize`).
    compare : sequence of str, default ()
        Additional rules with which the target is trained for comparison.
    optimizer : str, class or callable, default "soap"
        "soap", "adam", "adamw", "neuralop-adamw" or "sgd"; a class of this package or its name, such as "MuSOAP"; or a
        function ``(model, lr, steps)`` that returns your optimizer for a model in μP, or its import path
        ``"package.module.function"``.
    epochs : int, default 50
        Number of epochs.
    batch_size : int, default 20
        Number of samples in a batch. Loaders use their own batch size.
    seeds : iterable of int, default (0,)
        Seeds for the proxy and for the target.
    processor : neuralop DataProcessor, optional
        Data processor that normalizes batches, which is copied. By default, a processor is fitted to the training data if
        this comes from arrays or files, and loaders have none. Without a processor, ``Tuned.predict`` raises an error.
    device : str, default "auto"
        A torch device. With ``"auto"``, each run uses its own GPU if there are GPUs, otherwise the CPU.
    n_workers : int, optional
        Number of concurrent runs, each in its own process. Default: one per GPU, or one per core.
    progress : bool, default True
        Whether to show progress on stderr and print the choices and the result.
    weight_decay : float, optional
        Weight decay. Default: the default of the optimizer.
    beta2 : float, optional
        Second beta of Adam-like optimizers. Default: 0.999.
    schedule : str, optional
        Learning-rate schedule: "cosine" (the default), "constant", "halve:50" (halved every 50 epochs) or "halve:100,150"
        (halved after these epochs).
    clip_spectral : float, optional
        Value at which the entries of the gradients of spectral kernels are clipped. Default: no clipping.
    aux_lr : float, optional
        Learning rate of ``soap`` for parameters other than kernels and hidden matrices, such as biases and readouts.
        Default: the default of the optimizer.
    soap : mapping, optional
        Additional arguments of :class:`neuralop_mup.MuSOAP`.
    init_mult : mapping, optional
        Initialization multipliers by role, relative to neuralop's initialization. Default: ``{"kernel": 0.1}`` for
        ``soap``, and none for the other optimizers.
    executor : concurrent.futures.Executor, callable or str, optional
        Process-based executor, a function that returns one, or the import path of either (see :func:`neuralop_mup.sweep`).

    Returns
    -------
    Tuned
        The trained target, with ``.lr``, ``.params``, ``.predict``, ``.model``, ``.processor``, ``.split``, ``.results`` and
        ``.report``.

    Raises
    ------
    MupError
        If the data or the sizes cannot be used, if the base is not smaller than the target, or if no run completed.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> def build(**size):
    ...     return FNO(in_channels=1, out_channels=1, **size)
    >>> x, target = torch.randn(120, 1, 16), {"hidden_channels": 32, "n_modes": (8,)}
    >>> how = {"space": {"lr": [0.02, 0.04]}, "epochs": 2, "n_workers": 1, "progress": False}
    >>> tuned = nm.tune(build, (x, x.roll(1, -1)), target=target, folder="runs", **how)
    >>> tuned.predict(x[:2]).shape, tuned.report.name
    (torch.Size([2, 1, 16]), 'report.md')
    """
    arguments = {**locals()}
    if isinstance(compare, str):
        raise MupError(f"compare={compare!r} must be a sequence of rules, such as ({compare!r},).")
    devices = cuda_devices(device)
    run = partial(train_missing, n_workers=n_workers, executor=executor, progress=progress, devices=devices)
    return _train_and_report(tune, arguments, run, rules=(rule, *compare))


def _train_one(study: Study, records: Records, progress: bool) -> Results:
    """Train the only run of a study in this process, unless its record can be reused."""
    study.train.show_progress = progress
    (run,) = study.tuning[0]
    if records.get(run) is None:
        records.warn_of_other_releases([run])
        place = str(records.place(run, make=True).resolve())
        records.write(run, execute(__version__, run.train, run.config, place, run.keep))
    study.save(records)
    return Results(study, study.rows(records), records.folder)


def _train_and_report(
    function: Callable[..., Tuned],
    arguments: Mapping[str, Any],
    train: Callable[[Study, Records], Results],
    **changes: Any,
) -> Tuned:
    """Choose everything, train the missing runs, load the target, and write the report.

    Parameters
    ----------
    function : callable
        The function that the user called.
    arguments : mapping
        Arguments of this call.
    train : callable
        ``train(study, records)`` trains the missing runs.
    **changes
        Arguments of :func:`~neuralop_mup.lab.decisions.decide` that differ from those of the call.

    Raises
    ------
    MupError
        If an argument is invalid, if the folder cannot be written, or if no run of the target completed.
    """
    folder, progress = arguments["folder"], arguments["progress"]
    decided = decide(**{name: value for name, value in {**arguments, **changes}.items() if name not in _NOT_DECIDED})
    if progress:
        print(decided)
    for note in decided.study.notes:
        warnings.warn(note, stacklevel=3)
    check_room(Path(folder), decided.n_bytes)
    with Records(folder).held() as records:  # no other command may use the folder until the target has been loaded
        with suppress(MupError):  # there is no earlier study
            _, earlier = Study.load(folder)
            if {row.get("id") for row in earlier} - {row["id"] for row in decided.study.rows(records)}:
                warnings.warn(
                    f"{folder} contains the results of an earlier call with other data, code, settings or versions. This "
                    "call replaces the report and the model that nm.load_tuned loads. To keep both, pass another folder= "
                    "(in the shell: --folder). All runs are kept: the earlier call, repeated with the same code and "
                    "versions, trains nothing again.",
                    stacklevel=3,
                )
        tuned, found = _report(decided, train(decided.study, records), _call_text(function, arguments))
    if progress:
        print(f"\n{tuned}\n\n{found.comparison}")
    for finding in found.findings:
        warnings.warn(finding, stacklevel=3)
    return tuned


def _call_text(function: Callable[..., Tuned], arguments: Mapping[str, Any]) -> str:
    """Return Markdown text with the command or the call of a function. Names stand for values that are not literals."""
    build, parameters = arguments["build"], inspect.signature(function).parameters
    if getattr(build, "command", ""):
        return f"```bash\n{build.command}\n```"
    given = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in arguments.items()
        if name != "build" and value is not parameters[name].default
    }
    function_of_model = variable_of(function_name(build))
    texts = {name: repr(value) if _is_literal(value) else name for name, value in given.items()}
    objects = [name for name, text in texts.items() if name == text]
    if objects or function_of_model != getattr(build, "__name__", ""):
        objects = [function_of_model, *objects]
    call = f"nm.{function.__name__}({', '.join([function_of_model, *map('='.join, texts.items())])})"
    named = f"\n\nPass the same values as before for these arguments: {', '.join(objects)}." if objects else ""
    return f"```python\n{call}\n```{named}"


def _is_literal(value: Any) -> bool:
    """Return whether Python code can be written for a value. It cannot for arrays and functions, for example."""
    with suppress(ValueError, SyntaxError):
        return bool(ast.literal_eval(repr(value)) == value)
    return False


def _report(decided: Decided, results: Results, command: str) -> tuple[Tuned, Accuracy]:
    """Load the target, measure it, and write the report, even if no run of the target completed."""
    study, loaded, training = decided.study, repr(str(results.folder)), decided.study.train
    if not isinstance(training.build, FNOs):
        loaded += f", {variable_of(function_name(training.build))}"
    page = {"command": command, "title": decided.title, "settings": decided.settings}
    runs = results.cell(study.target, study.rules[0])
    if not any(map(is_complete, runs)):
        write_report(results, **page)
        raise Diverged(f"No run of the target completed with {params(runs[0]['params'])}: {runs[0]['error']}")
    tuned = load_target(results, training.build, training.processor_given)
    predict = "tuned.predict(x)" if tuned.processor is not None else "tuned.model(x)  # x as the loader returns it"
    page["use"] = f"import neuralop_mup as nm\n\ntuned = nm.load_tuned({loaded})\nprediction = {predict}"
    found = Accuracy()
    if training.x_shape is not None:
        model = tuned.model.to(available_device(study.fixed.get("device", "auto")))
        with writing(results.folder):
            found = accuracy(Predictor(model, tuned.processor), training.data, tuned.split, results.folder / "samples.png")
        model.to("cpu")
    write_report(results, **page, errors=found.page, findings=found.findings)
    return tuned, found
