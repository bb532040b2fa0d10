"""Coordinate check: do features and their updates keep their size as the model grows?

In μP the root-mean-square feature of every block, and its change after a few steps, is Θ(1) in width (Yang & Hu et al.,
"Tensor Programs V", arXiv:2203.03466, section D.1). On a log-log plot against size that is a slope of zero.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.classify import check_grid
from neuralop_mup.core.parametrize import WIDER
from neuralop_mup.diagnostics.features import call, features, inputs_of, rms
from neuralop_mup.errors import MupError
from neuralop_mup.optim.optimizers import MuAdam

__all__ = ["CoordCheck", "coord_check"]


@dataclass(frozen=True)
class CoordCheck:
    """What a coordinate check measured.

    Attributes
    ----------
    records : list of dict
        One per size, seed, step and block: ``size``, ``seed``, ``step``, ``block``, ``kind`` ("init": RMS of the
        features before training; "update": RMS of their change after ``step`` steps) and ``value``.
    size_name : str
        What ``size`` is, for labels.
    """

    records: list[dict[str, Any]]
    size_name: str

    @property
    def blocks(self) -> list[str]:
        """Block names, from input to output."""
        return list(dict.fromkeys(r["block"] for r in self.records))

    @property
    def slopes(self) -> list[dict[str, Any]]:
        """Least-squares slope of log(value) against log(size).

        One dict per block, kind and step: ``block``, ``kind``, ``step``, ``slope`` (of the root mean square over
        seeds, which one seed that happens to start near zero cannot bend), ``low`` and ``high`` (smallest and largest
        slope of a single seed). NaN where some value is zero or not finite.
        """
        groups: dict[tuple, dict[int, list[tuple[float, float]]]] = {}
        for r in self.records:
            key = (r["block"], r["kind"], r["step"])
            groups.setdefault(key, {}).setdefault(r["seed"], []).append((r["size"], r["value"]))
        rows = []
        for (block, kind, step), by_seed in groups.items():
            each = [_slope(points) for points in by_seed.values()]
            pooled = [(same[0][0], math.sqrt(fmean(v * v for _, v in same))) for same in zip(*by_seed.values(), strict=True)]
            rows.append(
                {
                    "block": block,
                    "kind": kind,
                    "step": step,
                    "slope": math.nan if any(map(math.isnan, each)) else _slope(pooled),
                    "low": min(each),
                    "high": max(each),
                }
            )
        return sorted(rows, key=lambda r: (r["step"], self.blocks.index(r["block"])))

    def passed(self, tolerance: float = 0.25, init_tolerance: float = 0.1) -> bool:
        """Whether every slope is flat.

        Parameters
        ----------
        tolerance : float
            Largest |slope| of an update.
        init_tolerance : float
            Largest |slope| of a block at initialisation. The output's may lie between −1/2 and 0, give or take
            ``tolerance``: under μP it starts as width^(-1/2) plus a bias, and as a single number a point it is noisy.
        """
        output = self.blocks[-1]
        for row in self.slopes:
            start_of_output = row["kind"] == "init" and row["block"] == output
            limit = tolerance if row["kind"] == "update" or start_of_output else init_tolerance
            lowest = -0.5 - tolerance if start_of_output else -limit
            if not lowest <= row["slope"] <= limit:  # NaN does not pass
                return False
        return True

    def to_markdown(self) -> str:
        """Slopes as a table: a row a block, a column for init and each step, [smallest, largest of a seed]."""
        columns = list(dict.fromkeys((r["kind"], r["step"]) for r in self.slopes))
        cells = {(r["block"], r["kind"], r["step"]): r for r in self.slopes}
        head = ["block"] + ["init" if kind == "init" else f"update, t = {step}" for kind, step in columns]
        lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        for block in self.blocks:
            row = [block]
            for kind, step in columns:
                r = cells[block, kind, step]
                row.append(f"{r['slope']:+.2f} [{r['low']:+.2f}, {r['high']:+.2f}]")
            lines.append("| " + " | ".join(row) + " |")
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike) -> None:
        """Draw feature updates against size, a panel a step (PNG, SVG or PDF by the path's ending)."""
        from neuralop_mup.plots import plot_coord_check

        plot_coord_check(self, Path(path))


def coord_check(
    build: Callable[[int], nn.Module],
    sizes: Sequence[int],
    batches: Iterable[Mapping[str, torch.Tensor]],
    *,
    lr: float,
    steps: Sequence[int] = (1, 5, 10),
    seeds: int | Sequence[int] = 3,
    optimizer: Callable[[nn.Module, float], torch.optim.Optimizer] = MuAdam,
    loss: Callable[..., torch.Tensor] | None = None,
    size_name: str = "hidden_channels",
) -> CoordCheck:
    """Train a few steps at several sizes and measure every block's features and their change.

    Parameters
    ----------
    build : callable
        ``build(size)`` returns a new model, parametrized (``rule="standard"`` for the standard parametrization).
    sizes : sequence of int
        At least two widths, or numbers of modes.
    batches : iterable of dict
        Training batches ``{"x": …, "y": …}``, as neuralop's loaders give (a pair ``(x, y)`` is refused), used in turn; x of
        shape ``(batch, channels, *grid)``. The first one is also the probe on which features are measured. A model that
        takes more (GINO's geometry) is called with everything but y by name.
    lr : float
        Learning rate at base.
    steps : sequence of int
        After which training steps to measure.
    seeds : int or sequence of int
        Seeds, or how many.
    optimizer : callable
        ``optimizer(model, lr)``; Adam with μP learning rates by default.
    loss : callable, optional
        ``loss(prediction, **batch)``; mean relative L2 error by default.
    size_name : str
        What ``sizes`` are, for labels.

    Returns
    -------
    CoordCheck
        With ``.records``, ``.slopes``, ``.passed()``, ``.to_markdown()`` and ``.plot(path)``.

    Raises
    ------
    MupError
        If fewer than two sizes are given, no batch, a batch that is no dict, no positive step, a model with more modes than
        the grid has, or an unparametrized model with the default optimizer.
    """
    sizes, batches, steps = sorted(set(sizes)), list(batches), sorted(set(steps))
    for batch in batches:
        if not isinstance(batch, Mapping):
            raise MupError(
                f"batches must be dicts such as {{'x': …, 'y': …}}, as neuralop's loaders give; got {type(batch).__name__}."
            )
    seeds = list(seeds) if isinstance(seeds, Iterable) else list(range(seeds))
    if len(sizes) < 2 or not batches or not seeds or not steps or steps[0] < 1:
        raise MupError(
            f"A coordinate check needs two sizes, a batch, a seed and steps of 1 or more; got sizes {sizes}, "
            f"{len(batches)} batches, seeds {seeds}, steps {steps}."
        )
    records = []
    with _own_random_state():
        for size in sizes:
            for seed in seeds:
                torch.manual_seed(seed)
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", WIDER)  # sizes on both sides of base are a line all the same
                    model = build(size)
                for block, kind, step, value in _measure(model, batches, lr, steps, optimizer, loss):
                    records.append(
                        {
                            "size": size,
                            "seed": seed,
                            "step": step,
                            "block": block,
                            "kind": kind,
                            "value": value,
                        }
                    )
    return CoordCheck(records, size_name)


@contextmanager
def _own_random_state() -> Iterator[None]:
    """Random numbers in here are seeded; outside they go on as if nothing had happened, on CUDA too."""
    started = torch.cuda.is_initialized()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if started else []):
        yield
    if not started:
        # Nothing was drawn on CUDA before, so its state was the seed alone. Without a GPU this does nothing.
        torch.cuda.manual_seed_all(torch.initial_seed())


