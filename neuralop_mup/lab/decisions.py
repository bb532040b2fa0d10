"""Choose the data, sizes, settings and search before the first run, and raise an error for choices that cannot work."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.describe_model import fourier_blocks
from neuralop_mup.core.parametrize import parametrize
from neuralop_mup.core.rebuild import WIDTHS
from neuralop_mup.core.rules import OF_INIT, check_multipliers, check_rule
from neuralop_mup.errors import MupError
from neuralop_mup.lab.checks import check_batch, check_data, inspection, note_on_odd_grid
from neuralop_mup.lab.data.given import as_source, options_of
from neuralop_mup.lab.files import as_folder
from neuralop_mup.lab.loss import error_name, errors_of, loss_or_default, losses_of
from neuralop_mup.lab.problems import Problem
from neuralop_mup.lab.problems.mode_energy import ENOUGH, ModeEnergy, mode_energy, proxy_advice
from neuralop_mup.lab.score import score_of
from neuralop_mup.lab.settings import CLASS_NAMES, Settings, optimizer_of
from neuralop_mup.lab.study import Study, checked_fields
from neuralop_mup.lab.training import Training, build_model, function_name, n_params, processor_of, quiet
from neuralop_mup.lab.wording import cell, counted, number, size_text
from neuralop_mup.validation import check_positive

LEAST_WIDTH = 16
_REPORT_BYTES = 1_000_000  # estimate for records, report and figures
_PARAMETER_BYTES = 20  # per parameter, for the weights and for a checkpoint with weights and optimizer state
_FEW_SAMPLES = 10  # with fewer validation samples, one unusual sample may change the mean error by more than 10 %
_NOT_NORMALIZED = "no; without processor=, batches of loaders and data sets are used unchanged"

#: Keys that occur in batches of graphs and meshes.
_GRAPH_KEYS = {"input_geom", "latent_queries", "output_queries", "edge_index", "geometry", "mesh"}
Modes = tuple[int, ...] | None


@dataclass(frozen=True)
class Decided:
    """All choices that are made before the first run.

    Attributes
    ----------
    study : Study
        Sizes, settings, search space and train function.
    title : str
        Title of the report.
    steps : int
        Number of optimizer steps in a run.
    choices : mapping
        Maps a name to a text that describes how the data was read and what was chosen, for the terminal and the report.
    n_bytes : int
        Estimated size in bytes of the target's weights, checkpoint and report.
    """

    study: Study
    title: str
    steps: int
    choices: Mapping[str, Any]
    n_bytes: int

    def __str__(self) -> str:
        return "\n".join(f"{name:<8} {text}" for name, text in self.choices.items())

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that the result depends on, as a flat dict."""
        study = self.study
        return {
            **self.choices,
            **{f"{label}.{name}": value for label, size in study.sizes.items() for name, value in size.items()},
            **{f"search.{name}": values for name, values in study.space.items() if len(values) > 1 or len(study.sizes) > 1},
            "rules": study.rules,
            "seeds": study.seeds,
            "loss": study.train.loss,
            **({"score": study.train.score.name} if study.train.score else {}),
            **({"processor": study.train.processor_given} if study.train.processor_given else {}),
            **{name: CLASS_NAMES.get(value, value) if name == "optimizer" else value for name, value in study.fixed.items()},
            **{f"under {rule}": more for rule, more in study.settings_by_rule.items() if more},
        }


