"""All that is decided before the first run: data, sizes, settings, what is searched; what cannot work is refused."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import neuralop.models
import torch
from torch import nn

from neuralop_mup.core.parametrize import parametrize
from neuralop_mup.core.parts import WIDTHS
from neuralop_mup.core.reading import check_grid, fourier_blocks
from neuralop_mup.core.rules import DEFAULT_RULE, check_rule
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.outcome import copied
from neuralop_mup.lab.problems import Problem
from neuralop_mup.lab.problems.data import ProblemData
from neuralop_mup.lab.problems.mode_energy import ENOUGH, ModeEnergy, mode_energy, off_grid, proxy_advice
from neuralop_mup.lab.problems.own import as_source
from neuralop_mup.lab.records import Records
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.score import score_of
from neuralop_mup.lab.settings import Settings, optimizer_of
from neuralop_mup.lab.study import Study
from neuralop_mup.lab.sweeps import results_of, transfer_study
from neuralop_mup.lab.training import Training, losses_of, n_params, name_of, quiet, untouched
from neuralop_mup.validation import check_count, check_positive

#: Settings of a run that may be given, or searched; and what a search may be told.
SETTINGS = ("weight_decay", "beta2", "schedule", "clip_spectral", "aux_lr", "soap", "kernel_init")
SEARCH = ("n_trials", "sampler")
#: Values by which a grid of learning rates that nobody gave may grow where the best lies at its edge.
EXTENDS = 2
LEAST_WIDTH = 16
#: Operations in whose time a step does what no size changes: calls, the optimizer's loop, loading.
_STEP = 2e8
_FEW_SAMPLES = 10  # of validation: with fewer, one unusual sample moves their mean error by more than a tenth

Modes = tuple[int, ...] | None


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before the first run.

    Attributes
    ----------
    study : Study
        Sizes, settings, what is searched, and from records the runs that are wanted.
    training : Training
        What trains one of them: the data, the model, its losses.
    folder : Path
    title : str
    x_shape : tuple of int or None
        ``(channels, *grid)``; None off a grid.
    costs, steps : mapping
        Size → cost of a run in floating-point operations, and optimizer steps.
    told : mapping
        What the report says of how the data was read, and of what was chosen.
    """

    study: Study
    training: Training
    folder: Path
    title: str
    x_shape: tuple[int, ...] | None
    costs: Mapping[str, float]
    steps: Mapping[str, int]
    told: Mapping[str, Any]

    def train(self, **how: Any) -> Results:
        """Train what is missing, as :func:`~neuralop_mup.lab.sweeps.results_of` takes it; of the study, which may be another
        than the plan was made with.
        """
        return results_of(replace(self.study, train=self.training, costs=self.costs), folder=self.folder, **how)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides the result, flat."""
        study = self.study
        return {
            **self.told,
            **{f"{which}.{name}": value for which, size in study.sizes.items() for name, value in size.items()},
            **{f"search.{name}": values for name, values in study.space.items()},
            "rules": study.rules,
            "seeds": study.seeds,
            "loss": self.training.told,
            **({"score": self.training.score.name} if self.training.score else {}),
            **study.fixed,
            **{f"under {rule}": more for rule, more in study.under.items()},
            **{f"at the {size}": more for size, more in study.at.items()},
        }


def make_plan(
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
    **more: Any,
) -> Plan:
    """Read the data, build each size once, choose the proxy, and refuse before anything is trained what cannot work.

    Parameters
    ----------
    build, data, target, folder, base, read, loss, score, space, rule, compare, optimizer, epochs, batch_size, seeds, device
        As for :func:`neuralop_mup.tune`.
    proxy_steps, processor
        Likewise.
    **more
        :data:`SETTINGS` and :data:`SEARCH`.

    Raises
    ------
    MupError
    """
    folder = Path(folder)
    Records(folder)  # one that is no folder, or of an earlier version, is told before any data is made
    name, optimizers = optimizer_of(optimizer)
    choice, chosen_by = optimizers[name], score_of(score)
    kernel_init = more.pop("kernel_init", None) or choice.kernel_init
    search = {name: more.pop(name) for name in SEARCH if name in more}
    if not isinstance(space or {}, Mapping):
        values = list(space) if isinstance(space, (list, tuple)) else choice.lrs(1000)
        raise MupError(f"The space is {space!r}; give a dict of hyperparameters and the values to try: {{'lr': {values}}}.")
    space = space or {}
    own_lrs = "lr" not in space
    if own_lrs and choice.is_own:
        raise MupError(f"No learning rates of {name} are known here: give those to try, space={{'lr': [low, …, high]}}.")
    fixed = {"optimizer": name, "epochs": epochs, "batch_size": batch_size, "device": device, **more}
    Settings.of(fixed, optimizers)  # what is wrong with them is told before any data is made
    for each in (rule, *compare):
        check_rule(each)
    models = {"target": _built(build, target, "target")}
    source = as_source(data, read, next(models["target"].parameters()).dtype.to_real())
    seen = source.load()
    with untouched(seen.loaders(1, 0)[0]):
        sample = seen.sample()
    grid = () if off_grid(sample) else tuple(sample["x"].shape[2:])
    energy = mode_energy(sample["x"], sample["y"]) if grid else None
    why = {}
    if base is None:
        base, why["proxy"] = narrower(target, energy)
    models = {"proxy": _built(build, base, "base", real=True), **models}
    few, many = n_params(models["proxy"]), n_params(models["target"])
    if few >= many:
        raise MupError(
            f"The base has {few:,} parameters and the target {many:,}: tuning the base saves nothing. Make it smaller in "
            "width or modes."
        )
    batch = max(space["batch_size"]) if isinstance(space.get("batch_size"), list) else batch_size
    losses = losses_of(loss, len(grid) or 2, getattr(source, "losses", dict)())
    _check_fit(name_of(build), base, models["proxy"], sample, grid, isinstance(loss, str), processor)
    _check_data(seen, sample["y"], models, batch, loss, grid)
    training = Training(build, source, seen, losses, processor, loss, chosen_by, optimizers)
    if not isinstance(loss, str):
        _check_losses(training)
    if chosen_by is not None:
        chosen_by.check(models["proxy"], training.processor, seen)
    n_batches = len(seen.loaders(batch, 0)[0])
    asked = epochs * n_batches if proxy_steps is None else proxy_steps
    check_count("proxy_steps", asked, "steps")
    rates = {"lr": choice.lrs(asked)} if own_lrs else {}
    resolved = [modes_of({}, model) for model in models.values()]
    notes = tuple(data_notes(sample, seen.counts()["val"], *resolved, isinstance(loss, str), energy))
    study = transfer_study(
        proxy=base,
        target=target,
        space={**rates, **space},
        rule=rule,
        rules=[rule, *compare],
        naive=False,
        fixed={k: v for k, v in fixed.items() if k not in space},
        seeds=seeds,
        name=folder.resolve().name,
        keeps=True,
        between=own_lrs,
        extends={"lr": EXTENDS} if own_lrs and not space else {},
        notes=notes,
        **search,
    )
    at, steps = _lengths(epochs, n_batches, asked, name, choice.is_own, study)
    if at:
        why["steps"] = f"{steps['proxy']} instead of {steps['target']}; the rule for steps carries the learning rate"
    kernels = {"kernel_init": kernel_init} if kernel_init != "default" else {}
    study = replace(study, at=at, under={rule: kernels for rule in study.rules if kernels and rule != "standard"})
    for each in study.rules:
        with _looking():  # what is not drawn as its class draws it is refused at the base, which is real
            parametrize(copy.deepcopy(models["target"]), base=copy.deepcopy(models["proxy"]), rule=each, init=False)
            parametrize(copy.deepcopy(models["proxy"]), base=copy.deepcopy(models["proxy"]), rule=each)
        _check_settings(study, each, optimizers)
    points = math.prod(grid)
    return Plan(
        study,
        training,
        folder,
        f"{name_of(build)} on {source.title}",
        (sample["x"].shape[1], *grid) if grid else None,
        {which: (operations(models[which], points) * batch + _STEP) * n for which, n in steps.items()},
        steps,
        {"data": source.title, **_readings(source), **why},
    )


# Models


@contextmanager
def _looking(on_meta: bool = False) -> Iterator[None]:
    """For models that are only looked at: always the same, and no random numbers are used up."""
    with torch.random.fork_rng(devices=[]), quiet(), torch.device("meta") if on_meta else nullcontext():
        torch.manual_seed(0)
        yield


def _built(build: Callable[..., nn.Module], size: Any, name: str, real: bool = False) -> nn.Module:
    """The model of a size: without memory, unless it is to be real or cannot be built otherwise."""
    if isinstance(build, nn.Module) or not callable(build):
        what = f"build is a model, a {type(build).__name__}, and" if callable(build) else f"build={build!r}"
        raise MupError(f"{what} must be a function: build(**size) returns a fresh model of that size.")
    if not isinstance(size, Mapping):
        raise MupError(f"{name}={size!r} must be a dict of arguments of build, such as {{'hidden_channels': 32}}.")
    for key, value in size.items():
        if key in WIDTHS and isinstance(value, int):
            check_count(f"{key} of the {name}", value)
    try:
        with _looking(on_meta=not real):
            model = build(**size)
    except MupError:
        raise
    except Exception as error:  # the function is the user's
        if not real:
            return _built(build, size, name, real=True)
        wrong = next((key for key in size if key not in WIDTHS and f"'{key}'" in str(error)), "")
        known = getattr(neuralop.models, str(error).partition(".")[0], None)  # whose constructor it was, as Python tells it
        widths = [key for key in WIDTHS if known is None or key in inspect.signature(known).parameters]
        hint = f" Of {wrong}: {nearest(wrong, widths)}" if wrong else ""
        raise MupError(f"build(**{dict(size)}) fails at the {name}: {type(error).__name__}: {error}.{hint}") from error
    if not isinstance(model, nn.Module):
        raise MupError(f"build(**{dict(size)}) returns {model!r}, and must return a model, a torch.nn.Module.")
    return model


def modes_of(size: Mapping[str, Any], model: nn.Module | None = None) -> Modes:
    """``n_modes`` of a size, one number an axis; None where it is not known, or is not the same in every layer.

    Parameters
    ----------
    size : mapping
        Arguments of the model.
    model : torch.nn.Module, optional
        What they build. Its Fourier blocks say what an argument that was not given is; the argument is asked where it has
        none.
    """
    found = {tuple(block.n_modes) for _, block in fourier_blocks(model)} if model is not None else set()
    if found:
        return found.pop() if len(found) == 1 else None
    n_modes = size.get("n_modes")
    return tuple(n_modes) if isinstance(n_modes, Sequence) and all(isinstance(n, int) for n in n_modes) else None


def operations(model: nn.Module, points: int) -> float:
    """Floating-point operations of a training step for a sample, counted from shapes: for comparing costs before spending
    them.

    A pointwise map costs 2 operations a weight and grid point, a kernel's complex product 8 a weight; backward is twice
    forward. Fourier transforms, activations, losses and the optimizer are left out.
    """
    maps = [p for p in model.parameters() if p.ndim > 1 and min(p.shape[:2]) > 0]
    return 3.0 * sum(8 * p.numel() if p.is_complex() else 2 * p.numel() * points for p in maps)


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
    if energy is not None and isinstance(modes, (tuple, list)) and len(modes) == len(energy.targets):
        base["n_modes"] = type(modes)(min(n, max(4, need)) for n, need in zip(modes, energy.enough(), strict=True))
        if base["n_modes"] != modes:
            few, many = ("×".join(map(str, each)) for each in (base["n_modes"], modes))
            said.append(f"n_modes {few} instead of {many}, {100 * ENOUGH:g} % of the energy")
    return base, "; ".join(said)


# The length of the proxy's training


def _lengths(
    epochs: int, batches: int, asked: int, optimizer: str, is_own: bool, study: Study
) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    """Settings of the runs of each size where the proxy is to be shorter, and the steps of each, in whole epochs.

    Raises
    ------
    MupError
        If it would be longer than the target's, or no rule carries the learning rate to more steps.
    """
    steps, own = epochs * batches, max(1, round(asked / batches))
    reasons = {
        f"the target's training has {steps}, and a longer proxy saves nothing": asked > steps,
        "without μP no rule carries a learning rate to more steps": "standard" in study.rules,
        f"the rule for steps is not that of {optimizer}": optimizer == "sgd" or is_own,
        "the schedule is in epochs of the target": str(study.fixed.get("schedule")).startswith("halve"),
        "the length is searched": study.space.keys() & {"epochs", "batch_size", "schedule"},
    }
    if why := [reason for reason, holds in reasons.items() if holds and asked != steps]:
        raise MupError(f"proxy_steps = {asked} beside the target's {steps} cannot be: {why[0]}.")
    pair = (own * batches, steps)
    at = {"proxy": {"epochs": own}, "target": {"training": {"steps": pair}}} if own < epochs else {}
    return at, {"proxy": pair[0], "target": steps}


# What would fail in every run


def _check_settings(study: Study, rule: str | None, optimizers: Mapping[str, Any]) -> None:
    """MupError for a setting, or for a value of the space, that a run would refuse."""
    grids = {name: values for name, values in study.space.items() if isinstance(values, (list, tuple))}
    example = study.example
    for params in [{}, *({name: value} for name, values in grids.items() for value in values)]:
        config = study.config(study.point("target", rule, {**example, **params}), study.seeds[0])
        check_positive("lr", Settings.of(config, optimizers).lr)  # a run of rate zero is one, but none to be chosen


def _check_fit(
    name: str, base: Mapping[str, Any], model: nn.Module, sample: Mapping[str, Any], grid: Sequence[int], compare: bool,
    processor: Any,
) -> None:  # fmt: skip
    """Refuse a model that does not take the data or does not give fields like y, and a processor that is none."""
    if processor is not None:  # it may change the shapes
        if not all(hasattr(processor, part) for part in ("preprocess", "postprocess", "to")):
            raise MupError(f"processor={processor!r} must be one of neuralop's data processors, or one derived from them.")
        return
    where = next(model.parameters()).device
    few = {k: (v[:2] if grid else v).to(where) if torch.is_tensor(v) else v for k, v in sample.items()}
    shapes = ", ".join(f"{k} of shape {tuple(v.shape)}" for k, v in few.items() if torch.is_tensor(v))
    call, x = f"{name}(**{dict(base)})", few["x"]
    try:
        with _looking(), torch.no_grad():
            out = model.eval()(**few)
    except Exception as error:  # the model is the user's
        channels = getattr(model, "in_channels", None)
        last = torch.is_tensor(x) and x.ndim > 2 and channels == x.shape[-1] != x.shape[1]
        do = (
            "Its channels are last: give x.movedim(-1, 1), and y likewise."
            if last
            else "Fields are (n, channels, *grid); the model must take as many channels as x has."
        )
        raise MupError(
            f"The model of {call} fails on a batch of the data, {shapes}: {type(error).__name__}: {error}. {do}"
        ) from error
    if compare and isinstance(out, torch.Tensor) and out.shape[1:] != few["y"].shape[1:]:
        raise MupError(
            f"The model of {call} gives fields of shape {tuple(out.shape[1:])} for a batch with {shapes}: "
            "they must be like y. Give it as many out_channels as y has channels."
        )


def _check_data(data: Any, y: Any, models: Mapping[str, nn.Module], batch: int, loss: Any, grid: Sequence[int]) -> None:
    """MupError for too large a batch, samples that no loss can judge, and grids on which a model's modes would be cut."""
    n_train = data.counts()["train"]
    if isinstance(data, ProblemData) and batch > n_train:
        raise MupError(
            f"A batch of {batch} is larger than the training data, {n_train} samples: each epoch would be one step. "
            f"Take a batch_size of {n_train} at most, better a tenth of it, or more data."
        )
    if isinstance(loss, str) and torch.is_tensor(y) and y.is_complex():
        raise MupError(
            f"loss={loss!r} with complex targets: neuralop's losses are of real fields. Give a function of your own "
            "that takes moduli, loss(y_pred, y, **batch), summed over the batch; or real and imaginary parts as channels."
        )
    data.check(relative=isinstance(loss, str))
    train, evals = data.loaders(batch, 0)
    for split, loader in {"train": train, **evals}.items() if grid else ():
        with untouched(loader):
            points = tuple(next(iter(loader))["x"].shape[2:])
        for model in models.values():
            try:
                check_grid(model, points)
            except MupError as error:
                raise MupError(f"Of the {split} data, on {'×'.join(map(str, points))} points: {error}") from error


