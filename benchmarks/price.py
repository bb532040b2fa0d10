"""The price of tuning: what a learning rate costs to find, and how far from the best it ends, for several ways to find it.

    python benchmarks/price.py                # trains what is missing (hours), then the table and the figure
    python benchmarks/price.py --report       # the table and the figure from what is there

MuSOAP at a 1D and a 2D target of 1,000 steps. **Proxies** are narrower, shorter, coarser or have less data than the target,
alone and together; their best learning rate is fitted and carried under μP, with the rule for steps. **Searches at the
target** are random search, successive halving and Hyperband; they are not run but simulated on the target's curves: errors
at every learning rate of a grid, at the end and on the way there, interpolated between grid points. **Extrapolated** is a
straight line through the best learning rates of three narrow models as neuralop builds them, under torch's Adam.

Runs are lines of benchmarks/results/price.jsonl: interrupted, the same command goes on. Writes price.md and price.png.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np
import torch
from extrapolation import line_weights
from scipy.interpolate import PchipInterpolator
from suite_runs import STEPS, Records, run, task

from neuralop_mup.tuning.optimum import find_optimum

RESULTS = Path(__file__).parent / "results"
Task = dict[str, Any]

# Width of the target, and the proxy's stride over the grid's points.
PROBLEMS = {"korteweg-de-vries": (64, 4), "gray-scott": (48, 2)}
NARROW, SHORT = 16, 125
SAMPLES = {"korteweg-de-vries": 200, "gray-scott": 100}  # a quarter of the target's
OPTIMIZER = "MuSOAP"
LRS = tuple(0.0025 * 2**i for i in range(7))  # at the target; searches there draw from between the ends
MIDDLE = LRS[2:6]
RUNGS = (37, 111, 333, STEPS)  # of successive halving, a third each

SMALL = (8, 16, 24)  # widths that a line is drawn through
WIDER = {"korteweg-de-vries": (128,)}  # targets that the suite has trained in the grid's middle
SEEDS = (0, 1, 2)
TIMED_STEPS = 40


# ----------------------------------------------------------------------------------------------------------- the runs


def parts(problem: str) -> dict[str, dict[str, Any]]:
    """What makes a proxy of the target cheaper, one by one: changes of the target's task."""
    return {
        "narrower": {"width": NARROW},
        "shorter": {"steps": SHORT},
        "coarser": {"data": {"stride": PROBLEMS[problem][1]}},
        "less data": {"data": {"samples": SAMPLES[problem]}},
    }


def proxies(problem: str) -> dict[str, dict[str, Any]]:
    """Every proxy: changes of the target's task."""
    single = parts(problem)

    def joined(*names: str, **more: Any) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for name in names:
            for key, value in single[name].items():
                changes[key] = {**changes[key], **value} if isinstance(value, dict) and key in changes else value
        return {**changes, **more}

    return {
        "all four": joined(*single),
        "all four, 250 steps": joined(*single, steps=250),
        "narrower, shorter": joined("narrower", "shorter"),
        "shorter": joined("shorter"),
        "all but narrower": joined(*(n for n in single if n != "narrower")),
        "all but coarser": joined(*(n for n in single if n != "coarser")),
        "all but less data": joined(*(n for n in single if n != "less data")),
        "all four, width 8": joined(*single, width=8),
        "narrower": joined("narrower"),
        "all but shorter": joined(*(n for n in single if n != "shorter")),
        "coarser": joined("coarser"),
        "less data": joined("less data"),
    }


LIGHT = ("narrower", "coarser", "less data")  # nearly as dear as the target, or in the suite: the grid's middle alone


def target(problem: str, lr: float, seed: int = 0) -> Task:
    """A run of the target, with its validation error at the rungs."""
    return task(problem, OPTIMIZER, lr, seed=seed, width=PROBLEMS[problem][0], marks=list(RUNGS[:-1]))


def proxy(problem: str, name: str, lr: float, seed: int = 0) -> Task:
    """A run of a proxy at the learning rate that becomes ``lr`` at the target.

    The rule for steps is lr ∝ 1/√steps: ``parametrize(training={"steps": (proxy's, target's)})`` takes it to the target.
    """
    changes = {"width": PROBLEMS[problem][0], **proxies(problem)[name]}
    steps = changes.pop("steps", STEPS)
    own = float(f"{lr * math.sqrt(STEPS / steps):.4g}")
    return task(problem, OPTIMIZER, own, steps, seed, **changes)


def of_width(problem: str, width: int, lr: float, seed: int = 0) -> Task:
    """The target at another width."""
    return task(problem, OPTIMIZER, lr, seed=seed, width=width)


def timed(problem: str, width: int, stride: int, turn: int) -> Task:
    """A few steps that are there to be timed. Models take turns, so that the machine's other work falls on all of them."""
    data = {"stride": stride} if stride > 1 else None
    return task(problem, OPTIMIZER, 0.02, TIMED_STEPS, 100 + turn, width=width, data=data)