def validated(
    folder: str | Path,
    *,
    rules: Sequence[str],
    optimizer: Any,
    seeds: Iterable[int],
    space: Mapping[str, Any] | None,
    search: bool,
    init_mult: Mapping[str, float] | None = None,
    **settings: Any,
) -> tuple[Study, Settings]:
    """Validate the arguments that do not depend on the data, without reading data or building models.

    Parameters
    ----------
    folder, optimizer, seeds, space, init_mult
        See the arguments of the same names in :func:`neuralop_mup.tune`.
    rules, search
        See :func:`decide`.
    **settings
        Settings of every run. None selects the default of the optimizer.

    Returns
    -------
    Study
        The study. :func:`decide` adds the sizes and the default learning rates.
    Settings
        The settings of the first run, except for its sizes.

    Raises
    ------
    MupError
        If an argument is invalid.
    """
    as_folder(folder)
    name, optimizers = optimizer_of(optimizer)
    choice, space = optimizers[name], space or {}
    for rule in rules:
        check_rule(rule)
    if isinstance(space, Mapping) and "lr" not in space:
        if choice.user_defined:
            argument = "space={'lr': [low, …, high]}" if search else "lr=…"
            raise MupError(f"The optimizer {name} has no default learning rate. Pass {argument}.")
        space = {"lr": [choice.lr], **space}  # a placeholder
    given = {key: value for key, value in settings.items() if value is not None or key in ("epochs", "batch_size", "device")}
    searched = space if isinstance(space, Mapping) else {}  # checked_fields refuses any other value
    fixed = {key: value for key, value in {"optimizer": name, **given}.items() if key not in searched}
    multipliers = check_multipliers(choice.init_mult if init_mult is None else init_mult, "init_mult", OF_INIT)
    by_rule = {rule: {"init_mult": multipliers} if rule != "standard" and multipliers else {} for rule in rules}
    study = Study(
        name=Path(folder).resolve().name,
        rules=tuple(by_rule),
        settings_by_rule=by_rule,
        keep_weights=True,
        **checked_fields(space, fixed, seeds, ("model", "base", "rule", "seed")),
    )
    first = {**study.fixed, **study.example}
    tried = [{key: value} for key, values in {**study.space, "seed": study.seeds}.items() for value in values]
    for config in [{**own, **one} for own in by_rule.values() for one in tried]:
        run = Settings.of({**first, **config}, optimizers)
        check_positive("lr", run.lr)  # Settings also accept zero, but such a run would not learn anything
    return study, Settings.of(first, optimizers)


