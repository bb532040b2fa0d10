"""The experiments of Li, Yoo and Yang, ICML 2025 (arXiv 2506.19396), and joint moves of width and modes.

    python benchmarks/paper.py EXPERIMENT [--size cpu|gpu|paper] [--seeds 3] [--device cpu] [--output runs/EXPERIMENT-SIZE]

Each searches SP and μP at the base and at every larger size, one study a size, in one folder: the base is trained once. How
a problem is trained stands in ``neuralop_mup.tuning.presets``; here is what varies. The paper does not print its grids; the
learning rates that it names (7.4e-4, 1.8e-3, 4.2e-3, 5.6e-3) lie on 10^(-n/8), which is taken here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jsonargparse import auto_cli

from neuralop_mup.tuning import report
from neuralop_mup.tuning.fno import FNOs
from neuralop_mup.tuning.pipeline import Tuning, tuning
from neuralop_mup.tuning.presets import SIZES, preset_of, problem_with
from neuralop_mup.tuning.space import log2_grid

_PAPER_LR = tuple(float(f"{10 ** (-n / 8):.3g}") for n in range(30, 11, -1))  # 1.78e-4 … 3.16e-2
_BATCH_BETA2 = {"batch_size": (5, 10, 20, 40, 80), "beta2": (0.9, 0.95, 0.98, 0.99, 0.999)}
_MODE_RULES = ("log-modes", "operator-norm", "standard")  # with the width fixed "none" is "standard"
_JOINT_RULES = ("log-modes", "none", "standard")  # where the width moves "none" is the width rule alone

Model = tuple[int, int | tuple[int, ...]]  # width, and modes of one sign: K is n_modes / 2


@dataclass(frozen=True)
class Experiment:
    """A problem, what it shows, and by size its models (the base first) and the ends of its learning rates."""

    problem: str
    shows: str
    models: Mapping[str, tuple[Sequence[Model], tuple[float, float] | None]]
    rules: tuple[str, ...] = _MODE_RULES
    searched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by size; all rules where nothing is said
    epochs: Mapping[str, int] = field(default_factory=dict)  # by size; else those of the preset
    walked: Mapping[str, Sequence[float]] = field(default_factory=dict)  # besides the rate, one by one at its best value


def _k(width: int, *modes: int) -> list[Model]:
    return [(width, k) for k in modes]


_PLANES = {"gpu": (_k(64, 3, 6, 12, 24), (5e-4, 3.2e-2)), "paper": (_k(64, 3, 6, 12, 24), None)}
_FLOW = {"gpu": (_k(64, 3, 6, 12, 24), (5e-4, 1.6e-2)), "paper": (_k(64, 3, 6, 12, 24), None)}
_JOINT_PLANE = {
    "cpu": ([(8, 2), (64, 16)], (2e-3, 1.28e-1)),
    "gpu": ([(16, 3), (128, 24)], (5e-4, 6.4e-2)),
    "paper": ([(16, 3), (128, 24)], None),
}
_SP_AND_WIDTH = {"cpu": ("none", "standard")}  # targets of half a minute a run are not searched under the paper's rule
#: The paper's Darcy data has 61 points an axis, solved on 421; on odd grids neuralop 2.0.0's SpectralConv is wrong.
_EVEN = dict.fromkeys(("darcy", "darcy-pino"), {"grid": 62, "solver_grid": 428})
_SP = dict.fromkeys(SIZES, ("standard",))

EXPERIMENTS = {
    "burgers-modes": Experiment(
        "burgers",
        "best learning rate of FNO-1D on Burgers' equation over K (figure 2a)",
        {
            "cpu": (_k(32, 4, 16, 64), (5e-4, 6.4e-2)),
            "gpu": (_k(64, 3, 16, 64, 256), (5e-4, 3.2e-2)),
            "paper": (_k(64, 3, 8, 32, 128, 512), None),  # its text names no K between 3 and 512
        },
    ),
    "darcy-modes": Experiment(
        "darcy",
        "best learning rate of FNO-2D on Darcy flow over K (figure 2b)",
        {"cpu": (_k(24, 2, 4, 16), (2e-3, 6.4e-2)), **_PLANES},
    ),
    "pino-darcy-modes": Experiment(
        "darcy-pino",
        "best learning rate of PINO-2D on Darcy flow over K (figure 2c)",
        {"cpu": (_k(16, 2, 4, 16), (2e-3, 6.4e-2)), **_PLANES},
    ),
    "navier-stokes-modes": Experiment(
        "navier-stokes",
        "best learning rate of FNO-3D on the Navier–Stokes equation over K (figure 1)",
        {"cpu": (_k(16, 2, 4, 8), (1e-3, 6.4e-2)), **_FLOW},
    ),
    "darcy-batch-beta2": Experiment(
        "darcy",
        "best batch size and Adam β2 of FNO-2D on Darcy flow over K (figure 3)",
        {"cpu": (_k(16, 2, 4, 16), (2e-3, 6.4e-2)), **_PLANES},
        walked=_BATCH_BETA2,
    ),
    "cost-darcy": Experiment(
        "darcy",
        "error and cost of tuning the full model and of muTransfer, Darcy flow (table 1)",
        {"cpu": (_k(24, 2, 16), (2e-3, 6.4e-2)), "gpu": (_k(64, 3, 24), (5e-4, 3.2e-2)), "paper": (_k(64, 3, 24), None)},
        searched=_SP,
    ),
    "cost-navier-stokes": Experiment(
        "navier-stokes",
        "error and cost of tuning the full model and of muTransfer, Navier–Stokes (table 1)",
        {"cpu": (_k(16, 2, 8), (1e-3, 6.4e-2)), "gpu": (_k(64, 3, 24), (5e-4, 1.6e-2)), "paper": (_k(64, 3, 24), None)},
        searched=_SP,
    ),
    "joint-burgers": Experiment(
        "burgers",
        "width ×8 and modes ×8 at once, Burgers' equation (not in the paper)",
        {
            "cpu": ([(8, 4), (64, 32)], (1e-3, 1.28e-1)),
            "gpu": ([(16, 16), (128, 128)], (5e-4, 6.4e-2)),
            "paper": ([(16, 32), (128, 256)], None),
        },
        _JOINT_RULES,
    ),
    "joint-darcy": Experiment(
        "darcy",
        "width ×8 and modes ×8 at once, Darcy flow (not in the paper)",
        _JOINT_PLANE,
        _JOINT_RULES,
        _SP_AND_WIDTH,
        {"cpu": 6},
    ),
    "joint-pino-darcy": Experiment(
        "darcy-pino",
        "width ×8 and modes ×8 at once, Darcy flow with its equation (not in the paper)",
        _JOINT_PLANE,
        _JOINT_RULES,
        _SP_AND_WIDTH,
        {"cpu": 6},
    ),
    "joint-pino-burgers": Experiment(
        "burgers-pino",
        "width ×8 and modes ×8 at once, Burgers in space-time with its equation (not in the paper)",
        {
            "cpu": ([(4, 2), (32, 16)], (2e-3, 1.28e-1)),
            "gpu": ([(16, 4), (128, 32)], (5e-4, 6.4e-2)),
            "paper": ([(16, 4), (128, 32)], None),
        },
        _JOINT_RULES,
        _SP_AND_WIDTH,
    ),
    "joint-navier-stokes": Experiment(
        "navier-stokes",
        "width ×8 and modes ×8 at once, Navier–Stokes (not in the paper; on a CPU modes in time stay at K = 2)",
        {
            "cpu": ([(4, (2, 1, 1)), (32, (2, 8, 8))], (4e-3, 2.56e-1)),
            "gpu": ([(8, 3), (64, 24)], (5e-4, 3.2e-2)),
            "paper": ([(8, 3), (64, 24)], None),
        },
        _JOINT_RULES,
        _SP_AND_WIDTH,
    ),
}


def size_of(model: Model, n_dim: int) -> dict[str, Any]:
    """Arguments of FNO."""
    width, k = model
    return {
        "hidden_channels": width,
        "n_modes": tuple(2 * m for m in ((k,) * n_dim if isinstance(k, int) else k)),
        "n_layers": 4,
    }


def plans(
    name: str,
    size: str,
    folder: Path,
    *,
    seeds: int = 3,
    device: str = "cpu",
    space: Mapping[str, Sequence[float]] | None = None,
    fixed: Mapping[str, Any] | None = None,
    look: bool = True,
) -> Iterator[tuple[str, Tuning]]:
    """Label and plan of each larger size of an experiment.

    Parameters
    ----------
    name, size : str
        Keys of ``EXPERIMENTS`` and of its models.
    folder : Path
        Of the runs, which all of them share.
    space : mapping, optional
        What is searched; by default the learning rate.
    fixed : mapping, optional
        Settings of every run, on top of those of the preset.
    look : bool
        Whether data is generated.
    """
    experiment = EXPERIMENTS[name]
    problem = problem_with(experiment.problem, size, _EVEN.get(experiment.problem, {}) if size == "paper" else {})
    preset = preset_of(problem, size)
    models, ends = experiment.models[size]
    settings = {"epochs": experiment.epochs.get(size, preset.epochs), "batch_size": preset.batch_size}
    settings |= {"schedule": preset.schedule, "optimizer": "adam", "device": device, **(fixed or {})}
    under = preset.under_mup if not name.startswith("joint") else {}
    base, *larger = [size_of(model, problem.n_dim) for model in models]
    for model in larger:
        plan = tuning(
            FNOs(problem.in_channels, problem.out_channels, problem.n_dim),
            problem,
            base=base,
            target=model,
            folder=folder,
            space=space or {"lr": _PAPER_LR if ends is None else log2_grid(*ends)},
            fixed=settings,
            under=under,
            title=f"{name}, {size}",
            look=look,
            whole=True,
            rule=experiment.rules[0],
            rules=experiment.rules,
            verify=True,
            seeds=range(seeds),
            about=experiment.shows,
        )
        # At the base every rule is the standard parametrization bit for bit, but where μP alone clips.
        base_rules = plan.study.base_rules | ({"standard": "standard"} if under else {})
        study = replace(plan.study, searched=experiment.searched.get(size, experiment.rules), base_rules=base_rules)
        yield f"width {model['hidden_channels']}, n_modes {'×'.join(map(str, model['n_modes']))}", replace(plan, study=study)


def run(
    experiment: Literal[tuple(EXPERIMENTS)],
    size: Literal[SIZES] = "cpu",
    seeds: int = 3,
    device: str = "cpu",
    output: str = "",
) -> None:
    """Train what is missing of an experiment, and write a page for each larger size."""
    folder, how = Path(output or f"runs/{experiment}-{size}"), {"n_workers": None, "devices": (), "progress": True}
    asked, walked = {"seeds": seeds, "device": device}, EXPERIMENTS[experiment].walked
    walks = [{}]
    if walked:  # batch size and β2 at the best learning rate of the base
        _, plan = next(plans(experiment, size, folder, **asked))
        best = replace(plan, study=replace(plan.study, searched=())).train(**how).best
        walks = [{"space": {key: grid}, "fixed": best} for key, grid in walked.items()]
    for walk in walks:
        for label, plan in plans(experiment, size, folder, **asked, **walk):
            results = plan.train(**how)
            page = replace(results, folder=folder / " ".join([*walk.get("space", {}), label]))
            page.folder.mkdir(exist_ok=True)
            command = f"python benchmarks/paper.py {experiment} --size {size}"
            report.write_report(page, command=command, title=f"{plan.title}: {label}")
            print("", label, *report.verdict(results), "", report.aligned_table(results), f"Report: {page.folder}", sep="\n")


if __name__ == "__main__":
    listed = "\n".join(f"  {name:<20} {experiment.shows}" for name, experiment in EXPERIMENTS.items())
    auto_cli(run, description=listed, formatter_class=argparse.RawDescriptionHelpFormatter)
