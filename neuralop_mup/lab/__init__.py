"""Train, tune and transfer a model on data, or any train function (Algorithm 1 of arXiv 2506.19396).

Given the records in a folder, a :class:`Study` lists the missing runs, and :func:`neuralop_mup.lab.run.run` trains them. The
name of a saved run is the hash of everything that the run depends on. :class:`Results` computes every number from the
records.
"""

from neuralop_mup.lab.report import aligned_table, verdict, write_report
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.study import Study, log2_grid
from neuralop_mup.lab.sweeps import sweep, transfer, transfer_study
from neuralop_mup.lab.target import Tuned, load_tuned
from neuralop_mup.lab.tuning import train, tune

__all__ = [
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