def timings(problem: str) -> list[tuple[int, int]]:
    """Width and stride of every model whose steps are timed; data and the number of steps do not change a step."""
    width, stride = PROBLEMS[problem]
    models = [(width, 1), (width, stride), (NARROW, 1), (NARROW, stride), (8, stride), *((w, 1) for w in SMALL)]
    return list(dict.fromkeys([*models, *((w, 1) for w in WIDER.get(problem, ()))]))


def wanted(_: Records) -> Iterator[Task]:
    """Every run, those that say most for their price first."""
    dear = (*LIGHT, "all but shorter", "all four, 250 steps", "all but narrower")
    cheap = [name for name in proxies("gray-scott") if name not in dear]
    inner = sorted(LRS, key=lambda lr: abs(math.log(lr / 0.0282)))  # from the middle of the grid outwards
    yield from (proxy(problem, "all four", lr) for problem in PROBLEMS for lr in LRS)
    yield from (target(problem, lr) for lr in inner for problem in PROBLEMS)
    yield from (timed(problem, *model, turn) for turn in range(3) for problem in PROBLEMS for model in timings(problem))
    yield from (proxy(problem, name, lr) for name in cheap for problem in PROBLEMS for lr in LRS)
    yield from (proxy(problem, "narrower", lr, seed) for problem in PROBLEMS for lr in MIDDLE for seed in SEEDS)
    yield from (proxy(problem, "all four", lr, 1) for problem in PROBLEMS for lr in LRS)
    for name in ("all four, 250 steps", "all but narrower"):
        yield from (proxy(problem, name, lr) for problem in PROBLEMS for lr in LRS)
    yield from (of_width(problem, width, lr) for problem in PROBLEMS for width in SMALL for lr in MIDDLE)
    yield from (target(problem, lr, 1) for problem in PROBLEMS for lr in MIDDLE)
    yield from (proxy(problem, name, lr, 1) for name in cheap for problem in PROBLEMS for lr in LRS)
    yield from (proxy(problem, "all but shorter", lr) for problem in PROBLEMS for lr in MIDDLE)
    yield from (proxy(problem, name, lr) for problem in PROBLEMS for name in LIGHT[1:] for lr in MIDDLE)


# ----------------------------------------------------------------------------------------- what a target's curves say


Curve = dict[float, list[float]]  # learning rate at the target → errors of its seeds


class Landscape:
    """The target's error at any learning rate of the grid's range: its logarithm, interpolated over log lr.

    Between grid points it is a cubic without overshoot (Fritsch & Carlson 1980), so that the least value is that of a grid
    point. Grid points are means over their seeds.
    """

    def __init__(self, curve: Curve) -> None:
        lrs = sorted(curve)
        self.low, self.high = lrs[0], lrs[-1]
        self._log = PchipInterpolator(np.log(lrs), [math.log(fmean(curve[lr])) for lr in lrs])
        self.least = min(fmean(errors) for errors in curve.values())

    def __call__(self, lr: Any) -> Any:
        """Errors at learning rates; those beyond the range are taken to its ends."""
        return np.exp(self._log(np.log(np.clip(lr, self.low, self.high))))

    def regret(self, lr: Any) -> Any:
        """What these learning rates lose against the best one, as a share of its error."""
        return self(lr) / self.least - 1


# ------------------------------------------------------------------------------- searches at the target, simulated


Rungs = Mapping[int, Callable[[Any], Any]]  # steps → error after so many, by learning rate


