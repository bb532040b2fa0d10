"""Decide everything before the first run: data, sizes, settings and what is searched; refuse what cannot work."""

import copy
import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.describe_model import check_grid, fourier_blocks
from neuralop_mup.core.parametrize import parametrize
from neuralop_mup.core.rebuild import WIDTHS
from neuralop_mup.core.rules import OF_INIT, check_multipliers, check_rule
from neuralop_mup.errors import MupError
from neuralop_mup.lab import wording as say
from neuralop_mup.lab.data.given import as_source, options_of
from neuralop_mup.lab.files import check_room, put
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.loss import Losses, errors_of, is_of_normalized, loss_or_default, losses_of
from neuralop_mup.lab.outcome import copied, versions
from neuralop_mup.lab.problems import Problem, ProblemData
from neuralop_mup.lab.problems.mode_energy import ENOUGH, ModeEnergy, mode_energy, off_grid, proxy_advice
from neuralop_mup.lab.records import Records
from neuralop_mup.lab.score import score_of
from neuralop_mup.lab.settings import Choice, Settings, optimizer_of
from neuralop_mup.lab.study import Study, checked
from neuralop_mup.lab.training import Training, build_model, function_name, n_params, processor_of, quiet, untouched
from neuralop_mup.validation import check_positive

LEAST_WIDTH = 16
_PAGE = 1_000_000  # bytes of records, report and figures
_BYTES = 20  # of each number that is trained: the weights, and these again with what an optimizer keeps of them
#: Steps for which the law gives the learning rates that are checked before the data says how many there are.
_USUAL_STEPS = 1000
_FEW_SAMPLES = 10  # of validation: with fewer, one unusual sample moves their mean error by more than a tenth

Modes = tuple[int, ...] | None


