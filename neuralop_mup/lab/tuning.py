"""The calls: ``train`` and ``tune`` for a model and data, ``sweep`` and ``transfer`` for a train function of the user."""

import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from neuralop_mup._version import __version__
from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import Diverged, MupError
from neuralop_mup.lab import wording as say
from neuralop_mup.lab.accuracy import Accuracy, accuracy
from neuralop_mup.lab.decisions import Decided, decide
from neuralop_mup.lab.engines import cuda_devices, make_engine
from neuralop_mup.lab.files import check_room, writing
from neuralop_mup.lab.outcome import execute, is_complete
from neuralop_mup.lab.records import Records
from neuralop_mup.lab.report import write_report
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.run import run
from neuralop_mup.lab.score import Predictor
from neuralop_mup.lab.settings import Settings
from neuralop_mup.lab.study import Study, checked
from neuralop_mup.lab.target import Tuned, load_target
from neuralop_mup.lab.training import FNOs, function_name, variable_of


def results_of(
    study: Study, folder: str | Path | Records, *, n_workers: int | None, engine: Any = None, executor: Any = None,
    progress: bool = True, devices: Sequence[str] = (),
) -> Results:  # fmt: skip
    """Train the missing runs of a study, as described in :func:`sweep`."""
    made = make_engine(engine, executor, study.train, len(study.seeds) * len(study.tuning), n_workers, devices)
    records = run(study, folder=folder, engine=made, progress=progress)
    return Results(study, study.rows(records), records.folder)


