"""What tuning at the proxy that ``tune`` chooses takes, and what its learning rate loses, measured by ``tune`` itself.

    python benchmarks/run.py cheap

Each target is trained at the learning rate of its proxy and at every one of the grid, seed by seed: a tuning is one seed's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from neuralop_mup.tuning import Results, findings, wording
from neuralop_mup.tuning.fno import FNOs
from neuralop_mup.tuning.pipeline import tune
from problems import get_problem

__all__ = ["Cheap"]

#: Problem → arguments of its data, width and modes of the target, epochs: 1,000 steps of 20 samples.
TARGETS: dict[str, tuple[dict[str, Any], int, tuple[int, ...], int]] = {
    "korteweg-de-vries": ({"n_train": 800, "grid": 64}, 64, (32,), 25),
    "gray-scott": ({"n_train": 400, "grid": 32}, 32, (12, 12), 50),
    "burgers": ({"n_train": 800, "grid": 128}, 64, (32,), 25),
    "allen-cahn": ({"n_train": 400, "grid": 32}, 32, (12, 12), 50),
}
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Cheap:
    """Four targets, two of them in 2D, tuned with each of three seeds."""

    targets: tuple[str, ...] = tuple(TARGETS)
    seeds: tuple[int, ...] = SEEDS
    epochs: int | None = None

    about = "what tuning at the default proxy takes, and what its learning rate loses at the target"

    def tiny(self) -> Cheap:
        """One small target."""
        return replace(self, targets=("burgers",), seeds=(0,), epochs=4)

    def fill(self, folder: Path, workers: int) -> None:
        """Tune what is not tuned yet; seeds first, so that every target has one early."""
        for seed in self.seeds:
            for name in self.targets:
                arguments, width, modes, epochs = TARGETS[name]
                small = {"n_train": 40, "n_val": 20, "n_test": 20} if self.epochs else {}
                problem = get_problem(name, **{**arguments, **small})
                tune(
                    FNOs(problem.in_channels, problem.out_channels, problem.n_dim),
                    problem,
                    target={"hidden_channels": width, "n_modes": modes},
                    folder=self.place(folder, name, seed),
                    epochs=self.epochs or epochs,
                    seeds=(seed,),
                    verify=True,
                    n_workers=workers,
                )

    def place(self, folder: Path, name: str, seed: int) -> Path:
        """Folder of one tuning."""
        return folder / f"cheap-{name}-{seed}"

    def page(self, folder: Path) -> str:
        """What is done so far."""
        rows = [["problem", "its tuning", "found", "regret", "failed"]]
        for name in self.targets:
            found = [
                Results.load(at) for seed in self.seeds if ((at := self.place(folder, name, seed)) / "study.json").exists()
            ]
            took = [findings.price(results)[0] for results in found]
            lost = [results.row(results.study.rules[0])["regret"].value for results in found]
            lrs = [results.best["lr"] for results in found]
            failed = sum(record["outcome"] != "complete" for results in found for record in results.records)
            if found:
                rows.append([name, _range(took, "{:.2f}"), _range(lrs, "{:.3g}"), _range(lost, "{:.1%}"), str(failed)])
        return "# What tuning takes\n\nOver that of one training of the target; median and range of the seeds.\n\n" + (
            wording.aligned(rows) + "\n"
        )


def _range(values: list[float], form: str) -> str:
    return f"{form.format(median(values))} ({form.format(min(values))} to {form.format(max(values))})"
