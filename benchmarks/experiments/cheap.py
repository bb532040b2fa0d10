"""What tuning at the proxy that ``tune`` chooses takes, and what its learning rate loses, measured by ``tune`` itself.

A run is a tuning: the target is trained at the learning rate of its proxy and at every one of the grid, with one seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from experiments.curves import Curve
from experiments.kept import metrics_of, missing
from experiments.pages import NAMES, percent, percents, table
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.errors import MupError
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.records import Run
from neuralop_mup.lab.training import VERSION, FNOs
from neuralop_mup.lab.tuning import tune
from problems import get_problem

#: Problem → arguments of its data, width and modes of the target, epochs: 1,000 steps of 20 samples.
TARGETS: dict[str, tuple[dict[str, Any], int, tuple[int, ...], int]] = {
    "korteweg-de-vries": ({"n_train": 800, "grid": 64}, 64, (32,), 25),
    "gray-scott": ({"n_train": 400, "grid": 32}, 32, (12, 12), 50),
    "burgers": ({"n_train": 800, "grid": 128}, 64, (32,), 25),
    "allen-cahn": ({"n_train": 400, "grid": 32}, 32, (12, 12), 50),
}
#: Raise it whenever what is published is to be measured anew: the kept records are of an earlier proxy, which had
#: fewer steps and points.
CHOICE = 1


@dataclass(frozen=True)
class Cheap:
    """Four targets, two of them in 2D, tuned with each of three seeds."""

    targets: tuple[str, ...] = tuple(TARGETS)
    seeds: tuple[int, ...] = (0, 1, 2)
    small: bool = False

    about = "what tuning at the default proxy takes, and what its learning rate loses at the target"
    metrics = ("price", "lr", "regret", "failed", "usual", "errors")

    def tiny(self) -> Cheap:
        """One small target."""
        return replace(self, targets=("burgers",), seeds=(0,), small=True)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The tunings that are missing; seeds first, so that every target has one early."""
        return missing(records, (run(name, seed, self.small) for seed in self.seeds for name in self.targets))

    def table(self, records: Any) -> str:
        """What is done so far."""
        said = (
            "# The cost of tuning\n\nThe time of a tuning, relative to one training of the target, and the regret of the "
            "learning rate that it found: medians and ranges over seeds. Single runs differ by percents at the same "
            "learning rate. The last two columns use the mean curve of the seeds. Untuned is the formula's rate."
        )
        numbers = self.numbers(records)
        return f"{said}\n{numbers['table']}\n\n{numbers['failed']} runs failed.\n"

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote."""
        rows, every, failed = [], [], 0
        for name in self.targets:
            if done := list(metrics_of(records, {seed: run(name, seed, self.small) for seed in self.seeds}).values()):
                errors = [dict(metrics["errors"]) for metrics in done]
                # Of the rates that were tried with every seed, as those of the grid are.
                curve = Curve({lr: [own[lr] for own in errors] for lr in set.intersection(*map(set, errors))})
                took, lost = ([metrics[key] for metrics in done] for key in ("price", "regret"))
                smooth = [curve.regret(math.log2(metrics["lr"])) for metrics in done]
                untuned = percent(curve.regret(math.log2(done[0]["usual"])))
                price = f"{median(took):.2f} ({min(took):.2f} to {max(took):.2f})"
                rows.append([f"{NAMES[name]} ({len(TARGETS[name][2])}D)", price, percents(lost), percents(smooth), untuned])
                every += zip(took, lost, smooth, strict=True)
                failed += sum(metrics["failed"] for metrics in done)
        heads = ["target", "time of tuning / one training", "regret, single runs", "regret, mean of seeds"]
        most = np.max(every or [[math.nan] * 3], axis=0)
        return {
            "table": "\n".join(table([*heads, "regret, untuned"], rows)),
            "failed": str(failed),
            "most": f"{most[0]:.2f}",
            "most.single": percent(most[1]),
            "most.mean": percent(most[2]),
        }


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
    return Run(content, config, train=beside, size=name, params={"epochs": config["epochs"]}, seed=seed)


def beside(config: Mapping[str, Any], place: str, keep: bool) -> dict[str, Any]:
    """A tuning that keeps its own runs beside the records, so that it is taken up where it was interrupted."""
    return tuned(config, Path(place).parents[1])


beside.keeps_files = True


def took(record: Mapping[str, Any]) -> float:
    """Seconds of one training."""
    return record["metrics"]["seconds"]


def tuned(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Tune a target, or finish it: what that took, the learning rate, and what it loses."""
    torch.set_num_threads(1)
    problem, seed = get_problem(config["problem"], **config["data"]), config["seed"]
    build = FNOs(problem.in_channels, problem.out_channels, problem.n_dim)
    asked = {
        "target": config["target"],
        "folder": folder / f"cheap-{config['problem']}-{seed}",
        "epochs": config["epochs"],
        "seeds": (seed,),
        "n_workers": 1,
        "weight_decay": 0.0,
    }
    try:
        made = tune(build, problem, **asked)
    except MupError as error:  # such as a folder that is in use: no result of the tuning, which is tried again
        raise RuntimeError(str(error)) from error
    lrs, errors, rule = made.results.study.space["lr"], {}, made.results.study.rules[0]
    for lr in lrs:  # what else it might have chosen; the proxy's run is there
        with suppress(MupError):  # one that did not train
            errors[lr] = tune(build, problem, **asked, space={"lr": [lr]}).loss
    return {
        "loss": made.loss,
        "price": sum(map(took, made.results.cell("proxy", rule))) / took(*made.results.carried("target", rule)),
        "lr": made.lr,
        "regret": made.loss / min(errors.values()) - 1,
        "failed": sum(not is_complete(record) for record in made.results.records) + len(lrs) - len(errors),
        "usual": lrs[len(lrs) // 2],  # the law's, around which the grid lies
        "errors": [[lr, error] for lr, error in sorted({**errors, made.lr: made.loss}.items(), key=itemgetter(1))],
    }
