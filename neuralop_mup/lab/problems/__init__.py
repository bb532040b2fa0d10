"""Operator-learning problems with data that is generated and stored in a cache.

``get_problem("burgers", viscosity=0.1)`` returns the description of a problem, and its ``.load()`` returns the data.
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
    """Return the problem with this name, without generating its data.

    Parameters
    ----------
    name : str
        A key of ``PROBLEMS``, such as ``"burgers"``, or ``"data"`` for your own files (:class:`OwnData`).
    **arguments
        Arguments of the problem's class, such as ``n_train=800`` or ``viscosity=0.01``.

    Returns
    -------
    Problem
        An instance of the class with this name, or of :class:`OwnData`. Its ``load()`` returns the data.

    Raises
    ------
    MupError
        If the name or an argument is unknown, or if a value is invalid.

    Examples
    --------
    >>> from neuralop_mup.lab.problems import get_problem
    >>> problem = get_problem("burgers", n_train=8, n_val=2, n_test=2, grid=16, viscosity=0.1)
    >>> problem.grid_shape, problem.in_channels
    ((16,), 1)
    """
    return named({**PROBLEMS, OwnData.name: OwnData}, name, arguments)