def halving(lrs: np.ndarray, rungs: Rungs, keep: int = 3) -> tuple[float, int]:
    """Successive halving: the learning rate it ends with, and the steps that it paid for.

    All are trained to the first rung; the better ones, one in ``keep``, go on from there to the next. A run that goes on
    pays for its further steps alone.
    """
    paid, before = 0, 0
    for steps, error in rungs.items():
        if before:
            lrs = lrs[np.argsort(error_before(lrs), kind="stable")][: max(1, len(lrs) // keep)]
        paid += len(lrs) * (steps - before)
        before, error_before = steps, error
    return float(lrs[np.argmin(error(lrs))]), paid


def hyperband(draw: Callable[[int], np.ndarray], rungs: Rungs, keep: int = 3) -> tuple[float, int]:
    """Hyperband (Li et al. 2018): a bracket of successive halving from each rung, and the best of what they end with.

    Of B brackets the one with s + 1 rungs starts with ⌈B/(s + 1) · keep^s⌉ learning rates.
    """
    steps = list(rungs)
    found, paid = [], 0
    for s in range(len(steps) - 1, -1, -1):
        first = math.ceil(len(steps) / (s + 1) * keep**s)
        lr, cost = halving(draw(first), {at: rungs[at] for at in steps[-s - 1 :]}, keep)
        found.append(lr)
        paid += cost
    found = np.array(found)
    return float(found[np.argmin(rungs[steps[-1]](found))]), paid


@dataclass(frozen=True)
class Found:
    """A way to a learning rate: its price as a share of tuning the target, and regrets, one for each time it was gone."""

    name: str
    cost: float
    regrets: tuple[float, ...]
    lr: float | None = None  # at the target
    note: str = ""

    @property
    def regret(self) -> float:
        return fmean(self.regrets)


def searched(problem: str, records: Records) -> dict[str, list[Found]]:
    """Random search, halving and Hyperband at the target, each so many times over with other learning rates."""
    end = Landscape(target_curve(problem, records))
    rungs: Rungs = {at: Landscape(target_curve(problem, records, at)) for at in RUNGS}
    generator = np.random.default_rng(0)

    def draw(n: int) -> np.ndarray:
        return np.exp(generator.uniform(math.log(LRS[0]), math.log(LRS[-1]), n))

    def price(steps: float) -> float:
        return steps / STEPS / len(LRS)

    random = []
    for n in TRIALS:
        drawn = draw(n * DRAWS).reshape(DRAWS, n)
        random.append(Found(f"{n} trial{'s' if n > 1 else ''}", price(n * STEPS), tuple(end.regret(drawn).min(1))))
    stopped = []
    for first in range(len(RUNGS) - 2, -1, -1):
        own = {at: rungs[at] for at in RUNGS[first:]}
        n = 3 ** (len(own) - 1)
        runs = [halving(draw(n), own) for _ in range(DRAWS)]
        stopped.append(Found(f"halving from {n}", price(runs[0][1]), tuple(end.regret([lr for lr, _ in runs]))))
    runs = [hyperband(draw, rungs) for _ in range(DRAWS)]
    stopped.append(Found("Hyperband", price(runs[0][1]), tuple(end.regret([lr for lr, _ in runs]))))
    return {"random search": random, "early-stopped": stopped}


TRIALS = (1, 2, 3, 4, 6, 8, 12)
DRAWS = 2000


# --------------------------------------------------------------------------------------------------- what runs gave


def target_curve(problem: str, records: Records, at: int = STEPS) -> Curve:
    """Validation errors of the target, at its end or at a rung."""
    what = "loss" if at == STEPS else f"at {at}"
    return {lr: [r[what] for r in rs] for lr in LRS if (rs := records.results(target(problem, lr), (0, 1)))}


def seconds(records: Records, points: Iterable[Task]) -> float:
    """Mean processor time of a run, over those that are done and did not break off."""
    return fmean(r["seconds"] for t in points for r in records.results(t, (0, 1)) if math.isfinite(r["loss"]))


def carried(problem: str, name: str, records: Records) -> Found | None:
    """What a proxy's best learning rate gives at the target; None before one of its seeds is done."""
    lrs = MIDDLE if name in LIGHT else LRS
    of_seed = [{lr: records.get(proxy(problem, name, lr, seed)) for lr in lrs} for seed in (0, 1)]
    of_seed = [own for own in of_seed if all(own.values())]
    if not of_seed:
        return None
    end = Landscape(target_curve(problem, records))
    chosen, notes = [], []
    for own in of_seed:
        best = find_optimum({lr: [result["loss"]] for lr, result in own.items()})
        if best.is_bound:
            chosen.append(min(own, key=lambda lr: own[lr]["loss"]))
            notes.append("edge of the grid")
        else:
            chosen.append(best.value)
    cost = seconds(records, (proxy(problem, name, lr) for lr in lrs)) / seconds(records, (target(problem, lr) for lr in LRS))
    return Found(name, cost, tuple(end.regret(chosen)), geometric_mean(chosen), ", ".join(notes))


def extrapolated(problem: str, records: Records) -> Found | None:
    """Adam's line through three widths; None before all of it is done."""
    width = PROBLEMS[problem][0]
    curves = {w: {lr: records.get(plain(problem, w, lr)) for lr in ADAM_SMALL} for w in SMALL}
    curves[width] = {lr: records.get(plain(problem, width, lr)) for lr in ADAM_TARGET}
    if not all(result for curve in curves.values() for result in curve.values()):
        return None
    optima = {w: find_optimum({lr: [r["loss"]] for lr, r in curves[w].items()}) for w in SMALL}
    log = sum(share * math.log(optima[w].value) for w, share in line_weights(SMALL, width).items())
    end = Landscape({lr: [r["loss"]] for lr, r in curves[width].items()})
    small, large = (sum(r["seconds"] for w in ws for r in curves[w].values()) for ws in (SMALL, (width,)))
    best = ", ".join(f"{optima[w].value:.3g}" for w in SMALL)
    note = f"best at widths {', '.join(map(str, SMALL))}: {best}; of Adam"
    return Found("line through three widths", small / large, (float(end.regret(math.exp(log))),), math.exp(log), note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = Records(RESULTS / "price.jsonl")
    records.done = {**Records(RESULTS / "suite.jsonl").done, **records.done}
    if not args.report:
        run(records, wanted, args.workers)


if __name__ == "__main__":
    main()