@dataclass(frozen=True)
class Decided:
    """Everything that is decided before the first run.

    Attributes
    ----------
    study : Study
        Sizes, settings, what is searched, what trains a run, and from records the runs that are wanted.
    title : str
    steps : int
        Optimizer steps of a run.
    told : mapping
        What the report says of how the data was read, and of what was chosen.
    n_bytes : int
        What the target's weights and the state of its training take in files, about.
    """

    study: Study
    title: str
    steps: int
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
            "loss": study.train.loss,
            **({"score": study.train.score.name} if study.train.score else {}),
            **study.fixed,
            **{f"under {rule}": more for rule, more in study.under.items()},
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
    alone: bool = False,
    **settings: Any,
) -> tuple[Study, Mapping[str, Choice]]:
    """Validate the arguments that do not depend on the data; nothing is read or built.

    Parameters
    ----------
    folder, target, optimizer, seeds, base, space, init_mult
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
        Without a base or learning rates that nobody gave, which :func:`decide` finds.
    dict of str to Choice
        The optimizers that its runs may name.

    Raises
    ------
    MupError
    """
    Records(folder)  # one that is no folder, or of an earlier version
    name, optimizers = optimizer_of(optimizer)
    choice = optimizers[name]
    own_lrs = not space or (isinstance(space, Mapping) and "lr" not in space)
    if own_lrs and choice.is_own:
        give = "give it, lr=…" if alone else "give those to try, space={'lr': [low, …, high]}"
        raise MupError(f"No learning rates of {name} are known here: {give}.")
    for rule in rules:
        check_rule(rule)
    searched = {"lr": _lrs(choice, _USUAL_STEPS, alone), **(space or {})} if own_lrs else space
    given = {key: value for key, value in settings.items() if value is not None or key in ("epochs", "batch_size", "device")}
    over = searched if isinstance(searched, Mapping) else ()
    fixed = {key: value for key, value in {"optimizer": name, **given}.items() if key not in over}
    drawn = check_multipliers(choice.init_mult if init_mult is None else init_mult, "init_mult", OF_INIT)
    if isinstance(base, Mapping) and isinstance(target, Mapping):  # as parametrize(base=…) takes it
        base = {**target, **base}
    study = Study(
        name=Path(folder).resolve().name,
        sizes={"target": target} if alone else {"proxy": base, "target": target},
        rules=tuple(dict.fromkeys(rules)),
        under={rule: {"init_mult": drawn} for rule in rules if rule != "standard" and drawn},
        at={"target": {"base": base}} if alone else {},
        between=own_lrs,
        keeps=True,
        **checked(searched, fixed, seeds, ("model", "base", "rule", "seed")),
    )
    tried = [{name: value} for name, values in {**study.space, "seed": study.seeds}.items() for value in values]
    for config in [{**study.under.get(rule, {}), **one} for rule in study.rules for one in tried]:
        found = Settings.of({**study.fixed, **study.example, **config}, optimizers)
        check_positive("lr", found.lr)  # a run of rate zero is one, but none to be chosen
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
    **asking: Any,
) -> Decided:
    """Read the data, build each size once, choose what nobody gave, and refuse before anything is trained what cannot work.

    Parameters
    ----------
    build, data, folder, read, loss, score, processor
        As for :func:`neuralop_mup.tune`.
    **asking
        As for :func:`validated`.

    Raises
    ------
    MupError
    """
    read = options_of(read)
    hours = asking["epochs"] if asking.get("alone") and isinstance(asking["epochs"], str) else None
    budget = None if hours is None else seconds_of(hours)
    study, optimizers = validated(folder, **asking | ({"epochs": 1} if budget else {}))
    sizes, alone = dict(study.sizes), study.base == study.target
    chosen_by = score_of(score)
    models = {"target": _built(build, sizes["target"], "target", real=alone)}
    source = as_source(data, read, next(models["target"].parameters()).dtype.to_real())
    seen = source.load()
    with untouched(seen.loaders(1, 0)[0]):
        sample = seen.sample()
    grid = () if off_grid(sample) else tuple(sample["x"].shape[2:])
    energy = mode_energy(sample["y"]) if grid else None
    made_by = {"problem": source.content()} if isinstance(source, Problem) else {}
    told = {"data": source.title, **getattr(source, "readings", made_by)}
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
    loss, n_dim = loss_or_default(loss, seen, processor, processor_of(source, seen)), len(grid) or 2
    losses, named = losses_of(loss, n_dim, getattr(source, "losses", dict)()), isinstance(loss, str)
    check_batch(f"{function_name(build)}(**{dict(sizes[study.base])})", first, sample, losses, processor, named, bool(grid))
    check_data(seen, sample["y"], models, usual.batch_size, loss, grid)
    x_shape = (sample["x"].shape[1], *grid) if grid else None
    errors = errors_of(loss, losses, n_dim)
    training = Training(build, source, seen, losses, processor, loss, chosen_by, optimizers, x_shape, errors)
    if chosen_by is not None:
        with quiet():
            chosen_by.check(first, training.processor, seen)
    compared = (None, None) if alone else (seen.counts()["val"], modes_of(first))
    notes = tuple(data_notes(sample, *compared, modes_of(models["target"]), named, energy))
    study = replace(study, sizes={which: dict(size) for which, size in sizes.items()}, notes=notes)
    if budget is not None:
        study = replace(study, fixed={**study.fixed, "epochs": epochs_within(budget, study, training, Path(folder))})
        usual = replace(usual, epochs=study.fixed["epochs"])
    steps = usual.epochs * len(seen.loaders(usual.batch_size, 0)[0])
    if study.between:
        study = replace(study, space={**study.space, "lr": _lrs(usual.choice, steps, alone)})
    told["target"] = (
        f"{say.size_text(sizes['target'])}; {n_params(models['target']):,} parameters, {steps} steps "
        f"({usual.epochs} epochs{f', which fit in {hours}' if hours else ''}), loss {loss if named else 'of your own'}"
    )
    lrs = study.space["lr"]
    usually = f"for {steps} steps" if usual.choice.by_steps else "the optimizer's default"
    one = f"{say.number(lrs[0])}, {usually if study.between else 'as it was given'}; nothing is tuned"
    told["lr"] = one if alone else f"{len(lrs)} from {say.number(min(lrs))} to {say.number(max(lrs))}, tuned at the proxy"
    for rule in study.rules:
        with looking():  # what is not drawn as its class draws it is refused at the base, which is real
            if not alone:
                parametrize(copy.deepcopy(models["target"]), base=copy.deepcopy(base), rule=rule, init=False)
            parametrize(copy.deepcopy(first), base=copy.deepcopy(base), rule=rule)
    study = replace(study, train=training, costs={which: n_params(model) for which, model in models.items()})
    return Decided(
        study,
        title=f"{function_name(build)} on {source.title}",
        steps=steps,
        told=told,
        n_bytes=_PAGE + _BYTES * n_params(models["target"]),
    )


