"""Problems of the benchmarks' own, beside the package's: made in the same way, and kept in the same cache."""

from __future__ import annotations

from typing import Any

from neuralop_mup.lab import problems
from neuralop_mup.lab.problems.base import named
from problems.apebench import ApeBench
from problems.interface import Interface
from problems.korteweg_de_vries import KortewegDeVries, KortewegDeVriesInTime
from problems.navier_stokes import FlowInTime, NavierStokes
from problems.reactions import AllenCahn, GrayScott, GrayScottInTime
from problems.space_time import BurgersPino

PROBLEMS = {
    **problems.PROBLEMS,
    **{cls.name: cls for cls in (KortewegDeVries, AllenCahn, GrayScott, Interface, NavierStokes, BurgersPino)},
    **{cls.name: cls for cls in (KortewegDeVriesInTime, GrayScottInTime, FlowInTime)},
    "apebench": ApeBench,
}


def get_problem(name: str, **arguments: Any) -> Any:
    """As :func:`neuralop_mup.lab.problems.get_problem`, of these and of the package's."""
    return named(PROBLEMS, name, arguments)
