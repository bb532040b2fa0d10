"""Training data from files, arrays, data sets and loaders, read as xarray Datasets with named axes and coordinates."""

from neuralop_mup.lab.data.own import OwnData
from neuralop_mup.lab.data.problem_data import ProblemData

__all__ = ["OwnData", "ProblemData"]
