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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from suite_runs import STEPS, Records, run, task

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

# Adam as neuralop builds it: widths that the line goes through, and learning rates at them and at the target.
SMALL = (8, 16, 32)
ADAM_SMALL, ADAM_TARGET = tuple(0.002 * 2**i for i in range(6)), tuple(0.001 * 2**i for i in range(6))


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


LIGHT = ("coarser", "less data")  # nearly as dear as the target: one seed, and the grid's middle alone


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


def plain(problem: str, width: int, lr: float) -> Task:
    """A run of Adam as neuralop builds it."""
    return task(problem, "Adam (SP)", lr, width=width)


def wanted(_: Records) -> Iterator[Task]:
    """Every run, those that say most for their price first."""
    dear = (*LIGHT, "narrower", "all but shorter", "all four, 250 steps", "all but narrower")
    cheap = [name for name in proxies("gray-scott") if name not in dear]
    inner = sorted(LRS, key=lambda lr: abs(math.log(lr / 0.0282)))  # from the middle of the grid outwards
    yield from (proxy(problem, "all four", lr) for problem in PROBLEMS for lr in LRS)
    for problem in PROBLEMS:
        yield from (target(problem, lr) for lr in inner)
        yield from (proxy(problem, name, lr) for name in cheap for lr in LRS)
    yield from (proxy(problem, "narrower", lr) for problem in PROBLEMS for lr in inner)
    yield from (proxy(problem, name, lr, 1) for problem in PROBLEMS for name in ("all four", "shorter") for lr in LRS)
    for name in ("all four, 250 steps", "all but narrower"):
        yield from (proxy(problem, name, lr) for problem in PROBLEMS for lr in LRS)
    problem = "korteweg-de-vries"
    yield from (plain(problem, width, lr) for width in SMALL for lr in ADAM_SMALL)
    yield from (plain(problem, PROBLEMS[problem][0], lr) for lr in ADAM_TARGET)
    yield from (target(problem, lr, 1) for problem in PROBLEMS for lr in MIDDLE)
    yield from (proxy(problem, "all but shorter", lr) for problem in PROBLEMS for lr in inner)
    yield from (proxy(problem, name, lr) for problem in PROBLEMS for name in LIGHT for lr in MIDDLE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = Records(RESULTS / "price.jsonl")
    if not args.report:
        run(records, wanted, args.workers)


if __name__ == "__main__":
    main()
