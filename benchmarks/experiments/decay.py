"""Does weight decay help MuSOAP, and where is the best one? Several strengths at the law's learning rate.

Hypothesis, written down before measuring: the best weight decay is that at which 1 / (lr · weight_decay), the time in which
a weight forgets, is the same number of epochs everywhere (arXiv:2405.13698). So a quarter of the samples wants four times
the weight decay, and a quarter of the steps, with twice the learning rate, half of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.law import PROBLEMS, Law, Setting
from experiments.pages import table
from neuralop_mup.tuning.outcome import is_complete
from neuralop_mup.tuning.records import Run

__all__ = ["Decay"]

DECAYS = (0.0, 0.003, 0.0125, 0.05, 0.2)


@dataclass(frozen=True)
class Decay:
    """The experiment: ``law``'s runs at its own rate, and the same with weight decay."""

    law: Law
    problems: tuple[str, ...] = ("burgers", "darcy", "korteweg-de-vries")
    seeds: tuple[int, ...] = (0, 1)

    about = "whether weight decay helps, and whether its best strength forgets in the same number of epochs"

    def tiny(self) -> Decay:
        """One problem, small models and short runs."""
        return replace(self, law=self.law.tiny(), problems=("burgers",), seeds=(0,))

    def settings(self) -> list[Setting]:
        """Each problem as it is, in a quarter of the steps, and with a quarter of the samples."""
        changes = ({}, {"steps": 250}, {"samples": 0.25})
        return [
            Setting.of(p, **{k: v if k == "steps" else int(v * PROBLEMS[p][k]) for k, v in own.items()})
            for own in changes
            for p in self.problems
        ]

    def run(self, setting: Setting, decay: float, seed: int) -> Run:
        """A run; without weight decay it is one of the law's."""
        more = {"weight_decay": decay} if decay else {}
        return replace(self.law, fixed={**self.law.fixed, **more}, _runs={}).run(setting, self.law.by_the_law(setting), seed)

    def wanted(self, records: Any) -> Iterator[Run]:
        """The runs that are missing, setting by setting."""
        runs = (self.run(s, decay, seed) for s in self.settings() for seed in self.seeds for decay in DECAYS)
        yield from (run for run in runs if records.get(run) is None)

    def table(self, records: Any) -> str:
        """Error over that without weight decay, and how many epochs a weight takes to forget."""
        rows = []
        for setting in self.settings():
            found = [[records.get(self.run(setting, decay, seed)) for seed in self.seeds] for decay in DECAYS]
            if not all(all(own) for own in found):
                continue
            errors = np.array([[r["loss"] if is_complete(r) else math.inf for r in own] for own in found])
            over = errors / errors[0]
            best = DECAYS[int(errors.prod(axis=1).argmin())]
            f, lr = setting.factors, self.law.rate(self.law.by_the_law(setting))
            epochs = f"{f['batch'] / f['samples'] / (lr * best):.3g}" if best else "–"
            rows.append([setting.problem, str(setting), *map(_cell, over[1:]), f"{best:g}", epochs])
        heads = ["problem", "setting", *(f"weight decay {d:g}" for d in DECAYS[1:]), "best", "forgets in epochs"]
        said = (
            "Validation error over that without weight decay at the law's learning rate: geometric mean over the seeds, and "
            "their range. Forgets in: 1 / (lr · weight decay) of the best one."
        )
        lines = [f"# Weight decay\n\n{len(rows)} of {len(self.settings())} settings. {said}", *table(heads, rows)]
        return "\n".join(lines) + "\n"


def _cell(over: np.ndarray) -> str:
    return f"{np.exp(np.log(over).mean()):.3f} [{over.min():.3f}, {over.max():.3f}]"
