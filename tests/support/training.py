"""Steps and short training runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from neuralop_mup.lab.loss import losses_of
from neuralop_mup.lab.problems import get_problem
from neuralop_mup.lab.training import FNOs, Training
from support.cases import Case


def train(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 10) -> None:
    """Take steps on the case's batch under a squared error."""
    x, y = case.batch()
    for _ in range(steps):
        optimizer.zero_grad()
        (case.output(model, x) - y).abs().square().mean().backward()
        optimizer.step()


def small_batch(seed=0):
    """Return random inputs and targets for ``small_fno`` in one dimension."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 2, 16, generator=generator), torch.randn(4, 3, 16, generator=generator)


def backward(model, optimizer, seed=0):
    """Compute the gradients of a squared error on ``small_batch(seed)`` and return the error."""
    dtype = next(model.parameters()).dtype
    x, y = small_batch(seed)
    optimizer.zero_grad()
    loss = (model(x.to(dtype)) - y.to(dtype)).square().mean()
    loss.backward()
    return loss


def train_small(model, optimizer, seeds, scheduler=None):
    """Take a step for each seed, on ``small_batch(seed)``."""
    for seed in seeds:
        backward(model, optimizer, seed)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def random_gradients(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


def step(optimizer, model, seed=0, scale=1.0):
    random_gradients(model, seed)
    for p in model.parameters():
        p.grad *= scale
    optimizer.step()


def squared_error(prediction: Any, y: torch.Tensor, **_: Any) -> torch.Tensor:
    """Return the loss of a coordinate check. UQNO predicts a pair, and only its residual model is trained."""
    prediction = prediction[1] if isinstance(prediction, tuple) else prediction
    return (prediction - y).abs().square().mean()


def training_of(problem: str, loss: str = "l2", **arguments: Any) -> Training:
    """Return the train function of an FNO on a problem."""
    source = get_problem(problem, **arguments)
    build = FNOs(source.in_channels, source.out_channels, source.n_dim)
    data = source.load()
    return Training(build, source, data, losses_of(loss, source.n_dim, source.losses()), loss=loss)


def train_run(config: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    """Return the result of one run. ``problem``, ``problem_args`` and ``loss`` in the config choose the data."""
    config = {**config, "base": {**config["model"], **config["base"]}}
    training = training_of(config.pop("problem"), config.pop("loss", "l2"), **config.pop("problem_args"))
    return training(config, **how)
