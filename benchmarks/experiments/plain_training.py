"""A plain training of an FNO with MuSOAP and the relative L2 error, which can be evaluated and changed between its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from neuralop.losses import LpLoss
from torch import nn

import neuralop_mup as nm
from neuralop_mup.errors import Diverged
from neuralop_mup.lab.problems import ProblemData
from neuralop_mup.lab.training import FNOs

BATCH = 10


def build(problem: Any, size: Mapping[str, Any], seed: int) -> nn.Module:
    """Return an FNO with four layers and a plan."""
    torch.manual_seed(seed)
    own = {**size, "n_modes": tuple(size["n_modes"])}
    return nm.parametrize(FNOs(problem.in_channels, problem.out_channels, problem.n_dim)(n_layers=4, **own))


class PlainTraining:
    """A model, its optimizer, and data that is normalized by the mean and the standard deviation of inputs and outputs.

    ``batch`` returns the indices of the samples of a step, given its number.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        data: ProblemData,
        moments: Sequence[Any],
        batch: Callable[[int], torch.Tensor],
    ) -> None:
        self.model, self.optimizer, self.batch, self.step = model, optimizer, batch, 0
        (self.x, self.y), (self.x_val, _) = (
            [(values - mean) / std for values, (mean, std) in zip(split, moments, strict=True)]
            for split in (data.train, data.val)
        )
        self.y_val, (self.mean, self.std) = data.val[1], moments[1]
        self.loss = LpLoss(d=self.x.ndim - 2, p=2)

    def train_until(self, steps: int, schedule: Any = None) -> None:
        """Train until step number ``steps``."""
        for number in range(self.step, steps):
            batch = self.batch(number)
            self.optimizer.zero_grad()
            self.loss(self.model(self.x[batch]), self.y[batch]).backward()
            self.optimizer.step()
            if schedule is not None:
                schedule.step()
        self.step = steps

    def error(self, model: nn.Module | None = None) -> float:
        """Return the mean relative L2 error on the validation data, in physical units, by default of the trained model."""
        with torch.no_grad():
            difference = (model or self.model)(self.x_val) * self.std + self.mean - self.y_val
        error = float((difference.flatten(1).norm(dim=1) / self.y_val.flatten(1).norm(dim=1)).mean())
        if not math.isfinite(error):
            raise Diverged(f"The error is {error} at step {self.step}.")
        return error