def _check_losses(training: Training) -> None:
    """MupError for a loss that fails, gives no number or another one the second time, or the mean over a batch."""
    loader, processor = training.data.loaders(8, 0)[0], copy.deepcopy(training.processor)
    with untouched(loader), torch.no_grad(), quiet():
        torch.manual_seed(0)
        sample = dict(next(iter(loader)))
        if processor is not None:
            processor.to("cpu")
            processor.train()
            sample = processor.preprocess(sample)
        y = sample["y"]
        prediction = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y.dtype)
        if processor is not None:
            prediction, sample = processor.postprocess(prediction, sample)
        for name, (_, term) in training.losses.items():
            what = "The loss" if name == "data" else f"The loss {name!r}"
            n, half = len(y), len(y) // 2
            whole, again, first, second = (
                _value(what, copied(term), prediction[part], _cut(sample, n, part))
                for part in (slice(2 * half or n), slice(2 * half or n), slice(half or n), slice(half, 2 * half or n))
            )
            if whole != again and not math.isnan(whole):
                raise MupError(
                    f"{what} gives {whole:.6g} and then {again:.6g} for the same prediction and batch: it draws random "
                    "numbers that are not torch's, so that no run could be repeated. Draw them by torch, which is seeded "
                    "here."
                )
            both = first + second
            if half and math.isclose(whole, both / 2, rel_tol=1e-3) and not math.isclose(whole, both, rel_tol=1e-3):
                raise MupError(
                    f"{what} is a mean over the batch: it gives {whole:.4g} for {2 * half} samples, and {first:.4g} and "
                    f"{second:.4g} for the halves of them. Losses are added up over batches, so that other batch sizes "
                    "would be other losses: sum over the samples, such as ((y_pred - y) ** 2).flatten(1).mean(1).sum()."
                )