# Models


def _built(build: Callable[..., nn.Module], size: Any, name: str, real: bool = False) -> nn.Module:
    """The model of a size: without memory, unless it is to be real or cannot be built otherwise."""
    if isinstance(build, nn.Module) or not callable(build):
        raise MupError(
            f"build is a {type(build).__name__}; pass a function: build(**size) returns a new model of that size."
        )
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


# Learning rates


def _lrs(choice: Choice, steps: int, alone: bool) -> list[float]:
    """Those that are tried with runs of so many steps where nobody gave any; of a target alone the usual one."""
    return [float(f"{choice.usual(steps):.3g}")] if alone else choice.lrs(steps)


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


# What would fail in every run, or make it worthless: model, loss and data on two samples


@contextmanager
def looking(on_meta: bool = False) -> Iterator[None]:
    """For models that are only looked at: always the same, and no random numbers are used up."""
    with torch.random.fork_rng(devices=[]), quiet(), torch.device("meta") if on_meta else nullcontext():
        torch.manual_seed(0)
        yield


def check_batch(
    call: str, model: nn.Module, sample: Mapping[str, Any], losses: Losses, processor: Any, named: bool, on_grid: bool
) -> None:
    """MupError for a processor, model or loss that fails on two samples, or gives what is no error of them."""
    if processor is not None and not all(hasattr(processor, part) for part in ("preprocess", "postprocess", "to")):
        raise MupError(f"processor={processor!r} must be one of neuralop's data processors, or one derived from them.")
    where = next(model.parameters()).device
    batch = {k: (v[:2] if on_grid else v).to(where) if torch.is_tensor(v) else v for k, v in sample.items()}
    shapes = ", ".join(f"{k} of shape {tuple(v.shape)}" for k, v in batch.items() if torch.is_tensor(v))
    processor = copy.deepcopy(processor)
    try:
        with looking(), torch.no_grad():
            if processor is not None:
                processor.to(where)
                batch = processor.preprocess(batch)
            out = model.eval()(**batch)
            if processor is not None:
                out, batch = processor.postprocess(out, batch)
    except Exception as error:  # the model is the user's
        raise MupError(
            f"The model of {call} fails on a batch of the data, {shapes}: {type(error).__name__}: {error}. Fields are "
            "(n, channels, *grid); use x.movedim(-1, 1) if channels are last. The model needs as many in_channels as x has, "
            "one number in n_modes per axis, and a forward(self, x, **_) that accepts further keyword arguments."
        ) from error
    if named and isinstance(out, torch.Tensor) and out.shape[1:] != batch["y"].shape[1:]:
        raise MupError(
            f"The model of {call} gives fields of shape {tuple(out.shape[1:])} for a batch with {shapes}: "
            "they must be like y. Give it as many out_channels as y has channels."
        )
    for name, (_, term) in {} if named else losses.items():
        with looking(), torch.no_grad():
            _check_loss("The loss" if name == "data" else f"The loss {name!r}", term, out, batch)


def _check_loss(what: str, term: Callable[..., torch.Tensor], out: Any, batch: Mapping[str, Any]) -> None:
    """MupError for a loss that fails, gives no number or another one the second time, or the mean over a batch."""
    n = len(batch["y"])
    half = n // 2 if torch.is_tensor(out) else 0
    parts = (slice(2 * half or n), slice(2 * half or n), slice(half or n), slice(half, 2 * half or n))
    whole, again, first, second = (
        _value(what, copied(term), _cut(out, n, p), {k: _cut(v, n, p) for k, v in batch.items()}) for p in parts
    )
    if whole != again and not math.isnan(whole):
        raise MupError(
            f"{what} gives {whole:.6g} and then {again:.6g} for the same prediction and batch: it draws random numbers that "
            "are not torch's, so that no run could be repeated. Draw them by torch, which is seeded here."
        )
    both = first + second
    if half and math.isclose(whole, both / 2, rel_tol=1e-3) and not math.isclose(whole, both, rel_tol=1e-3):
        raise MupError(
            f"{what} is a mean over the batch: it gives {whole:.4g} for {2 * half} samples, and {first:.4g} and "
            f"{second:.4g} for the halves of them. Losses are added up over batches, so that other batch sizes would be "
            "other losses: sum over the samples, such as ((y_pred - y) ** 2).flatten(1).mean(1).sum()."
        )


