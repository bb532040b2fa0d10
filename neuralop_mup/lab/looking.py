"""Models and data, looked at before anything is trained: what would fail in every run is refused here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, RandomSampler

from neuralop_mup.core.parametrize import parametrize
from neuralop_mup.core.reading import check_grid
from neuralop_mup.errors import MupError
from neuralop_mup.lab.presets import odd_grids_work
from neuralop_mup.lab.problems.base import Problem
from neuralop_mup.lab.problems.data import ProblemData
from neuralop_mup.lab.problems.mode_energy import ModeEnergy, mode_energy, off_grid
from neuralop_mup.lab.problems.sources import as_source
from neuralop_mup.lab.proxy import Modes, modes_of
from neuralop_mup.lab.study import Study
from neuralop_mup.lab.target import name_of
from neuralop_mup.lab.train import Losses, losses_of, n_params, quiet

__all__ = ["SeenData", "Sizes", "not_coarser", "not_shorter", "operations"]


@dataclass(frozen=True)
class Sizes:
    """The proxy and the target, built to be looked at.

    Attributes
    ----------
    build : callable
    base, target : mapping
        Its arguments at either size.
    models, modes : mapping
        Size ("proxy" or "target") → model, and its ``n_modes`` (:func:`modes_of`).
    """

    build: Callable[..., nn.Module]
    base: Mapping[str, Any]
    target: Mapping[str, Any]
    models: Mapping[str, nn.Module]
    modes: Mapping[str, Modes]

    @classmethod
    def of(cls, build: Callable[..., nn.Module], base: Any, target: Any, large: bool) -> Sizes:
        """Both models; ``large``: a base as large as the target is meant.

        Raises
        ------
        MupError
            If one cannot be built, or the base is not smaller.
        """
        if isinstance(build, nn.Module) or not callable(build):
            raise MupError(f"build={build!r} must be a function: build(**size) returns a fresh model of that size.")
        models, modes = {}, {}
        for name, which, size in (("base", "proxy", base), ("target", "target", target)):
            if not isinstance(size, Mapping):
                raise MupError(f"{name}={size!r} must be a dict of arguments of build, such as {{'hidden_channels': 32}}.")
            try:
                with _looking(build):
                    models[which] = build(**size)
                if not isinstance(models[which], nn.Module):
                    raise MupError(
                        f"build(**{dict(size)}) returns {models[which]!r}, and must return a model, a torch.nn.Module."
                    )
                modes[which] = modes_of(size, models[which])
            except MupError:
                raise
            except Exception as error:  # the function is the user's
                raise MupError(f"build(**{dict(size)}) fails at the {name}: {type(error).__name__}: {error}") from error
        sizes = cls(build, base, target, models, modes)
        counts = sizes.parameters
        if counts["proxy"] >= counts["target"] and not large:
            raise MupError(
                f"The base has {counts['proxy']:,} parameters and the target {counts['target']:,}: tuning the base saves "
                "nothing. Make it smaller in width or modes."
            )
        return sizes

    @property
    def parameters(self) -> dict[str, int]:
        """Size → numbers that are trained."""
        return {which: n_params(model) for which, model in self.models.items()}

    @property
    def dtype(self) -> torch.dtype:
        """Real precision of the target."""
        return next(self.models["target"].parameters()).dtype.to_real()

    def check_rule(self, rule: str) -> None:
        """MupError where a rule does not take the model."""
        on_meta = getattr(self.build, "on_meta", False)
        with _looking(self.build):
            parametrize(self.build(**self.target), base=lambda: self.build(**self.base), rule=rule, init=not on_meta)

    def check_grid(self, points: tuple[int, ...]) -> None:
        """MupError where a model has more modes than these points hold: the layers cut them, and nothing would tell."""
        for model in self.models.values():
            check_grid(model, points)

    def check_batch(self, few: Mapping[str, Any], compare: bool) -> None:
        """Refuse a model that does not take the data or does not give fields like y: one forward pass at the base."""
        shapes = ", ".join(f"{k} of shape {tuple(v.shape)}" for k, v in few.items() if torch.is_tensor(v))
        call = f"{name_of(self.build)}(**{dict(self.base)})"
        with _looking(self.build), torch.no_grad():
            model = self.build(**self.base).eval()
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

    def takes(self, sample: Mapping[str, Any], stride: Sequence[int]) -> bool:
        """Whether the proxy gives fields like y, with all of its modes, at every so manieth point."""
        cut = (slice(0, 1), slice(None), *(slice(None, None, step) for step in stride))
        x, y = sample["x"][cut], sample["y"][cut]
        try:
            with _looking(self.build), torch.no_grad():
                model = self.build(**self.base).eval()
                check_grid(model, tuple(x.shape[2:]))
                return model(x.to(next(model.parameters()).device)).shape == y.shape
        except Exception:  # the model is the user's
            return False


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


@dataclass(frozen=True)
class SeenData:
    """Data and where it comes from.

    Attributes
    ----------
    source : object
        Whose ``load()`` gives the data; it goes to other processes.
    data : ProblemData or Loaders
        What it gives, or a problem's blank fields of the same shapes.
    is_loaded : bool
        Whether it is the data itself. That of a problem takes time to make, so everything else is checked before.
    """

    source: Any
    data: Any
    is_loaded: bool

    @classmethod
    def of(cls, source: Any, read: Mapping[str, Any] | None, dtype: torch.dtype) -> SeenData:
        """Data in any form of :func:`neuralop_mup.tune`, as a model of that precision is given it."""
        source = as_source(source, read, dtype)
        if isinstance(source, Problem):
            return cls(source, source.load(), is_loaded=True)
        data = source.load()
        return cls(source.fixed(data) if hasattr(source, "fixed") else source, data, is_loaded=True)

    def load(self) -> SeenData:
        """With the data itself."""
        return self if self.is_loaded else replace(self, data=self.source.load(), is_loaded=True)

    @property
    def is_made(self) -> bool:
        """Whether it is a problem's."""
        return isinstance(self.source, Problem)

    @cached_property
    def sample(self) -> dict[str, Any]:
        """Many training samples, as the model is given them."""
        return self.data.sample()

    @cached_property
    def on_grid(self) -> bool:
        """Whether samples are fields on a grid, of which modes can be told."""
        return not off_grid(self.sample)

    @property
    def grid(self) -> tuple[int, ...]:
        """Points on each axis; none off a grid."""
        return tuple(self.sample["x"].shape[2:]) if self.on_grid else ()

    @cached_property
    def energy(self) -> ModeEnergy | None:
        """Of the data by mode; None off a grid, and before it is loaded."""
        return mode_energy(self.sample["x"], self.sample["y"]) if self.is_loaded and self.on_grid else None

    @property
    def told(self) -> dict[str, Any]:
        """What the report says of how it was read."""
        told = {"data": self.source.title}
        if hasattr(self.source, "description"):
            return told | {"read as": self.source.description, **self.source.readings}
        if self.is_made:
            told["problem"] = {name: value for name, value in self.source.content().items() if name != "problem"}
        return told

    def losses(self, loss: Any) -> Losses:
        """What a run minimises (:func:`losses_of`)."""
        x = self.sample["x"]
        return losses_of(loss, x.ndim - 2 if torch.is_tensor(x) else 2, getattr(self.source, "losses", dict)())

    def processor(self) -> Any:
        """Normalises batches, fitted to the training data; None for loaders."""
        return self.source.processor(self.data) if self.is_made else self.data.processor()

    def check(self, batch: int, loss: Any) -> None:
        """MupError for too large a batch, complex targets under neuralop's losses, and entries that are not finite."""
        n_train, y = self.data.counts()["train"], self.sample["y"]
        if isinstance(self.data, ProblemData) and batch > n_train:
            raise MupError(
                f"A batch of {batch} is larger than the training data, {n_train} samples: each epoch would be one step. "
                f"Take a batch_size of {n_train} at most, better a tenth of it, or more data."
            )
        if isinstance(loss, str) and torch.is_tensor(y) and y.is_complex():
            raise MupError(
                f"loss={loss!r} with complex targets: neuralop's losses are of real fields. Give a function of your own "
                "that takes moduli, loss(y_pred, y, **batch), summed over the batch; or real and imaginary parts as "
                "channels."
            )
        if self.is_loaded:
            self.data.check(relative=isinstance(loss, str))

    def grid_notes(self) -> list[str]:
        """A warning where the installed layers are wrong on this grid."""
        if not any(points % 2 for points in self.grid) or odd_grids_work():
            return []
        crop = self.source.option(crop=True) if hasattr(self.source, "option") else "read={'crop': True}"
        return [
            f"{'×'.join(map(str, self.grid))} points: the installed neuralop's SpectralConv is wrong on odd numbers of "
            f"points, so choose an even grid, or leave out the last point of these axes ({crop} for files and arrays)."
        ]


def not_shorter(fixed: Mapping[str, Any], study: Study, seen: SeenData) -> str:
    """Why the proxy must train as long as the target; empty where it need not."""
    if "standard" in study.rules:
        return "without μP no rule carries a learning rate to more steps"
    if not isinstance(seen.data, ProblemData) and not _is_shuffled(seen.data.parts["train"]):
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


def not_coarser(seen: SeenData, losses: Losses, own: Mapping[str, bool]) -> str:
    """Why the proxy must see every point of the grid; empty where it need not, as far as the model takes it.

    ``own``: what may be the user's → whether it is.
    """
    if not seen.is_loaded:
        return "the data is not made yet"
    if not (isinstance(seen.data, ProblemData) and torch.is_tensor(seen.data.train[0])):
        return "the data is read batch by batch"
    if len(losses) > 1:
        return "the losses beside the data's may depend on the grid"
    mine = next((name for name, given in own.items() if given), None)
    return f"the {mine} given may depend on the grid" if mine else ""