def transfer_study(
    *,
    proxy: Mapping[str, Any],
    target: Mapping[str, Any],
    space: Mapping[str, Any],
    rule: str = DEFAULT_RULE,
    rules: Sequence[str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    name: str = "transfer",
    **more: Any,
) -> Study:
    """The study of :func:`transfer`: a space tuned at the proxy and carried to the target. Nothing is trained.

    Parameters
    ----------
    proxy, target, space, rule, rules, fixed, seeds
        As for :func:`transfer`.
    name : str, default "transfer"
        Names the study.
    **more
        Further fields of the study.

    Returns
    -------
    Study
        With the sizes "proxy" and "target".

    Raises
    ------
    MupError
        For a space, seeds, sizes or rules that cannot work.

    Examples
    --------
    >>> from neuralop_mup.lab import transfer_study
    >>> sizes = {"proxy": {"hidden_channels": 8}, "target": {"hidden_channels": 32}}
    >>> study = transfer_study(**sizes, space={"lr": [0.25, 0.5, 1.0]})
    >>> study.rules, len(study.tuning)
    (('operator-norm', 'standard'), 3)
    """
    asked = checked(space, fixed, seeds, ("model", "base", "rule", "seed"))
    for what, size in (("proxy", proxy), ("target", target)):
        if not isinstance(size, Mapping):
            raise MupError(f"{what}={size!r} must be a dict of sizes, such as {{'n_modes': (12, 12)}}.")
    if not isinstance(rule, str) or isinstance(rules, str) or not all(isinstance(r, str) for r in rules or ()):
        raise MupError(f"rule={rule!r} must be a name and rules={rules!r} a sequence of names.")
    compared = tuple(dict.fromkeys([rule, *(rules or ()), "standard"]))
    return Study(name=name, sizes={"proxy": dict(proxy), "target": dict(target)}, rules=compared, **asked, **more)


def sweep(
    train: Callable[[dict], float | Mapping[str, Any]],
    space: Mapping[str, Any],
    *,
    folder: str | Path,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    n_workers: int | None = None,
    engine: Any = None,
    executor: Any = None,
    progress: bool = True,
) -> Results:
    """Train over a space of hyperparameters, keeping every run in a folder.

    The same call on the same folder resumes: finished runs are not trained again. Interrupted runs are, and so are runs that
    failed by an exception, a full disk or too little memory. A loss that is not finite, or a MupError, is a result. A folder
    may contain any number of studies, and you may add values and seeds to one.

    A run is reused only if nothing that its key contains has changed: its configuration, the releases (major and minor) of
    this package and of torch, and ``train``, by its code with the globals, functions and classes that it uses
    (:func:`~neuralop_mup.lab.fingerprint.fingerprint`). **The key does not contain** files and environment variables that
    ``train`` reads, what it downloads, and modules that it imports by a name made at run time. If these change, use another
    folder, or put what identifies them into ``fixed``, such as ``{"data": hashlib.sha256(path.read_bytes()).hexdigest()}``.

    Parameters
    ----------
    train : callable
        ``train(config) -> float`` or a dict with ``"loss"``; lower is better. It is called with
        ``{**fixed, **point, "seed": seed}``, a copy of it for each run. To run in several processes it must stand at module
        level of a file.
    space : mapping of str to sequence
        Every combination is a point, judged by its mean over the seeds; all points with the first seed come first.
    folder : str or Path
        Created if it does not exist; has a folder for each run. ``results.jsonl`` is a table of the last study.
    fixed : mapping, optional
        Config entries that are the same in every run.
    seeds : iterable of int, default (0,)
        Distinct. The others start once the first of a point completed; a point whose seed did not complete stops.
    n_workers : int, optional
        Runs at once; default one per core, at most one per run, and 1 for a function that other processes cannot import
        (a lambda, or one of a notebook). With 1 the runs are executed in this process, whose thread
        settings stay as they are; otherwise each has a process of its own with ``cores // n_workers`` threads.
    engine : object, optional
        Where runs are executed; see :mod:`neuralop_mup.lab.engines`.
    executor : concurrent.futures.Executor, callable or str, optional
        Instead of an engine: any executor of processes, a function that makes one (so that it can be replaced when it
        breaks), or the name of one (``"package.module.name"``). Pass ``n_workers``, the number of workers that it has.
    progress : bool, default True
        Show progress on stderr.

    Returns
    -------
    Results
        With ``.best``, ``.best_loss``, ``.points()``, ``.summary()`` and ``.records``.

    Raises
    ------
    MupError
        If the folder is in use, cannot be written or holds a study of an earlier version; if the space, seeds or workers
        cannot work. A run that raises or whose loss is not finite is a record, not an error.

    Notes
    -----
    What train returns is kept as JSON: numbers that are not finite become null, objects their text. Tracebacks are in the
    records, too, and versions, host and date. A train function that holds what cannot be looked into, such as an open
    file, is trained anew by each call, and a warning says so.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> def train(config):
    ...     return 1 + (config["lr"] - 0.5) ** 2
    >>> results = nm.sweep(train, {"lr": [0.25, 0.5, 1.0]}, folder="runs", n_workers=1, progress=False)
    >>> results.best, results.best_loss
    ({'lr': 0.5}, 1.0)
    """
    study = Study(name=Path(folder).resolve().name, train=train, **checked(space, fixed, seeds, ("seed",)))
    return results_of(study, folder=folder, n_workers=n_workers, engine=engine, executor=executor, progress=progress)


def transfer(
    train: Callable[[dict], float | Mapping[str, Any]],
    *,
    proxy: Mapping[str, Any],
    target: Mapping[str, Any],
    space: Mapping[str, Any],
    folder: str | Path,
    rule: str = DEFAULT_RULE,
    rules: Sequence[str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    n_workers: int | None = None,
    engine: Any = None,
    executor: Any = None,
    progress: bool = True,
) -> Results:
    """Tune at a small proxy, train the large target with what was found, beside the naive way (Algorithm 1).

    The target is trained at the proxy's best point under ``rule``, under the other ``rules`` and as neuralop builds it
    ("standard").

    Parameters
    ----------
    train : callable
        ``train(config) -> float`` or a dict with ``"loss"``; lower is better. The config is
        ``{**fixed, "model": size, "base": proxy, "rule": rule, **point, "seed": seed}``.
    proxy, target : mapping
        Model keyword arguments of the two sizes.
    space : mapping of str to sequence
        As for :func:`sweep`.
    folder : str or Path
        Keeps the runs, as for :func:`sweep`. A grid, seeds and rules may grow.
    rule : str, default "operator-norm"
        The rule that carries the hyperparameters.
    rules : sequence of str, optional
        Further rules to compare; "standard" is always one of them, as the naive way.
    fixed, seeds, n_workers, engine, executor, progress
        As for :func:`sweep`.

    Returns
    -------
    Results
        With ``.best``, ``.summary()`` and ``.records``.

    Raises
    ------
    MupError
        As for :func:`sweep`; also if no point of the proxy completed with every seed.

    References
    ----------
    Li, Yoo, Yang, ICML 2025, https://arxiv.org/abs/2506.19396, Algorithm 1.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> def train(config):
    ...     return 1 + (config["lr"] - 0.5) ** 2
    >>> sizes = {"proxy": {"hidden_channels": 8}, "target": {"hidden_channels": 32}}
    >>> how = {"folder": "runs", "n_workers": 1, "progress": False}
    >>> results = nm.transfer(train, **sizes, space={"lr": [0.25, 0.5, 1.0]}, **how)
    >>> results.best, [row["transferred_loss"] for row in results.summary() if row["size"] == "target"]
    ({'lr': 0.5}, [1.0, 1.0])
    """
    study = transfer_study(
        proxy=proxy,
        target=target,
        space=space,
        rule=rule,
        rules=rules,
        fixed=fixed,
        seeds=seeds,
        train=train,
        name=Path(folder).resolve().name,
    )
    if progress:
        print(
            f"Tuned at the proxy, {say.size_text(proxy)}: {say.cell(study.space)}. Carried to the target, "
            f"{say.size_text(target)}, under {' and '.join(study.rules)}."
            + (f" In every run: {say.cell(study.fixed)}." if study.fixed else "")
        )
    return results_of(study, folder=folder, n_workers=n_workers, engine=engine, executor=executor, progress=progress)


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
    epochs: int | str = 50,
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
    """Train a model on data under MuSOAP, at the learning rate that follows from the number of steps: nothing is searched.

    It is what :func:`neuralop_mup.tune` does with its target, in one run in this process, and the same call resumes there.

    Parameters
    ----------
    build : callable
        ``build(**target)`` returns a fresh model as neuralop (or you) would initialise it.
    data, folder, read, loss, score, processor, progress
        As for :func:`neuralop_mup.tune`. A score stands in the report; nothing is chosen by it.
    target : mapping
        Arguments of ``build`` for the model that is wanted.
    base : mapping, optional
        Arguments of ``build`` that are other ones at the size at which the learning rate is meant, which is not trained,
        such as ``{"hidden_channels": 32}``; by default the reference size of :func:`neuralop_mup.parametrize`.
    rule, optimizer, weight_decay, beta2, schedule, clip_spectral, aux_lr, soap, init_mult
        As for :func:`neuralop_mup.tune`.
    lr : float, optional
        Learning rate at the base. By default that of the formula for the number of steps; under an optimizer that has none,
        its own default.
    epochs : int or str, default 50
        A number, or a time, such as ``"3h"``, ``"90m"`` or ``"1h30m"``: as many epochs as fit in it, by the time of a few
        steps that are taken first. What they were is kept in the folder.
    batch_size : int, default 20
        Holds for data that does not come as loaders.
    seed : int, default 0
        Of the weights and of the order of the samples.
    device : str, default "auto"
        torch's name of it; ``"auto"``: a GPU, or the CPU.

    Returns
    -------
    Tuned
        With ``.predict``, ``.model``, ``.processor``, ``.split``, ``.results`` and ``.report``: the page, with the errors by
        sample, by channel and by time, and a figure of samples of the test data. :func:`neuralop_mup.load_tuned` reads it
        from the folder.

    Raises
    ------
    MupError
        If the data or the size cannot work, if the folder cannot be written or is too small, or if the run did not complete.

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
    decided = decide(
        build,
        data,
        folder,
        read=read,
        loss=loss,
        score=score,
        processor=processor,
        alone=True,
        target=target,
        base=base,
        space=None if lr is None else {"lr": [lr]},
        rules=(rule,),
        optimizer=optimizer,
        seeds=(seed,),
        epochs=epochs,
        batch_size=batch_size,
        device=device,
        init_mult=init_mult,
        weight_decay=weight_decay,
        beta2=beta2,
        schedule=schedule,
        clip_spectral=clip_spectral,
        aux_lr=aux_lr,
        soap=soap,
    )
    decided.study.train.show_progress = progress
    return finished(decided, "train", folder, progress, partial(train_here, decided.study, progress))


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
    engine: Any = None,
    executor: Any = None,
) -> Tuned:
    """Check the learning rate of a model on data at a cheap proxy, and train the large size with it.

    The proxy is narrower than the target; what was chosen is printed, with its reason.

    Parameters
    ----------
    build : callable
        ``build(**size)`` returns a fresh model as neuralop (or you) would initialise it. At module level, so that worker
        processes can import it.
    data : path, list, tuple, dict or callable
        A file, a folder, a pattern such as ``"runs/*.h5"``, or a list of them, joined (see
        :class:`~neuralop_mup.lab.problems.OwnData`); arrays ``(x, y)`` or by their keys, or an xarray Dataset or DataArray,
        which are read, split and cast to float32 as a file is; ``(train, val)`` or ``(train, val, test)``, or a dict with
        these names, of
        files, loaders, data sets or ``(x, y)`` arrays of shape ``(n, channels, *grid)``, or ``(n, points)``; a problem of
        :mod:`neuralop_mup.lab.problems`; or a function that returns one of these, called in each process. Arrays are tensors
        or numpy's, those of splits with channels cast to the model's precision. Without "val" a part of the training data is
        taken, and what is called test never chooses.
        Batches are dicts with "x" and "y", or pairs; neuralop's data sets bring their processor.
    target : mapping
        Arguments of ``build`` for the large size, the one that is wanted.
    folder : str or Path
        Keeps every run by its content, the target's weights and normalisation, and the report; the same call resumes there,
        and :func:`load_tuned` reads the target. Another call in the same folder shares the runs that are the same.
    base : mapping, optional
        Arguments of ``build`` that are other ones at the proxy; without them a quarter of the target's width (16 at least)
        and, where ``target`` says ``n_modes``, as many of them as hold 99.9 % of the targets' energy.
    read : mapping, optional
        How files or arrays are read: ``x`` and ``y`` (keys), ``dims``, ``time_step``, ``history``,
        ``rollout``, ``split``, ``shuffle``, ``n_train``, ``every``, ``crop``, ``uneven``, ``join``,
        ``nan``, ``in_memory``, as in
        :class:`~neuralop_mup.lab.problems.OwnData`. What was read and how is told and stands in the report.
    loss : str, callable or dict, optional
        ``"l2"`` (the default) or ``"h1"``: relative errors. ``"floored-l2"`` or ``"mse"``: a relative error with a floor, or
        squared errors, of fields that this package normalizes; runs are still compared by the relative L2 error.
        ``loss(y_pred, y, **batch)``, summed over the batch (a mean raises an error), as neuralop's Trainer takes it. Or a
        dict of names to such functions or to (weight, function). The first one chooses, unless there is a score.
    score : str or callable, optional
        The error that chooses instead of the validation error; lower is better. ``"l2"``, ``"h1"``, ``"vrmse"`` (The Well's)
        or ``"nrmse"`` (PDEBench's): means over the validation samples. ``"rollout:50"``: the relative error of fifty steps,
        each from the prediction before, on trajectories (``read={"time_step": 1}``), the geometric mean over the steps.
        ``score(model, data)``: a number of at least 0. ``model(x)`` predicts in the units of the data, ``data`` gives
        batches, and ``data.states(i)`` is state ``i`` of each trajectory. A model with infinity or NaN loses.
    space : mapping, optional
        What is searched: ``lr``, and for example ``lr_mult.spectral``. Without it these are five learning rates in factors
        of 2 around what the law gives for the proxy's steps (:class:`neuralop_mup.MuSOAP`), or 1e-3 to 6.4e-2 under an
        optimizer that has no law, and between them a parabola.
    rule : str, default "operator-norm"
        The μP rule; see :func:`neuralop_mup.parametrize`.
    compare : sequence of str, default ()
        Rules under which the target is trained besides; ``()`` for none.
    optimizer : str, class or callable, default "soap"
        "soap", "adam", "adamw", "neuralop-adamw" or "sgd"; the names of the classes, such as "MuSOAP", and the
        classes themselves mean the same. Or your own: a function ``(model, lr, steps)`` that makes it for a model in μP, a
        class with such a ``from_plan``, or where it is found, ``"package.module.function"``.
    epochs, batch_size : int, default 50, 20
        Of the target. ``batch_size`` holds for data that does not come as loaders.
    seeds : iterable of int, default (0,)
        With each the proxy and the target are trained.
    processor : neuralop DataProcessor, optional
        Normalises batches, as a copy; by default fitted to the training data where that is arrays or a file, and none for
        loaders.
        With it ``Tuned.predict`` works in the units of the data; without it that is refused.
    device : str, default "auto"
        torch's name of it; ``"auto"``: each run a GPU of its own, or the CPU.
    n_workers : int, optional
        Runs at once, each in a process of its own; default one per GPU, or one per core.
    progress : bool, default True
        Show progress on stderr, and print what was chosen.
    weight_decay, beta2, aux_lr : float, optional
        Of the optimizer, by default its own.
    schedule : str, optional
        "cosine" (the default), "constant", "halve:50" (every 50 epochs) or "halve:100,150" (after these epochs).
    clip_spectral : float, optional
        Bound of each entry of the spectral kernels' gradients.
    soap : mapping, optional
        Further arguments of ``soap``.
    init_mult : mapping, optional
        How large parameters start in μP, by role, as multiples of neuralop's own; by default ``{"kernel": 0.1}`` with
        ``soap``, and nothing with the others.
    engine, executor : optional
        As in :func:`neuralop_mup.sweep`.

    Returns
    -------
    Tuned
        With ``.lr``, ``.params``, ``.predict``, ``.model``, ``.processor``, ``.split``, ``.results`` and ``.report``.

    Raises
    ------
    MupError
        If the data or the sizes cannot work, if the base is not smaller than the target, or if no run completed.

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
    if isinstance(compare, str):
        raise MupError(f"compare={compare!r} must be a sequence of rules, such as ({compare!r},).")
    decided = decide(
        build,
        data,
        folder,
        read=read,
        loss=loss,
        score=score,
        processor=processor,
        target=target,
        base=base,
        space=space,
        rules=(rule, *compare),
        optimizer=optimizer,
        seeds=seeds,
        epochs=epochs,
        batch_size=batch_size,
        device=device,
        init_mult=init_mult,
        weight_decay=weight_decay,
        beta2=beta2,
        schedule=schedule,
        clip_spectral=clip_spectral,
        aux_lr=aux_lr,
        soap=soap,
    )
    how = {"engine": engine, "executor": executor, "n_workers": n_workers, "progress": progress}
    missing = partial(results_of, decided.study, devices=cuda_devices(device), **how)
    return finished(decided, "tune", folder, progress, missing)


def train_here(study: Study, progress: bool, records: Records) -> Results:
    """Train the only run of a study in this process, unless it is kept."""
    (run,) = study.tuning[0]

    def show(*notes: str) -> None:
        for note in filter(None, notes if progress else ()):
            print(note, file=sys.stderr)

    if records.get(run) is None:
        show(*records.notes, records.of_other_releases([run]))
        how = {"place": str(records.place(run, make=True).resolve()), "keep": run.keep}
        outcome = execute(__version__, run.train, run.config, **how)
        records.write(run, outcome)
        show(*outcome["metrics"].get("notes", ()))
    study.save(records)
    return Results(study, study.rows(records), records.folder)


def finished(
    decided: Decided, name: str, folder: str | Path, progress: bool, train_missing: Callable[[Records], Results]
) -> Tuned:
    """Train the missing runs, and write the target and the page.

    Parameters
    ----------
    decided : Decided
    name : str
        Of the function that was called.
    folder, progress
        As for :func:`tune`.
    train_missing : callable
        ``train_missing(records)`` trains the runs that the folder does not have.

    Raises
    ------
    MupError
        If the folder cannot be written, or no run of the target completed.
    """
    if progress:
        print(decided)
    for note in decided.study.notes:
        warnings.warn(note, stacklevel=3)
    folder = Path(folder)
    check_room(folder, decided.n_bytes)
    with Records(folder).held() as records:  # until the target is read: another command may not train in between
        tuned, found = _written(decided, name, train_missing(records))
    if progress:
        print(found.comparison)
    for finding in found.findings:
        warnings.warn(finding, stacklevel=3)
    return tuned


def _written(decided: Decided, name: str, results: Results) -> tuple[Tuned, Accuracy]:
    """Read the target, measure it, and write the page."""
    study, folder = results.study, results.folder
    training = study.train
    called, is_of_command = function_name(training.build), isinstance(training.build, FNOs)
    page = {
        "command": f"neuralop-mup {name} … --folder {shlex.quote(str(folder))}"
        if is_of_command
        else f"neuralop_mup.{name}({variable_of(called)}, …, folder={str(folder)!r})",
        "title": decided.title,
        "settings": decided.settings,
    }
    runs = results.cell(study.target, study.rules[0])
    if not any(map(is_complete, runs)):
        write_report(results, **page)
        raise Diverged(f"No run of the target completed with {say.params(runs[0]['params'])}: {runs[0]['error']}")
    tuned = load_target(results, training.build, training.processor_given)
    given = "" if is_of_command else f", {variable_of(called)}"
    page["use"] = (
        f"import neuralop_mup as nm\n\ntuned = nm.load_tuned({str(folder)!r}{given})\nprediction = tuned.predict(x)"
    )
    found = Accuracy()
    if training.x_shape is not None:
        there = tuned.model.to(Settings.of({"device": study.fixed["device"]}).device)
        with writing(folder):
            found = accuracy(Predictor(there, tuned.processor), training.data, tuned.split, folder / "samples.png")
        tuned.model.to("cpu")
    write_report(results, **page, errors=found.page, findings=found.findings)
    return tuned, found