def _cut(value: Any, n: int, part: slice) -> Any:
    return value[part] if torch.is_tensor(value) and value.ndim and len(value) == n else value


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


def check_data(data: Any, y: Any, models: Mapping[str, nn.Module], batch: int, loss: Any, grid: Sequence[int]) -> None:
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
    data.check(relative=isinstance(loss, str) and not is_of_normalized(loss))
    train, evals = data.loaders(batch, 0)
    for split, loader in {"train": train, **evals}.items() if grid else ():
        with untouched(loader):
            points = tuple(next(iter(loader))["x"].shape[2:])
        for model in models.values():
            try:
                check_grid(model, points)
            except MupError as error:
                raise MupError(f"Of the {split} data, on {'×'.join(map(str, points))} points: {error}") from error


# A training as long as a time: a few of its steps are timed, and the epochs that fit are counted once

_WARM, _TIMED = 3, 20  # steps: the first ones make the optimizer's state
#: Of the time; the rest is for the errors at the end, the weights and the page.
_SHARE = 0.95
_BUDGET = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


def seconds_of(epochs: str) -> float:
    """Return the seconds of ``"3h"``, ``"90m"``, ``"45s"`` or ``"1h30m"``, given as ``epochs``."""
    found = _BUDGET.fullmatch(epochs)
    hours, minutes, seconds = (float(part or 0) for part in (found.groups() if found else ("0", "0", "0")))
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total < math.inf:
        raise MupError(
            f"epochs is {epochs!r}. Give the number of epochs of the whole training, or the time that it may take as '3h', "
            "'90m', '45s' or '1h30m'."
        )
    return total


class _First:
    """The first batches of a loader, as often as they are asked for."""

    def __init__(self, loader: Any, n: int) -> None:
        self._loader, self._n = loader, min(n, len(loader))

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._loader, self._n)


def epochs_within(budget: float, study: Study, training: Training, folder: Path) -> int:
    """The epochs of a run that fit in a time, floor(0.95 · time / (steps of an epoch · seconds of a step)).

    Their number is kept in the folder, so that the same call has the same length wherever it goes on.

    Parameters
    ----------
    budget : float
        The time, in seconds.
    study : Study
        Of a single size; its runs have one epoch.
    training : Training
        Of which a copy trains.
    folder : Path

    Raises
    ------
    MupError
        If not even one epoch fits, or if the folder cannot be written.
    """
    run = study.tuning[0][0]
    path = folder / f"epochs-{fingerprint([training.content(run.config), budget])[:16]}.txt"
    with suppress(OSError, ValueError):  # not timed yet, or damaged
        return int(path.read_text(encoding="utf-8"))
    an_epoch = _seconds_of_an_epoch(copy.deepcopy(training), Settings.of(run.config, training.optimizers))
    epochs = int(_SHARE * budget / an_epoch)
    if epochs < 1:
        raise MupError(
            f"{budget:g} seconds are too short a time for epochs: by {_TIMED} of its steps one takes about {an_epoch:.3g} "
            "seconds. Give more time, fewer samples or a larger batch_size."
        )
    check_room(folder, 0)
    put(folder, path, f"{epochs}\n")
    return epochs


def _seconds_of_an_epoch(training: Training, s: Settings) -> float:
    with torch.random.fork_rng(devices=[]):
        _, trainer, loader, _ = training.prepare(s)
    timed = _First(loader, _TIMED)
    with quiet(), untouched(loader):
        training.fit(trainer, _First(loader, _WARM))
        began = time.perf_counter()
        training.fit(trainer, timed)
    return (time.perf_counter() - began) / len(timed) * len(loader)
