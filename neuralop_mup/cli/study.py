"""Options of a transfer put together with its preset and checked: what fails here would fail in every trial."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from neuralop_mup.cli.arguments import fno_arguments, fno_defaults, problem_of
from neuralop_mup.cli.options import Dotted, below_one, count, given, grid, not_negative, positive
from neuralop_mup.core.rules import ROLES
from neuralop_mup.errors import MupError
from neuralop_mup.optim.kernels.optimizer import AUX_LR
from neuralop_mup.problems import Problem
from neuralop_mup.training import build_model, estimate_flops

#: Learning rates of muon, which are of another kind: of the operator norm of an update.
MUON_LRS = "1e-2:1.6e-1"
#: (problem, preset) → what a transfer uses where the user says nothing; a size is (hidden_channels, n_modes).
PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("burgers", "cpu"): {"proxy": (16, 8), "target": (64, 32), "epochs": 8, "lr": "1e-3:6.4e-2"},
    ("burgers", "gpu"): {"proxy": (32, 16), "target": (128, 128), "epochs": 40, "lr": "5e-4:3.2e-2"},
    ("darcy", "cpu"): {"proxy": (16, 8), "target": (32, 16), "epochs": 5, "lr": "1e-3:6.4e-2"},
    ("darcy", "gpu"): {"proxy": (32, 12), "target": (128, 48), "epochs": 40, "lr": "5e-4:3.2e-2"},
    ("darcy-pino", "cpu"): {"proxy": (16, 8), "target": (32, 16), "epochs": 5, "lr": "1e-3:6.4e-2"},
    ("darcy-pino", "gpu"): {"proxy": (32, 12), "target": (128, 48), "epochs": 40, "lr": "5e-4:3.2e-2"},
    ("burgers-pino", "cpu"): {"proxy": (16, 8), "target": (32, 32), "epochs": 10, "lr": "1e-3:6.4e-2"},
    ("burgers-pino", "gpu"): {"proxy": (32, 16), "target": (128, 64), "epochs": 40, "lr": "5e-4:3.2e-2"},
    ("navier-stokes", "cpu"): {"proxy": (8, 4), "target": (16, 16), "epochs": 8, "lr": "2e-3:6.4e-2", "batch_size": 4},
    ("navier-stokes", "gpu"): {"proxy": (32, 8), "target": (64, 32), "epochs": 20, "lr": "5e-4:3.2e-2", "batch_size": 4},
    ("korteweg-de-vries", "cpu"): {"proxy": (16, 8), "target": (64, 32), "epochs": 20, "lr": "1e-3:6.4e-2"},
    **{
        (name, "cpu"): {"proxy": (16, 8), "target": (32, 16), "epochs": 10, "lr": "1e-3:6.4e-2"}
        for name in ("allen-cahn", "gray-scott")
    },
    # What downloaded files hold is larger; the data is theirs.
    ("burgers-files", "cpu"): {"proxy": (16, 8), "target": (32, 16), "epochs": 10, "lr": "1e-3:6.4e-2"},
    ("darcy-files", "cpu"): {"proxy": (16, 8), "target": (32, 16), "epochs": 5, "lr": "1e-3:6.4e-2"},
    ("navier-stokes-files", "cpu"): {"proxy": (16, 16), "target": (64, 64), "epochs": 5, "lr": "1e-3:3.2e-2"},
    # Li, Yoo and Yang (arXiv 2506.19396): width 64, from K = 3 (n_modes counts both signs) to the most they train.
    ("burgers", "paper"): {
        "proxy": (64, 6),
        "target": (64, 1024),
        "epochs": 750,
        "lr": "5e-4:3.2e-2",
        "schedule": "halve:50",
    },
    **{
        (name, "paper"): {
            "proxy": (64, 6),
            "target": (64, 48),
            "epochs": 300,
            "lr": "5e-4:3.2e-2",
            "schedule": "halve:100,150,200",
        }
        for name in ("darcy", "darcy-pino")
    },
    # 50 000 iterations at batch 2 of 800 samples; lr halves at 20 000 and 40 000. The gradient of R is clipped.
    ("navier-stokes", "paper"): {
        "proxy": (64, 6),
        "target": (64, 48),
        "epochs": 125,
        "lr": "5e-4:3.2e-2",
        "schedule": "halve:50,100",
        "batch_size": 2,
        "clip_spectral": 0.01,
    },
}
#: What a run has where neither the preset nor the user says otherwise.
_STOCK = {"batch_size": 20, "schedule": "cosine"}
#: Settings of a training run that have an option of their own.
SETTINGS = ("epochs", "batch_size", "optimizer", "aux_lr", "weight_decay", "beta2", "schedule", "clip_spectral")
#: Hyperparameters that may be searched besides lr, with how their values are read.
SEARCHED = {
    **{f"{kind}.{role}": grid(positive) for kind in ("lr_mult", "init_mult") for role in ROLES},
    "batch_size": grid(count),
    "aux_lr": grid(positive),
    "weight_decay": grid(not_negative),
    "beta2": grid(below_one),
    "epochs": grid(count),
}
#: Arguments in which proxy and target may differ.
_SCALED = ("hidden_channels", "n_modes", "max_n_modes")


@dataclasses.dataclass(frozen=True)
class Study:
    """A transfer that is ready to be started: every setting spelled out."""

    problem: Problem
    arguments: dict[str, Any]  # of neuralop_mup.tuning.plan_transfer

    @property
    def note(self) -> str | None:
        """What the reader must know besides."""
        from neuralop_mup.reproduce import experiment  # draws, which the other verbs need not import

        shape = self.problem.grid_shape
        if not any(points % 2 for points in shape) or experiment.odd_grids_work():
            return None
        return (
            f"{'×'.join(map(str, shape))} points: the installed neuralop's SpectralConv is wrong on odd numbers of points, "
            "so choose an even --problem.grid."
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides the result, flat."""
        known = self.arguments
        fixed = {name: value for name, value in known["fixed"].items() if name not in ("problem", "problem_args")}
        return {
            "problem": self.problem.name,
            **{f"problem.{name}": value for name, value in known["fixed"]["problem_args"].items()},
            **{f"proxy.{name}": value for name, value in known["proxy"].items()},
            **{f"target.{name}": value for name, value in known["target"].items()},
            **{f"search.{name}": values for name, values in known["space"].items()},
            **{name: known[name] for name in ("rule", "rules", "seeds", "verify")},
            **fixed,
            **({"note": self.note} if self.note else {}),
        }


