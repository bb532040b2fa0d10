"""Training runs of neuralop's FNO and the studies made of them: transfer on a problem, the paper's experiments, their
report."""

from __future__ import annotations

__all__ = ["experiment_study", "get_experiment", "train_run", "verdict", "write_report"]

_WHERE = {
    "experiment_study": "paper",
    "get_experiment": "paper",
    "train_run": "training",
    "verdict": "report",
    "write_report": "report",
}


def __getattr__(name: str):
    from importlib import import_module

    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
