"""The table of experiments: what is trained for each, at each size. Nothing is computed here.

Sizes: ``cpu`` takes minutes on two cores, ``gpu`` an hour or a few on one GPU, ``paper`` is the setting of Li, Yoo and
Yang, "Maximal Update Parametrization and Zero-Shot Hyperparameter Transfer for Fourier Neural Operators", ICML 2025
(arXiv 2506.19396), section 4. The paper does not print its grids; the learning rates that it names (7.4e-4, 1.8e-3,
4.2e-3, 5.6e-3) lie on 10^(-n/8), which is taken here.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.problems import PROBLEMS
from neuralop_mup.reproduce.experiment import Experiment, odd_grids_work
from neuralop_mup.tuning import log2_grid

__all__ = ["NAMES", "SHOWS", "SIZES", "Experiment", "get_experiment"]

SIZES = ("cpu", "gpu", "paper")

# With the width fixed "none" is "standard"; where the width moves it is the width rule alone.
_MODES = {"rules": ("standard", "log-modes", "operator-norm"), "searched": ("standard", "log-modes", "operator-norm")}
_COST = {"rules": ("standard", "log-modes", "operator-norm"), "searched": ("standard",)}
_JOINT = {"rules": ("standard", "none", "log-modes"), "searched": ("standard", "none", "log-modes")}
# Targets that take half a minute a run: there the paper's rule trains the transferred point alone.
_JOINT_SHORT = {**_JOINT, "searched": ("standard", "none")}

SHOWS = {
    "burgers-modes": "best learning rate of FNO-1D on Burgers' equation over K (figure 2a)",
    "darcy-modes": "best learning rate of FNO-2D on Darcy flow over K (figure 2b)",
    "pino-darcy-modes": "best learning rate of PINO-2D on Darcy flow over K (figure 2c)",
    "navier-stokes-modes": "best learning rate of FNO-3D on the Navier–Stokes equation over K (figure 1)",
    "darcy-batch-beta2": "best batch size and Adam β2 of FNO-2D on Darcy flow over K (figure 3)",
    "cost-darcy": "error and cost of tuning the full model and of muTransfer, Darcy flow (table 1)",
    "cost-navier-stokes": "error and cost of tuning the full model and of muTransfer, Navier–Stokes (table 1)",
    "joint-burgers": "width ×8 and modes ×8 at once, Burgers' equation (not in the paper)",
    "joint-darcy": "width ×8 and modes ×8 at once, Darcy flow (not in the paper)",
    "joint-pino-darcy": "width ×8 and modes ×8 at once, Darcy flow with its equation (not in the paper)",
    "joint-pino-burgers": "width ×8 and modes ×8 at once, Burgers in space-time with its equation (not in the paper)",
    "joint-navier-stokes": "width ×8 and modes ×8 at once, Navier–Stokes (not in the paper)",
}
_PROBLEMS = {
    "burgers-modes": "burgers",
    "darcy-modes": "darcy",
    "pino-darcy-modes": "darcy-pino",
    "navier-stokes-modes": "navier-stokes",
    "darcy-batch-beta2": "darcy",
    "cost-darcy": "darcy",
    "cost-navier-stokes": "navier-stokes",
    "joint-burgers": "burgers",
    "joint-darcy": "darcy",
    "joint-pino-darcy": "darcy-pino",
    "joint-pino-burgers": "burgers-pino",
    "joint-navier-stokes": "navier-stokes",
}
NAMES = tuple(SHOWS)


def _lr(low: float, high: float) -> dict[str, tuple[float, ...]]:
    return {"lr": tuple(log2_grid(low, high))}


def _width(width: int, *modes: int) -> dict[str, Any]:
    return {"models": tuple((width, k) for k in modes)}


_PAPER_LR = {"lr": tuple(float(f"{10 ** (-n / 8):.3g}") for n in range(30, 11, -1))}  # 1.78e-4 … 3.16e-2
_BATCH_BETA2 = {"batch_size": (5, 10, 20, 40, 80), "beta2": (0.9, 0.95, 0.98, 0.99, 0.999)}

_BURGERS = {
    "cpu": {"problem_args": {"n_train": 400}, "epochs": 16},
    "gpu": {"problem_args": {"n_train": 800, "n_val": 200, "n_test": 200, "grid": 1024}, "epochs": 40},
    "paper": {"preset": "paper", "epochs": 750, "schedule": "halve:50"},
}
_DARCY = {
    "cpu": {"problem_args": {"n_train": 200, "n_val": 100, "n_test": 100, "grid": 32}, "epochs": 8},
    "gpu": {"problem_args": {"n_train": 1000, "n_val": 200, "n_test": 200, "grid": 62}, "epochs": 40},
    "paper": {"preset": "paper", "epochs": 300, "schedule": "halve:100,150,200"},
}
_PINO_BURGERS = {
    "cpu": {"problem_args": {"n_train": 100, "n_val": 40, "grid": 64, "time_points": 32}, "epochs": 12, "batch_size": 10},
    "gpu": {"preset": "gpu", "epochs": 20},
    "paper": {"preset": "gpu", "epochs": 750, "schedule": "halve:50"},
}
_SMALL_FLOW = {
    **{"n_train": 80, "n_val": 20, "n_test": 20, "grid": 16, "time_points": 16},
    **{"reynolds": 20.0, "time": 1.0, "forcing_wavenumber": 2},
}
_STOKES = {
    "cpu": {"problem_args": _SMALL_FLOW, "epochs": 8, "batch_size": 4},
    "gpu": {"preset": "gpu", "problem_args": {"n_train": 100, "time_points": 48}, "epochs": 10, "batch_size": 2},
    # 50 000 iterations at batch 2 are 125 epochs of 800 samples; the learning rate halves at 20 000 and 40 000.
    "paper": {"preset": "paper", "epochs": 125, "schedule": "halve:50,100", "batch_size": 2},
}
_CLIP = {"under_mup": {"clip_spectral": 0.01}}  # the paper clips under μP only, and on Navier–Stokes only

#: (experiment, size) → fields of Experiment besides name, size, shows and problem.
_TABLE: dict[tuple[str, str], dict[str, Any]] = {
    ("burgers-modes", "cpu"): {**_MODES, **_BURGERS["cpu"], **_width(32, 4, 16, 64), "grids": _lr(5e-4, 6.4e-2)},
    ("burgers-modes", "gpu"): {**_MODES, **_BURGERS["gpu"], **_width(64, 3, 16, 64, 256), "grids": _lr(5e-4, 3.2e-2)},
    ("burgers-modes", "paper"): {
        **_MODES,
        **_BURGERS["paper"],
        **_width(64, 3, 8, 32, 128, 512),
        "grids": _PAPER_LR,
        "notes": ("Of the values of K between 3 and 512 the paper's text names none; 8, 32 and 128 are taken here.",),
    },
    ("darcy-modes", "cpu"): {**_MODES, **_DARCY["cpu"], **_width(24, 2, 4, 16), "grids": _lr(2e-3, 6.4e-2)},
    ("darcy-modes", "gpu"): {**_MODES, **_DARCY["gpu"], **_width(64, 3, 6, 12, 24), "grids": _lr(5e-4, 3.2e-2)},
    ("darcy-modes", "paper"): {**_MODES, **_DARCY["paper"], **_width(64, 3, 6, 12, 24), "grids": _PAPER_LR},
    ("pino-darcy-modes", "cpu"): {**_MODES, **_DARCY["cpu"], **_width(16, 2, 4, 16), "grids": _lr(2e-3, 6.4e-2)},
    ("pino-darcy-modes", "gpu"): {**_MODES, **_DARCY["gpu"], **_width(64, 3, 6, 12, 24), "grids": _lr(5e-4, 3.2e-2)},
    ("pino-darcy-modes", "paper"): {**_MODES, **_DARCY["paper"], **_width(64, 3, 6, 12, 24), "grids": _PAPER_LR},
    ("navier-stokes-modes", "cpu"): {
        **_MODES,
        **_STOKES["cpu"],
        **_CLIP,
        **_width(16, 2, 4, 8),
        "grids": _lr(1e-3, 6.4e-2),
    },
    ("navier-stokes-modes", "gpu"): {
        **_MODES,
        **_STOKES["gpu"],
        **_CLIP,
        **_width(64, 3, 6, 12, 24),
        "grids": _lr(5e-4, 1.6e-2),
    },
    ("navier-stokes-modes", "paper"): {
        **_MODES,
        **_STOKES["paper"],
        **_CLIP,
        **_width(64, 3, 6, 12, 24),
        "grids": _PAPER_LR,
    },
    **{
        ("darcy-batch-beta2", size): {
            **_MODES,
            **_DARCY[size],
            **models,
            "grids": {**lr, **_BATCH_BETA2},
            "swept": ("batch_size", "beta2"),
        }
        for size, models, lr in (
            ("cpu", _width(16, 2, 4, 16), _lr(2e-3, 6.4e-2)),
            ("gpu", _width(64, 3, 6, 12, 24), _lr(5e-4, 3.2e-2)),
            ("paper", _width(64, 3, 6, 12, 24), _PAPER_LR),
        )
    },
    ("cost-darcy", "cpu"): {**_COST, **_DARCY["cpu"], **_width(24, 2, 16), "grids": _lr(2e-3, 6.4e-2)},
    ("cost-darcy", "gpu"): {**_COST, **_DARCY["gpu"], **_width(64, 3, 24), "grids": _lr(5e-4, 3.2e-2)},
    ("cost-darcy", "paper"): {**_COST, **_DARCY["paper"], **_width(64, 3, 24), "grids": _PAPER_LR},
    ("cost-navier-stokes", "cpu"): {
        **_COST,
        **_STOKES["cpu"],
        **_CLIP,
        **_width(16, 2, 8),
        "grids": _lr(1e-3, 6.4e-2),
    },
    ("cost-navier-stokes", "gpu"): {**_COST, **_STOKES["gpu"], **_CLIP, **_width(64, 3, 24), "grids": _lr(5e-4, 1.6e-2)},
    ("cost-navier-stokes", "paper"): {**_COST, **_STOKES["paper"], **_CLIP, **_width(64, 3, 24), "grids": _PAPER_LR},
    ("joint-burgers", "cpu"): {**_JOINT, **_BURGERS["cpu"], "models": ((8, 4), (64, 32)), "grids": _lr(1e-3, 1.28e-1)},
    ("joint-burgers", "gpu"): {**_JOINT, **_BURGERS["gpu"], "models": ((16, 16), (128, 128)), "grids": _lr(5e-4, 6.4e-2)},
    ("joint-burgers", "paper"): {**_JOINT, **_BURGERS["paper"], "models": ((16, 32), (128, 256)), "grids": _PAPER_LR},
    ("joint-darcy", "cpu"): {
        **_JOINT_SHORT,
        **_DARCY["cpu"],
        "epochs": 6,
        "models": ((8, 2), (64, 16)),
        "grids": _lr(2e-3, 1.28e-1),
    },
    ("joint-darcy", "gpu"): {**_JOINT, **_DARCY["gpu"], "models": ((16, 3), (128, 24)), "grids": _lr(5e-4, 6.4e-2)},
    ("joint-darcy", "paper"): {**_JOINT, **_DARCY["paper"], "models": ((16, 3), (128, 24)), "grids": _PAPER_LR},
    ("joint-pino-darcy", "cpu"): {
        **_JOINT_SHORT,
        **_DARCY["cpu"],
        "epochs": 6,
        "models": ((8, 2), (64, 16)),
        "grids": _lr(2e-3, 1.28e-1),
    },
    ("joint-pino-darcy", "gpu"): {**_JOINT, **_DARCY["gpu"], "models": ((16, 3), (128, 24)), "grids": _lr(5e-4, 6.4e-2)},
    ("joint-pino-darcy", "paper"): {**_JOINT, **_DARCY["paper"], "models": ((16, 3), (128, 24)), "grids": _PAPER_LR},
    ("joint-pino-burgers", "cpu"): {
        **_JOINT_SHORT,
        **_PINO_BURGERS["cpu"],
        "models": ((4, 2), (32, 16)),
        "grids": _lr(2e-3, 1.28e-1),
    },
    ("joint-pino-burgers", "gpu"): {
        **_JOINT,
        **_PINO_BURGERS["gpu"],
        "models": ((16, 4), (128, 32)),
        "grids": _lr(5e-4, 6.4e-2),
    },
    ("joint-pino-burgers", "paper"): {
        **_JOINT,
        **_PINO_BURGERS["paper"],
        "models": ((16, 4), (128, 32)),
        "grids": _PAPER_LR,
    },
    ("joint-navier-stokes", "cpu"): {
        **_JOINT_SHORT,
        **_STOKES["cpu"],
        "models": ((4, (2, 1, 1)), (32, (2, 8, 8))),
        "grids": _lr(4e-3, 2.56e-1),
        "notes": ("The modes in time stay at K = 2; those in space grow eightfold.",),
    },
    ("joint-navier-stokes", "gpu"): {**_JOINT, **_STOKES["gpu"], "models": ((8, 3), (64, 24)), "grids": _lr(5e-4, 3.2e-2)},
    ("joint-navier-stokes", "paper"): {**_JOINT, **_STOKES["paper"], "models": ((8, 3), (64, 24)), "grids": _PAPER_LR},
}


def get_experiment(name: str, size: str = "cpu") -> Experiment:
    """The experiment of that name at a size, on a grid that the installed neuralop can be trusted on.

    Parameters
    ----------
    name : str
        One of ``NAMES``.
    size : {"cpu", "gpu", "paper"}

    Returns
    -------
    Experiment

    Raises
    ------
    MupError
        For an unknown name or size.
    """
    if name not in NAMES:
        raise MupError(f"There is no experiment {name!r}: {nearest(str(name), NAMES)}")
    if size not in SIZES:
        raise MupError(f"There is no size {size!r}: {nearest(str(size), SIZES)}")
    fields = {"device": "cpu" if size == "cpu" else "auto", **_TABLE[name, size]}
    return _on_a_safe_grid(Experiment(name=name, size=size, shows=SHOWS[name], problem=_PROBLEMS[name], **fields))


def _on_a_safe_grid(experiment: Experiment) -> Experiment:
    """The experiment itself, or the next even grid where the installed SpectralConv is wrong on odd ones."""
    problem = experiment.described_problem
    if not any(points % 2 for points in problem.grid_shape) or odd_grids_work():
        return experiment
    arguments = asdict(problem)
    grid = problem.grid + 1
    # The data's points must be points of the solver: as fine a one as before, or the next finer.
    solver = (grid - 1) * math.ceil((problem.fine_grid - 1) / (grid - 1)) + 1
    note = (
        f"The installed neuralop's SpectralConv is wrong on grids with an odd number of points, so the data has {grid} "
        f"points an axis (solved on {solver}) instead of {problem.grid} (solved on {problem.fine_grid})."
    )
    changed = {k: v for k, v in arguments.items() if v != getattr(PROBLEMS[problem.name].preset(experiment.preset), k)}
    changed |= {"grid": grid, "solver_grid": solver}
    return replace(experiment, problem_args=changed, notes=(*experiment.notes, note))
