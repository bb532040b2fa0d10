"""The experiments of Li, Yoo and Yang (ICML 2025, arXiv:2506.19396, figures 1 and 2): more modes at the same width.

They compare SP, the paper's rule and the default rule on the paper's four problems, at a small size and at the paper's own.
The paper does not contain its grids of learning rates, so we search the best one. It also trains further values of K.
"""

from __future__ import annotations

from typing import Any

_HALVED = {"optimizer": "adam", "schedule": "halve:16,25,33"}  # the paper's on Darcy: at 1/3, 1/2 and 2/3 of the stages
#: Rule → settings, and the initial rate of a search.
RULES: dict[str, tuple[dict[str, Any], float | None]] = {
    "Adam (SP)": ({**_HALVED, "rule": "standard"}, 4e-3),
    "log-modes": ({**_HALVED, "rule": "log-modes"}, 4e-3),
    "operator-norm": ({**_HALVED, "rule": "operator-norm"}, 4e-3),
}
MOVES = {"modes alone": ({"modes": "fewest"}, {})}
#: The paper's schedules on Burgers, where the rate is halved fifteen times, and on Navier–Stokes.
_BURGERS = {"schedule": "halve:3,7,10,13,17,20,23,27,30,33,37,40,43,47"}
_FLOW = {"schedule": "halve:20,40"}
_DARCY = {"samples": 400, "grid": 24, "fewest": (4, 4), "modes": (24, 24), "width": 16, "batch": 10}
#: Problems at a small size. ``n_modes`` is 2K.
SMALL: dict[str, dict[str, Any]] = {
    "burgers": {"samples": 800, "grid": 128, "fewest": (8,), "modes": (128,), "width": 32, "settings": _BURGERS},
    "darcy": _DARCY,
    "darcy-pino": {**_DARCY, "samples": 200},
    "navier-stokes": {
        **{"samples": 100, "grid": 16, "data": {"time_points": 16}, "batch": 2, "settings": _FLOW},
        **{"fewest": (4, 4, 4), "modes": (16, 16, 16), "width": 8},
    },
}

_GPU = {"device": "auto"}
_PAPER_DARCY: dict[str, Any] = {
    # The paper has 61 points per axis, solved on 421. On odd grids, the SpectralConv of neuralop 2.0.0 is wrong.
    **{"samples": 1000, "grid": 62, "data": {"solver_grid": 428, "n_val": 200, "n_test": 500}},
    **{"fewest": (6, 6), "modes": (48, 48), "width": 64, "steps": 15_000, "settings": _GPU},
}
#: Problems at the size of section 4 of the paper, with additional validation samples.
FULL: dict[str, dict[str, Any]] = {
    "burgers": {
        **{"samples": 800, "grid": 1024, "data": {"viscosity": 0.1, "solver_grid": 8192, "n_val": 200, "n_test": 200}},
        **{"fewest": (6,), "modes": (1024,), "width": 64, "steps": 30_000, "settings": {**_BURGERS, **_GPU}},
    },
    "darcy": _PAPER_DARCY,
    "darcy-pino": _PAPER_DARCY,
    "navier-stokes": {
        **{"samples": 800, "grid": 64, "fewest": (6, 6, 6), "modes": (48, 48, 48), "width": 64, "batch": 2},
        **{"steps": 50_000, "settings": {**_FLOW, **_GPU}, "under_mup": {"clip_spectral": 0.01}},
        "data": {
            **{"reynolds": 500.0, "time": 0.125, "forcing_wavenumber": 4, "solver_grid": 512, "time_points": 64},
            **{"n_val": 200, "n_test": 200},
        },
    },
}