def decide(
    build: Callable[..., nn.Module],
    data: Any,
    folder: str | Path,
    *,
    target: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
    read: Mapping[str, Any] | None = None,
    loss: Any = None,
    score: Any = None,
    processor: Any = None,
    space: Mapping[str, Any] | None = None,
    search: bool = True,
    **arguments: Any,
) -> Decided:
    """Read the data, build the model once at each size, choose defaults, and check that everything works together.

    Parameters
    ----------
    build, data, folder, target, base, read, loss, score, processor, space
        See the arguments of the same names in :func:`neuralop_mup.tune`.
    search : bool, default True
        Whether hyperparameters are tuned on the base model. If False, only the target is trained.
    **arguments
        ``rules``, the rule that is used, followed by other rules to compare on the target; and the other arguments of
        :func:`validated`.

    Raises
    ------
    MupError
        If the data, the sizes or the settings cannot be used.
    """
    read = options_of(read)
    study, run = validated(folder, space=space, search=search, **arguments)
    large = _built(build, target, "target", real=not search)
    source = as_source(data, read)
    loaded = source.load()
    sample = loaded.sample()
    grid = grid_of(sample)
    # With a mask, the energy would be dominated by its edge.
    energy = mode_energy(sample["y"]) if grid and search and "mask" not in sample else None
    base, reasons = {**target, **base} if isinstance(base, Mapping) else base, ""
    if search and base is None:
        base, reasons = narrower(target, energy)
    small = None if base is None else _built(build, base, "base", real=search)
    models, sizes, by_rule = {"target": large}, {"target": target}, study.settings_by_rule
    if search:
        models, sizes = {"proxy": small, **models}, {"proxy": base, **sizes}
    else:
        by_rule = {rule: {**own, "base": base} for rule, own in by_rule.items()}
    costs = {label: n_params(model) for label, model in models.items()}
    if search and costs["proxy"] >= costs["target"]:
        raise MupError(
            f"The base model has {costs['proxy']:,} parameters and the target has {costs['target']:,}, so tuning on the "
            "base model saves nothing. Pass a base with a smaller width or fewer modes."
        )
    loss, n_dim = loss_or_default(loss, loaded, processor, processor_of(source, loaded)), len(grid) or 2
    losses, is_named = losses_of(loss, n_dim, getattr(source, "losses", dict)()), isinstance(loss, str)
    label, first = next(iter(models.items()))
    check_batch(f"{function_name(build)}(**{sizes[label]})", first, sample, losses, processor, is_named, bool(grid))
    check_data(loaded, sample["y"], models, run.batch_size, loss, grid)
    training = Training(
        build,
        source,
        loaded,
        losses,
        processor,
        loss,
        score_of(score),
        run.optimizers,
        (sample["x"].shape[1], *grid) if grid else None,
        errors_of(loss, losses, n_dim),
        error_name(loss, sample["y"].shape[1] if grid else 1),
    )
    if training.score is not None:
        with quiet():
            training.score.check(first, training.processor, loaded)
    steps = run.epochs * len(loaded.loaders(run.batch_size, 0)[0])
    lrs, reason = study.space["lr"], "as passed"
    uses_default_lr = "lr" not in (space or {})
    if uses_default_lr:
        lrs = run.choice.search_lrs(steps) if search else [run.choice.default_lr(steps)]
        reason = f"for {steps} steps" if run.choice.lr_from_steps else "the default"
    about_lr = f"{number(lrs[0])}, {reason}; not tuned"
    if search:
        about_lr = f"{len(lrs)} values from {number(min(lrs))} to {number(max(lrs))}, tuned on the proxy"
    for rule in study.rules:
        with inspection():  # the base model is not on the meta device, so its initialization can be checked
            for model in models.values():
                own = copy.deepcopy(model)
                parametrize(own, base=copy.deepcopy(small), rule=rule, init=model is first)
    about_base = "the reference size, 32 channels and 16 modes" if base is None else size_text(base)
    about_target = f"{size_text(target)}; {costs['target']:,} parameters, {steps} steps ({counted(run.epochs, 'epoch')})"
    choices = {
        "data": source.title,
        "problem": cell(source.content()) if isinstance(source, Problem) else "",
        **getattr(source, "readings", {}),
        "normalized": "" if training.processor else _NOT_NORMALIZED,
        "proxy" if search else "base": reasons or about_base,
        "target": f"{about_target}, loss {loss if is_named else 'user-defined'}",
        "lr": about_lr,
    }
    n_val = loaded.counts()["val"] if search else None
    study = replace(
        study,
        sizes=sizes,
        settings_by_rule=by_rule,
        space={**study.space, "lr": lrs},
        interpolate=search and uses_default_lr,
        notes=tuple(data_notes(sample, n_val, modes_of(first), modes_of(large), is_named, energy)),
        train=training,
        costs=costs,
    )
    title, n_bytes = f"{type(large).__name__} on {source.title}", _REPORT_BYTES + _PARAMETER_BYTES * costs["target"]
    return Decided(study, title, steps, {name: text for name, text in choices.items() if text}, n_bytes)


# Models


def _built(build: Callable[..., nn.Module], size: Any, name: str, real: bool = False) -> nn.Module:
    """Build the model at a size, on the meta device unless ``real`` is true or the model cannot be built there."""
    if isinstance(build, nn.Module) or not callable(build):
        raise MupError(
            "build must be a function that returns a new model when called as build(**size), but it is an object of type "
            f"{type(build).__name__}."
        )
    if not isinstance(size, Mapping):
        raise MupError(f"{name}={size!r} must be a dict of arguments for build, such as {{'hidden_channels': 32}}.")
    try:
        with inspection(on_meta=not real):
            return build_model(build, size, f" at the {name}")
    except MupError:
        if real:
            raise
        return _built(build, size, name, real=True)


