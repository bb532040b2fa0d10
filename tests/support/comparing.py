"""What two models or two optimizers have in common, and what a case of the table must have."""

from __future__ import annotations

import copy
import io
import json
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
    """Parameters are bit-equal, and have the same names inside of what the models are wrapped in."""
    for (name, p), (other, q) in zip(nm.unwrap(a).named_parameters(), nm.unwrap(b).named_parameters(), strict=True):
        assert name == other and torch.equal(p, q), name


def rates(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, tuple[float, float]]:
    """Learning rate and decay of each parameter, by its name in the bare model."""
    names = {id(p): name for name, p in nm.unwrap(model).named_parameters()}
    return {names[id(p)]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}


def differing(a: nn.Module, b: nn.Module) -> int:
    """Number of parameters that are not bit-equal."""
    return sum(not torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def a_summary_has_every_parameter(model: nn.Module) -> None:
    """In each of its three forms."""
    plan = nm.summary(model)
    names = [name for name, _ in model.named_parameters()]
    text, markdown, rows = str(plan), plan.to_markdown(), json.loads(plan.to_json())["rows"]
    assert [row["name"] for row in rows] == names
    assert all(name in text and f"| {name} |" in markdown for name in names)


def learning_rates_are_mups(model: nn.Module) -> None:
    """Of every parameter, and its decay, under every optimizer."""
    settings = {"lr": LR, "weight_decay": 0.1}
    for ours, theirs in ((nm.MuAdam, mup.MuAdam), (nm.MuAdamW, mup.MuAdamW), (nm.MuSGD, mup.MuSGD)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*use MuAdamW")  # Adam's decay is not independent
            mine = rates(ours(model, **settings), model)
        assert mine == rates(theirs(model.parameters(), **settings), model), ours
        assert len(mine) == len(list(model.parameters()))


def identity(case: Case, steps: int = 10) -> int:
    """Parameters that differ from the stock model's after some steps of Adam at base."""
    plain, ours = case.build(), nm.parametrize(case.build(), base=case.same, rule=RULE)
    train(case, plain, torch.optim.Adam(plain.parameters(), lr=LR), steps)
    train(case, ours, nm.MuAdam(ours, lr=LR), steps)
    return differing(plain, ours)


def interop(model: nn.Module) -> int:
    """Parameters whose learning rate in mup's own MuAdam is not ours."""
    ours, theirs = (rates(opt, model) for opt in (nm.MuAdam(model, lr=LR), mup.MuAdam(model.parameters(), lr=LR)))
    return sum(ours.get(name) != theirs.get(name) for name, _ in model.named_parameters())


def checkpoint(case: Case, model: nn.Module) -> tuple[int, int]:
    """Train, save and load into a model drawn anew: differing entries of the output, differing parameters a step later."""
    optimizer = nm.MuAdam(model, lr=LR)
    train(case, model, optimizer, steps=2)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=False)  # neuralop keeps its models' arguments, classes too, in the state dict
    loaded = parametrized(case, seed=1, rule=RULE)
    resumed = nm.MuAdam(loaded, lr=LR)
    loaded.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    output = int((_output(case, model) != _output(case, loaded)).sum())
    train(case, model, optimizer, steps=1)
    train(case, loaded, resumed, steps=1)
    return output, differing(model, loaded)


def lost(model: nn.Module, duplicate: Callable[[nn.Module], nn.Module]) -> int:
    """Rows of the plan that a copy of the model does not keep."""
    rows = nm.summary(duplicate(model)).rows
    return sum(a != b for a, b in zip(nm.summary(model).rows, rows, strict=True))


def exact(case: Case, steps: int = 10) -> dict[str, str]:
    """Every exact column of one case; ``steps`` are those that the identity takes."""
    model = parametrized(case, rule=RULE)
    cells = {
        "identity": identity(case, steps),
        "mup": interop(model),
        "deepcopy": lost(model, copy.deepcopy),
        "pickle": _pickle(case, model),
    }
    cells["output"], cells["step"] = checkpoint(case, model)
    return {column: str(cell) for column, cell in cells.items()}


def _pickle(case: Case, model: nn.Module) -> int | str:
    try:
        pickle.dumps(case.build())
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        return f"neuralop's class cannot be pickled: {type(error).__name__}"
    return lost(model, lambda model: pickle.loads(pickle.dumps(model)))


def _output(case: Case, model: nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        result = case.output(model, case.batch()[0])
    model.train()
    return result
