"""An optimizer against an architecture: FNO and SGNO, each with Adam at 0.001 and with untuned MuSOAP.

SGNO (arXiv:2602.18801) is compared with other architectures on APEBench, all trained by Adam at 0.001. Here, the same runs
are repeated with MuSOAP. The models have the sizes of APEBench's FNO and of SGNO's example for 1D. All four have
APEBench's loss (the squared error), data, batches and rollout error, a cosine schedule, and half of APEBench's steps. Unlike
FNO, SGNO predicts the change of the state.

We fixed the steps, and the order in which scenarios are left out if time runs short (the last one first), before measuring.
"""

from __future__ import annotations

from itertools import permutations
from statistics import fmean, geometric_mean
from typing import Any

from experiments.ablations import Ablation, Change, Config, changed
from experiments.against_tuned import Adam
from experiments.contenders import MUSOAP
from experiments.pages import dotted, mean_and_range, named, table
from experiments.tasks import APEBENCH, LAYERS
from neuralop_mup.core.rebuild import MODES, WIDTH

STEPS = 5000
_ADAM = Adam(1e-3).settings
_SGNO = {
    "net": "SGNO",
    "model": {"n_layers": LAYERS, "n_modes": (54,), "hidden_channels": 28},
    "base": {"n_layers": LAYERS, "n_modes": (MODES,), "hidden_channels": WIDTH},
}
#: Model and optimizer → change of a run.
VARIANTS: dict[str, Change] = {
    "FNO, Adam": changed(**_ADAM),
    "FNO, MuSOAP": changed(),
    "SGNO, Adam": changed(**_SGNO, **_ADAM),
    "SGNO, MuSOAP": changed(**_SGNO),
}


def configs() -> dict[str, Config]:
    """Return runs on the five scenarios in 1D."""
    tasks = {name: task for name, task in APEBENCH.items() if name.endswith("1D")}
    return {name: task.run_config(MUSOAP, STEPS, loss="mse") for name, task in tasks.items()}


class Architectures(Ablation):
    """The experiment."""

    notes = "Mean rollout errors of three seeds, and their range."

    def numbers(self, records: Any) -> dict[str, str]:
        """Return the errors, and the mean ratios of both optimizers and of both architectures."""
        errors = self.errors(records)
        rows = [[named(name), *map(mean_and_range, own)] for name, own in errors.items()]
        by_variant = zip(self.variants, zip(*errors.values(), strict=True), strict=False)
        means = {variant: geometric_mean(map(fmean, own)) for variant, own in by_variant}
        ratios = {f"{dotted(a)}.over.{dotted(b)}": f"{means[a] / means[b]:.2g}" for a, b in permutations(means, 2)}
        return {**ratios, "errors": table(["", *self.variants], rows)}
