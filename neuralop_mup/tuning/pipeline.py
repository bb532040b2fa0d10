"""``tune``: a model and data in; the learning rate, the trained target and a report out. The one pipeline, of the command, "
"too."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from neuralop.models import FNO
from torch import nn
from torch.utils.data import Dataset, RandomSampler

from neuralop_mup.core.classify import check_grid
from neuralop_mup.core.parametrize import parametrize
from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import MupError
from neuralop_mup.problems.base import Problem
from neuralop_mup.problems.data import ProblemData
from neuralop_mup.problems.mode_energy import mode_energy, off_grid
from neuralop_mup.problems.sources import as_source
from neuralop_mup.tuning import report
from neuralop_mup.tuning.engines import cuda_devices, make_engine
from neuralop_mup.tuning.presets import EXTENDS, odd_grids_work
from neuralop_mup.tuning.proxy import data_notes, modes_of
from neuralop_mup.tuning.records import Records
from neuralop_mup.tuning.runner import run
from neuralop_mup.tuning.savings import coarser, narrower, shorter
from neuralop_mup.tuning.score import score_of
from neuralop_mup.tuning.settings import OPTIMIZERS, Settings, optimizer_name
from neuralop_mup.tuning.study import Study
from neuralop_mup.tuning.summary import Results
from neuralop_mup.tuning.sweeps import transfer_study
from neuralop_mup.tuning.target import Tuned, lines_of_use, load_target, name_of, write_target
from neuralop_mup.tuning.train import Training, losses_of, n_params, quiet
from neuralop_mup.tuning.with_optuna import Search
from neuralop_mup.validation import check_positive

__all__ = ["FNOs", "Tuning", "tune", "tuning"]

#: Settings of a run that may be given to :func:`tune`, or searched.
_SETTINGS = ("weight_decay", "beta2", "schedule", "clip_spectral", "aux_lr", "muon", "soap")
#: What the search and its place may be told besides.
_SEARCH = ("n_trials", "sampler")
#: Operations in whose time a step does what no size changes: calls, the optimizer's loop, loading.
_STEP = 2e8
_PLACE = ("storage", "engine", "executor")
_WHOLE = "sizes alone are compared"


@dataclass(frozen=True)
class FNOs:
    """What builds neuralop's FNO for data of so many channels and axes."""

    in_channels: int
    out_channels: int
    n_dim: int

    name = "FNO"
    on_meta = True  # a model that is only looked at needs no memory

    def __call__(self, **size: Any) -> FNO:
        """The model of that size.

        Raises
        ------
        MupError
            If the constructor refuses the arguments.
        """
        kwargs = {"in_channels": self.in_channels, "out_channels": self.out_channels, **size}
        n_modes = kwargs.get("n_modes")
        if not isinstance(n_modes, (tuple, list)) or len(n_modes) != self.n_dim:
            raise MupError(f"n_modes = {n_modes!r}, but the data has {self.n_dim} axes: give one number of modes an axis.")
        try:
            return FNO(**kwargs)
        except Exception as error:  # the constructor's reason is what the user needs
            raise MupError(f"FNO cannot be built from {kwargs}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Tuning:
    """Everything that is decided before the first run.

    Attributes
    ----------
    study : Study
    training : Training
    folder : Path
    title : str
    x_shape : tuple of int or None
        ``(channels, *grid)``; None off a grid.
    costs, parameters : mapping
        Size → cost of a run in floating-point operations, and parameters of the model.
    told : mapping
        What the report says of how the data was read.
    steps : mapping
        Size → optimizer steps of a run.
    """

    study: Study
    training: Training
    folder: Path
    title: str
    x_shape: tuple[int, ...] | None
    costs: Mapping[str, float]
    parameters: Mapping[str, int]
    told: Mapping[str, Any]
    steps: Mapping[str, int]

    def run(
        self, *, n_workers: int | None, devices: Sequence[str], command: str, progress: bool, engine: Any = None,
        executor: Any = None, storage: Any = None,
    ) -> tuple[Results, dict[str, Any] | None]:  # fmt: skip
        """Train what is missing and write the report.

        Returns
        -------
        results : Results
        target : dict or None
            What says which run is the target; None where none completed.
        """
        made = make_engine(engine, executor, self.training, self.study.planned().total(), n_workers, devices)
        results = run(
            self.study, self.training, folder=self.folder, engine=made, storage=storage, costs=self.costs, progress=progress
        )
        target = write_target(results, self.training, self.x_shape)
        use = "" if target is None else "\n".join(lines_of_use(self.folder, target))
        settings = {**self.told, **self.settings}
        report.write_report(results, command=command, title=self.title, settings=settings, costs=self.costs, use=use)
        return results, target

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides the result, flat."""
        study = self.study
        return {
            **{f"{which}.{name}": value for which, size in study.sizes.items() for name, value in size.items()},
            **{f"search.{name}": values for name, values in study.space.items()},
            "rules": study.rules,
            "seeds": study.seeds,
            "verify": bool(study.searched),
            "loss": self.training.told,
            **({"score": self.training.score.name} if self.training.score else {}),
            **study.fixed,
            **{f"under {rule}": more for rule, more in study.under.items()},
            **{f"at the {size}": more for size, more in study.at.items()},
        }


def tuning(
    build: Callable[..., nn.Module],
    source: Any,
    *,
    base: Mapping[str, Any] | None,
    target: Mapping[str, Any],
    folder: Path,
    space: Mapping[str, Any] | None,
    fixed: Mapping[str, Any],
    loss: Any = "l2",
    score: Any = None,
    processor: Any = None,
    kernel_init: str = "default",
    under: Mapping[str, Any] | None = None,
    title: str | None = None,
    flag: str | None = None,
    notes: Sequence[str] = (),
    large: bool = False,
    look: bool = True,
    whole: bool = False,
    proxy_steps: int | None = None,
    proxy_stride: int | None = None,
    **asked: Any,
) -> Tuning:
    """Read the data, build both sizes, choose the proxy, and refuse before anything is trained what would fail in every run.

    Parameters
    ----------
    build, base, target, folder, loss, score, processor, proxy_steps, proxy_stride
        As for :func:`tune`.
    source : object
        Whose ``load()`` gives the data.
    space : mapping, optional
        What is searched; learning rates that follow from the optimizer and the proxy's steps where it has none.
    fixed : mapping
        Settings of every run.
    kernel_init : str
        Of every rule but "standard".
    under : mapping, optional
        Settings of every rule but "standard", besides.
    title : str, optional
        Of the report.
    flag : str, optional
        The option that sets the proxy's modes, where there is one.
    notes : sequence of str
        What is known already.
    large : bool
        Whether a base as large as the target is meant.
    look : bool
        Whether the data of a problem is made, too; that of files is read in any case.
    whole : bool
        Whether the proxy trains as long as the target and sees every point, as where sizes alone are to be compared.
    **asked
        Of :func:`transfer_study`.

    Raises
    ------
    MupError
    """
    chosen_by, own_base = score_of(score), base is None
    Records(folder)  # one that is no folder, or of an earlier version, is told before any data is made
    if own_base and isinstance(target, Mapping):
        base, why = narrower(target, None)
    sizes, modes = _sizes(build, base, target, large)
    read, choice = asked.pop("read", None), OPTIMIZERS[fixed["optimizer"]]
    own_lrs = "lr" not in fixed and (space is None or (isinstance(space, Mapping) and "lr" not in space))
    study = transfer_study(
        proxy=base,
        target=target,
        space={"lr": choice.lrs(1000), **(space or {})} if own_lrs else space,
        fixed={k: v for k, v in fixed.items() if k not in (space or ())},
        keeps=True,
        between=own_lrs,
        name=folder.resolve().name,
        **asked,
    )
    under = {**(under or {}), **({} if kernel_init == "default" else {"kernel_init": kernel_init})}
    study = replace(study, under={rule: under for rule in study.rules if rule != "standard" and under})
    for rule in study.rules:  # what a rule or a setting refuses it would refuse in every run
        with _looking(build):
            parametrize(build(**target), base=lambda: build(**base), rule=rule, init=not getattr(build, "on_meta", False))
        _check_settings(study, rule)
    source = as_source(source, read, next(sizes["target"].parameters()).dtype.to_real())
    made = isinstance(source, Problem)  # which takes time, so that everything else is checked before
    data = source.blank() if made else source.load()
    source = source.fixed(data) if hasattr(source, "fixed") else source
    batch_sizes = study.space["batch_size"] if isinstance(study.space.get("batch_size"), list) else [fixed["batch_size"]]
    batch, n_train = max(batch_sizes), data.counts()["train"]
    if isinstance(data, ProblemData) and batch > n_train:
        raise MupError(
            f"A batch of {batch} is larger than the training data, {n_train} samples: each epoch would be one step. "
            f"Take a batch_size of {n_train} at most, better a tenth of it, or more data."
        )
    sample = data.sample()
    on_grid = not off_grid(sample)
    losses = losses_of(loss, sample["x"].ndim - 2 if torch.is_tensor(sample["x"]) else 2, getattr(source, "losses", dict)())
    first = {k: v[:2] if on_grid and torch.is_tensor(v) else v for k, v in sample.items()}
    if isinstance(loss, str) and torch.is_tensor(first["y"]) and first["y"].is_complex():
        raise MupError(
            f"loss={loss!r} with complex targets: neuralop's losses are of real fields. Give a function of your own "
            "that takes moduli, loss(y_pred, y, **batch), summed over the batch; or real and imaginary parts as channels."
        )
    for letter in "xy" if on_grid else ():
        if not torch.isfinite(sample[letter]).all():
            raise MupError(
                f"{letter} of the training data has entries that are not finite: remove these samples or fill them in."
            )
    if processor is None:  # a user's may change the shapes
        _check_batch(build, base, first, compare=isinstance(loss, str))
    elif not all(hasattr(processor, name) for name in ("preprocess", "postprocess", "to")):
        raise MupError(f"processor={processor!r} must be one of neuralop's data processors, or one derived from them.")
    for size in sizes.values() if on_grid else ():
        check_grid(size, tuple(sample["x"].shape[2:]))  # the layers cut what is beyond it, and nothing would tell
    x_shape, odd = (tuple(sample["x"].shape[1:]) if on_grid else None), []
    if on_grid and any(points % 2 for points in x_shape[1:]) and not odd_grids_work():
        crop = source.option(crop=True) if hasattr(source, "option") else "read={'crop': True}"
        odd.append(
            f"{'×'.join(map(str, x_shape[1:]))} points: the installed neuralop's SpectralConv is wrong on odd numbers of "
            f"points, so choose an even grid, or leave out the last point of these axes ({crop} for files and arrays)."
        )
    energy, own = None, {"processor": processor is not None, "loss": not isinstance(loss, str), "score": callable(score)}
    if look or not made:
        data = source.load() if made else data
        sample = data.sample()
        energy = mode_energy(sample["x"], sample["y"]) if on_grid else None
        if own_base:
            base, why = narrower(target, energy)
            sizes, modes = _sizes(build, base, target, large)
            study = replace(study, sizes={**study.sizes, "proxy": dict(base)})
        said = data_notes(sample, data.counts()["val"], modes["proxy"], modes["target"], flag, isinstance(loss, str))
        notes = [*notes, *said]
        processor = processor or (source.processor(data) if made else data.processor())
    n_epochs, n_batches = fixed.get("epochs", 1), len(data.loaders(batch, 0)[0])
    length = shorter(n_epochs, n_batches, asked=proxy_steps, refused=_WHOLE if whole else _not_shorter(fixed, study, data))
    stride, grid = coarser(
        x_shape[1:] if on_grid else (),
        modes["proxy"],
        energy,
        asked=proxy_stride,
        takes=_takes(build, base, sample),
        refused=_WHOLE if whole else _not_coarser(data, losses, own, look or not made),
    )
    at = {size: dict(more) for size, more in length.at.items()}
    if math.prod(stride) > 1:
        at["proxy"] = {**at.get("proxy", {}), "stride": stride}
    space = {**study.space, **({"lr": choice.lrs(length.steps[0])} if own_lrs else {})}
    search = study.search and Search(space, study.n_trials, asked.get("sampler"))
    study = replace(study, notes=(*notes, *odd), at=at, space=space, search=search)
    training = Training(build, source, data, losses, processor, loss, chosen_by)
    if not made:
        training.values()  # what is wrong with the user's losses shows on a batch
    if look or not made or isinstance(score, str):  # a rollout of a problem is refused without its data
        training.scored(base)
    points = math.prod(x_shape[1:] if on_grid else ())
    seen = {"proxy": (length.steps[0], points / math.prod(stride)), "target": (length.steps[1], points)}
    costs = {which: (operations(sizes[which], n) * batch + _STEP) * steps for which, (steps, n) in seen.items()}
    told = {"data": source.title}
    if hasattr(source, "description"):
        told |= {"read as": source.description, **source.readings}
    elif made:
        told["problem"] = {name: value for name, value in source.content().items() if name != "problem"}
    told |= {**({"proxy": why} if own_base else {}), "steps": length.why, **({"grid": grid} if on_grid else {})}
    return Tuning(
        study,
        training,
        folder,
        title or f"{name_of(build)} on {source.title}",
        x_shape,
        costs,
        {k: n_params(m) for k, m in sizes.items()},
        told,
        {which: steps for which, (steps, _) in seen.items()},
    )


def _not_shorter(fixed: Mapping[str, Any], study: Study, data: Any) -> str:
    """Why the proxy must train as long as the target; empty where it need not."""
    if "standard" in study.rules:
        return "without μP no rule carries a learning rate to more steps"
    if not isinstance(data, ProblemData) and not _is_shuffled(data.parts["train"]):
        return "the loader's order is fixed, so that a shorter epoch would be its first samples alone"
    if searched := [name for name in ("epochs", "batch_size", "schedule") if name in study.space]:
        return f"{searched[0]} is searched"
    if fixed["optimizer"] == "sgd":
        return "the rule for steps is not SGD's"
    schedule = str(fixed.get("schedule", "cosine"))
    return f"the schedule {schedule} is in epochs of the target" if schedule.startswith("halve") else ""


def _is_shuffled(part: Any) -> bool:
    """Whether each epoch has another order: of data sets here, and of loaders with a random sampler."""
    return isinstance(part, Dataset) or isinstance(getattr(part, "sampler", None), RandomSampler)


def _not_coarser(data: Any, losses: Any, own: Mapping[str, Any], looked: bool) -> str:
    """Why the proxy must see every point of the grid; empty where it need not, as far as the model takes it."""
    if not looked:
        return "the data is not made yet"
    if not (isinstance(data, ProblemData) and torch.is_tensor(data.train[0])):
        return "the data is read batch by batch"
    if len(losses) > 1:
        return "the losses beside the data's may depend on the grid"
    mine = next((name for name, given in own.items() if given), None)
    return f"the {mine} given may depend on the grid" if mine else ""


def _takes(build: Callable[..., nn.Module], base: Mapping[str, Any], sample: Mapping[str, Any]) -> Callable[..., bool]:
    """Whether the proxy gives fields like y, with all of its modes, at every so manieth point."""

    def takes(stride: Sequence[int]) -> bool:
        cut = (slice(0, 1), slice(None), *(slice(None, None, step) for step in stride))
        x, y = sample["x"][cut], sample["y"][cut]
        try:
            with _looking(build), torch.no_grad():
                model = build(**base).eval()
                check_grid(model, tuple(x.shape[2:]))
                return model(x.to(next(model.parameters()).device)).shape == y.shape
        except Exception:  # the model is the user's
            return False

    return takes


def _check_settings(study: Study, rule: str | None) -> None:
    """MupError for a setting, or for a value of the space, that a run would refuse."""
    grids = {name: values for name, values in study.space.items() if isinstance(values, (list, tuple))}
    for params in [{}, *({name: value} for name, values in grids.items() for value in values)]:
        settings = Settings.of(study.config(study.point("target", rule, {**study.example, **params}), study.seeds[0]))
        check_positive("lr", settings.lr)  # a run of rate zero is one, but none that could be chosen


def _sizes(
    build: Callable[..., nn.Module], base: Mapping[str, Any], target: Mapping[str, Any], large: bool
) -> tuple[dict[str, nn.Module], dict[str, Any]]:
    """The models of both sizes, to be looked at, and their modes."""
    if not callable(build):
        raise MupError(f"build={build!r} must be a function: build(**size) returns a fresh model of that size.")
    sizes, modes = {}, {}
    for name, which, size in (("base", "proxy", base), ("target", "target", target)):
        if not isinstance(size, Mapping):
            raise MupError(f"{name}={size!r} must be a dict of arguments of build, such as {{'hidden_channels': 32}}.")
        try:
            with _looking(build):
                sizes[which] = build(**size)
            if not isinstance(sizes[which], nn.Module):
                raise MupError(
                    f"build(**{dict(size)}) returns {sizes[which]!r}, and must return a model, a torch.nn.Module."
                )
            modes[which] = modes_of(size, sizes[which])
        except MupError:
            raise
        except Exception as error:  # the function is the user's
            raise MupError(f"build(**{dict(size)}) fails at the {name}: {type(error).__name__}: {error}") from error
    counts = {which: n_params(model) for which, model in sizes.items()}
    if counts["proxy"] >= counts["target"] and not large:
        raise MupError(
            f"The base has {counts['proxy']:,} parameters and the target {counts['target']:,}: tuning the base saves "
            "nothing. Make it smaller in width or modes."
        )
    return sizes, modes


@contextmanager
def _looking(build: Any) -> Iterator[None]:
    """For models that are only looked at: no random numbers are used up and, where that can be, no memory."""
    where = torch.device("meta") if getattr(build, "on_meta", False) else nullcontext()
    with torch.random.fork_rng(devices=[]), quiet(), where:
        yield


def operations(model: nn.Module, points: int) -> float:
    """Floating-point operations of a training step for a sample, counted from shapes: for comparing costs before spending
    them.

    A pointwise map costs 2 operations a weight and grid point, a kernel's complex product 8 a weight; backward is twice
    forward. Fourier transforms, activations, losses and the optimizer are left out.
    """
    maps = [p for p in model.parameters() if p.ndim > 1 and min(p.shape[:2]) > 0]
    return 3.0 * sum(8 * p.numel() if p.is_complex() else 2 * p.numel() * points for p in maps)


def _check_batch(build: Callable[..., nn.Module], base: Mapping[str, Any], few: Mapping[str, Any], compare: bool) -> None:
    """Refuse a model that does not take the data or does not give fields like y: one forward pass at the base."""
    shapes = ", ".join(f"{k} of shape {tuple(v.shape)}" for k, v in few.items() if torch.is_tensor(v))
    call = f"{name_of(build)}(**{dict(base)})"
    with _looking(build), torch.no_grad():
        model = build(**base).eval()
        where = next(model.parameters()).device
        few = {k: v.to(where) if torch.is_tensor(v) else v for k, v in few.items()}
        x, channels = few["x"], getattr(model, "in_channels", None)
        try:
            out = model(**few)
        except Exception as error:  # the model is the user's
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
    verify: bool = False,
    optimizer: Any = "soap",
    epochs: int = 50,
    batch_size: int = 20,
    seeds: Iterable[int] = (0,),
    proxy_steps: int | None = None,
    proxy_stride: int | None = None,
    processor: Any = None,
    device: str = "auto",
    n_workers: int | None = None,
    progress: bool = True,
    **more: Any,
) -> Tuned:
    """Check the learning rate of a model on data at a cheap proxy, and train the large size with it.

    The proxy is narrower than the target, trains for an eighth of its steps and sees every 2nd or 4th point of its grid, as
    far as the data and the target allow it; what was chosen is printed, with its reason.

    Parameters
    ----------
    build : callable
        ``build(**size)`` returns a fresh model as neuralop (or you) would initialise it. At module level, so that worker
        processes can import it.
    data : path, list, tuple, dict or callable
        A file, a folder, a pattern such as ``"runs/*.h5"``, or a list of them, joined (see
        :class:`neuralop_mup.problems.OwnData`); arrays ``(x, y)``, which are read, split and cast to float32 as a file is;
        ``(train, val)`` or ``(train, val, test)``, or a dict with these names, of files, loaders, data sets or ``(x, y)``
        arrays of shape ``(n, channels, *grid)``; a problem of :mod:`neuralop_mup.problems`; or a function that returns one
        of these, called in each process. Arrays are tensors or numpy's, those of splits cast to the model's precision.
        Batches are dicts with "x" and "y", or pairs.
    target : mapping
        Arguments of ``build`` for the large size, the one that is wanted.
    folder : str or Path
        Keeps every run by its content, the target's weights and normalisation, and the report; the same call resumes there,
        and :func:`load_tuned` reads the target. Another call in the same folder shares the runs that are the same.
    base : mapping, optional
        Arguments of ``build`` for the proxy; without them the target's with a quarter of its width (16 at least) and, where
        ``target`` says ``n_modes``, as many of them as hold 99.9 % of the targets' energy.
    read : mapping, optional
        How files or a pair of arrays are read: ``x`` and ``y`` (keys), ``channels``, ``time_step``, ``split``, ``shuffle``,
        ``crop``, ``in_memory``, as in :class:`neuralop_mup.problems.OwnData`. What was read and how is told and stands in
        the report.
    loss : str, callable or dict
        ``"l2"``, ``"h1"`` or ``"l2,h1"`` (relative errors); ``loss(y_pred, y, **batch)``, summed over the batch, as
        neuralop's Trainer takes it; or a dict of names to such functions or to (weight, function). The first one chooses,
        unless there is a score.
    score : str or callable, optional
        What chooses instead of the validation error, the lower the better, 0 at least. ``"rollout:50"``: the relative
        error of fifty steps, each from the prediction before, on trajectories (``read={"time_step": 1}``), the geometric
        mean over the steps. ``score(predictions, targets)``: a function of the validation data as two tensors in the units
        of the data, on the CPU. ``score(model, data)``: ``model(x)`` predicts in these units, and ``data`` is iterated in
        batches of them; ``data.states(i)`` is state ``i`` of each trajectory. It is known by the names of its arguments.
        Infinity, or NaN, is a model that loses.
    space : mapping, optional
        What is searched: ``lr``, and for example ``lr_mult.spectral``. Without it these are five learning rates in factors
        of 2 around what the law gives for the proxy's steps (:class:`neuralop_mup.MuSOAP`), or 1e-3 to 6.4e-2 under an
        optimizer that has no law; up to two more beyond an edge where the best lies, and between them a parabola.
    rule : str
        The μP rule; see :func:`neuralop_mup.parametrize`.
    compare : sequence of str
        Rules under which the target is trained besides; ``()`` for none.
    verify : bool
        Search at the target, too, to measure what carrying missed.
    optimizer : str or class
        "soap", "muon", "adam", "adamw", "neuralop-adamw" or "sgd"; the names of the classes, such as "MuSOAP", and the
        classes themselves mean the same.
    epochs, batch_size : int
        Of the target. ``batch_size`` holds for data that does not come as loaders.
    seeds : iterable of int
        With each the proxy and the target are trained.
    proxy_steps, proxy_stride : int, optional
        Optimizer steps of the proxy, and 1 for every point of the grid, 2 for every 2nd; chosen by default.
    processor : neuralop DataProcessor, optional
        Normalises batches; by default fitted to the training data where that is arrays or a file, and none for loaders.
        With it ``Tuned.predict`` works in the units of the data; without it that is refused.
    device : str
        torch's name of it; ``"auto"``: each run a GPU of its own, or the CPU.
    n_workers : int, optional
        Runs at once, each in a process of its own; default one per GPU, or one per core.
    progress : bool
    **more
        Of a run: ``weight_decay``, ``beta2``, ``schedule``, ``clip_spectral``, ``aux_lr``, ``muon`` and ``soap`` (their
        arguments), and ``kernel_init`` (default: small with ``muon`` and ``soap``, neuralop's own with the others and in
        SP). Of a search: ``n_trials``, ``sampler``, ``storage``, ``engine``, ``executor``, as in :func:`neuralop_mup.sweep`.

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
    >>> target = {"hidden_channels": 64, "n_modes": (32,)}
    >>> tuned = nm.tune(build, "heat.npz", target=target, folder="runs/heat")  # doctest: +SKIP
    """
    if not isinstance(folder, (str, Path)):
        raise MupError(f"folder={folder!r} must be the path of a folder for the runs.")
    if isinstance(compare, str):
        raise MupError(f"compare={compare!r} must be a sequence of rules, such as ({compare!r},).")
    settings, search, place = ({k: more.pop(k) for k in names if k in more} for names in (_SETTINGS, _SEARCH, _PLACE))
    choice = OPTIMIZERS[optimizer_name(optimizer)]
    kernel_init = more.pop("kernel_init", choice.kernel_init)
    if more:
        raise MupError(f"tune has no argument {next(iter(more))!r}; see help(neuralop_mup.tune).")
    fixed = {
        "optimizer": optimizer_name(optimizer),
        "epochs": epochs,
        "batch_size": batch_size,
        "device": device,
        **settings,
    }
    plan = tuning(
        build,
        data,
        base=base,
        target=target,
        folder=Path(folder),
        read=read,
        space=space,
        fixed=fixed,
        loss=loss,
        score=score,
        processor=processor,
        kernel_init=kernel_init,
        rule=rule,
        rules=[rule, *compare],
        naive="standard" in compare,
        verify=verify,
        seeds=seeds,
        extends={} if space else {"lr": EXTENDS},  # a grid that nobody gave
        proxy_steps=proxy_steps,
        proxy_stride=proxy_stride,
        **search,
    )
    if progress:
        for what, text in plan.told.items():
            print(f"{what:<8} {text}")
    for note in plan.study.notes:
        warnings.warn(note, stacklevel=2)
    if n_workers is None and getattr(build, "__name__", "") == "<lambda>":
        n_workers = 1  # it cannot be sent to other processes
    devices = cuda_devices() if device in ("auto", "cuda") else []
    command = f"neuralop_mup.tune({name_of(build)}, …, folder={str(folder)!r})"
    results, made = plan.run(n_workers=n_workers, devices=devices, command=command, progress=progress, **place)
    return load_target(results, made, build, processor)
