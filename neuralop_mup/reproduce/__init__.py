"""The source paper's experiments (arXiv 2506.19396) and joint moves of width and modes: data, runs, tables, figures.

An experiment is a frozen description in :mod:`~neuralop_mup.reproduce.experiments`; :func:`run_experiment` trains what is
not finished yet; a :class:`Reproduction` computes every number from the records; :func:`write_report` tells them.
"""

from __future__ import annotations

from neuralop_mup.reproduce.experiments import NAMES, SHOWS, SIZES, Experiment, get_experiment
from neuralop_mup.reproduce.pages import table, table_of_costs, verdict, write_report
from neuralop_mup.reproduce.results import Reproduction
from neuralop_mup.reproduce.runs import plan_experiment, run_experiment

__all__ = [
    "NAMES",
    "SHOWS",
    "SIZES",
    "Experiment",
    "Reproduction",
    "get_experiment",
    "plan_experiment",
    "run_experiment",
    "table",
    "table_of_costs",
    "verdict",
    "write_report",
]
