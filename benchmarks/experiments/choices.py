"""One choice at a time: what a setting changes in the error, beside the default, on several problems with the same seeds.

``reference``: the base that ``parametrize(model)`` takes. Hypothesis, written down before measuring: no base is more than a
few percent better on all problems, and errors differ little between bases that are a factor of 4 apart.

``decay``: weight decay. Hypothesis: the best is that at which 1 / (lr · weight_decay), in which a weight forgets, is
the same number of epochs everywhere (arXiv:2405.13698); so a quarter of the samples wants four times the weight decay.

``choices``: the defaults of MuSOAP. ``elsewhere``: those that were in doubt, where none was chosen. Hypothesis, written down
before measuring: bases renewed at every step gain 5 %, and neither the depth factor nor a fixed ``aux_lr`` loses 3 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from statistics import geometric_mean
from typing import Any

import numpy as np

from experiments.contenders import GONE
from experiments.contest import Contest
from experiments.fields import SUITE
from experiments.kept import loss_of, missing
from experiments.law import CENTRE, PROBLEMS, Law, Setting
from experiments.pages import NAMES, dotted, table
from experiments.training import STAGES, remembered, run_of
from neuralop_mup.core.rebuild import MODES, WIDTH
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import default_lr

Config = dict[str, Any]
Change = Callable[[Config], Config]


def _base(width: int, modes: int | None = None) -> Change:
    """Another base, with the model's modes or others; without weight decay."""

    def change(config: Config) -> Config:
        own = config["model"]["n_modes"]
        base = {**config["base"], "hidden_channels": width, "n_modes": (modes,) * len(own) if modes else own}
        return {**config, "base": base, "weight_decay": 0.0}

    return change


def _with(**settings: Any) -> Change:
    return lambda config: {**config, **settings}


def _soap(**arguments: Any) -> Change:
    return lambda config: {**config, "soap": {**config.get("soap", {}), **arguments}}


#: The default of each experiment comes first.
BASES: dict[str, Change] = {
    "the reference": _with(weight_decay=0.0),
    **{f"width {w}": _base(w) for w in (8, 128)},
    **{f"n_modes {m}": _base(WIDTH, m) for m in (4, 32)},
}
DECAYS: dict[str, Change] = {
    "0": _with(),
    **{f"{decay:g}": _with(weight_decay=decay) for decay in (0.003, 0.01, 0.0125, 0.05, 0.2)},
}
CHOICES: dict[str, Change] = {
    "the defaults": _with(),
    "no weight decay": _with(weight_decay=0.0),
    "neuralop's own start": _with(kernel_init="default"),
    "every mode at every step": _soap(period=1),
    "every fourth mode": _soap(period=4),
    "sizes by squares": _soap(size="rms"),
    "no look ahead": _soap(nesterov=False),
    "momentum 0.9": _soap(momentum=0.9),
    "beta2 0.99": _soap(beta2=0.99),
    "basis_beta 0.99": _soap(basis_beta=0.99),
    "bases renewed every step": _soap(refresh=1),
    "aux_lr 0.002": _with(aux_lr=0.002),
    "aux_lr 0.008": _with(aux_lr=0.008),
}

#: What was in doubt.
DOUBTS: dict[str, Change] = {
    "the defaults": _with(),
    "bases renewed every step": _soap(refresh=1),
    "no depth factor": _soap(base_depth=None),
    "aux_lr as the kernels' rate": lambda config: {**config, "aux_lr": 0.004 * config["lr"] / default_lr(1000)},
}


def elsewhere_fields() -> dict[str, Config]:
    """Four problems on which nothing was chosen, with deep models and few steps and the other way round: one raises the rate
    without the depth factor, the other lowers it, so that a rate that is too low or too high at any depth does not decide.
    """
    names = ("navier-stokes", "darcy-pino", "burgers-pino", "interface")
    fields = {
        f"{NAMES[name]}, {steps} steps, {depth} layers": replace(SUITE[name], steps=steps, model={"n_layers": depth})
        for (steps, depth), name in product(((250, 8), (2000, 2)), names)
    }
    contest = Contest("", fields)
    return {name: dict(contest.run(name, "MuSOAP", default_lr(on.steps), 0).config) for name, on in fields.items()}