def _cut(sample: Mapping[str, Any], n: int, part: slice) -> dict[str, Any]:
    return {k: v[part] if torch.is_tensor(v) and v.ndim and len(v) == n else v for k, v in sample.items()}


def _value(what: str, term: Callable[..., torch.Tensor], prediction: torch.Tensor, sample: Mapping[str, Any]) -> float:
    """What a loss gives; MupError in the user's words where that is no number."""
    torch.manual_seed(0)
    try:
        value = term(prediction, **sample)
    except Exception as error:  # the function is the user's
        raise MupError(
            f"{what} fails on a batch with {', '.join(sample)}: {type(error).__name__}: {error}. It is called as "
            "loss(y_pred, **batch), so take y and **batch."
        ) from error
    if not torch.is_tensor(value) or value.numel() != 1:
        kind = f"a tensor of shape {tuple(value.shape)}" if torch.is_tensor(value) else f"{value!r}"
        raise MupError(f"{what} gives {kind}; it must return a tensor of one number, summed over the batch.")
    return float(value)


# What a reader must know


def _readings(source: Any) -> dict[str, Any]:
    """What the report says of how the data was read."""
    if isinstance(source, Problem):
        return {"problem": {name: value for name, value in source.content().items() if name != "problem"}}
    return getattr(source, "readings", {})


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
        ``n_modes`` of the model at the two sizes (:func:`modes_of`).
    compare : bool
        Whether the loss compares the prediction with y; one of the user's may not.
    energy : ModeEnergy, optional
        Of the sample, where it is known.
    """
    y, notes = sample["y"], []
    if proxy is not None and target is not None and any(n < m for n, m in zip(proxy, target, strict=False)):
        if off_grid(sample):
            notes.append(
                "The data is on no grid, so advice on the proxy's modes, from the energy that they keep, does not apply: "
                "compare a proxy with more of them."
            )
        else:
            notes.append(proxy_advice(energy or mode_energy(sample["x"], y), proxy, target))
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
    if any(n % 2 for n in points) and not odd_grids_work():
        notes.append(
            f"{'×'.join(map(str, points))} points: the installed neuralop's SpectralConv is wrong on odd numbers of points, "
            "so choose an even grid, or leave out the last point of these axes (read={'crop': True} for files and arrays)."
        )
    return list(filter(None, notes))


def odd_grids_work() -> bool:
    """Whether the installed SpectralConv is right on grids with an odd number of points.

    neuralop 2.0.0 shifts the spectrum back by ``fftshift`` instead of its inverse, which differ on odd grids. With
    weights of one, a low mode must pass unchanged.
    """
    from neuralop.layers.spectral_convolution import SpectralConv

    with torch.random.fork_rng(devices=[]):
        conv = SpectralConv(1, 1, (4, 4), bias=False)
    with torch.no_grad():
        conv.weight.tensor.fill_(1.0)
        wave = torch.cos(2 * torch.pi * torch.arange(9) / 9)[:, None].expand(9, 9)
        return torch.allclose(conv(wave[None, None])[0, 0], wave, atol=1e-4)
