"""Problems of the benchmarks' own, beside the package's: made in the same way, and kept in the same cache."""

from __future__ import annotations

from typing import Any

from neuralop_mup import problems
from neuralop_mup.problems.base import named
from problems.apebench import ApeBench
from problems.interface import Interface, solve_interface
from problems.korteweg_de_vries import KortewegDeVries, solve_korteweg_de_vries
from problems.reactions import AllenCahn, GrayScott, solve_allen_cahn, solve_gray_scott
from problems.trajectories import FlowInTime, GrayScottInTime, KortewegDeVriesInTime

__all__ = [
    "PROBLEMS",
    "AllenCahn",
    "GrayScott",
    "Interface",
    "KortewegDeVries",
    "get_problem",
    "solve_allen_cahn",
    "solve_gray_scott",
    "solve_interface",
    "solve_korteweg_de_vries",
]

PROBLEMS: dict[str, type[Any]] = {
    **problems.PROBLEMS,
    **{cls.name: cls for cls in (KortewegDeVries, AllenCahn, GrayScott, Interface)},
    **{cls.name: cls for cls in (KortewegDeVriesInTime, GrayScottInTime, FlowInTime)},
    "apebench": ApeBench,
}


def get_problem(name: str, **arguments: Any) -> Any:
    """As :func:`neuralop_mup.problems.get_problem`, of these and of the package's."""
    return named(PROBLEMS, name, arguments)
