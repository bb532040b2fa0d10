"""What may differ between proxy and target: does the best learning rate stay when one thing grows, and what if it does not?

    python benchmarks/carry.py run       # trains what is missing: about two hours on one core
    python benchmarks/carry.py report    # tables from what has been trained, nothing else

One thing differs at a time: steps (the cosine ends with them), samples, batch size, points of the grid, depth. Everything
else is the suite's setting of the problem (benchmarks/suite_runs.py), and moves but that of steps have 300 of them. At the
proxy the learning rate is tuned over a grid of factors of 2; at the target the best one is trained beside its half and its
double; grids grow where the best lies at their edge. Weight decay is walked in factors of 4 at the tuned learning rate.
Best values are fitted (neuralop_mup.tuning.optimum), with 95 % intervals over seeds. Runs that the suite has are taken
from benchmarks/results/suite.jsonl; others are lines of benchmarks/results/carry.jsonl: interrupted, the same command
goes on. Writes benchmarks/results/carry.md.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import torch

from neuralop_mup.tuning.optimum import Interval, Optimum, drift_between, find_optimum, regret_between
from suite_runs import CONTENDERS, Records, run, task
from suite_runs import PROBLEMS as DEFAULTS
from suite_stages import grid

RESULTS = Path(__file__).parent / "results"
AROUND = (0.5, 1.0, 2.0)
Task = dict[str, Any]


@dataclass(frozen=True)
class Move:
    """What differs, on one problem: changes of the suite's setting at the proxy and at the target."""

    what: str
    problem: str
    proxy: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    optimizers: tuple[str, ...] = ("MuAdam", "MuSOAP, rms")
    ruled: dict[str, Any] = field(default_factory=dict)  # what the rule is told at the target, where there is one


LENGTH = 300  # of all moves but that of steps: the suite has runs of this length, too


def _moves() -> Iterator[Move]:
    """In the order in which they are trained; the target is the suite's setting but for what differs."""
    short = {"steps": LENGTH}
    for problem in PROBLEMS:
        ruled = {"training": {"steps": [125, 1000]}}
        yield Move("steps 125 → 1,000", problem, {"steps": 125}, {"steps": 1000}, ruled=ruled)
    for problem, (samples, points, coarser) in PROBLEMS.items():
        many = DEFAULTS[problem][0]["n_train"]
        yield Move(f"samples {samples} → {many}", problem, {**short, "data": {"samples": samples}}, short)
        yield Move("batch 2 → 16", problem, {**short, "batch": 2}, {**short, "batch": 16})
        yield Move("depth 4 → 16", problem, short, {**short, "depth": 16}, ("MuAdam",))
        yield Move(f"points {points}", problem, {**short, "data": coarser}, short)


OF_SUITE = ("MuAdam", "MuMuon", "MuSOAP", "MuSOAP, rms")

# Trained by the suite's own stages: these moves are read and nothing is trained for them.
READ = (
    *(
        Move(f"steps {few:,} → {many:,}", problem, {"steps": few}, {"steps": many}, OF_SUITE)
        for few, many in ((300, 1000), (1000, 3000))
        for problem in DEFAULTS
    ),
    *(
        Move("depth 4 → 16, 1,000 steps", problem, {}, {"depth": 16}, ("MuSOAP, rms", "MuAdam"))
        for problem in ("korteweg-de-vries", "gray-scott")
    ),
)


def trained(records: Records, like: Task) -> list[Task]:
    """Every learning rate at which this was trained with seed 0."""
    tasks = [json.loads(key) for key in records.done]
    own = {**like, "seed": 0}
    return [{**like, "lr": t["lr"]} for t in tasks if {**t, "lr": 1.0, "contender": own["contender"]} == {**own, "lr": 1.0}]


# Samples of the proxy, its points beside the target's, and how they are made; Darcy is solved anew on its coarser grid.
PROBLEMS: dict[str, tuple[int, str, dict[str, int]]] = {
    "korteweg-de-vries": (200, "32 → 128", {"stride": 4}),
    "gray-scott": (100, "10² → 20²", {"stride": 2}),
    "darcy-pino": (50, "10² → 20²", {"grid": 10}),
}
MOVES = tuple(_moves())


def proxy_points(records: Records, move: Move, name: str, seeds: Sequence[int]) -> list[Task]:
    """The proxy's learning rates."""
    return grid(records, task(move.problem, name, 1.0, **move.proxy), CONTENDERS[name]["lrs"], seeds)


def target_points(records: Records, move: Move, name: str, seeds: Sequence[int]) -> list[Task]:
    """The target's, around the proxy's best; none before that is known."""
    best = records.best(proxy_points(records, move, name, seeds), seeds)
    if best is None:
        return []
    return grid(records, task(move.problem, name, 1.0, **move.target), [best["lr"] * f for f in AROUND], seeds)


