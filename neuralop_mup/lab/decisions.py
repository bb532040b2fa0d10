"""Decide everything before the first run: data, sizes, settings and search. Raise an error for what cannot work."""

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
from neuralop_mup.lab.checks import check_batch, check_data, inspection
from neuralop_mup.lab.data.given import as_source, options_of
from neuralop_mup.lab.loss import errors_of, loss_or_default, losses_of
from neuralop_mup.lab.outcome import versions
from neuralop_mup.lab.problems import Problem
from neuralop_mup.lab.problems.mode_energy import ENOUGH, ModeEnergy, mode_energy, proxy_advice
from neuralop_mup.lab.records import Records
from neuralop_mup.lab.score import score_of
from neuralop_mup.lab.settings import Choice, Settings, optimizer_of
from neuralop_mup.lab.study import Study, checked_fields
from neuralop_mup.lab.time_limit import epochs_within, seconds_of
from neuralop_mup.lab.training import Training, build_model, function_name, n_params, processor_of, quiet, untouched
from neuralop_mup.lab.wording import cell, number, size_text
from neuralop_mup.validation import check_positive

LEAST_WIDTH = 16
_REPORT_BYTES = 1_000_000  # records, report and figures
_PARAMETER_BYTES = 20  # per parameter: the weights, and a checkpoint of weights and optimizer state
#: Number of steps that we assume to validate default learning rates before the data is read.
_TYPICAL_STEPS = 1000
_FEW_SAMPLES = 10  # validation samples: with fewer, one unusual sample changes their mean error by more than a tenth

#: Keys of batches of graphs and meshes.
_GRAPH_KEYS = {"input_geom", "latent_queries", "output_queries", "edge_index", "geometry", "mesh"}
Modes = tuple[int, ...] | None


