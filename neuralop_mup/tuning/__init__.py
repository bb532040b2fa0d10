"""Hyperparameter search and zero-shot transfer (Algorithm 1 of arXiv 2506.19396), on Optuna.

A :class:`Study` says what is trained: sizes, hyperparameters, rules and seeds. Its points are trained by an engine and kept
in Optuna's storage; :class:`Results` computes every number from the records. Nothing heavy is imported here: Optuna, tqdm
and worker processes are loaded when a study starts.
"""

from __future__ import annotations

from neuralop_mup.tuning.driver import run
from neuralop_mup.tuning.outcome import Kind, Record
from neuralop_mup.tuning.space import log2_grid
from neuralop_mup.tuning.study import Point, Study
from neuralop_mup.tuning.summary import Results
from neuralop_mup.tuning.sweeps import sweep, sweep_study, transfer, transfer_study

__all__ = [
    "Kind",
    "Point",
    "Record",
    "Results",
    "Study",
    "log2_grid",
    "run",
    "sweep",
    "sweep_study",
    "transfer",
    "transfer_study",
]