def ruled_point(records: Records, move: Move, name: str, seeds: Sequence[int]) -> list[Task]:
    """The target under the rule, at the proxy's best learning rate."""
    best = records.best(proxy_points(records, move, name, seeds), seeds) if move.ruled else None
    return [] if best is None else [task(move.problem, name, best["lr"], **move.target, **move.ruled)]


# ------------------------------------------------------------------------------------------------------- weight decay

DECAYS = (0.025, 0.1, 0.4, 1.6, 6.4)
DECAY_LR = 8e-3
# Here every value is tried at both ends; 0 is trained besides.
DECAY_MOVES = (
    Move("samples 100 → 400", "gray-scott", {"steps": LENGTH, "data": {"samples": 100}}, {"steps": LENGTH}),
    Move("steps 125 → 300", "gray-scott", {"steps": 125}, {"steps": LENGTH}),
)


def decayed(move: Move, end: dict[str, Any], decay: float) -> Task:
    """A run of MuAdamW with this weight decay."""
    return {
        **task(move.problem, "MuAdam", DECAY_LR, kwargs={"weight_decay": decay}, **end),
        "contender": "MuAdamW",
        "optimizer": "adamw",
    }


# --------------------------------------------------------------------------------------------------------- what is run


def wanted(seeds: Sequence[int], only: str | None = None) -> Callable[[Records], Iterator[Task]]:
    """Every run with these seeds, in the order in which tables are wanted."""

    def moves(records: Records) -> Iterator[Task]:
        for move in MOVES:
            if only is not None and only not in move.what:
                continue
            for name in move.optimizers:
                for points in (proxy_points, target_points, ruled_point):
                    yield from ({**t, "seed": seed} for t in points(records, move, name, seeds) for seed in seeds)
        for move in () if only else DECAY_MOVES:
            for end in (move.proxy, move.target):
                yield from ({**decayed(move, end, decay), "seed": seed} for decay in (0.0, *DECAYS) for seed in seeds)

    return moves


# ------------------------------------------------------------------------------------------------------------- tables


def seeds_of(records: Records, points: Sequence[Task]) -> tuple[int, ...]:
    """Seeds that are done at every one of these points."""
    return tuple(seed for seed in (0, 1, 2) if points and all(records.get({**t, "seed": seed}) for t in points))


def losses(records: Records, points: Sequence[Task], seeds: Sequence[int]) -> list[list[float]]:
    return [[r["loss"] for r in records.results(t, seeds)] for t in points]


def shown(optimum: Optimum | None) -> str:
    if optimum is None:
        return "–"
    if optimum.value is None:
        return f"{optimum.low:.2g} … {optimum.high:.2g}"
    interval = "" if optimum.error is None else f" ({optimum.low:.2g} … {optimum.high:.2g})"
    return f"{optimum.value:.2g}{interval}"


def factor(drift: Interval | None) -> str:
    if drift is None:
        return "–"
    level = ", level" if drift.level else ""
    interval = "" if drift.low is None else f" ({2**drift.low:.2g} … {2**drift.high:.2g}{level})"
    return f"× {2**drift.value:.2f}{interval}"


def percent(regret: Interval | None) -> str:
    if regret is None:
        return "–"
    interval = "" if regret.low is None else f" ({regret.low:.0%} … {regret.high:.0%})"
    return f"{regret.value:.1%}{interval}"


@dataclass(frozen=True)
class Line:
    """What a move gave: optima at both ends, regret without and with the rule, errors at the target by value."""

    optima: tuple[Optimum | None, Optimum | None]
    regret: Interval | None
    ruled: Interval | None
    seeds: int
    errors: dict[float, float]

    @property
    def drift(self) -> Interval | None:
        return drift_between(*self.optima)

    def cells(self) -> list[str]:
        errors = ", ".join(f"{x:g}: {error:.4f}" for x, error in sorted(self.errors.items()))
        return [
            *map(shown, self.optima),
            factor(self.drift),
            percent(self.regret),
            percent(self.ruled),
            str(self.seeds),
            errors,
        ]


def line(
    records: Records, small: list[Task], large: list[Task], value: Callable[[Task], float], ruled: Sequence[Task] = ()
) -> Line | None:
    """What the points of both ends give, and the point under the rule; None before all of it is trained with a seed."""
    seeds = seeds_of(records, [*small, *large])
    if not small or not large or not seeds:
        return None
    here, there = (dict(zip(map(value, ts), losses(records, ts, seeds), strict=True)) for ts in (small, large))
    carried, best = (min(found, key=lambda x: fmean(found[x])) for found in (here, there))
    optima = tuple(find_optimum({x: ls for x, ls in found.items() if x > 0}) for found in (here, there))
    under = [losses(records, [t], seeds)[0] for t in ruled if set(seeds) <= set(seeds_of(records, [t]))]
    return Line(
        optima,  # type: ignore[arg-type]
        regret_between(there[carried], there[best]) if carried in there else None,
        regret_between(under[0], there[best]) if under else None,
        len(seeds),
        {x: fmean(ls) for x, ls in there.items()},
    )


