"""Coordinate check: measure whether features and their updates keep their size as the model grows.

In μP, the root mean square of every block's features, and of their change after a few steps, is Θ(1) in width (Yang & Hu et
al., "Tensor Programs V", arXiv:2203.03466, section D.1). On a log-log plot against size, this is a slope of zero.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean, linear_regression, pvariance
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.describe_model import check_grid
from neuralop_mup.core.parametrize import is_parametrized
from neuralop_mup.core.plan_warnings import WIDER
from neuralop_mup.diagnostics.features import call, features, inputs_of, rms
from neuralop_mup.errors import MupError
from neuralop_mup.optim.by_name import builder_of
from neuralop_mup.optim.checks import NO_GRADIENT, kernels_without_gradient, warn_of_no_gradient
from neuralop_mup.optim.resolved_model import resolve
from neuralop_mup.validation import check_count

#: Largest absolute slopes that pass, for updates and for blocks at initialisation.
TOLERANCE, INIT_TOLERANCE = 0.25, 0.1
SEEDS = 10  # with three seeds, most checks are undecided because slopes at initialisation are noisy
MOST_SEEDS = 1000  # largest estimate of seeds_needed

_AXIS_NAMES = {"hidden_channels": "width (hidden_channels)", "n_modes": "modes per axis (n_modes)"}
#: Okabe and Ito's palette for colour-blind readers, with pale colours darkened to a contrast of 3 on white. The markers
#: distinguish curves in greyscale.
PALETTE = ("#0072B2", "#C25E00", "#009E73", "#CC79A7", "#A07800", "#3A8FC4", "#000000", "#882255")
MARKERS = "osD^vPX<"

Curve = list[list[tuple[float, float]]]  # (size, value) of each seed


@dataclass(frozen=True)
class CoordCheck:
    """Result of a coordinate check.

    Attributes
    ----------
    records : list of dict
        One per size, seed, step and block: ``size``, ``seed``, ``step``, ``block``, ``kind`` ("init": RMS of the
        features before training; "update": RMS of their change after ``step`` steps) and ``value``.
    size_name : str
        Label of ``size``.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> def build(width):
    ...     return nm.parametrize(FNO((8,), 1, 1, width), base={"hidden_channels": 16})
    >>> batch = {"x": torch.randn(4, 1, 16), "y": torch.randn(4, 1, 16)}
    >>> check = nm.coord_check(build, (16, 32), [batch], lr=8e-3, steps=(1,), seeds=2)
    >>> sorted(check.records[0])
    ['block', 'kind', 'seed', 'size', 'step', 'value']
    """

    records: list[dict[str, Any]]
    size_name: str

    def __str__(self) -> str:
        lines = [f"{row['kind']} {row['step']}, {row['block']}: {_text_of(row)}" for row in self.verdicts()]
        return "\n".join([f"slopes of log(RMS) against log({self.size_name}):", *lines])

    def _curves(self) -> dict[tuple[str, str, int], Curve]:
        """Return the (size, value) pairs of each seed for each block, kind and step."""
        curves: dict[tuple, dict[int, list[tuple[float, float]]]] = {}
        for r in self.records:
            by_seed = curves.setdefault((r["block"], r["kind"], r["step"]), {})
            by_seed.setdefault(r["seed"], []).append((r["size"], r["value"]))
        return {key: list(by_seed.values()) for key, by_seed in curves.items()}

    @property
    def slopes(self) -> list[dict[str, Any]]:
        """Least-squares slopes of log(value) against log(size).

        ``slope`` is computed from the root mean square over seeds, which is robust to individual seeds near zero. ``reach``
        is half the width of the 95 % confidence interval of the slope over seeds, or None with a single seed. Both are NaN
        if a value is zero or not finite.

        Returns
        -------
        list of dict
            One entry per step, block and kind. Blocks are listed from input to output.

        Examples
        --------
        >>> list(check.slopes[0])
        ['block', 'kind', 'step', 'slope', 'reach']
        """
        rows = []
        for (block, kind, step), seeds in self._curves().items():
            sound = all(0 < value < math.inf for points in seeds for _, value in points)
            slope, reach = (_slope(seeds), _reach(seeds)) if sound else (math.nan, math.nan)
            rows.append({"block": block, "kind": kind, "step": step, "slope": slope, "reach": reach})
        return sorted(rows, key=lambda row: row["step"])  # the sort is stable, so blocks keep their order

    def passed(self, tolerance: float = TOLERANCE, init_tolerance: float = INIT_TOLERANCE) -> bool:
        """Return whether every slope passed. Undecided slopes (see :meth:`verdicts`) count as not passed.

        Parameters
        ----------
        tolerance : float, default 0.25
            Largest absolute slope of an update.
        init_tolerance : float, default 0.1
            Largest absolute slope of a block at initialisation. The output is an exception: its slope may lie between −1/2 −
            ``tolerance`` and ``tolerance``. Under μP, the initial output scales as width^(-1/2) plus a bias, and its slope
            is noisy because it has only one number per point.

        Returns
        -------
        bool
            True only if the 95 % interval of every slope lies within its limits.

        Examples
        --------
        >>> check.passed(tolerance=100, init_tolerance=100), check.passed(tolerance=0)
        (True, False)
        """
        return all(row["outcome"] == "passed" for row in self.verdicts(tolerance, init_tolerance))

    def verdicts(self, tolerance: float = TOLERANCE, init_tolerance: float = INIT_TOLERANCE) -> list[dict[str, Any]]:
        """Return the slopes with their limits and verdicts.

        A slope passes if its entire 95 % interval lies within its limits. It does not pass if the entire interval lies
        outside, or if features are zero or not finite. Otherwise it is undecided. With a single seed there is no interval,
        so no slope passes.

        Parameters
        ----------
        tolerance, init_tolerance : float, default 0.25, 0.1
            See :meth:`passed`.

        Returns
        -------
        list of dict
            :attr:`slopes` with three more entries. ``limits`` is a pair of numbers. ``outcome`` is "passed", "did not pass"
            or "undecided". ``seeds_needed`` estimates how many seeds would decide an undecided slope with the same value and
            scatter. It is None if the slope is not undecided, if there is only one seed, or if the estimate exceeds 1,000.

        Examples
        --------
        >>> {row["outcome"] for row in check.verdicts(tolerance=100, init_tolerance=100)}
        {'passed'}
        """
        n, slopes, rows = len({record["seed"] for record in self.records}), self.slopes, []
        for row in slopes:
            is_initial_output = row["kind"] == "init" and row["block"] == slopes[-1]["block"]
            high = tolerance if row["kind"] == "update" or is_initial_output else init_tolerance
            low = -0.5 - high if is_initial_output else -high
            # distance to the nearest limit, negative outside the limits
            inside = min(row["slope"] - low, high - row["slope"])
            reach = math.inf if row["reach"] is None else row["reach"]
            outcome = "passed" if reach <= inside else "undecided" if abs(inside) <= reach else "did not pass"
            counts = range(n + 1, MOST_SEEDS + 1) if outcome == "undecided" and n > 1 else ()
            needed = next((m for m in counts if reach * _width(m) / _width(n) <= abs(inside)), None)
            rows.append({**row, "limits": (low, high), "outcome": outcome, "seeds_needed": needed})
        return rows

    def plot(
        self,
        path: str | Path,
        tolerance: float = TOLERANCE,
        init_tolerance: float = INIT_TOLERANCE,
        *,
        title: str | None = None,
    ) -> None:
        """Draw features and their updates against size, with one panel per step.

        Lines show root mean squares over seeds, and dots show individual seeds. The legend lists the slopes and their
        verdicts.

        Parameters
        ----------
        path : path
            File to write. Its extension selects the format, such as PNG, SVG or PDF.
        tolerance, init_tolerance : float, default 0.25, 0.1
            See :meth:`passed`.
        title : str, optional
            Title above the panels.

        Raises
        ------
        MupError
            If there are no records.

        Examples
        --------
        >>> check.plot("check.png", title="width")
        """
        from matplotlib.figure import Figure  # does not need a display or change pyplot's state

        slopes = self.verdicts(tolerance, init_tolerance)
        if not slopes:
            raise MupError("This coordinate check has no records to plot.")
        panels = list(dict.fromkeys((row["kind"], row["step"]) for row in slopes))
        curves, sizes = self._curves(), sorted({record["size"] for record in self.records})
        columns = min(len(panels), 2)
        rows = math.ceil(len(panels) / columns)
        figure = Figure(figsize=(6.6 * columns, 3.3 * rows + 0.3), dpi=120, layout="constrained")
        for number, (kind, step) in enumerate(panels, 1):
            axes = figure.add_subplot(rows, columns, number, xscale="log", yscale="log")
            what = "features at init" if kind == "init" else f"update after {step} step{'s' * (step != 1)}"
            axes.set(title=what, xlabel=_AXIS_NAMES.get(self.size_name, self.size_name), ylabel="RMS over features")
            here = [row for row in slopes if (row["kind"], row["step"]) == (kind, step)]
            for row, colour, marker in zip(here, PALETTE * len(here), MARKERS * len(here), strict=False):
                seeds = curves[row["block"], kind, step]
                label = f"{row['block']}: {_text_of(row).partition(' (')[0]}"
                axes.plot(sizes, _means(seeds), color=colour, marker=marker, markersize=4, label=label)
                for points in seeds:
                    axes.plot(*zip(*points, strict=True), ".", color=colour, alpha=0.3, markersize=3)
            axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
            axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.suptitle(title or "", x=0.01, ha="left", fontsize=10)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _text_of(row: Mapping[str, Any]) -> str:
    """Return a slope with its interval and verdict."""
    reach = "" if row["reach"] is None else f" ± {row['reach']:.2f}"
    more = "" if row["seeds_needed"] is None else f" (≈{row['seeds_needed']} seeds would decide)"
    return f"{row['slope']:+.2f}{reach}, {row['outcome']}{more}"


def coord_check(
    build: Callable[[int], nn.Module],
    sizes: Sequence[int],
    batches: Iterable[Mapping[str, torch.Tensor]],
    *,
    lr: float,
    steps: Sequence[int] = (1, 5, 10),
    seeds: int | Sequence[int] = SEEDS,
    optimizer: str | Callable[..., torch.optim.Optimizer] = "adam",
    loss: Callable[..., torch.Tensor] | None = None,
    size_name: str = "hidden_channels",
) -> CoordCheck:
    """Train for a few steps at several sizes and measure the features of every block and their change.

    Parameters
    ----------
    build : callable
        ``build(size)`` returns a new model. A model that is not parametrized is trained with the plain optimizer at the same
        ``lr``, as with ``rule="standard"``.
    sizes : sequence of int
        At least two widths, or numbers of modes.
    batches : iterable of dict
        Training batches ``{"x": …, "y": …}`` in the format of neuralop's loaders, with x of shape ``(batch, channels,
        *grid)``, used in turn. Features are measured on the first batch. If the batches have other keys, such as GINO's
        geometry, all entries except y are passed to the model by name.
    lr : float
        Learning rate of the base model.
    steps : sequence of int, default (1, 5, 10)
        Numbers of training steps after which to measure.
    seeds : int or sequence of int, default 10
        Seeds, or their number. With few seeds hardly any check passes, because slopes at initialisation are noisy.
    optimizer : str, class or callable, default "adam"
        A name ("adam", "adamw", "sgd" or "musoap"), an optimizer class such as ``torch.optim.NAdam``, or a function
        ``(model, lr)``. A class becomes the ``impl`` of :func:`MuAdam`, or of :func:`MuSGD` if it is a subclass of SGD.
    loss : callable, optional
        ``loss(prediction, **batch)``. Default: mean relative L2 error.
    size_name : str, default "hidden_channels"
        Label of ``sizes``.

    Returns
    -------
    CoordCheck
        Records, slopes, verdicts and a plot.

    Raises
    ------
    MupError
        If there are fewer than two sizes, or no batches, seeds or positive steps. If a batch is not a dict, or has no ``y``
        for the default loss. If ``build`` does not return a model, or if the model has more modes than the grid allows or no
        block to measure. If the optimizer is unknown.

    Warns
    -----
    UserWarning
        If a block does not return a floating-point tensor and so cannot be checked. If Fourier kernels do not receive a
        gradient at any step; the warning lists their names and the usual reasons.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> def build(width):
    ...     return nm.parametrize(FNO((8,), 1, 1, width), base={"hidden_channels": 16})
    >>> batch = {"x": torch.randn(4, 1, 16), "y": torch.randn(4, 1, 16)}
    >>> check = nm.coord_check(build, (16, 32), [batch], lr=8e-3, steps=(1,), seeds=2)
    >>> check.slopes[0]["block"], check.slopes[-1]["block"]
    ('lifting', 'projection')
    >>> check.passed() in (True, False)
    True
    """
    sizes, steps, batches = sorted(set(sizes)), sorted(set(steps)), list(batches)
    for batch in batches:
        if not isinstance(batch, Mapping):
            raise MupError(
                f"batches must be dicts such as {{'x': …, 'y': …}}, as in neuralop's loaders, got {type(batch).__name__}."
            )
        if loss is None and "y" not in batch:
            raise MupError(
                f"A batch has the keys {', '.join(map(repr, batch)) or '(none)'} but not 'y', which the default loss "
                "compares with the prediction. Add 'y', or pass loss=…."
            )
    if not isinstance(seeds, Iterable):
        check_count("seeds", seeds, "seeds")
        seeds = range(seeds)
    seeds = list(seeds)
    if len(sizes) < 2 or not batches or not seeds or not steps or steps[0] < 1:
        raise MupError(
            "A coordinate check needs at least two sizes, one batch, one seed and one step. Got sizes "
            f"{sizes}, {len(batches)} batches, seeds {seeds} and steps {steps}."
        )
    records: list[dict[str, Any]] = []
    unused: set[str] = set()
    make = builder_of(optimizer)
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    with torch.random.fork_rng(devices), warnings.catch_warnings():
        warnings.filterwarnings("ignore", WIDER)  # sizes below base are also valid
        warnings.filterwarnings("ignore", NO_GRADIENT)  # MuSOAP would warn for each model; we warn once at the end
        for size in sizes:
            drawn: set[float] = set()  # sums over the initial weights of each seed
            for seed in seeds:
                torch.manual_seed(seed)
                model = build(size)
                if not isinstance(model, nn.Module):
                    raise MupError(f"build must return a new torch.nn.Module, but build({size!r}) returned {model!r}.")
                drawn.add(sum(float(p.detach().abs().sum()) for p in model.parameters()))
                found, without_gradient = _measure(model, batches, steps, make(model, lr), loss or _relative_l2)
                records += [{"size": size, "seed": seed, **record} for record in found]
                unused |= without_gradient
            if len(drawn) == 1 < len(seeds):
                raise MupError(
                    f"build({size!r}) returns the same weights for every seed, so the check has no confidence interval. Do "
                    "not call torch.manual_seed in build, because coord_check sets the seed."
                )
    if not devices:
        # Before the first use of CUDA, its random state is only the seed. Without a GPU, this call has no effect.
        torch.cuda.manual_seed_all(torch.initial_seed())
    warn_of_no_gradient(sorted(unused))
    return CoordCheck(records, size_name)


def _measure(model, batches, steps, optimizer, loss) -> tuple[list[dict[str, Any]], set[str]]:
    """Return one model's records, without size and seed, and the kernels that never received a gradient."""
    if batches[0].keys() == {"x", "y"}:
        check_grid(model, tuple(batches[0]["x"].shape[2:]))
    probe = inputs_of(batches[0])
    start = features(model, probe)
    if not start:
        raise MupError(
            f"No block of this {type(model).__name__} returns a floating-point tensor, so there are no features to "
            "measure. A block is a child module that has parameters."
        )
    records = [{"step": 0, "block": block, "kind": "init", "value": rms(value)} for block, value in start.items()]
    resolved = resolve(model, optimizer) if is_parametrized(model) else None
    unused = set(resolved.parameters) if resolved else set()
    for step, batch in zip(range(1, steps[-1] + 1), cycle(batches), strict=False):
        model.train()
        optimizer.zero_grad()
        loss(call(model, inputs_of(batch)), **batch).backward()
        if resolved and unused:
            unused &= set(kernels_without_gradient(resolved))
        optimizer.step()
        for block, value in features(model, probe).items() if step in steps else ():
            records.append({"step": step, "block": block, "kind": "update", "value": rms(value - start[block])})
    return records, unused