@dataclass(frozen=True)
class Decided:
    """Everything that is decided before the first run.

    Attributes
    ----------
    study : Study
        Sizes, settings, search space, and the train function.
    title : str
        Title of the report.
    steps : int
        Number of optimizer steps of a run.
    choices : mapping
        Name → text: how the data was read and what was chosen, for the terminal and the report.
    n_bytes : int
        Estimated size of the target's weights, checkpoint and report.
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
        """Everything that the result depends on, as a flat dict."""
        study = self.study
        return {
            **self.choices,
            **{f"{label}.{name}": value for label, size in study.sizes.items() for name, value in size.items()},
            **{f"search.{name}": values for name, values in study.space.items() if len(values) > 1 or len(study.sizes) > 1},
            "rules": study.rules,
            "seeds": study.seeds,
            "loss": study.train.loss,
            **({"score": study.train.score.name} if study.train.score else {}),
            **study.fixed,
            **{f"under {rule}": more for rule, more in study.settings_by_rule.items() if more},
        }


def validated(
    folder: str | Path,
    *,
    target: Mapping[str, Any],
    rules: Sequence[str],
    optimizer: Any,
    seeds: Iterable[int],
    base: Mapping[str, Any] | None = None,
    space: Mapping[str, Any] | None = None,
    init_mult: Mapping[str, float] | None = None,
    search: bool = True,
    **settings: Any,
) -> tuple[Study, Mapping[str, Choice]]:
    """Validate the arguments that do not depend on the data. Read and build nothing.

    Parameters
    ----------
    folder, target, optimizer, seeds, base, space, init_mult
        The arguments of :func:`neuralop_mup.tune` with these names.
    rules : sequence of str
        The rule, and further rules to compare at the target.
    search : bool, default True
        Whether hyperparameters are tuned at the base. Otherwise only the target is trained.
    **settings
        Settings of every run. None means the default of the optimizer.

    Returns
    -------
    Study
        The study. :func:`decide` completes it with the default base and learning rates.
    dict of str to Choice
        The optimizers that its runs may name.

    Raises
    ------
    MupError
        If an argument cannot work.
    """
    Records(folder)  # raises an error if the folder is a file
    name, optimizers = optimizer_of(optimizer)
    choice = optimizers[name]
    for rule in rules:
        check_rule(rule)
    has_default_lrs = not space or (isinstance(space, Mapping) and "lr" not in space)
    if has_default_lrs:
        if choice.user_defined:
            argument = "space={'lr': [low, …, high]}" if search else "lr=…"
            raise MupError(f"The optimizer {name} has no default learning rate. Pass {argument}.")
        space = {"lr": _default_lrs(choice, _TYPICAL_STEPS, search), **(space or {})}
    given = {key: value for key, value in settings.items() if value is not None or key in ("epochs", "batch_size", "device")}
    searched = space if isinstance(space, Mapping) else ()
    fixed = {key: value for key, value in {"optimizer": name, **given}.items() if key not in searched}
    multipliers = check_multipliers(choice.init_mult if init_mult is None else init_mult, "init_mult", OF_INIT)
    if isinstance(base, Mapping) and isinstance(target, Mapping):
        base = {**target, **base}
    untrained_base = {} if search else {"base": base}
    study = Study(
        name=Path(folder).resolve().name,
        sizes={"proxy": base, "target": target} if search else {"target": target},
        rules=tuple(dict.fromkeys(rules)),
        settings_by_rule={
            rule: {**({"init_mult": multipliers} if rule != "standard" and multipliers else {}), **untrained_base}
            for rule in rules
        },
        interpolate=has_default_lrs,
        keep_weights=True,
        **checked_fields(space, fixed, seeds, ("model", "base", "rule", "seed")),
    )
    tried = [{key: value} for key, values in {**study.space, "seed": study.seeds}.items() for value in values]
    for config in [{**study.settings_by_rule.get(rule, {}), **one} for rule in study.rules for one in tried]:
        run = Settings.of({**study.fixed, **study.example, **config}, optimizers)
        check_positive("lr", run.lr)  # Settings also accept zero, but such a run learns nothing
    return study, optimizers


def decide(
    build: Callable[..., nn.Module],
    data: Any,
    folder: str | Path,
    *,
    read: Mapping[str, Any] | None = None,
    loss: Any = None,
    score: Any = None,
    processor: Any = None,
    search: bool = True,
    **arguments: Any,
) -> Decided:
    """Read the data, build each size once, choose defaults, and raise an error for what cannot work.

    Parameters
    ----------
    build, data, folder, read, loss, score, processor
        The arguments of :func:`neuralop_mup.tune` with these names.
    search, **arguments
        The arguments of :func:`validated` with these names.

    Raises
    ------
    MupError
        If the data, the sizes or the settings cannot work.
    """
    read = options_of(read)
    duration, budget = arguments["epochs"], None
    if isinstance(duration, str) and not search:
        budget = seconds_of(duration)
        arguments["epochs"] = 1
    study, optimizers = validated(folder, search=search, **arguments)
    sizes = dict(study.sizes)
    models = {"target": _built(build, sizes["target"], "target", real=not search)}
    source = as_source(data, read)
    loaded = source.load()
    with untouched(loaded.loaders(1, 0)[0]):
        sample = loaded.sample()
    grid = grid_of(sample)
    energy = mode_energy(sample["y"]) if grid and search else None
    problem = {"problem": cell(source.content())} if isinstance(source, Problem) else {}
    choices = {"data": source.title, **getattr(source, "readings", problem)}
    if search:
        if sizes["proxy"] is None:
            sizes["proxy"], choices["proxy"] = narrower(sizes["target"], energy)
        base = models["proxy"] = _built(build, sizes["proxy"], "base", real=True)
        few, many = n_params(base), n_params(models["target"])
        if few >= many:
            raise MupError(
                f"The base has {few:,} parameters and the target {many:,}, so tuning the base saves nothing. Pass a base "
                "with a smaller width or fewer modes."
            )
    else:
        base_size = study.settings_by_rule[study.rules[0]]["base"]
        base = None if base_size is None else _built(build, base_size, "base")
        choices["base"] = "the reference size" if base_size is None else size_text(base_size)
    first = models[study.base]
    run = Settings.of({**study.fixed, **study.example}, optimizers)
    loss, n_dim = loss_or_default(loss, loaded, processor, processor_of(source, loaded)), len(grid) or 2
    losses, is_named = losses_of(loss, n_dim, getattr(source, "losses", dict)()), isinstance(loss, str)
    check_batch(
        f"{function_name(build)}(**{dict(sizes[study.base])})", first, sample, losses, processor, is_named, bool(grid)
    )
    check_data(loaded, sample["y"], models, run.batch_size, loss, grid)
    scorer = None if score is None else score_of(score)
    x_shape = (sample["x"].shape[1], *grid) if grid else None
    errors = errors_of(loss, losses, n_dim)
    training = Training(build, source, loaded, losses, processor, loss, scorer, optimizers, x_shape, errors)
    if scorer is not None:
        with quiet():
            scorer.check(first, training.processor, loaded)
    n_val = loaded.counts()["val"] if search else None
    proxy_modes = modes_of(first) if search else None
    notes = data_notes(sample, n_val, proxy_modes, modes_of(models["target"]), is_named, energy)
    costs = {label: n_params(model) for label, model in models.items()}
    sizes = {label: dict(size) for label, size in sizes.items()}
    study = replace(study, sizes=sizes, notes=tuple(notes), train=training, costs=costs)
    if budget is not None:
        study = replace(study, fixed={**study.fixed, "epochs": epochs_within(budget, study, training, Path(folder))})
        run = replace(run, epochs=study.fixed["epochs"])
    steps = run.epochs * len(loaded.loaders(run.batch_size, 0)[0])
    if study.interpolate:
        study = replace(study, space={**study.space, "lr": _default_lrs(run.choice, steps, search)})
    choices["target"] = (
        f"{size_text(sizes['target'])}; {n_params(models['target']):,} parameters, {steps} steps ({run.epochs} epochs"
        f"{f', which fit in {duration}' if budget else ''}), loss {loss if is_named else 'user-defined'}"
    )
    lrs = study.space["lr"]
    reason = "as passed" if not study.interpolate else f"for {steps} steps" if run.choice.lr_from_steps else "the default"
    choices["lr"] = (
        f"{len(lrs)} values from {number(min(lrs))} to {number(max(lrs))}, tuned at the proxy"
        if search
        else f"{number(lrs[0])}, {reason}; not tuned"
    )
    for rule in study.rules:
        with inspection():  # the model at the base has memory, so that its initialization can be checked
            if search:
                parametrize(copy.deepcopy(models["target"]), base=copy.deepcopy(base), rule=rule, init=False)
            parametrize(copy.deepcopy(first), base=copy.deepcopy(base), rule=rule)
    return Decided(
        replace(study, interpolate=study.interpolate and search),
        title=f"{function_name(build)} on {source.title}",
        steps=steps,
        choices=choices,
        n_bytes=_REPORT_BYTES + _PARAMETER_BYTES * n_params(models["target"]),
    )


def _default_lrs(choice: Choice, steps: int, search: bool) -> list[float]:
    return choice.search_lrs(steps) if search else [choice.default_lr(steps)]


# Models


def _built(build: Callable[..., nn.Module], size: Any, name: str, real: bool = False) -> nn.Module:
    """Return the model of a size, on the meta device unless ``real`` is true or it cannot be built there."""
    if isinstance(build, nn.Module) or not callable(build):
        raise MupError(f"build is a {type(build).__name__}. Pass a function: build(**size) returns a new model.")
    if not isinstance(size, Mapping):
        raise MupError(f"{name}={size!r} must be a dict of arguments of build, such as {{'hidden_channels': 32}}.")
    try:
        with inspection(on_meta=not real):
            return build_model(build, size, f" at the {name}")
    except MupError:
        if real:
            raise
        return _built(build, size, name, real=True)


def modes_of(model: nn.Module) -> Modes:
    """Return ``n_modes`` of a model's Fourier blocks, or None if there are no blocks or they differ."""
    found = {tuple(block.n_modes) for _, block in fourier_blocks(model)}
    return found.pop() if len(found) == 1 else None