def nearest(records: Records, move: Move, small: list[Task], large: list[Task]) -> list[Task]:
    """Of the target's trained learning rates the one nearest to what the rule for steps makes of the proxy's best."""
    best = records.best(small) if small else None
    if best is None or "steps" not in move.proxy or not large:
        return []
    lr = best["lr"] * math.sqrt(move.proxy["steps"] / move.target["steps"])
    return [min(large, key=lambda t: abs(math.log(t["lr"] / lr)))]


def over_problems(found: dict[tuple[str, str], list[Line]]) -> list[list[str]]:
    """A row for each optimizer and length: geometric mean and range of drifts, mean and largest regrets."""
    rows = []
    for (what, name), lines in found.items():
        drifts = [2**own.drift.value for own in lines if own.drift is not None]
        if "→" in what and len(drifts) > 1:
            kinds = ([own.regret for own in lines], [own.ruled for own in lines])
            regrets = ([r.value for r in kind if r is not None] for kind in kinds)
            means = (f"{fmean(rs):.1%} ({max(rs):.1%})" if rs else "–" for rs in regrets)
            spread = f"× {geometric_mean(drifts):.2f} ({min(drifts):.2f} … {max(drifts):.2f})"
            rows.append([what, name, str(len(lines)), spread, *means])
    return rows


HEADS = ("best at the proxy", "at the target", "drift", "regret", "with the rule", "seeds", "errors at the target")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads), *("| " + " | ".join(r) + " |" for r in rows)]


def most_seeds(records: Records, points: Callable[[Sequence[int]], list[Task]]) -> list[Task]:
    """Points as more seeds, or fewer, chose them: those with the most seeds that are all done."""
    for seeds in ((0, 1, 2), (0, 1), (0,)):
        found = points(seeds)
        if found and set(seeds) <= set(seeds_of(records, found)):
            return found
    return []


def report(records: Records) -> str:
    """The tables that can be made from what is done."""
    lines = [
        "# What carries over from proxy to target",
        "",
        "`python benchmarks/carry.py run`. Validation errors; the best learning rate is the vertex of a parabola, with its",
        "95 % interval over seeds (wide where there are two). Drift is the factor from the proxy's best to the target's,",
        "*level* where the interval has 1 in it. Regret is what the proxy's best grid point loses at the target against",
        "the best grid point there.",
    ]
    rows = []
    for move in MOVES:
        for name in move.optimizers:
            small, large, ruled = (
                most_seeds(records, lambda seeds, m=move, n=name, p=points: p(records, m, n, seeds))
                for points in (proxy_points, target_points, ruled_point)
            )
            if (found := line(records, small, large, lambda t: t["lr"], ruled)) is not None:
                rows.append([move.what, move.problem, name, *found.cells()])
    lines += ["", "## Learning rates", *table(("what differs", "problem", "optimizer", *HEADS), rows)]
    rows, by_optimizer = [], defaultdict(list)
    for move in READ:
        for name in move.optimizers:
            small, large = (trained(records, task(move.problem, name, 1.0, **end)) for end in (move.proxy, move.target))
            if (found := line(records, small, large, lambda t: t["lr"], nearest(records, move, small, large))) is not None:
                rows.append([move.what, move.problem, name, *found.cells()])
                by_optimizer[move.what, name].append(found)
    lines += ["", "## Read from the suite's runs", "", "With the rule: at the trained rate nearest to what it gives."]
    lines += table(("what differs", "problem", "optimizer", *HEADS), rows)
    lines += ["", "Over problems: geometric mean of the drift (range), and mean regret (largest)."]
    heads = ("what differs", "optimizer", "problems", "drift", "regret", "with the rule")
    lines += table(heads, over_problems(by_optimizer))
    rows = []
    for move in DECAY_MOVES:
        small, large = ([decayed(move, end, decay) for decay in (0.0, *DECAYS)] for end in (move.proxy, move.target))
        if (found := line(records, small, large, lambda t: t["kwargs"]["weight_decay"])) is not None:
            rows.append([move.what, move.problem, "MuAdamW", *found.cells()])
    if rows:
        lines += ["", f"## Weight decay, at lr {DECAY_LR:g}", *table(("what differs", "problem", "optimizer", *HEADS), rows)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each run")
    parser.add_argument("--only", help="moves with this word alone")
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = Records(RESULTS / "carry.jsonl")
    records.done = {**Records(RESULTS / "suite.jsonl").done, **records.done}
    if args.what == "run":
        run(records, wanted(range(args.seeds), args.only), args.workers)
    text = report(records)
    (RESULTS / "carry.md").write_text(text)
    print(text, flush=True)


if __name__ == "__main__":
    main()
