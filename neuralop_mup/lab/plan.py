"""All that is decided before the first run: data, sizes, settings, what is searched, if anything is; what cannot work is
refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.parametrize import parametrize
from neuralop_mup.core.parts import WIDTHS
from neuralop_mup.core.reading import fourier_blocks
from neuralop_mup.core.rules import check_rule
from neuralop_mup.errors import MupError
from neuralop_mup.lab import wording as say
from neuralop_mup.lab.checks import check_batch, check_data, looking
from neuralop_mup.lab.outcome import versions
from neuralop_mup.lab.problems import Problem
from neuralop_mup.lab.problems.given import as_source
from neuralop_mup.lab.problems.mode_energy import ENOUGH, ModeEnergy, mode_energy, off_grid, proxy_advice
from neuralop_mup.lab.records import Records
from neuralop_mup.lab.score import score_of
from neuralop_mup.lab.search import checked
from neuralop_mup.lab.settings import Choice, Settings, optimizer_of
from neuralop_mup.lab.study import Study
from neuralop_mup.lab.training import Training, build_model, losses_of, n_params, name_of, untouched
from neuralop_mup.validation import check_count, check_positive

_NEEDED = ("epochs", "batch_size", "device")
_SET_HERE = ("model", "base", "rule", "seed")
#: Values by which a grid of learning rates that nobody gave may grow where the best lies at its edge.
EXTENDS = 2
LEAST_WIDTH = 16
_PAGE = 10_000_000  # bytes of records, report and figures
_BYTES = 20  # of each number that is trained: the weights, and these again with what an optimizer keeps of them
#: Steps for which the law gives the learning rates that are checked before the data says how many there are.
_USUAL_STEPS = 1000
_FEW_SAMPLES = 10  # of validation: with fewer, one unusual sample moves their mean error by more than a tenth

Modes = tuple[int, ...] | None


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before the first run.

    Attributes
    ----------
    study : Study
        Sizes, settings, what is searched, what trains a run, and from records the runs that are wanted.
    title : str
    x_shape : tuple of int or None
        ``(channels, *grid)``; None off a grid.
    steps : mapping
        Size → optimizer steps of a run.
    told : mapping
        What the report says of how the data was read, and of what was chosen.
    n_bytes : int
        What the target's weights and the state of its training take in files, about.
    """

    study: Study
    title: str
    x_shape: tuple[int, ...] | None
    steps: Mapping[str, int]
    told: Mapping[str, Any]
    n_bytes: int

    def __str__(self) -> str:
        return "\n".join(f"{what:<8} {text}" for what, text in self.told.items())

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides the result, flat."""
        study = self.study
        return {
            **self.told,
            **{f"{which}.{name}": value for which, size in study.sizes.items() for name, value in size.items()},
            **{f"search.{name}": values for name, values in study.space.items() if len(values) > 1 or len(study.sizes) > 1},
            "rules": study.rules,
            "seeds": study.seeds,
            "loss": study.train.told,
            **({"score": study.train.score.name} if study.train.score else {}),
            **study.fixed,
            **{f"under {rule}": more for rule, more in study.under.items()},
            **{f"at the {size}": more for size, more in study.at.items() if "base" not in more},
        }


def asked(
    folder: str | Path,
    *,
    target: Mapping[str, Any],
    rules: Sequence[str],
    optimizer: Any,
    seeds: Iterable[int],
    base: Mapping[str, Any] | None = None,
    space: Mapping[str, Any] | None = None,
    kernel_init: str | None = None,
    alone: bool = False,
    **settings: Any,
) -> tuple[Study, Mapping[str, Choice]]:
    """What is asked for, refused where it cannot work whatever the data is; nothing is read or built.

    Parameters
    ----------
    folder, target, optimizer, seeds, base, space, kernel_init
        As for :func:`neuralop_mup.tune`.
    rules : sequence of str
        The rule, and those under which the target is trained besides.
    alone : bool, default False
        Whether the target is trained by itself: then nothing is searched, and the base is one that is not trained.
    **settings
        Those of every run; one of None is the optimizer's own.

    Returns
    -------
    Study
        Without a base or learning rates that nobody gave, which :func:`make_plan` finds.
    dict of str to Choice
        The optimizers that its runs may name.

    Raises
    ------
    MupError
    """
    folder = Path(folder)
    Records(folder)  # one that is no folder, or of an earlier version
    name, optimizers = optimizer_of(optimizer)
    choice, space = optimizers[name], space or {}
    if not isinstance(space, Mapping):
        values = list(space) if isinstance(space, (list, tuple)) else choice.lrs(_USUAL_STEPS)
        raise MupError(f"The space is {space!r}; give a dict of hyperparameters and the values to try: {{'lr': {values}}}.")
    own_lrs = "lr" not in space
    if own_lrs and choice.is_own:
        give = "give it, lr=…" if alone else "give those to try, space={'lr': [low, …, high]}"
        raise MupError(f"No learning rates of {name} are known here: {give}.")
    for rule in rules:
        check_rule(rule)
    lrs = {"lr": _lrs(choice, _USUAL_STEPS, alone)} if own_lrs else {}
    given = {key: value for key, value in settings.items() if value is not None or key in _NEEDED}
    fixed = {key: value for key, value in {"optimizer": name, **given}.items() if key not in space}
    kernels = kernel_init or choice.kernel_init
    study = Study(
        name=folder.resolve().name,
        sizes={"target": target} if alone else {"proxy": base, "target": target},
        rules=tuple(dict.fromkeys(rules)),
        under={rule: {"kernel_init": kernels} for rule in rules if rule != "standard" and kernels != "default"},
        at={"target": {"base": base}} if alone else {},
        between=own_lrs,
        extends={} if space or alone else {"lr": EXTENDS},
        keeps=True,
        **checked({**lrs, **space}, fixed, seeds, _SET_HERE),
    )
    tried = [{name: value} for name, values in study.space.items() for value in values]
    tried += [{"seed": seed} for seed in study.seeds]
    for config in [{**study.under.get(rule, {}), **one} for rule in study.rules for one in tried]:
        found = Settings.of({**study.fixed, **study.example, **config}, optimizers)
        check_positive("lr", found.lr)  # a run of rate zero is one, but none to be chosen
    return study, optimizers


def make_plan(
    study: Study,
    optimizers: Mapping[str, Choice],
    build: Callable[..., nn.Module],
    data: Any,
    *,
    read: Mapping[str, Any] | None = None,
    loss: Any = "l2",
    score: Any = None,
    proxy_steps: int | None = None,
    processor: Any = None,
) -> Plan:
    """Read the data, build each size once, choose what nobody gave, and refuse before anything is trained what cannot work.

    Parameters
    ----------
    study, optimizers
        As :func:`asked` gives them.
    build, data, read, loss, score, proxy_steps, processor
        As for :func:`neuralop_mup.tune`.

    Raises
    ------
    MupError
    """
    sizes, alone = dict(study.sizes), study.base == study.target
    chosen_by = score_of(score)
    models = {"target": _built(build, sizes["target"], "target", real=alone)}
    source = as_source(data, read, next(models["target"].parameters()).dtype.to_real())
    seen = source.load()
    with untouched(seen.loaders(1, 0)[0]):
        sample = seen.sample()
    grid = () if off_grid(sample) else tuple(sample["x"].shape[2:])
    energy = mode_energy(sample["y"]) if grid else None
    read_as = getattr(source, "readings", {})
    if isinstance(source, Problem):
        read_as = {"problem": {name: value for name, value in source.content().items() if name != "problem"}}
    told = {"data": source.title, **read_as}
    if alone:
        own = study.at["target"]["base"]
        base = None if own is None else _built(build, own, "base")
        told["base"] = "the reference size" if own is None else say.size_text(own)
    else:
        if sizes["proxy"] is None:
            sizes["proxy"], told["proxy"] = narrower(sizes["target"], energy)
        base = models["proxy"] = _built(build, sizes["proxy"], "base", real=True)
        few, many = n_params(base), n_params(models["target"])
        if few >= many:
            raise MupError(
                f"The base has {few:,} parameters and the target {many:,}: tuning the base saves nothing. Make it smaller "
                "in width or modes."
            )
    first = models[study.base]
    usual = Settings.of({**study.fixed, **study.example}, optimizers)
    losses, named = losses_of(loss, len(grid) or 2, getattr(source, "losses", dict)()), isinstance(loss, str)
    check_batch(f"{name_of(build)}(**{dict(sizes[study.base])})", first, sample, losses, processor, named, bool(grid))
    check_data(seen, sample["y"], models, usual.batch_size, loss, grid)
    training = Training(build, source, seen, losses, processor, loss, chosen_by, optimizers)
    if chosen_by is not None:
        chosen_by.check(first, training.processor, seen)
    n_val, modes = (None, None) if alone else (seen.counts()["val"], modes_of(first))
    notes = tuple(data_notes(sample, n_val, modes, modes_of(models["target"]), named, energy))
    study = replace(study, sizes={which: dict(size) for which, size in sizes.items()}, notes=notes)
    study, steps = _of_length(study, usual, len(seen.loaders(usual.batch_size, 0)[0]), proxy_steps)
    if not alone and study.at:
        told["steps"] = f"{steps['proxy']} instead of {steps['target']}; the rule for steps carries the learning rate"
    told["target"] = (
        f"{say.size_text(sizes['target'])}; {n_params(models['target']):,} parameters, {steps['target']} steps "
        f"({usual.epochs} epochs), loss {loss if named else 'of your own'}"
    )
    lrs = study.space["lr"]
    rates = f"{len(lrs)} from {say.number(min(lrs))} to {say.number(max(lrs))}, tuned at the proxy"
    why = (
        "as it was given"
        if not study.between
        else f"for {steps['target']} steps"
        if usual.choice.by_steps
        else "the optimizer's default"
    )
    told["lr"] = f"{say.number(lrs[0])}, {why}; nothing is tuned" if alone else rates
    for rule in study.rules:
        with looking():  # what is not drawn as its class draws it is refused at the base, which is real
            if not alone:
                parametrize(copy.deepcopy(models["target"]), base=copy.deepcopy(base), rule=rule, init=False)
            parametrize(copy.deepcopy(first), base=copy.deepcopy(base), rule=rule)
    costs = {which: n_params(model) * steps[which] for which, model in models.items()}
    study = replace(study, train=training, costs=costs)
    x_shape = (sample["x"].shape[1], *grid) if grid else None
    title = f"{name_of(build)} on {source.title}"
    return Plan(study, title, x_shape, steps, told, n_bytes=_PAGE + _BYTES * n_params(models["target"]))


# Models


def _built(build: Callable[..., nn.Module], size: Any, name: str, real: bool = False) -> nn.Module:
    """The model of a size: without memory, unless it is to be real or cannot be built otherwise."""
    if isinstance(build, nn.Module) or not callable(build):
        what = f"build is a model, a {type(build).__name__}, and" if callable(build) else f"build={build!r}"
        raise MupError(f"{what} must be a function: build(**size) returns a fresh model of that size.")
    if not isinstance(size, Mapping):
        raise MupError(f"{name}={size!r} must be a dict of arguments of build, such as {{'hidden_channels': 32}}.")
    try:
        with looking(on_meta=not real):
            return build_model(build, size, f" at the {name}")
    except MupError:
        if real:
            raise
        return _built(build, size, name, real=True)


def modes_of(model: nn.Module) -> Modes:
    """``n_modes`` of a model's Fourier blocks, one number an axis; None where there are none or several."""
    found = {tuple(block.n_modes) for _, block in fourier_blocks(model)}
    return found.pop() if len(found) == 1 else None


