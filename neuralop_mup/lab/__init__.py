"""Hyperparameter search and zero-shot transfer (Algorithm 1 of arXiv 2506.19396), of a model on data or of any train
function.

A :class:`Study` says from records which runs it still wants; :func:`neuralop_mup.lab.run.run` trains them on an engine and
keeps each by the hash of everything that it depends on; :class:`Results` computes every number from the records.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neuralop_mup.lab.outcome import Kind
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.search import log2_grid
from neuralop_mup.lab.study import Point, Study
from neuralop_mup.lab.sweeps import sweep, transfer, transfer_study

if TYPE_CHECKING:
    from neuralop_mup.lab.report import aligned_table, verdict, write_report
    from neuralop_mup.lab.train_once import train
    from neuralop_mup.lab.tuning import Tuned, load_tuned, tune

__all__ = [
    "Kind",
    "Point",
    "Results",
    "Study",
    "Tuned",
    "aligned_table",
    "load_tuned",
    "log2_grid",
    "sweep",
    "train",
    "transfer",
    "transfer_study",
    "tune",
    "verdict",
    "write_report",
]

# Loaded when first used: sweeps of a function need neither models nor figures.
_LAZY = dict.fromkeys(("tune", "Tuned", "load_tuned"), "tuning")
_LAZY |= {"train": "train_once"}
_LAZY |= dict.fromkeys(("aligned_table", "verdict", "write_report"), "report")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
