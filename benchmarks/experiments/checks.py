"""Do updates keep their size? The coordinate check over width and over modes, of the rules here, of SP and of mup alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import mup
import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from experiments.contenders import kept_arguments
from experiments.kept import metrics_of, missing
from experiments.pages import table
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.lab.problems import get_problem
from neuralop_mup.lab.records import Run

WIDTHS, MODES = (16, 32, 64, 128), (4, 8, 16, 32, 64)
#: Check → what grows, the rule, and the optimizer.
CHECKS: dict[str, tuple[str, str, str]] = {
    **{f"width, {rule}": ("width", rule, "adam") for rule in ("operator-norm", "log-modes", "standard")},
    "width, mup alone": ("width", "mup", "mup"),
    "width, MuSOAP": ("width", "operator-norm", "soap"),
    **{f"modes, {rule}": ("modes", rule, "adam") for rule in ("operator-norm", "log-modes", "standard")},
    "modes, MuSOAP": ("modes", "operator-norm", "soap"),
}
#: Optimizer → what makes one, and its learning rate.
_MAKE: dict[str, tuple[Callable[..., torch.optim.Optimizer], float]] = {
    "adam": (nm.MuAdam, 8e-3),
    "mup": (lambda model, lr: mup.MuAdam(model.parameters(), lr=lr), 8e-3),
    "soap": (nm.MuSOAP, 0.03),
}


def _arguments(optimizer: str) -> dict[str, str]:
    """Arguments of an optimizer with their defaults, and those that it had when checks were kept."""
    parameters = signature(_MAKE[optimizer][0]).parameters.values()
    own = kept_arguments(optimizer, {p.name: p.default for p in parameters if p.name != "unknown"})
    return {name: str(value) for name, value in own.items()}


@dataclass(frozen=True)
class Checks:
    """The experiment: a run is a whole check."""

    seeds: int = 10
    small: bool = False

    about = "the coordinate check over width and modes: slopes of features and updates over the size"
    metrics = ("init", "update", "output", "passed")

    def tiny(self) -> Checks:
        """Two seeds at two sizes."""
        return replace(self, seeds=2, small=True)

    def run(self, name: str) -> Run:
        """One check."""
        config = {"check": name, "seeds": self.seeds, "small": self.small}
        return Run(
            {
                "train": "checks",
                "rules": RULE_VERSION,
                "optimizer": _arguments(CHECKS[name][2]),
                **config,
            },
            config,
            train=checked,
            size=name,
            params={},
            seed=0,
        )

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The checks that are missing."""
        return missing(records, map(self.run, CHECKS))

    def table(self, records: Any) -> str:
        """The largest slope of each kind."""
        said = (
            f"Burgers, {self.seeds} seeds, 10 steps: largest absolute slope of log RMS over log size, of a block at the "
            "start, of a block's update, and of the output's update. Width at K = 8, modes at width 64."
        )
        return f"# The coordinate check\n\n{said}\n{self.numbers(records)['table']}\n"

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote."""
        done = metrics_of(records, {name: self.run(name) for name in CHECKS})
        rows = [[name, *(f"{slopes[k]:.2f}" for k in ("init", "update", "output"))] for name, slopes in done.items()]
        return {"table": "\n".join(table(["over", "start", "updates", "update of the output"], rows))}


def checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Make one check."""
    torch.set_num_threads(1)
    over, rule, optimizer = CHECKS[config["check"]]
    data = get_problem("burgers").load()
    loader, processor = data.loaders(batch_size=20, seed=0)[0], data.processor()
    batches = [{k: b[k] for k in "xy"} for b, _ in zip(map(processor.preprocess, loader), range(10), strict=False)]
    sizes = (WIDTHS if over == "width" else MODES)[: 2 if config["small"] else None]

    def build(size: int) -> nn.Module:
        width, modes = (size, 8) if over == "width" else (16 if config["small"] else 64, size)
        model = FNO((2 * modes,), 1, 1, width)
        if rule == "mup":  # what mup's own documentation says to do
            mup.set_base_shapes(model, FNO((16,), 1, 1, sizes[0]), delta=FNO((16,), 1, 1, sizes[1]), do_assert=False)
            return model
        base = {"hidden_channels": sizes[0]} if over == "width" else {"n_modes": (2 * sizes[0],)}
        return nm.parametrize(model, base=base, rule=rule)

    make, lr = _MAKE[optimizer]
    check = nm.coord_check(build, sizes, batches, lr=lr, seeds=config["seeds"], optimizer=make, size_name=over)

    def most(kind: str, output: bool) -> float:
        own = (abs(r["slope"]) for r in check.slopes if r["kind"] == kind and (r["block"] == "projection") == output)
        return max(own, default=0.0)

    slopes = {"init": most("init", False), "update": most("update", False), "output": most("update", True)}
    return {"loss": slopes["update"], **slopes, "passed": check.passed(0.25, 0.1)}