def _relative_l2(prediction: torch.Tensor, y: torch.Tensor, **_: Any) -> torch.Tensor:
    return ((prediction - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()


def _means(seeds: Curve) -> list[float]:
    """Return the root mean square over seeds at each size."""
    return [math.sqrt(fmean(value * value for _, value in same)) for same in zip(*seeds, strict=False)]


def _slope(seeds: Curve) -> float:
    """Return the slope of the root mean square over seeds."""
    return linear_regression([math.log(size) for size, _ in seeds[0]], list(map(math.log, _means(seeds)))).slope


def _reach(seeds: Curve) -> float | None:
    """Return half the width of the 95 % interval of :func:`_slope`, or None for one seed.

    The interval is a jackknife over seeds with Student's t. The variance of the slope is (n − 1)/n · Σ (θᵢ − mean θ)², where
    θᵢ is the slope without seed i (Efron & Stein 1981).
    """
    n = len(seeds)
    if n == 1:
        return None
    without = [_slope([*seeds[:i], *seeds[i + 1 :]]) for i in range(n)]
    return _width(n) * math.sqrt(n * (n - 1) * pvariance(without))


def _width(n: int) -> float:
    """Return t/√n, which is proportional to half the width of the interval over n seeds."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.975)) / math.sqrt(n)
