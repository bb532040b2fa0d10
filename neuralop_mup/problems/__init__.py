"""Data for the operator-learning problems: generated here, kept in a cache, the same for the same arguments.

``get_problem("burgers", viscosity=0.1)`` describes a problem, ``.load()`` gives its data.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.problems.allen_cahn import AllenCahn, solve_allen_cahn
from neuralop_mup.problems.base import Problem, ProblemData
from neuralop_mup.problems.burgers import Burgers, solve_burgers
from neuralop_mup.problems.darcy import Darcy, solve_darcy
from neuralop_mup.problems.files import BurgersFiles, DarcyFiles, NavierStokesFiles
from neuralop_mup.problems.gray_scott import GrayScott, solve_gray_scott
from neuralop_mup.problems.korteweg_de_vries import KortewegDeVries, solve_korteweg_de_vries
from neuralop_mup.problems.navier_stokes import NavierStokes, solve_navier_stokes
from neuralop_mup.problems.own import OwnData
from neuralop_mup.problems.pino import BurgersPino, DarcyPino

__all__ = [
    "PROBLEMS",
    "AllenCahn",
    "Burgers",
    "BurgersFiles",
    "BurgersPino",
    "Darcy",
    "DarcyFiles",
    "DarcyPino",
    "GrayScott",
    "KortewegDeVries",
    "NavierStokes",
    "NavierStokesFiles",
    "OwnData",
    "Problem",
    "ProblemData",
    "get_problem",
    "solve_allen_cahn",
    "solve_burgers",
    "solve_darcy",
    "solve_gray_scott",
    "solve_korteweg_de_vries",
    "solve_navier_stokes",
]

PROBLEMS: dict[str, type[Problem]] = {
    cls.name: cls
    for cls in (
        Burgers,
        BurgersPino,
        Darcy,
        DarcyPino,
        NavierStokes,
        KortewegDeVries,
        AllenCahn,
        GrayScott,
        BurgersFiles,
        DarcyFiles,
        NavierStokesFiles,
    )
}


def get_problem(name: str, **arguments: Any) -> Problem:
    """The problem of that name, described by its arguments; nothing is generated yet.

    Parameters
    ----------
    name : str
        A key of ``PROBLEMS``, such as ``"burgers"``, or ``"data"`` for files of your own (:class:`OwnData`).
    **arguments
        Arguments of the problem's class, such as ``n_train=800`` or ``viscosity=0.01``.

    Returns
    -------
    Problem

    Raises
    ------
    MupError
        For an unknown name, an unknown argument or a value that cannot work.
    """
    known = {**PROBLEMS, OwnData.name: OwnData}
    if name not in known:
        raise MupError(f"There is no problem {name!r}; {nearest(str(name), known)}")
    cls = known[name]
    valid = [field.name for field in fields(cls)]
    for argument in arguments:
        if argument not in valid:
            raise MupError(f"The problem {name!r} has no argument {argument!r}; {nearest(argument, valid)}")
    return cls(**arguments)
