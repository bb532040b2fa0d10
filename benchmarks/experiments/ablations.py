"""Change one setting at a time, and compare the error with that of the default on several problems with the same seeds.

The experiments ``choices`` and ``elsewhere`` back the defaults of MuSOAP. For ``elsewhere`` we wrote down these hypotheses
before measuring: updating the bases at every step gains 5 %. Neither the depth factor nor a fixed ``adamw_lr`` loses 3 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations, product
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np

from experiments.against_tuned import Adam
from experiments.contenders import MUSOAP
from experiments.experiment import Experiment
from experiments.law_settings import PROBLEMS
from experiments.pages import NAMES, dotted, mean_and_range, named, table
from experiments.records import loss_of, missing, test_errors
from experiments.tasks import APEBENCH, FURTHER, LAYERS, SUITE, TINY, Task
from experiments.training import remembered, run_of
from neuralop_mup.core.rebuild import MODES, WIDTH
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import default_lr

Config = dict[str, Any]
Change = Callable[[Config], Config]


def changed(**settings: Any) -> Change:
    """Return a function that changes settings of a run."""
    return lambda config: {**config, **settings}


def _soap(**arguments: Any) -> Change:
    """Return a function that changes arguments of MuSOAP."""
    return lambda config: {**config, "soap": {**config.get("soap", {}), **arguments}}


#: Variant → change of a run. The first variant of each experiment is the default.
CHOICES = {
    "the defaults": changed(),
    "no weight decay": changed(weight_decay=0.0),
    "neuralop's own start": changed(kernel_init="default"),
    "every mode at every step": _soap(period=1),
    "every fourth mode": _soap(period=4),
    "sizes by squares": _soap(size="rms"),
    "no look ahead": _soap(nesterov=False),
    "momentum 0.9": _soap(momentum=0.9),
    "beta2 0.99": _soap(beta2=0.99),
    "basis_beta 0.99": _soap(basis_beta=0.99),
    "bases renewed every step": _soap(refresh=1),
    "aux_lr 0.002": changed(aux_lr=0.002),
    "aux_lr 0.008": changed(aux_lr=0.008),
}
#: The choices that are also measured on held-out problems.
HELD_OUT_CHOICES = {
    "the defaults": changed(),
    "bases renewed every step": _soap(refresh=1),
    "no depth factor": _soap(base_depth=None),
    "aux_lr as the kernels' rate": lambda config: {**config, "aux_lr": 0.004 * config["lr"] / default_lr(1000)},
}
# The package no longer has these settings. Their records are kept.
_REMOVED = {"sizes by squares", "no look ahead", "basis_beta 0.99"}


def held_out_configs() -> dict[str, Config]:
    """Return runs on four held-out problems: deep models with few steps, and shallow models with many steps.

    Without the depth factor, the learning rate is higher for the first and lower for the second. So a formula whose rates
    are generally too low or too high does not decide.
    """
    names = ("navier-stokes", "darcy-pino", "burgers-pino", "interface")
    tasks = {
        f"{NAMES[name]}, {steps} steps, {depth} layers": replace(SUITE[name], steps=steps, model={"n_layers": depth})
        for (steps, depth), name in product(((250, 8), (2000, 2)), names)
    }
    return {name: own.run_config(MUSOAP) for name, own in tasks.items()}


def default_configs() -> dict[str, Config]:
    """Return runs on five problems, with models of 48 channels in 1D and 24 in 2D."""
    found = {}
    for name in ("burgers", "darcy", "allen-cahn", "korteweg-de-vries", "gray-scott"):
        own = PROBLEMS[name]
        config = {"problem": name, "data": {"n_train": own["samples"], "grid": own["grid"]}}
        found[name] = Task(config, own["modes"], {1: 48, 2: 24}[len(own["modes"])], 1000).run_config(MUSOAP)
    return found


@dataclass(frozen=True)
class Ablation(Experiment):
    """Compare variants of a run with the default.

    Attributes
    ----------
    about : str
    configs : mapping of str to dict
        Problem → configuration of a run without its seed.
    variants : mapping of str to callable
        Variant → function that changes a configuration; the default first.
    seeds : tuple of int
    """

    about: str
    configs: Mapping[str, Config]
    variants: Mapping[str, Change]
    seeds: tuple[int, ...] = (0, 1)

    notes = "Validation errors relative to the first row, as geometric means over seeds and problems."

    def tiny(self) -> Ablation:
        """Return two variants of a small model on Burgers' equation."""
        return replace(
            self, configs={"burgers": TINY.run_config(MUSOAP)}, variants=dict(list(self.variants.items())[:2]), seeds=(0,)
        )

    @remembered
    def run(self, name: str, variant: str, seed: int) -> Run:
        """Return a run of a variant on a problem."""
        config = {**self.variants[variant](dict(self.configs[name])), "seed": seed}
        return run_of(config, seed=seed, **self.labels(name, variant, config["lr"]))

    def labels(self, name: str, variant: str, lr: float) -> dict[str, Any]:
        """Return the labels of a run."""
        return {"size": f"{name}: {variant}", "params": {"lr": lr}}

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs, problem by problem."""
        variants = [variant for variant in self.variants if variant not in _REMOVED]
        return missing(records, (self.run(name, v, seed) for name in self.configs for seed in self.seeds for v in variants))

    def errors(self, records: Any) -> dict[str, list[list[float]]]:
        """Return the test errors of the seeds of each variant, on the problems with all runs."""
        found = {
            name: [test_errors(records, (self.run(name, v, seed) for seed in self.seeds)) for v in self.variants]
            for name in self.configs
        }
        return {name: own for name, own in found.items() if all(len(errors) == len(self.seeds) for errors in own)}

    def ratios(self, records: Any) -> np.ndarray:
        """Return errors relative to the default: a row for each variant and a column for each problem.

        Ratios are geometric means over the seeds. They are NaN if a run is missing, and infinite if a training failed.
        """
        losses = [
            [[loss_of(records.get(self.run(name, variant, seed))) for seed in self.seeds] for name in self.configs]
            for variant in self.variants
        ]
        means = np.log(np.array(losses, dtype=float)).mean(2)
        return np.exp(means - means[0])

    def numbers(self, records: Any) -> dict[str, str]:
        """Return the table, and the mean and range of each variant over all problems."""
        rows, found = [], {}
        for variant, ratios in zip(self.variants, self.ratios(records), strict=True):
            done = ratios[~np.isnan(ratios)]
            mean = f"{geometric_mean(done):.3f} ({len(done)})" if len(done) else "–"
            rows.append([variant, mean, *("–" if math.isnan(ratio) else f"{ratio:.3f}" for ratio in ratios)])
            if len(done) == len(ratios):
                values = {"": geometric_mean(done), ".least": min(done), ".most": max(done)}
                found |= {f"{dotted(variant)}{end}": f"{value:.2f}" for end, value in values.items()}
        heads = ["", "all (number of columns)", *(NAMES.get(name, name) for name in self.configs)]
        return {**found, "ratios": table(heads, rows)}


_STEPS = 5000
_ADAM = Adam(1e-3).settings
_SGNO = {
    "net": "SGNO",
    "model": {"n_layers": LAYERS, "n_modes": (54,), "hidden_channels": 28},
    "base": {"n_layers": LAYERS, "n_modes": (MODES,), "hidden_channels": WIDTH},
}
#: Model and optimizer → change of a run.
ARCHITECTURES = {
    "FNO, Adam": changed(**_ADAM),
    "FNO, MuSOAP": changed(),
    "SGNO, Adam": changed(**_SGNO, **_ADAM),
    "SGNO, MuSOAP": changed(**_SGNO),
}


def architecture_configs() -> dict[str, Config]:
    """Return runs on the first four scenarios in 1D."""
    names = [name for name in APEBENCH if name.endswith("1D")][:4]
    return {name: APEBENCH[name].run_config(MUSOAP, _STEPS, loss="mse") for name in names}


class Architectures(Ablation):
    """An optimizer against an architecture: FNO and SGNO, each with Adam at 0.001 and with untuned MuSOAP.

    SGNO (arXiv:2602.18801) is compared with other architectures on APEBench, all trained by Adam at 0.001. Here, the
    same runs are repeated with MuSOAP. The models have the sizes of APEBench's FNO and of SGNO's example for 1D. All
    four have APEBench's loss (the squared error), data, batches and rollout error, a cosine schedule, and half of
    APEBench's steps. Unlike FNO, SGNO predicts the change of the state.

    We fixed the steps before measuring. We planned five scenarios, the last to be left out first if time ran short.
    """

    notes = "Mean rollout errors of three seeds, and their range."

    def numbers(self, records: Any) -> dict[str, str]:
        """Return the errors, and the mean ratios of both optimizers and of both architectures."""
        errors = self.errors(records)
        rows = [[named(name), *map(mean_and_range, own)] for name, own in errors.items()]
        by_variant = zip(self.variants, zip(*errors.values(), strict=True), strict=False)
        means = {variant: geometric_mean(map(fmean, own)) for variant, own in by_variant}
        ratios = {f"{dotted(a)}.over.{dotted(b)}": f"{means[a] / means[b]:.2g}" for a, b in permutations(means, 2)}
        return {**ratios, "errors": table(["", *self.variants], rows)}


#: Name of the loss → change of a run. The others are compared with the first.
LOSSES = {"l2": changed(), "floored-l2": changed(loss="floored-l2"), "mse": changed(loss="mse")}
_LOSS_LABELS = ("relative", "relative with a floor", "squared")
#: Problems that select the default, and problems that confirm it. We fixed both before the first run.
_CHOSEN_ON = ("diff_burgers 1D", "norm_four 1D", "phy_diff 1D", "burgers", "darcy")
_HELD_OUT = ("diff_kdv 1D", "diff_fisher 1D", "phy_adv_diff 1D", "korteweg-de-vries", "gray-scott")
#: Trajectories in 2D, added after the default was selected. Gray–Scott has two channels.
_IN_2D = ("gray-scott-in-time", "navier-stokes-in-time")
#: Rows of the table of ratios.
_GROUPS = {
    "decaying, used to choose": ("norm_four 1D", "phy_diff 1D"),
    "decaying, held-out": ("phy_adv_diff 1D",),
    "trajectories, used to choose": ("diff_burgers 1D",),
    "trajectories, held-out": ("diff_kdv 1D", "diff_fisher 1D"),
    "trajectories in 2D, held-out": _IN_2D,
    "maps, used to choose": ("burgers", "darcy"),
    "maps, held-out": ("korteweg-de-vries", "gray-scott"),
}
_TASKS = {
    **{name: replace(own, steps=2500) for name, own in {**APEBENCH, **FURTHER}.items()},
    **SUITE,
    **{
        name: Task({"problem": name, "data": {"grid": grid, "every": 1}, "rollout": 50}, modes, 16, 1000)
        for name, grid, modes in (("gray-scott-in-time", 20, (10, 10)), ("navier-stokes-in-time", 16, (8, 8)))
    },
}


def loss_configs() -> dict[str, Config]:
    """Return runs of untuned MuSOAP."""
    return {name: _TASKS[name].run_config(MUSOAP) for name in (*_CHOSEN_ON, *_HELD_OUT, *_IN_2D)}


class Losses(Ablation):
    """Compare training losses: relative errors of the samples, relative errors with a floor, and squared errors.

    Models of one time step are trained on six 1D scenarios of APEBench and on two problems in 2D, and evaluated by their
    rollout error. Models of maps are trained on four problems and evaluated by their relative test error. Half of the
    problems select the default of ``nm.train``, and the others confirm it.

    We wrote down these hypotheses before measuring: on decaying states (``norm_four``, ``phy_diff``, ``phy_adv_diff``)
    the error with the relative loss is at least 1.5 times that with the others. Elsewhere all three are within 10 %.
    """

    notes = "Mean error of three seeds with their range, and geometric means of the ratios to the relative loss."
    metrics = ("test_loss", "validation_error", "seconds")

    def tiny(self) -> Losses:
        """Return one map and one trajectory with small models and two seeds."""
        data = {"n_train": 8, "n_val": 2, "n_test": 2, "grid": 64, "states": 8}
        in_time = {"problem": "korteweg-de-vries-in-time", "data": data, "rollout": 5}
        tasks = {"burgers": TINY, "korteweg-de-vries-in-time": replace(TINY, config=in_time)}
        return replace(self, configs={name: own.run_config(MUSOAP) for name, own in tasks.items()}, seeds=(0, 1))

    def labels(self, name: str, variant: str, lr: float) -> dict[str, Any]:
        """Return the labels of a run."""
        return {"size": name, "params": {"trained_on": variant}}

    def numbers(self, records: Any) -> dict[str, str]:
        """Return a table of errors, and a table of their ratios by group."""
        errors = self.errors(records)
        rows = [[named(name), *map(mean_and_range, own)] for name, own in errors.items()]
        ratio_rows = []
        for group, names in _GROUPS.items():
            means = [[fmean(seeds) for seeds in errors[name]] for name in names if name in errors]
            if means and math.isfinite(max(map(max, means))):
                base, *others = map(geometric_mean, zip(*means, strict=True))
                ratio_rows.append([group, str(len(means)), *(f"{mean / base:.2f}" for mean in others)])
        return {
            "table": table(["problem", *_LOSS_LABELS], rows),
            "ratios": table(["problems", "number", *_LOSS_LABELS[1:]], ratio_rows),
        }
