"""Comparisons of models and optimizers, and the exact columns of the support matrix."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable

import mup
import torch
from torch import nn

import neuralop_mup as nm
from neuralop_mup.core.rules import DEFAULT_RULE
from support.cases import Case
from support.models import parametrized
from support.training import train

RULE, LR = DEFAULT_RULE, 5e-3


def assert_same(a: nn.Module, b: nn.Module) -> None:
    """Parameters are bit-equal and have the same names, without the names that wrappers add."""
    for (name, p), (other, q) in zip(nm.unwrap(a).named_parameters(), nm.unwrap(b).named_parameters(), strict=True):
        assert name == other and torch.equal(p, q), name


def rates(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, tuple[float, float]]:
    """Return the learning rate and the weight decay of each parameter, by its name in the unwrapped model."""
    names = {id(p): name for name, p in nm.unwrap(model).named_parameters()}
    return {names[id(p)]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}


def differing(a: nn.Module, b: nn.Module) -> int:
    """Count the parameters that are not bit-equal."""
    return sum(not torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def learning_rates_are_mups(model: nn.Module) -> None:
    """Compare the learning rate and the weight decay of each parameter with those of mup's optimizers."""
    settings = {"lr": LR, "weight_decay": 0.1}
    for ours, theirs in ((nm.MuAdam, mup.MuAdam), (nm.MuAdamW, mup.MuAdamW), (nm.MuSGD, mup.MuSGD)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*use MuAdamW")  # Adam's decay is not independent
            mine = rates(ours(model, **settings), model)
        assert mine == rates(theirs(model.parameters(), **settings), model), ours
        assert len(mine) == len(list(model.parameters()))


def exact(case: Case, steps: int = 10, model: nn.Module | None = None) -> dict[str, str]:
    """Return the exact columns of one case. At base it is trained for ``steps`` steps. Trains the parametrized ``model``."""
    model = model or parametrized(case)
    ours, theirs = (rates(opt, model) for opt in (nm.MuAdam(model, lr=LR), mup.MuAdam(model.parameters(), lr=LR)))
    cells = {
        "identity": _identity(case, steps),
        "mup": sum(ours.get(name) != theirs.get(name) for name, _ in model.named_parameters()),
        "deepcopy": _lost_rows(model, copy.deepcopy),
        "pickle": _pickle(case, model),
    }
    cells["output"], cells["step"] = _checkpoint(case, model)
    return {column: str(cell) for column, cell in cells.items()}


def _identity(case: Case, steps: int) -> int:
    """Count the parameters that differ from the stock model's after some steps of Adam at base."""
    plain, ours = case.build(), nm.parametrize(case.build(), base=case.same)
    train(case, plain, torch.optim.Adam(plain.parameters(), lr=LR), steps)
    train(case, ours, nm.MuAdam(ours, lr=LR), steps)
    return differing(plain, ours)


def _lost_rows(model: nn.Module, duplicate: Callable[[nn.Module], nn.Module]) -> int:
    """Count the rows of the plan that a copy of the model loses."""
    rows = nm.summary(duplicate(model)).rows
    return sum(a != b for a, b in zip(nm.summary(model).rows, rows, strict=True))


def _pickle(case: Case, model: nn.Module) -> int | str:
    try:
        pickle.dumps(case.build())
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        return f"neuralop's class cannot be pickled: {type(error).__name__}"
    return _lost_rows(model, lambda model: pickle.loads(pickle.dumps(model)))


def _checkpoint(case: Case, model: nn.Module) -> tuple[int, int]:
    """Resume from a checkpoint: count differing entries of the output, and differing parameters one step later."""
    optimizer, loaded = nm.MuAdam(model, lr=LR), parametrized(case, seed=1)
    train(case, model, optimizer, steps=1)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=False)
    resumed = nm.MuAdam(loaded, lr=LR)
    loaded.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    inputs, _ = case.batch()
    ours, theirs = (case.output(m.eval(), inputs) for m in (model, loaded))
    train(case, model.train(), optimizer, steps=1)
    train(case, loaded.train(), resumed, steps=1)
    return int((ours != theirs).sum()), differing(model, loaded)
