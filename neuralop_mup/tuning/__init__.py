"""Hyperparameter search and zero-shot transfer: Algorithm 1 of arXiv 2506.19396, on Optuna.

Nothing heavy is imported here; Optuna, tqdm and worker processes are loaded when a sweep starts.
"""

from __future__ import annotations

from neuralop_mup.tuning.records import Record
from neuralop_mup.tuning.space import log2_grid
from neuralop_mup.tuning.sweeps import Sweep, sweep
from neuralop_mup.tuning.transfers import Planned, Transfer, plan_transfer, transfer

__all__ = ["Planned", "Record", "Sweep", "Transfer", "log2_grid", "plan_transfer", "sweep", "transfer"]
