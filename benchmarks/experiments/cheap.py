"""What tuning at the proxy that ``tune`` chooses takes, and what its learning rate loses, measured by ``tune`` itself.

A run is a tuning: the target is trained at the learning rate of its proxy and at every one of the grid, with one seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from experiments.curves import Curve
from experiments.pages import NAMES, percent, percents, table
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.errors import MupError
from neuralop_mup.tuning import findings
from neuralop_mup.tuning.fno import FNOs
from neuralop_mup.tuning.outcome import is_complete
from neuralop_mup.tuning.pipeline import tune
from neuralop_mup.tuning.records import Run
from neuralop_mup.tuning.train import VERSION
from problems import get_problem

__all__ = ["Cheap", "run", "tuned"]

#: Problem → arguments of its data, width and modes of the target, epochs: 1,000 steps of 20 samples.
TARGETS: dict[str, tuple[dict[str, Any], int, tuple[int, ...], int]] = {
    "korteweg-de-vries": ({"n_train": 800, "grid": 64}, 64, (32,), 25),
    "gray-scott": ({"n_train": 400, "grid": 32}, 32, (12, 12), 50),
    "burgers": ({"n_train": 800, "grid": 128}, 64, (32,), 25),
    "allen-cahn": ({"n_train": 400, "grid": 32}, 32, (12, 12), 50),
}
SEEDS = (0, 1, 2)
#: Raise it whenever ``tune`` chooses its proxy or its learning rates otherwise.
CHOICE = 1


@dataclass(frozen=True)
class Cheap:
    """Four targets, two of them in 2D, tuned with each of three seeds."""

    targets: tuple[str, ...] = tuple(TARGETS)
    seeds: tuple[int, ...] = SEEDS
    small: bool = False

    about = "what tuning at the default proxy takes, and what its learning rate loses at the target"
    metrics = ("price", "lr", "regret", "failed", "usual", "errors")

    def tiny(self) -> Cheap:
        """One small target."""
        return replace(self, targets=("burgers",), seeds=(0,), small=True)

    def trainer(self, folder: Path) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """A tuning keeps its own runs beside the records, so that it is taken up where it was interrupted."""
        return partial(tuned, folder=folder)

    def wanted(self, records: Any) -> Iterator[Run]:
        """The tunings that are missing; seeds first, so that every target has one early."""
        runs = (run(name, seed, self.small) for seed in self.seeds for name in self.targets)
        yield from (run for run in runs if records.get(run) is None)

    def table(self, records: Any) -> str:
        """What is done so far."""
        rows = []
        for name, found in self._found(records):
            cells = (_range(values, form) for values, form in zip(found[:4], (".2f", ".3g", ".1%", ".1%"), strict=True))
            rows.append([name, f"{len(found[0])} of {len(self.seeds)}", *cells, f"{found[-2]:.1%}", str(found[-1])])
        said = (
            "# What tuning takes\n\nIts time over that of one training of the target, and the regret of the learning rate "
            "that it found: median and range over the seeds. Regret is of single runs, whose errors differ by percents at "
            "the same learning rate. By the curve it is that of the mean error of all seeds, as for the law's rate, untuned."
        )
        heads = ["problem", "seeds", "tuning", "found", "regret", "by the curve", "untuned, by the curve", "failed runs"]
        return "\n".join([said, *table(heads, rows)]) + "\n"

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote."""
        found = dict(self._found(records))
        axes = {name: len(TARGETS[name][2]) for name in found}
        rows = [
            [f"{NAMES[name]} ({axes[name]}D)", _range(took, ".2f", "()"), percents(lost), percents(smooth), percent(untuned)]
            for name, (took, _, lost, smooth, untuned, _) in found.items()
        ]
        heads = ["target", "tuning, of one training", "regret of single runs", "regret by the mean of the seeds"]
        every = [percent(max(max(own[i]) for own in found.values())) for i in (2, 3)]
        return {
            "table": "\n".join(table([*heads, "untuned: the same"], rows)),
            "failed": str(sum(own[-1] for own in found.values())),
            "most": f"{max(max(own[0]) for own in found.values()):.2f}",
            "most.single": every[0],
            "most.mean": every[1],
        }

    def _found(self, records: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Of each target: prices, learning rates, regrets of single runs and by the curve, the law's by the curve, and runs
        that failed."""
        for name in self.targets:
            found = [records.get(run(name, seed, self.small)) for seed in self.seeds]
            done = [record["metrics"] for record in found if record is not None and is_complete(record)]
            if done:
                took, lrs, lost = ([metrics[key] for metrics in done] for key in ("price", "lr", "regret"))
                curve = _curve([dict(metrics["errors"]) for metrics in done])
                smooth = [curve.regret(math.log2(lr)) for lr in lrs]
                failed = sum(metrics["failed"] for metrics in done)
                yield name, (took, lrs, lost, smooth, curve.regret(math.log2(done[0]["usual"])), failed)


def _curve(errors: list[dict[float, float]]) -> Curve:
    """Of the rates that were tried with every seed, as those of the grid are."""
    shared = set.intersection(*map(set, errors))
    return Curve({lr: [own[lr] for own in errors] for lr in shared})


def run(name: str, seed: int, small: bool) -> Run:
    """A tuning of a target; ``small`` makes it one of seconds."""
    arguments, width, modes, epochs = TARGETS[name]
    config = {
        "problem": name,
        "data": {**arguments, **({"n_train": 40, "n_val": 20, "n_test": 20} if small else {})},
        "target": {"hidden_channels": width, "n_modes": modes},
        "epochs": 4 if small else epochs,
        "seed": seed,
    }
    version = {"training": VERSION, "rules": RULE_VERSION, "choice": CHOICE}
    data = get_problem(name, **config["data"]).content()
    content = {**config, "train": "tune", "version": version, "data": data}
    return Run(content, config, size=name, params={"epochs": config["epochs"]}, seed=seed)


def tuned(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Tune a target, or finish it: what that took, the learning rate, and what it loses."""
    torch.set_num_threads(1)
    problem, seed = get_problem(config["problem"], **config["data"]), config["seed"]
    build = FNOs(problem.in_channels, problem.out_channels, problem.n_dim)
    asked = {"target": config["target"], "epochs": config["epochs"], "seeds": (seed,), "verify": True, "n_workers": 1}
    try:
        made = tune(build, problem, folder=folder / f"cheap-{config['problem']}-{seed}", **asked)
    except MupError as error:  # such as a folder that is in use: no result of the tuning, which is tried again
        raise RuntimeError(str(error)) from error
    results = made.results
    target = results.points("target", results.study.rules[0])
    lrs = results.study.space["lr"]
    return {
        "loss": made.loss,
        "price": findings.price(results)[0],
        "lr": made.lr,
        "regret": results.row(results.study.rules[0])["regret"].value,
        "failed": sum(not is_complete(record) for record in results.records),
        "usual": lrs[len(lrs) // 2],  # the law's, around which the grid lies
        "errors": [[point["params"]["lr"], point["loss"]] for point in target if not point["failed"]],
    }


def _range(values: list[float], form: str, around: str = "[]") -> str:
    between = ", " if around == "[]" else " to "
    return f"{median(values):{form}} {around[0]}{min(values):{form}}{between}{max(values):{form}}{around[1]}"