def _measure(model, batches, lr, steps, optimizer, loss):
    """Yield (block, kind, step, RMS) for one model."""
    if batches[0].keys() == {"x", "y"}:
        check_grid(model, tuple(batches[0]["x"].shape[2:]))
    loss = loss or _relative_l2
    opt = optimizer(model, lr)
    start = features(model, inputs_of(batches[0]))
    if not start:
        raise MupError(
            f"No block of this {type(model).__name__} returns a tensor, so there is nothing to measure: a block is a "
            "child of the model that holds parameters, and returns a tensor or a tuple, list or dict of them."
        )
    for block, value in start.items():
        yield block, "init", 0, rms(value)
    for step in range(1, steps[-1] + 1):
        model.train()
        batch = batches[(step - 1) % len(batches)]
        opt.zero_grad()
        loss(call(model, inputs_of(batch)), **batch).backward()
        opt.step()
        if step in steps:
            for block, value in features(model, inputs_of(batches[0])).items():
                yield block, "update", step, rms(value - start[block])


def _relative_l2(prediction: torch.Tensor, y: torch.Tensor, **_: Any) -> torch.Tensor:
    return ((prediction - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()


def _slope(points: Sequence[tuple[float, float]]) -> float:
    if not all(math.isfinite(v) and v > 0 for _, v in points):
        return math.nan
    xs, ys = [math.log(s) for s, _ in points], [math.log(v) for _, v in points]
    mx, my = fmean(xs), fmean(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum((x - mx) ** 2 for x in xs)