def reference_fields(steps: int = 600) -> dict[str, Config]:
    """Five problems, with models of 48 channels in 1D and 24 in 2D."""
    found = {}
    for name in ("burgers", "darcy", "allen-cahn", "korteweg-de-vries", "gray-scott"):
        own = PROBLEMS[name]
        axes = len(own["modes"])
        found[name] = {
            "problem": name,
            "data": {"n_train": own["samples"], "grid": own["grid"]},
            "steps": steps,
            "batch_size": CENTRE["batch"],
            "model": {"n_layers": CENTRE["depth"], "n_modes": own["modes"], "hidden_channels": {1: 48, 2: 24}[axes]},
            "base": {"n_layers": CENTRE["depth"], "n_modes": (MODES,) * axes, "hidden_channels": WIDTH},
            "optimizer": "soap",
            "lr": 0.03,
            "kernel_init": "small",
        }
    return found


def decay_fields() -> dict[str, Config]:
    """Three problems as the law has them, in a quarter of the steps, and with a quarter of the samples; the law's rate."""
    law = Law()
    settings = [
        Setting.of(p, **{k: v if k == "steps" else int(v * PROBLEMS[p][k]) for k, v in own.items()})
        for own in ({}, {"steps": 250}, {"samples": 0.25})
        for p in ("burgers", "darcy", "korteweg-de-vries")
    ]
    return {f"{s.problem}, {s}": dict(law.run(s, law.by_the_law(s)).config) for s in settings}


@dataclass(frozen=True)
class Choices:
    """The experiment.

    Attributes
    ----------
    about : str
    fields : mapping of str to dict
        Name → configuration of a run by default, all but the seed.
    variants : mapping of str to callable
        Name → what makes another configuration of one; the default first.
    seeds : tuple of int
    """

    about: str
    fields: Mapping[str, Config]
    variants: Mapping[str, Change]
    seeds: tuple[int, ...] = (0, 1)

    def tiny(self) -> Choices:
        """The first problem of a few samples, two variants, small models and short runs."""
        name, config = next(iter(self.fields.items()))
        own = {
            **config,
            "data": {**config["data"], "n_train": 40, "n_val": 20, "n_test": 20},
            "steps": STAGES,
            "lr": default_lr(STAGES),
            "model": {**config["model"], "hidden_channels": 8},
        }
        return replace(self, fields={name: own}, variants=dict(list(self.variants.items())[:2]), seeds=(0,))

    @remembered
    def run(self, name: str, variant: str, seed: int) -> Run:
        """A run of a variant on a field."""
        config = {**self.variants[variant](dict(self.fields[name])), "seed": seed}
        return run_of(config, size=f"{name}: {variant}", params={"lr": config["lr"]}, seed=seed)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The runs that are missing, problem by problem."""
        return missing(
            records,
            (self.run(n, v, s) for n in self.fields for s in self.seeds for v in self.variants if v not in GONE),
        )

    def over(self, records: Any) -> np.ndarray:
        """A row for each variant: its error over the default's on each field, geometric means over the seeds; NaN where runs
        are missing, infinite where a model did not train.
        """
        found = [
            [[loss_of(records.get(self.run(name, variant, seed))) for seed in self.seeds] for name in self.fields]
            for variant in self.variants
        ]
        means = np.log(np.array(found, dtype=float)).mean(2)
        return np.exp(means - means[0])

    def table(self, records: Any) -> str:
        """Every variant's error over the default's."""
        rows = []
        for variant, own in zip(self.variants, self.over(records), strict=True):
            done = own[~np.isnan(own)]
            mean = f"{geometric_mean(done):.3f} ({len(done)})" if len(done) else "–"
            rows.append([variant, mean, *("–" if math.isnan(x) else f"{x:.3f}" for x in own)])
        heads = ["", "all (problems)", *(NAMES.get(name, name) for name in self.fields)]
        said = f"Validation error over that of the first row: geometric means over seeds ({len(self.seeds)}) and problems."
        return "\n".join([f"# {self.about[0].upper()}{self.about[1:]}", "", said, *table(heads, rows), ""])

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote: each variant's mean over all problems, least and most."""
        over = self.over(records)
        whole = {v: own for v, own in zip(self.variants, over, strict=True) if not np.isnan(own).any()}
        said = {dotted(v): f"{geometric_mean(own):.2f}" for v, own in whole.items()}
        for end, of in (("least", min), ("most", max)):
            said |= {f"{dotted(v)}.{end}": f"{of(own):.2f}" for v, own in whole.items()}
        return said