def modes_of(model: nn.Module) -> Modes:
    """Return ``n_modes`` of the model's Fourier blocks, or None if there are no blocks or their values differ."""
    found = {tuple(block.n_modes) for _, block in fourier_blocks(model)}
    return found.pop() if len(found) == 1 else None


def narrower(target: Any, energy: ModeEnergy | None) -> tuple[dict[str, Any], str]:
    """Return the default base: a quarter of the target's width, at least 16, and the modes that the data needs.

    Parameters
    ----------
    target : mapping
        Arguments of the target.
    energy : ModeEnergy, optional
        Energy of the data by mode. If omitted, the number of modes does not change.

    Returns
    -------
    base : dict
        Arguments of the base.
    reasons : str
        Description of the differences from the target, with reasons.

    Raises
    ------
    MupError
        If the target has no width argument that could be reduced.
    """
    widths = {key: value for key, value in target.items() if key in WIDTHS and isinstance(value, int) and value > 1}
    if not widths:
        raise MupError(
            f"No default base can be chosen, because none of the arguments of the target ({', '.join(target) or 'none'}) "
            f"is a known width ({', '.join(WIDTHS)}). Pass the smaller size, such as base={{'your_width': 16}}."
        )
    base = dict(target) | {key: max(LEAST_WIDTH, w // 4) if w > LEAST_WIDTH else w // 2 for key, w in widths.items()}
    reasons = [f"{key} {base[key]} instead of {value} (μP transfers the learning rate)" for key, value in widths.items()]
    modes = target.get("n_modes")
    if energy is not None and isinstance(modes, (tuple, list)) and len(modes) == len(energy.shares):
        base["n_modes"] = type(modes)(min(n, max(4, need)) for n, need in zip(modes, energy.enough(), strict=True))
        if base["n_modes"] != modes:
            few, many = ("×".join(map(str, each)) for each in (base["n_modes"], modes))
            reasons.append(f"n_modes {few} instead of {many} ({100 * ENOUGH:g} % of the energy)")
    return base, "; ".join(reasons)


# Warnings


def grid_of(sample: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the number of points along each axis, or an empty tuple if the samples are graphs or meshes."""
    x, y = sample.get("x"), sample.get("y")
    has_axes = all(isinstance(values, torch.Tensor) and values.ndim >= 3 for values in (x, y))
    return tuple(x.shape[2:]) if has_axes and x.ndim == y.ndim and not _GRAPH_KEYS & sample.keys() else ()


def data_notes(
    sample: Mapping[str, Any], n_val: int | None, proxy: Modes, target: Modes, compare: bool = True,
    energy: ModeEnergy | None = None,
) -> list[str]:  # fmt: skip
    """Return warnings about the data and the sizes, one text per warning.

    Parameters
    ----------
    sample : mapping
        ``x`` and ``y`` of many samples, in the form that the model receives.
    n_val : int or None
        Number of validation samples, if validation is used to select the learning rate.
    proxy, target : tuple of int or None
        ``n_modes`` of the proxy and of the target (see :func:`modes_of`).
    compare : bool
        Whether the loss compares the prediction with ``y``, which a user-defined loss need not do.
    energy : ModeEnergy, optional
        Energy of the samples by mode, if they are defined on a grid.
    """
    y, notes = sample["y"], []
    if energy is not None and proxy is not None and target is not None:
        notes.append(proxy_advice(energy, proxy, target))
    if n_val is not None and n_val < _FEW_SAMPLES:
        notes.append(
            f"Learning rates are compared on only {n_val} validation {'sample' if n_val == 1 else 'samples'}. With fewer "
            f"than {_FEW_SAMPLES}, differences in the loss are mostly noise. Use more validation samples."
        )
    if compare and isinstance(y, torch.Tensor) and y.ndim > 2 and (y == y[:1]).all():
        notes.append(
            "The targets of all samples are identical, so there is nothing to learn. Check that the correct field was read "
            "as the output."
        )
    return list(filter(None, [*notes, note_on_odd_grid(grid_of(sample))]))