def narrower(target: Any, energy: ModeEnergy | None) -> tuple[dict[str, Any], str]:
    """Return the default base: a quarter of the target's width, at least 16, and the modes that the data needs.

    Parameters
    ----------
    target : mapping
        Arguments of the target.
    energy : ModeEnergy, optional
        Energy of the data by mode. Without it, modes do not change.

    Returns
    -------
    base : dict
        Arguments of the base.
    reasons : str
        What differs from the target, and why.

    Raises
    ------
    MupError
        If no argument of the target is a width that could be smaller.
    """
    widths = {key: value for key, value in target.items() if key in WIDTHS and isinstance(value, int) and value > 1}
    if not widths:
        raise MupError(
            f"There is no default base, since no argument of the target ({', '.join(target) or 'none'}) is a known width "
            f"({', '.join(WIDTHS)}). Pass the small size, such as base={{'your_width': 16}}."
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
    """Return the numbers of points per axis, or an empty tuple if the samples are graphs or meshes."""
    x, y = sample.get("x"), sample.get("y")
    has_axes = all(isinstance(values, torch.Tensor) and values.ndim >= 3 for values in (x, y))
    return tuple(x.shape[2:]) if has_axes and x.ndim == y.ndim and not _GRAPH_KEYS & sample.keys() else ()


def data_notes(
    sample: Mapping[str, Any], n_val: int | None, proxy: Modes, target: Modes, compare: bool = True,
    energy: ModeEnergy | None = None,
) -> list[str]:  # fmt: skip
    """Return warnings about the data and the sizes, one sentence each.

    Parameters
    ----------
    sample : mapping
        ``x`` and ``y`` of many samples, as the model takes them.
    n_val : int or None
        Number of validation samples, if they select the learning rate.
    proxy, target : tuple of int or None
        ``n_modes`` at the two sizes (:func:`modes_of`).
    compare : bool
        Whether the loss compares the prediction with ``y``. A user-defined loss may not.
    energy : ModeEnergy, optional
        Energy of the sample by mode, if it is on a grid.
    """
    y, notes = sample["y"], []
    if energy is not None and proxy is not None and target is not None:
        notes.append(proxy_advice(energy, proxy, target))
    if n_val is not None and n_val < _FEW_SAMPLES:
        notes.append(
            f"Learning rates are compared on {n_val} validation {'sample' if n_val == 1 else 'samples'}. With fewer than "
            f"{_FEW_SAMPLES}, the differences between their losses are mostly noise. Use more samples."
        )
    if compare and isinstance(y, torch.Tensor) and y.ndim > 2 and (y == y[:1]).all():
        notes.append(
            "The targets of all samples are equal, so there is nothing to learn. Check whether the right field was read as "
            "the output."
        )
    points = grid_of(sample)
    if len(points) > 1 and any(n % 2 for n in points) and versions()["neuraloperator"] == "2.0.0":
        notes.append(
            f"The grid has {'×'.join(map(str, points))} points. SpectralConv of neuraloperator 2.0.0 is wrong for odd "
            "numbers of points. Use an even grid, or crop the last point of these axes (read={'crop': {'x': (0, -1)}})."
        )
    return list(filter(None, notes))