# Sizes that nobody gave


def narrower(target: Any, energy: ModeEnergy | None) -> tuple[dict[str, Any], str]:
    """A base for a target that was given none: a quarter of its width, 16 at least, and the modes that the data needs.

    Parameters
    ----------
    target : mapping
        Arguments of the target.
    energy : ModeEnergy, optional
        Of the data; without it modes stay.

    Returns
    -------
    base : dict
        Arguments of the base.
    why : str

    Raises
    ------
    MupError
        If none of the arguments is a width that could be less.
    """
    widths = {key: value for key, value in target.items() if key in WIDTHS and isinstance(value, int) and value > 1}
    if not widths:
        raise MupError(
            f"No base was given, and none of the target's arguments ({', '.join(target) or 'none'}) is a width that could "
            f"be made smaller (known are {', '.join(WIDTHS)}): give the small size, such as base={{'your_width': 16}}."
        )
    base = dict(target) | {key: max(LEAST_WIDTH, w // 4) if w > LEAST_WIDTH else w // 2 for key, w in widths.items()}
    said = [
        f"{key} {base[key]} instead of {value}, over which μP carries the learning rate" for key, value in widths.items()
    ]
    modes = target.get("n_modes")
    if energy is not None and isinstance(modes, (tuple, list)) and len(modes) == len(energy.shares):
        base["n_modes"] = type(modes)(min(n, max(4, need)) for n, need in zip(modes, energy.enough(), strict=True))
        if base["n_modes"] != modes:
            few, many = ("×".join(map(str, each)) for each in (base["n_modes"], modes))
            said.append(f"n_modes {few} instead of {many}, {100 * ENOUGH:g} % of the energy")
    return base, "; ".join(said)


# Learning rates, and the length of the proxy's training


def _lrs(choice: Choice, steps: int, alone: bool) -> list[float]:
    """Those that are tried with runs of so many steps where nobody gave any; of a target alone the usual one."""
    return [float(f"{choice.usual(steps):.3g}")] if alone else choice.lrs(steps)


def _of_length(study: Study, usual: Settings, batches: int, asked: int | None) -> tuple[Study, dict[str, int]]:
    """The study with the learning rates of its proxy's length, and where this is to be shorter with it, in whole epochs; and
    the steps of each size.

    Raises
    ------
    MupError
        If it would be longer than the target's, or no rule carries the learning rate to more steps.
    """
    steps = usual.epochs * batches
    asked = steps if asked is None else asked
    check_count("proxy_steps", asked, "steps")
    own = max(1, round(asked / batches))
    reasons = {
        f"the target's training has {steps}, and a longer proxy saves nothing": asked > steps,
        "without μP no rule carries a learning rate to more steps": "standard" in study.rules,
        f"the rule for steps is not that of {usual.optimizer}": usual.optimizer == "sgd" or usual.choice.is_own,
        "the schedule is in epochs of the target": usual.schedule.startswith("halve"),
        "the length is searched": study.space.keys() & {"epochs", "batch_size", "schedule"},
    }
    if why := [reason for reason, holds in reasons.items() if holds and asked != steps]:
        raise MupError(f"proxy_steps = {asked} beside the target's {steps} cannot be: {why[0]}.")
    if study.between:
        lrs = _lrs(usual.choice, own * batches, study.base == study.target)
        study = replace(study, space={**study.space, "lr": lrs})
    if own < usual.epochs:
        at = {"proxy": {"epochs": own}, "target": {"training": {"steps": (own * batches, steps)}}}
        study = replace(study, at=at)
    return study, {"proxy": own * batches, "target": steps}


# What a reader must know


def data_notes(
    sample: Mapping[str, Any], n_val: int | None, proxy: Modes, target: Modes, compare: bool = True,
    energy: ModeEnergy | None = None,
) -> list[str]:  # fmt: skip
    """What the data says against the sizes, or against itself, a sentence each.

    Parameters
    ----------
    sample : mapping
        ``x`` and ``y`` of many samples, as the model is given them.
    n_val : int or None
        Samples by which learning rates are compared.
    proxy, target : tuple of int or None
        ``n_modes`` at the two sizes (:func:`modes_of`).
    compare : bool
        Whether the loss compares the prediction with y; one of the user's may not.
    energy : ModeEnergy, optional
        Of the sample, where it is on a grid.
    """
    y, notes = sample["y"], []
    if energy is not None and proxy is not None and target is not None:
        notes.append(proxy_advice(energy, proxy, target))
    if n_val is not None and n_val < _FEW_SAMPLES:
        notes.append(
            f"Learning rates are compared on {n_val} validation {'sample' if n_val == 1 else 'samples'}: with fewer than "
            f"{_FEW_SAMPLES} the differences between their losses are mostly noise, so give more samples."
        )
    if compare and isinstance(y, torch.Tensor) and y.ndim > 2 and (y == y[:1]).all():
        notes.append(
            "The targets of all samples are the same, so there is nothing to learn and no learning rate to choose: look at "
            "what was taken for the output."
        )
    points = () if off_grid(sample) else sample["x"].shape[2:]
    if len(points) > 1 and any(n % 2 for n in points) and versions()["neuraloperator"] == "2.0.0":
        notes.append(
            f"{'×'.join(map(str, points))} points: neuraloperator 2.0.0's SpectralConv is wrong on odd numbers of points, "
            "so choose an even grid, or leave out the last point of these axes (read={'crop': True} for files and arrays)."
        )
    return list(filter(None, notes))
