"""``tune``: my model and my data in; the learning rate, the trained target and a report out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.classify import check_grid
from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import MupError
from neuralop_mup.experiments import findings, report, wording
from neuralop_mup.experiments.kept import KeptTarget, read_kept
from neuralop_mup.experiments.loaders import first_batch, loaders_of, n_samples, read_data, some_samples
from neuralop_mup.experiments.own_runs import OwnRuns, dtype_of, own_losses, own_settings
from neuralop_mup.experiments.presets import EXTENDS, odd_grids_work
from neuralop_mup.experiments.proxy import few_samples_notes, modes_of, resolution_notes, same_targets_notes
from neuralop_mup.experiments.settings import OPTIMIZERS, Settings, optimizer_name, under_rules
from neuralop_mup.experiments.training import check_batch_size, n_params, quiet
from neuralop_mup.experiments.tuned import Tuned, best_run, lines_of_use, load_made, write_made
from neuralop_mup.problems import ProblemData
from neuralop_mup.problems.mode_energy import off_grid
from neuralop_mup.tuning import log2_grid, run, transfer_study
from neuralop_mup.tuning.engines.local import cuda_devices

__all__ = ["Tuned", "tune"]

#: Settings of a run that may be given to :func:`tune`, or searched.
_SETTINGS = ("weight_decay", "beta2", "schedule", "clip_spectral", "aux_lr", "muon", "soap", "kernel_init")


def tune(
    build: Callable[..., nn.Module],
    data: Any,
    *,
    base: Mapping[str, Any],
    target: Mapping[str, Any],
    folder: str | Path,
    loss: Any = "l2",
    space: Mapping[str, Any] | None = None,
    n_trials: int | None = None,
    rule: str = DEFAULT_RULE,
    compare: Sequence[str] = ("standard",),
    optimizer: str = "adam",
    epochs: int = 20,
    batch_size: int = 20,
    seeds: Iterable[int] = (0, 1, 2),
    processor: Any = None,
    device: str = "auto",
    n_workers: int | None = None,
    progress: bool = True,
    **more: Any,
) -> Tuned:
    """Find the learning rate of a model on data at a small size, and train the large size with it.

    Parameters
    ----------
    build : callable
        ``build(**size)`` returns a fresh model as neuralop (or you) would initialise it. At module level, so that worker
        processes can import it.
    data : path, tuple, dict or callable
        A file (see :class:`neuralop_mup.problems.OwnData`); arrays ``(x, y)``, which are read, split and cast to float32 as
        a file is; ``(train, val)`` or ``(train, val, test)``, or a dict with these names, of loaders, data sets or
        ``(x, y)`` arrays of shape ``(n, channels, *grid)``; or a function that returns one of these, called in each worker.
        Arrays are tensors or numpy's, those of splits cast to the model's precision. Batches are dicts with "x" and "y", or
        pairs.
    base, target : mapping
        Arguments of ``build`` for the small size, at which is tuned, and for the large one.
    folder : str or Path
        Keeps every run, the target's weights and normalisation, and the report; the same call resumes there, and
        :func:`load_tuned` reads the target.
    loss : str, callable or dict
        ``"l2"``, ``"h1"`` or ``"l2,h1"`` (relative errors); ``loss(y_pred, y, **batch)``, summed over the batch, as
        neuralop's Trainer takes it; or a dict of names to such functions or to (weight, function). The first one chooses.
    space : mapping, optional
        What is searched: ``lr`` (default: factors of 2 from 1e-3 to 6.4e-2), and for example ``lr_mult.spectral``.
    n_trials : int, optional
        Points of a search over Optuna distributions.
    rule : str
        The μP rule; see :func:`neuralop_mup.parametrize`.
    compare : sequence of str
        Rules under which the target is trained besides; ``()`` for none.
    optimizer : str or class
        "adam", "adamw", "neuralop-adamw", "sgd", "muon" or "soap"; the names of the classes, such as "MuSOAP", and the
        classes themselves mean the same. With "muon" and "soap" the learning rates that are searched and ``kernel_init``
        are those of that optimizer.
    epochs, batch_size : int
        ``batch_size`` holds for data that does not come as loaders.
    seeds : iterable of int
    processor : neuralop DataProcessor, optional
        Normalises batches; by default fitted to the training data where that is arrays or a file, and none for loaders.
        With it ``Tuned.predict`` works in the units of the data; without it that is refused.
    device : str
        torch's name of it; ``"auto"``: each worker a GPU of its own, or the CPU.
    n_workers : int, optional
        Processes; default one per GPU, or one per core. Without it, and without ``engine``, runs of one size are trained as
        one program where that is timed to be faster; see docs/machines.md.
    progress : bool
    **more
        Of a run: ``weight_decay``, ``beta2``, ``schedule``, ``clip_spectral``, ``aux_lr``, ``muon`` and ``soap`` (their
        arguments), and ``kernel_init`` (default: small with ``muon`` and ``soap``, neuralop's own with the others and in
        SP). Of a search: ``storage``, ``sampler``, ``pruner``, ``engine``, ``executor``, as in :func:`neuralop_mup.sweep`.

    Returns
    -------
    Tuned
        With ``.lr``, ``.params``, ``.predict``, ``.model``, ``.processor``, ``.results`` and ``.report``.

    Raises
    ------
    MupError
        If the data or the sizes cannot work, if the base is not smaller than the target, or if no run completed.

    Examples
    --------
    >>> tuned = nm.tune(build, "heat.npz", base={"hidden_channels": 16, "n_modes": (8,)},
    ...                 target={"hidden_channels": 64, "n_modes": (32,)}, folder="runs/heat")  # doctest: +SKIP
    """
    folder = Path(folder)
    known = {name: more.pop(name) for name in _SETTINGS if name in more}
    where = {name: more.pop(name) for name in ("storage", "sampler", "pruner", "engine", "executor") if name in more}
    if more:
        raise MupError(f"tune has no argument {next(iter(more))!r}; see help(neuralop_mup.tune).")
    optimizer = optimizer_name(optimizer)
    choice = OPTIMIZERS[optimizer]
    kernel_init = known.pop("kernel_init", choice.kernel_init)
    extends = None if space else {"lr": EXTENDS}  # a grid that nobody gave
    space = {"lr": log2_grid(*(choice.lrs or (1e-3, 6.4e-2))), **(space or {})}
    fixed = {"optimizer": optimizer, "epochs": epochs, "batch_size": batch_size, "device": device, **known}
    fixed = {k: v for k, v in fixed.items() if k not in space}
    if n_workers is None and getattr(build, "__name__", "") == "<lambda>":
        n_workers = 1  # it cannot be sent to other processes
    if not callable(build):
        raise MupError(f"build={build!r} must be a function: build(**size) returns a fresh model of that size.")
    kept = KeptTarget(folder / "weights", target if isinstance(target, Mapping) else {}, rule)
    sent = OwnRuns(build, data, loss, processor, kept.folder / "checkpoints", kept)
    batch_sizes = space["batch_size"] if isinstance(space.get("batch_size"), (list, tuple)) else [batch_size]
    notes, x_shape = _check(sent, base, target, rule, own_settings({**fixed, "kernel_init": kernel_init}), batch_sizes)
    study = transfer_study(
        extends=extends,
        proxy=base,
        target=target,
        space=space,
        rule=rule,
        rules=[rule, *compare],
        fixed={**fixed, **sent.how_split()},
        seeds=seeds,
        n_trials=n_trials,
        name=folder.resolve().name,
        naive="standard" in compare,
    )
    for note in notes:
        warnings.warn(note, stacklevel=2)
    study = replace(study, notes=(*study.notes, *notes), under=under_rules(study.rules, {}, kernel_init))
    where["devices"] = cuda_devices() if device in ("auto", "cuda") else []
    results = run(study, sent, identity=build, folder=folder, n_workers=n_workers, progress=progress, **where)
    best = results.best
    found, made, use = best_run(results, rule), None, []
    if found is not None:
        config, record = found
        if read_kept(kept.path(config)) is None:  # removed, trained on another machine, or by an earlier version
            sent(config)
        how = {"build": build, "arguments": target, "x_shape": x_shape, "settings": own_settings(config)}
        made = write_made(results, kept, config, record, **how)
        module = getattr(build, "__module__", "__main__")
        use = lines_of_use(folder, made, None if module == "__main__" else module)
    command = f"neuralop_mup.tune({_name(build)}, …, folder={str(folder)!r})"
    report.write_report(results, command=command, title=_title(data, build), use=use)
    if made is None:
        failed = findings.target_failures(results, rule)
        raise MupError(
            f"No run of the target completed with {wording.params(best)}: {failed[0]['error'] if failed else 'none ran'}"
        )
    return load_made(results, made, build, processor)


def _check(
    sent: OwnRuns,
    base: Mapping[str, Any],
    target: Mapping[str, Any],
    rule: str,
    settings: Settings,
    batch_sizes: Sequence[int],
) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Refuse before anything is trained what would fail in every run.

    Returns
    -------
    notes : tuple of str
        What the data says against the sizes, or is to be known of it.
    x_shape : tuple of int or None
        ``(channels, *grid)``; None off a grid.
    """
    sizes, modes = {}, {}
    for name, size in (("base", base), ("target", target)):
        if not isinstance(size, Mapping):
            raise MupError(f"{name}={size!r} must be a dict of arguments of build, such as {{'hidden_channels': 32}}.")
        try:
            model = sent.build(**size)
            sizes[name], modes[name] = n_params(model), modes_of(size, model)
        except MupError:
            raise
        except Exception as error:
            raise MupError(f"build(**{dict(size)}) fails at the {name}: {type(error).__name__}: {error}") from error
    if sizes["base"] >= sizes["target"]:
        raise MupError(
            f"The base has {sizes['base']:,} parameters and the target {sizes['target']:,}: tuning the base saves nothing. "
            "Make it smaller in width or modes."
        )
    model = sent.model({"model": target, "base": base, "rule": rule}, settings)
    data = read_data(sent.data, dtype_of(model))
    train, evals, _ = loaders_of(data, settings.batch_size, 0)
    if isinstance(data, ProblemData):
        check_batch_size(max(batch_sizes), len(data.train[0]))
    first = first_batch(train)
    own_losses(sent.loss, first["x"].ndim - 2)
    if isinstance(sent.loss, str) and isinstance(first["y"], torch.Tensor) and first["y"].is_complex():
        raise MupError(
            f"loss={sent.loss!r} with complex targets: neuralop's losses are of real fields. Give a function of your own "
            "that takes moduli, loss(y_pred, y, **batch), summed over the batch; or real and imaginary parts as channels."
        )
    sample = some_samples(first, train)
    x_shape = None if off_grid(first) else tuple(first["x"].shape[1:])
    if sent.processor is None:  # a user's may change the shapes
        _check_batch(sent, base, first)
    notes = [*resolution_notes(sample, modes["base"], modes["target"]), *few_samples_notes(n_samples(evals["val"]))]
    if isinstance(sent.loss, str):  # one of the user's may not look at y
        notes += same_targets_notes(sample["y"])
    if x_shape is not None:
        for size in (base, target):
            check_grid(sent.build(**size), x_shape[1:])  # the layers cut what is beyond it, and nothing would tell
        for letter in "xy":
            if not torch.isfinite(sample[letter]).all():
                raise MupError(
                    f"{letter} of the training data has entries that are not finite: remove these samples or fill them in."
                )
        notes += _odd_grid(x_shape[1:])
    return tuple(notes), x_shape


