"""Training runs of neuralop's FNO and the studies made of them: transfer on a problem, the paper's experiments, their
report."""

from neuralop_mup.experiments.findings import verdict
from neuralop_mup.experiments.paper import experiment_study, get_experiment
from neuralop_mup.experiments.report import write_report
from neuralop_mup.experiments.training import train_run

__all__ = ["experiment_study", "get_experiment", "train_run", "verdict", "write_report"]
