"""``tune``: a model and data in; the learning rate, the trained target and a report out. ``Tuned`` is that target, ready to
predict, and ``load_tuned`` reads it from the study's folder. :func:`trained` does all that follows a plan.
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from neuralop.models import FNO
from torch import nn

from neuralop_mup._version import __version__
from neuralop_mup.core import plan as core
from neuralop_mup.core.parametrize import set_plan
from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import Diverged, MupError
from neuralop_mup.integrations.plan_files import fit_plan
from neuralop_mup.lab import wording as say
from neuralop_mup.lab.accuracy import accuracy
from neuralop_mup.lab.checkpoint import read_weights
from neuralop_mup.lab.engines import cuda_devices
from neuralop_mup.lab.files import check_room, put, writing
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.outcome import is_complete, plain
from neuralop_mup.lab.plan import Plan, asked, make_plan
from neuralop_mup.lab.records import WEIGHTS, Records
from neuralop_mup.lab.report import verdict, write_report
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.score import Predictor
from neuralop_mup.lab.settings import Settings, init_multipliers
from neuralop_mup.lab.sweeps import results_of
from neuralop_mup.lab.training import FNOs, Training, name_of, quiet
from neuralop_mup.validation import check_count

_FILE = "target.json"
_FORMAT = 5


@dataclass(frozen=True, repr=False)
class Tuned:
    """The trained target of a study: what :func:`tune` and :func:`load_tuned` return.

    Attributes
    ----------
    lr : float
        The base's best learning rate.
    params : dict
        All that was searched, at its best: ``lr`` and, for example, ``lr_mult.spectral``.
    model : torch.nn.Module
        The target, parametrized and trained with them: of all seeds the one with the lowest ``loss``, in eval mode.
        It takes and gives what training did, which are normalised fields wherever there is a processor.
    loss : float
        Its validation loss, or what was chosen by instead, its score.
    results : Results
        Every run; ``.summary()`` and ``.best`` are computed from them.
    report : Path
        ``report.md``.
    processor : neuralop DataProcessor or None
        Between fields in your units and what the model takes, in eval mode. None where the data came as loaders or data
        sets and no processor was given: then the model takes batches as those give them.
    split : dict of str to numpy.ndarray
        "train", "val" and "test" → which samples (of trajectories: which of these) the target was trained, chosen and tested
        on: their numbers in the data that was given, or in the part of it that was given for that split. Empty for loaders.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> def build(**size):
    ...     return FNO(in_channels=1, out_channels=1, **size)
    >>> x, target = torch.randn(120, 1, 16), {"hidden_channels": 32, "n_modes": (8,)}
    >>> how = {"space": {"lr": [0.03]}, "epochs": 2, "n_workers": 1, "progress": False}
    >>> tuned = nm.tune(build, (x, x.roll(1, -1)), target=target, folder="runs", **how)
    >>> list(tuned.params), {name: len(samples) for name, samples in tuned.split.items()}
    (['lr'], {'train': 96, 'val': 12, 'test': 12})
    """

    lr: float
    params: dict[str, Any]
    model: nn.Module
    loss: float
    results: Results
    report: Path
    processor: Any
    split: dict[str, np.ndarray]
    _made: dict[str, Any] = field(compare=False)

    def predict(self, x: Any, batch_size: int = 64) -> Any:
        """The target's prediction, from fields in your units to fields in your units; no gradients.

        Parameters
        ----------
        x : torch.Tensor or numpy.ndarray, shape ``(n, channels, *grid)``
            Channels after the samples, whatever they were in a file. Not normalised; any real or complex type and device.
        batch_size : int, default 64
            Samples that go through the model at once.

        Returns
        -------
        torch.Tensor or numpy.ndarray, shape ``(n, channels, *grid)``
            As ``x`` was given, on its device, in the model's precision. The model is left in the mode it was in.

        Raises
        ------
        MupError
            If there is no processor, so that the model's units are not known here, or if ``x`` has other channels or axes.

        Examples
        --------
        >>> tuned.predict(x[:2]).shape, type(tuned.predict(x[:2].numpy())).__name__
        (torch.Size([2, 1, 16]), 'ndarray')
        """
        if self.processor is None:  # one of the user's own, whose numbers no file holds, or of loaders
            own = self._made["processor"]
            raise MupError(
                f"The target was trained with a processor of your own ({own}), which the folder cannot hold: give it, "
                "nm.load_tuned(folder, build, processor=…)."
                if own
                else "The target was trained on batches as your loaders or data sets gave them, so what units they have is "
                "not known here. Call tuned.model on fields prepared as in these batches, or tune with processor=…, or with "
                "arrays (x, y), which are normalised here."
            )
        check_count("batch_size", batch_size, "samples")
        fields = x if isinstance(x, torch.Tensor) else torch.as_tensor(np.asarray(x))
        shape = self._made["x_shape"]  # None on no grid: the processor is one of the user's, which knows
        fits = shape is None or (fields.ndim == len(shape) + 1 and fields.shape[1] == shape[0] and len(fields))
        if not fits:
            raise MupError(
                f"x has the shape {tuple(fields.shape)}, but the target takes (n, {', '.join(map(str, shape))}), of which "
                "the grid may differ and n is 1 or more: x[None] is one sample, x[:, None] has the axis of one channel, and "
                "x.movedim(-1, 1) (np.moveaxis for an array) channels that were last."
            )
        dtype = next(self.model.parameters()).dtype.to_real()
        dtype = dtype.to_complex() if fields.is_complex() else dtype
        modes = [(module, module.training) for module in self.model.modules()]
        predict = Predictor(self.model, self.processor)
        with quiet():
            out = torch.cat([predict(batch.to(dtype)) for batch in fields.split(batch_size)])
        for module, training in modes:
            module.training = training
        if not torch.isfinite(out).all() and torch.isfinite(fields).all():
            raise MupError(
                f"The prediction is not finite although x is: the processor, a {type(self.processor).__name__}, uses y, "
                "which a prediction has not, or the model leaves the finite numbers there. Call the two yourself."
            )
        return out if isinstance(x, torch.Tensor) else out.numpy()

    def __repr__(self) -> str:
        made, size, price = self._made, _arguments(self._made["size"]), self.results.price()
        base = "" if made["base"] is None else f"base={made['base']}, "
        said = verdict(self.results)
        short, long = made["training"].get("steps", (1, 1))  # every rate goes as the root of their ratio
        if short != long:
            said.append(f"For the {long} steps of the target that is lr {self.lr * math.sqrt(short / long):.3g}.")
        if price is not None:
            said.append(f"Tuning took {price:.2f} of one training of the target.")
        return "\n".join(
            (
                *said,
                f"This model, {made['n_params']:,} parameters and seed {made['seed']}, has {self.loss:.4g} as its "
                f"{made['score'] or 'validation loss'} and is kept in {self.results.folder}:",
                f"nm.parametrize({made['build']}({size}), {base}rule={made['rule']!r}, init_mult={made['init_mult']})",
            )
        )


def write_target(results: Results, training: Training, x_shape: Sequence[int] | None) -> dict[str, Any] | None:
    """Write down which run is the target and how its model is built; also returned. None where no run is complete."""
    study = results.study
    done = [r for r in results.carried(study.target, study.rules[0]) if is_complete(r)]
    if not done:
        return None
    record = min(done, key=lambda r: r["loss"])
    point = study.point(study.target, study.rules[0], study.as_given(record["params"]), keep=True)
    run = study.runs(point)[study.seeds.index(record["seed"])]
    build, config = training.build, run.config
    settings = Settings.of({k: v for k, v in config.items() if k != "device"}, training.optimizers)
    is_fno = isinstance(build, FNOs)
    channels = {"in_channels": build.in_channels, "out_channels": build.out_channels} if is_fno else {}
    made = {
        "format": _FORMAT,
        "version": __version__,
        "build": name_of(build),
        "is_fno": is_fno,
        "build_is": training.fingerprints["build"],
        "size": {**channels, **config["model"]},
        "base": config["base"] and dict(config["base"]),
        "rule": study.rules[0],
        "init_mult": init_multipliers(settings.init_mult, settings.kernel_init),
        "training": {name: tuple(pair) for name, pair in settings.training.items()},
        "params": record["params"],
        "seed": record["seed"],
        "loss": record["loss"],
        "n_params": record["metrics"]["n_params"],
        "score": training.score and training.score.name,
        "weights": f"workspace/{run.id}/{WEIGHTS}",
        "processor": None if training.processor is None else type(training.processor).__qualname__,
        "x_shape": None if x_shape is None else list(x_shape),
        "split": training.split(),
    }
    put(results.folder, results.folder / _FILE, json.dumps(plain(made), indent=2) + "\n")
    return made


def load_tuned(folder: str | Path, build: Callable[..., nn.Module] | None = None, *, processor: Any = None) -> Tuned:
    """The trained target of a finished study, read from its folder: what :func:`tune` returned there last.

    Parameters
    ----------
    folder : str or Path
        Of :func:`tune`, or of ``neuralop-mup tune`` (``--folder``).
    build : callable, optional
        The function that :func:`tune` was given. Without it neuralop's FNO is built, which the command trains.
    processor : neuralop DataProcessor, optional
        Needed where :func:`tune` was given one of a class of your own; numbers of neuralop's are in the folder.

    Returns
    -------
    Tuned
        What :func:`tune` returned, read from files.

    Raises
    ------
    MupError
        If the folder holds no study or one that is not finished, if its files are of another version or damaged, or if
        ``build`` is missing, fails or gives another model.

    Warns
    -----
    UserWarning
        If ``build`` is not as it was: its code, or what it uses, is another one.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> def build(**size):
    ...     return FNO(in_channels=1, out_channels=1, **size)
    >>> x, target = torch.randn(120, 1, 16), {"hidden_channels": 32, "n_modes": (8,)}
    >>> how = {"space": {"lr": [0.03]}, "epochs": 2, "n_workers": 1, "progress": False}
    >>> tuned = nm.tune(build, (x, x.roll(1, -1)), target=target, folder="runs", **how)
    >>> again = nm.load_tuned("runs", build)
    >>> torch.equal(again.predict(x), tuned.predict(x))
    True
    """
    folder = Path(folder)
    Records(folder)  # one of an earlier version is told
    again = "Run the same call or command again, which resumes there."
    if not (folder / _FILE).is_file():
        raise MupError(
            f"{folder} holds no trained target: its study is not finished, its target failed, or it is another "
            f"folder. {again}"
        )
    try:
        made = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        version = made["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise MupError(f"{folder / _FILE} is damaged ({type(error).__name__}: {error}). {again}") from error
    if version != _FORMAT:
        raise MupError(
            f"The target in {folder} was written by neuralop_mup {made.get('version')} in the format {version}, and this is "
            f"{__version__} with the format {_FORMAT}: load it with the version that wrote it, or tune in another folder."
        )
    results = Results.load(folder)
    kept = {name: made[name] for name in ("seed", "loss", "params")}
    if not any(kept.items() <= record.items() for record in results.carried(results.study.target, results.study.rules[0])):
        raise MupError(
            f"The study that ran last in {folder} is not the one whose target is kept there: it has gone on since, is not "
            f"finished, or its target failed. {again}"
        )
    with suppress(MupError):  # of what cannot be looked into nothing is known
        if not made["is_fno"] and build is not None and fingerprint(build) != made["build_is"]:
            warnings.warn(
                f"The function {name_of(build)} is not as it was when {folder} was tuned: its code, what it uses or the "
                "version of a package is another one. Its target may predict otherwise; give the function as it was.",
                stacklevel=2,
            )
    return load_target(results, made, build, processor)


def load_target(
    results: Results, made: Mapping[str, Any] | None, build: Callable[..., nn.Module] | None, processor: Any
) -> Tuned:
    """The target that was written down, read; see :func:`load_tuned`.

    Raises
    ------
    MupError
        Also where there is none, since no run of it completed.
    """
    folder, study = results.folder, results.study
    if made is None:
        failed = [r for r in results.cell(study.target, study.rules[0]) if not is_complete(r)]
        raise Diverged(f"No run of the target completed with {say.params(failed[0]['params'])}: {failed[0]['error']}")
    if build is None and not made["is_fno"]:
        raise MupError(
            f"The study in {folder} was made with a function of your own, {made['build']}: give it, "
            f"nm.load_tuned({str(folder)!r}, {made['build'].rpartition('.')[2]})."
        )
    path = folder / made["weights"]
    content = read_weights(path)
    made = {**made, **{name: tuples(made[name]) for name in ("size", "base", "training")}}
    model = _rebuilt(FNO if made["is_fno"] else build, made, content, path)
    used = content["processor"] or copy.deepcopy(processor)
    if used is not None:
        used.to(next(model.parameters()).device)
        used.eval()
    params, split = dict(made["params"]), {name: np.asarray(numbers) for name, numbers in made["split"].items()}
    return Tuned(params["lr"], params, model, made["loss"], results, folder / "report.md", used, split, dict(made))


def _rebuilt(
    builder: Callable[..., nn.Module], made: Mapping[str, Any], content: Mapping[str, Any], path: Path, real: bool = False
) -> nn.Module:
    """The model with its weights; built without memory where it is whole so."""
    try:
        with torch.random.fork_rng(devices=[]), nullcontext() if real else torch.device("meta"):
            model = builder(**made["size"]).eval()
        tied = len(list(model.parameters()))
        set_plan(model, fit_plan(model, core.Plan.from_json(content["plan"]), repr(str(path))))
        model.load_state_dict(content["weights"], assign=not real)
        values = [*model.parameters(), *model.buffers(), *(own for part in model.modules() for own in vars(part).values())]
        empty = any(getattr(value, "is_meta", False) for value in values)
        if real or (not empty and tied == len(list(model.parameters()))):
            return model
    except Exception as error:  # the function is the user's
        if real:
            text = " ".join(str(error).split())[:300]
            raise MupError(
                f"{name_of(builder)}({_arguments(made['size'])}) does not give the model in {path.parents[2]}: "
                f"{type(error).__name__}: {text}. Give the function that was tuned, as it was."
            ) from error
    return _rebuilt(builder, made, content, path, real=True)


def _arguments(size: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in size.items())


def tuples(value: Any) -> Any:
    """JSON has lists where arguments were tuples."""
    if isinstance(value, Mapping):
        return {name: tuples(inner) for name, inner in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def trained(plan: Plan, name: str, folder: str | Path, processor: Any, progress: bool, **place: Any) -> Tuned:
    """Train what is missing of a plan, and write the target and the page.

    Parameters
    ----------
    plan : Plan
    name : str
        Of the function that was called.
    folder, processor, progress
        As for :func:`tune`.
    **place
        Where runs are executed.

    Raises
    ------
    MupError
        If the folder cannot be written, or no run of the target completed.
    """
    if progress:
        print(plan)
    for note in plan.study.notes:
        warnings.warn(note, stacklevel=3)
    training, folder = plan.study.train, Path(folder)
    check_room(folder, plan.n_bytes)
    results = results_of(plan.study, folder=folder, progress=progress, **place)
    made = write_target(results, training, plan.x_shape)
    called = name_of(training.build)
    page = {
        "command": f"neuralop_mup.{name}({called}, …, folder={str(folder)!r})",
        "title": plan.title,
        "settings": plan.settings,
    }
    if made is None:
        write_report(results, **page)
    tuned = load_target(results, made, training.build, processor)
    given = "" if isinstance(training.build, FNOs) else f", {called.rpartition('.')[2]}"
    page["use"] = (
        f"import neuralop_mup as nm\n\ntuned = nm.load_tuned({str(folder)!r}{given})\nprediction = tuned.predict(x)"
    )
    if plan.x_shape is not None:
        there = tuned.model.to(Settings.of({"device": plan.study.fixed["device"]}).device)
        with writing(folder):
            page["errors"] = accuracy(Predictor(there, tuned.processor), training.data, tuned.split, folder / "samples.png")
        tuned.model.to("cpu")
    write_report(results, **page)
    return tuned


def tune(
    build: Callable[..., nn.Module],
    data: Any,
    *,
    target: Mapping[str, Any],
    folder: str | Path,
    base: Mapping[str, Any] | None = None,
    read: Mapping[str, Any] | None = None,
    loss: Any = "l2",
    score: Any = None,
    space: Mapping[str, Any] | None = None,
    rule: str = DEFAULT_RULE,
    compare: Sequence[str] = (),
    optimizer: Any = "soap",
    epochs: int = 50,
    batch_size: int = 20,
    seeds: Iterable[int] = (0,),
    proxy_steps: int | None = None,
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
    kernel_init: str | None = None,
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
        :class:`~neuralop_mup.lab.problems.OwnData`); arrays ``(x, y)`` or by their keys, or what xarray has, which are read,
        split and cast to float32 as a file is; ``(train, val)`` or ``(train, val, test)``, or a dict with these names, of
        files, loaders, data sets or ``(x, y)`` arrays of shape ``(n, channels, *grid)``; a problem of
        :mod:`neuralop_mup.lab.problems`; or a function that returns one of these, called in each process. Arrays are tensors
        or numpy's, those of splits cast to the model's precision. Without "val" a part of the training data is taken, and
        what is called test never chooses.
        Batches are dicts with "x" and "y", or pairs, or those of The Well's data sets; neuralop's data sets bring their
        processor.
    target : mapping
        Arguments of ``build`` for the large size, the one that is wanted.
    folder : str or Path
        Keeps every run by its content, the target's weights and normalisation, and the report; the same call resumes there,
        and :func:`load_tuned` reads the target. Another call in the same folder shares the runs that are the same.
    base : mapping, optional
        Arguments of ``build`` for the proxy; without them the target's with a quarter of its width (16 at least) and, where
        ``target`` says ``n_modes``, as many of them as hold 99.9 % of the targets' energy.
    read : mapping, optional
        How files or arrays are read: ``x`` and ``y`` (keys), ``dims``, ``time_step``, ``history``,
        ``rollout``, ``pushforward``, ``split``, ``shuffle``, ``crop``, ``in_memory``, as in
        :class:`~neuralop_mup.lab.problems.OwnData`. What was read and how is told and stands in the report.
    loss : str, callable or dict, default "l2"
        ``"l2"`` or ``"h1"`` (relative errors); ``loss(y_pred, y, **batch)``, summed over the batch, as
        neuralop's Trainer takes it; or a dict of names to such functions or to (weight, function). The first one chooses,
        unless there is a score. A mean over the batch is refused.
    score : str or callable, optional
        What chooses instead of the validation error, the lower the better, 0 at least. ``"rollout:50"``: the relative
        error of fifty steps, each from the prediction before, on trajectories (``read={"time_step": 1}``), the geometric
        mean over the steps. ``score(model, data)``: ``model(x)`` predicts in the units of the data, and ``data`` is iterated
        in batches of them; ``data.states(i)`` is state ``i`` of each trajectory.
        Infinity, or NaN, is a model that loses.
    space : mapping, optional
        What is searched: ``lr``, and for example ``lr_mult.spectral``. Without it these are five learning rates in factors
        of 2 around what the law gives for the proxy's steps (:class:`neuralop_mup.MuSOAP`), or 1e-3 to 6.4e-2 under an
        optimizer that has no law; up to two more beyond an edge where the best lies, and between them a parabola.
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
    proxy_steps : int, optional
        Optimizer steps of the proxy, as nearly as whole epochs allow, from which the rule for steps carries the learning
        rate; as many as the target's by default.
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
    kernel_init : str, optional
        How large kernels start: "small", the default with ``soap``, or "default", neuralop's own, that with the others and
        in SP.
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
    found = asked(
        folder,
        target=target,
        base=base,
        space=space,
        rules=(rule, *compare),
        optimizer=optimizer,
        seeds=seeds,
        epochs=epochs,
        batch_size=batch_size,
        device=device,
        kernel_init=kernel_init,
        weight_decay=weight_decay,
        beta2=beta2,
        schedule=schedule,
        clip_spectral=clip_spectral,
        aux_lr=aux_lr,
        soap=soap,
    )
    how = {"read": read, "loss": loss, "score": score, "proxy_steps": proxy_steps, "processor": processor}
    plan = make_plan(*found, build, data, **how)
    place = {"engine": engine, "executor": executor, "n_workers": n_workers, "devices": cuda_devices(device)}
    return trained(plan, "tune", folder, processor, progress, **place)