def _check_batch(sent: OwnRuns, base: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Refuse a model that does not take the data or does not give fields like y: one forward pass at the base."""
    n = len(first["x"])
    few = dict(first)
    if not off_grid(first):  # two samples will do
        few |= {k: v[:2] for k, v in first.items() if torch.is_tensor(v) and v.ndim and len(v) == n}
    shapes = ", ".join(f"{k} of shape {tuple(v.shape)}" for k, v in first.items() if torch.is_tensor(v))
    with torch.random.fork_rng(devices=[]), torch.no_grad(), quiet():
        model = sent.build(**base).eval()
        channels = getattr(model, "in_channels", None)
        last = first["x"].ndim > 2 and channels == first["x"].shape[-1] != first["x"].shape[1]
        try:
            out = model(**few)
        except Exception as error:  # the model is the user's
            do = (
                "Its channels are last: give x.movedim(-1, 1), and y likewise."
                if last
                else "Fields are (n, channels, *grid); the model must take as many channels as x has."
            )
            raise MupError(
                f"The model of build(**{dict(base)}) fails on a batch of the data, {shapes}: "
                f"{type(error).__name__}: {error}. {do}"
            ) from error
    named = isinstance(sent.loss, str)  # a loss of the user's may compare other things
    if named and isinstance(out, torch.Tensor) and out.shape[1:] != first["y"].shape[1:]:
        raise MupError(
            f"The model of build(**{dict(base)}) gives fields of shape {tuple(out.shape[1:])} for a batch with {shapes}: "
            "they must be like y. Give it as many out_channels as y has channels."
        )


def _odd_grid(grid: Sequence[int]) -> list[str]:
    """The command's warning of an odd grid, with what to do in Python."""
    if not any(points % 2 for points in grid) or odd_grids_work():
        return []
    return [
        f"{'×'.join(map(str, grid))} points: the installed neuralop's SpectralConv is wrong on odd numbers of points, so "
        "leave out the last point of these axes (x[..., :-1]; for a file OwnData(files=…, crop=True))."
    ]


def _name(build: Any) -> str:
    return getattr(build, "__qualname__", type(build).__name__)


def _title(data: Any, build: Any) -> str:
    return f"{_name(build)} on {Path(data).stem if isinstance(data, (str, Path)) else 'the data given'}"
