"""Data for the operator-learning problems: generated here, kept in a cache, the same for the same arguments.

``get_problem("burgers", viscosity=0.1)`` describes a problem, ``.load()`` gives its data.
"""

from typing import Any

from neuralop_mup.lab.data.own import OwnData
from neuralop_mup.lab.data.problem_data import ProblemData
from neuralop_mup.lab.problems.base import Problem, named
from neuralop_mup.lab.problems.burgers import Burgers, solve_burgers
from neuralop_mup.lab.problems.darcy import Darcy, DarcyPino, solve_darcy

__all__ = [
    "PROBLEMS",
    "Burgers",
    "Darcy",
    "DarcyPino",
    "OwnData",
    "Problem",
    "ProblemData",
    "get_problem",
    "solve_burgers",
    "solve_darcy",
]

PROBLEMS: dict[str, type[Problem]] = {cls.name: cls for cls in (Burgers, Darcy, DarcyPino)}


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
        Of the class that has this name, or :class:`OwnData`; ``load()`` gives its data.

    Raises
    ------
    MupError
        For an unknown name, an unknown argument or a value that cannot work.

    Examples
    --------
    >>> from neuralop_mup.lab.problems import get_problem
    >>> problem = get_problem("burgers", n_train=8, n_val=2, n_test=2, grid=16, viscosity=0.1)
    >>> problem.grid_shape, problem.in_channels
    ((16,), 1)
    """
    return named({**PROBLEMS, OwnData.name: OwnData}, name, arguments)
