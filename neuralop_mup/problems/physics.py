"""What problems trained on their equation have in common: weights of several losses, and fields in physical units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.problems import cache
from neuralop_mup.problems.base import Problem, ProblemData
from neuralop_mup.validation import check_number

if TYPE_CHECKING:
    from neuralop.data.transforms.data_processors import DataProcessor
    from neuralop.data.transforms.normalizers import UnitGaussianNormalizer

__all__ = ["Weighted", "check_even", "gaussian_normalizer"]

WEIGHTS = ("data_weight", "initial_weight", "equation_weight")


def check_even(name: str, value: int) -> None:
    """Raise MupError for an odd number of points."""
    if value % 2:
        raise MupError(
            f"{name} must be even (neuralop's SpectralConv is wrong on odd grids), but it is {value}: try {value + 1}."
        )


def gaussian_normalizer(values: torch.Tensor) -> UnitGaussianNormalizer:
    """neuralop's normalizer to mean 0 and standard deviation 1 per channel, fitted to ``values``."""
    from neuralop.data.transforms.normalizers import UnitGaussianNormalizer

    normalizer = UnitGaussianNormalizer(dim=[0, *range(2, values.ndim)])
    normalizer.fit(values)
    return normalizer


@dataclass(frozen=True, kw_only=True)
class Weighted(Problem):
    """A problem whose losses have weights. They do not change the data: nor its key.

    Parameters
    ----------
    data_weight, initial_weight, equation_weight : float
        Weights of the losses; one of weight 0 is not evaluated, except that of the data, by which runs are compared.
    """

    data_weight: float = 1.0
    initial_weight: float = 0.0
    equation_weight: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in WEIGHTS:
            check_number(name, getattr(self, name))
        if not any(getattr(self, name) for name in WEIGHTS):
            raise MupError("data_weight, initial_weight and equation_weight are all 0: there is nothing to train on.")

    def _arguments(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in WEIGHTS}

    @property
    def key(self) -> str:
        """Content key (64 hex digits): of the name, the arguments that the data depends on and the generator's version."""
        arguments = {**self._arguments(), "solver_grid": self.fine_grid}
        return cache.content_key({"name": self.name, "version": self.version, "arguments": arguments})

    def equation_losses(self) -> dict[str, Callable[..., torch.Tensor]]:
        """The losses besides that of the data, by name."""
        raise NotImplementedError

    def losses(self) -> dict[str, tuple[float, Callable[..., torch.Tensor]]]:
        """Losses by name, each with its weight; see :meth:`Problem.losses`."""
        data = {"data": (float(self.data_weight), super().losses()["data"][1])}
        if not (self.initial_weight or self.equation_weight):
            return data
        others = {name: (float(getattr(self, f"{name}_weight")), loss) for name, loss in self.equation_losses().items()}
        return data | {name: pair for name, pair in others.items() if pair[0]}

    def processor(self, data: ProblemData) -> DataProcessor:
        """Physical fields for the losses if one of them is an equation, normalized ones else."""
        if not (self.initial_weight or self.equation_weight):
            return super().processor(data)
        from neuralop_mup.losses import PhysicalDataProcessor

        return PhysicalDataProcessor(*(gaussian_normalizer(values) for values in data.train))