def study_of(options: argparse.Namespace, dotted: Dotted) -> Study:
    """The transfer that the options describe.

    Raises
    ------
    MupError
        If the model cannot be built at one of the sizes, or a setting cannot work.
    """
    problem = problem_of(options.problem, dotted["problem"], options.preset)
    preset = {**_STOCK, **PRESETS[problem.name, options.preset]}
    shared = fno_arguments("model", dotted["model"], problem.n_dim)
    sizes = {}
    for which in ("proxy", "target"):
        width, modes = preset[which]
        stock = {"hidden_channels": width, "n_modes": (modes,) * problem.n_dim}
        sizes[which] = {**stock, **shared, **fno_arguments(which, dotted[which], problem.n_dim)}
    _same_otherwise(sizes["proxy"], sizes["target"])
    lrs = MUON_LRS if options.optimizer == "muon" else preset["lr"]
    space = {"lr": options.lr or grid(positive)(lrs), **given("search", dotted["search"], SEARCHED)}
    run = {name: preset.get(name) if (value := getattr(options, name)) is None else value for name in SETTINGS}
    if run["optimizer"] == "muon" and run["aux_lr"] is None:
        run["aux_lr"] = AUX_LR
    if options.device != "cpu":  # the default of a run
        run["device"] = options.device
    fixed = {"problem": problem.name, "problem_args": dataclasses.asdict(problem), **run}
    fixed = {name: value for name, value in fixed.items() if name not in space}
    rules = tuple(dict.fromkeys([options.rule, *options.rules]))

    estimate_flops({**fixed, "model": sizes["proxy"], "base": sizes["proxy"]})  # refuses what no run understands
    with torch.device("meta"):
        build_model(problem, sizes["proxy"], sizes["proxy"], options.rule)
        for rule in rules:
            build_model(problem, sizes["target"], sizes["proxy"], rule)
    arguments = {
        **sizes,
        "space": space,
        "rule": options.rule,
        "rules": rules,
        "fixed": fixed,
        "seeds": tuple(range(options.seeds)),
        "verify": options.verify,
    }
    return Study(problem, arguments)


def _same_otherwise(proxy: Mapping[str, Any], target: Mapping[str, Any]) -> None:
    """Refuse sizes that differ in what no rule scales: the base would not be the model that was tuned."""
    stock = fno_defaults()
    for name in dict.fromkeys([*proxy, *target]):
        ends = [size.get(name, stock[name]) for size in (proxy, target)]
        if name not in _SCALED and ends[0] != ends[1]:
            raise MupError(
                f"{name} is {ends[0]} at the proxy and {ends[1]} at the target, but no rule carries hyperparameters "
                f"over that: let only {', '.join(_SCALED)} differ, and set --model.{name} for both."
            )
