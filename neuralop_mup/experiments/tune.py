"""``tune``: my model and my data in; the learning rate, the trained target and a report out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import MupError
from neuralop_mup.experiments import findings, report, wording
from neuralop_mup.experiments.loaders import first_batch, loaders_of, some_samples
from neuralop_mup.experiments.own_runs import OwnRuns, own_losses, own_settings
from neuralop_mup.experiments.presets import EXTENDS
from neuralop_mup.experiments.proxy import resolution_notes
from neuralop_mup.experiments.settings import OPTIMIZERS, Settings, under_rules
from neuralop_mup.experiments.training import n_params
from neuralop_mup.tuning import Results, log2_grid, run, transfer_study
from neuralop_mup.tuning.engines.local import cuda_devices

__all__ = ["Tuned", "tune"]

#: Settings of a run that may be given to :func:`tune`, or searched.
_SETTINGS = ("weight_decay", "beta2", "schedule", "clip_spectral", "aux_lr", "muon", "soap", "kernel_init")


@dataclass(frozen=True)
class Tuned:
    """What :func:`tune` found.

    Attributes
    ----------
    lr : float
        The base's best learning rate.
    params : dict
        All that was searched, at its best: ``lr`` and, for example, ``lr_mult.spectral``.
    model : torch.nn.Module
        The target, parametrized and trained with them: of all seeds the one with the lowest validation loss, in eval mode.
    loss : float
        Its validation loss.
    results : Results
        Every run; ``.summary()`` and ``.best`` are computed from them.
    report : Path
        ``report.md``; ``report.html`` lies beside it.
    """

    lr: float
    params: dict[str, Any]
    model: nn.Module
    loss: float
    results: Results
    report: Path


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
        A file (see :class:`neuralop_mup.problems.OwnData`); ``(train, val)`` or ``(train, val, test)``, or a dict with
        these names, of loaders, data sets or ``(x, y)`` tensors of shape ``(n, channels, *grid)``; or a function that
        returns one of these, called in each worker. Batches are dicts with "x" and "y", or pairs.
    base, target : mapping
        Arguments of ``build`` for the small size, at which is tuned, and for the large one.
    folder : str or Path
        Keeps every run, the target's weights and the report; the same call resumes there.
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
    optimizer : str
        "adam", "adamw", "neuralop-adamw", "sgd", "muon", …
    epochs, batch_size : int
        ``batch_size`` holds for data that does not come as loaders.
    seeds : iterable of int
    processor : neuralop DataProcessor, optional
        Normalises batches; by default fitted to the training data where that is tensors or a file, and none for loaders.
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
        With ``.lr``, ``.params``, ``.model``, ``.results`` and ``.report``.

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
    choice = OPTIMIZERS.get(optimizer, OPTIMIZERS["adam"])
    kernel_init = known.pop("kernel_init", choice.kernel_init)
    space = {"lr": log2_grid(*(choice.lrs or (1e-3, 6.4e-2))), **(space or {})}
    fixed = {"optimizer": optimizer, "epochs": epochs, "batch_size": batch_size, "device": device, **known}
    fixed = {k: v for k, v in fixed.items() if k not in space}
    if n_workers is None and getattr(build, "__name__", "") == "<lambda>":
        n_workers = 1  # it cannot be sent to other processes
    sent = OwnRuns(build, data, loss, processor, folder / "weights", dict(target))
    sample = _check(sent, base, target, rule, own_settings({**fixed, "kernel_init": kernel_init}))
    study = transfer_study(
        extends={"lr": EXTENDS} if not space else None,
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
    notes = resolution_notes(sample, base, target)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    study = replace(study, notes=(*study.notes, *notes), under=under_rules(study.rules, {}, kernel_init))
    where["devices"] = cuda_devices() if device in ("auto", "cuda") else []
    results = run(study, sent, identity=build, folder=folder, n_workers=n_workers, progress=progress, **where)
    best = results.best
    page = report.write_report(
        results, command=f"neuralop_mup.tune({_name(build)}, …, folder={str(folder)!r})", title=_title(data, build)
    )
    done = [r for r in results.carried("target", rule) if r["outcome"] == "complete"]
    if not done:
        failed = findings.target_failures(results, rule)
        raise MupError(
            f"No run of the target completed with {wording.params(best)}: {failed[0]['error'] if failed else 'none ran'}"
        )
    chosen = min(done, key=lambda r: r["loss"])
    config = study.config(study.point("target", rule, best), chosen["seed"])
    path = sent.path(config)
    if not path.exists():  # removed, or trained on another machine
        sent(config)
    model = sent.model(config, own_settings(config))
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    model.eval()
    return Tuned(best["lr"], best, model, chosen["loss"], results, page)


def _check(
    sent: OwnRuns, base: Mapping[str, Any], target: Mapping[str, Any], rule: str, settings: Settings
) -> dict[str, Any]:
    """Refuse before anything is trained what would fail in every run; a sample of the training data."""
    sizes = {}
    for name, size in (("base", base), ("target", target)):
        if not isinstance(size, Mapping):
            raise MupError(f"{name}={size!r} must be a dict of arguments of build, such as {{'hidden_channels': 32}}.")
        try:
            sizes[name] = n_params(sent.build(**size))
        except MupError:
            raise
        except Exception as error:
            raise MupError(f"build(**{dict(size)}) fails at the {name}: {type(error).__name__}: {error}") from error
    if sizes["base"] >= sizes["target"]:
        raise MupError(
            f"The base has {sizes['base']:,} parameters and the target {sizes['target']:,}: tuning the base saves nothing. "
            "Make it smaller in width or modes."
        )
    sent.model({"model": target, "base": base, "rule": rule}, settings)
    train, _, _ = loaders_of(sent.data, settings.batch_size, 0)
    first = first_batch(train)
    own_losses(sent.loss, first["x"].ndim - 2)
    return some_samples(first, train)


def _name(build: Any) -> str:
    return getattr(build, "__qualname__", type(build).__name__)


def _title(data: Any, build: Any) -> str:
    return f"{_name(build)} on {Path(data).stem if isinstance(data, (str, Path)) else 'the data given'}"
