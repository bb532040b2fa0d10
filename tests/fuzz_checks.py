"""What has to hold for every configuration that ``tests/fuzz.py`` draws."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from neuralop.models import UNO
from torch import nn

import neuralop_mup as nm
from fuzz import OPTIONS, Config
from neuralop_mup.core.rules import ROLES
from support import a_summary_has_every_parameter, assert_same, learning_rates_are_mups

LR = 7e-3
# What parametrize refuses of what neuralop can build, and what it says.
REASONS = {
    "more than max_n_modes": "must not exceed max_n_modes",
    "size zero": "at base, where its layer holds no numbers",
    "a deeper base": "no deeper than its target",
    "other data": "for the same data",
    "one mode": "the mode factor divides by Σ log K, which is zero",
}


class Refused(Exception):
    """neuralop itself refuses the configuration, in the constructor or in a forward pass."""


class Tally(Counter):
    """How many cases were seen of each kind: ``tally["norm=group_norm"]``, ``tally["refused by neuralop"]``, …"""

    def note(self, config: Config) -> None:
        """Count the options of one case."""
        seen = {"model": config.model, "dims": config.n_dim, "rule": config.rule, "form": config.form}
        options = (*OPTIONS, "factorization", "separable", "norm", "complex_data", "max_n_modes")
        seen |= {key: config.kwargs[key] for key in options if key in config.kwargs}
        seen["max_n_modes"] = seen.get("max_n_modes") is not None
        self.update(f"{key}={value}" for key, value in seen.items())


def check(config: Config, folder: Path, tally: Tally) -> None:
    """Check everything that has to hold for one configuration.

    Parameters
    ----------
    config : Config
        What :func:`configs` drew.
    folder : Path
        For files; what is in it may be overwritten.
    tally : Tally
        Counts what was seen.

    Raises
    ------
    Refused
        If neuralop itself refuses the target or the base.
    AssertionError
        If something does not hold.
    """
    try:
        stock, base = config.build(), config.build_base()
    except Exception as error:  # whatever a constructor raises
        tally[f"refused by neuralop: {_first_words(error)}"] += 1
        raise Refused from error
    tally.note(config)
    tally["cases"] += 1
    _identity(config, stock)
    expected = refusals(config, stock, base)
    model, random_state = config.build(), torch.get_rng_state()
    if expected:
        tally.update(f"refused: {reason}" for reason in expected)
        _refused(lambda: _parametrize(config, model, folder), model, "|".join(REASONS[reason] for reason in expected))
        assert_same(model, stock)
        return
    _parametrize(config, model, folder)
    if "in_channels" in config.base:  # a file, in mup's format, keeps no size of what neither width nor modes change
        own = replace(config, base={k: v for k, v in config.base.items() if k != "in_channels"}, form="model")
        assert nm.summary(model).rows == nm.summary(_parametrize(own, config.build(), folder)).rows
        tally["a file does not know in_channels"] += 1
        return
    assert torch.equal(random_state, torch.get_rng_state()), "parametrize drew random numbers"
    plan = nm.summary(model)
    _weights_follow(plan, model, stock)
    a_summary_has_every_parameter(model)
    _reciprocal(config, plan, stock, base)
    learning_rates_are_mups(model)
    _unknown_parameter_is_refused(config, folder)
    _saved_base_gives_the_same_plan(config, model, folder)
    if reason := _one_step(config, stock, model):
        tally[f"neuralop cannot run it: {reason}"] += 1
    tally["checked"] += 1


def refusals(config: Config, stock: nn.Module, base: nn.Module) -> list[str]:
    """Why parametrize has to refuse this configuration: keys of :data:`REASONS`."""
    modes = [m for model in (stock, base) for m in _modes_of(model)]
    sizes = (config.kwargs, {**config.kwargs, **config.base})
    beyond = [zip(_stored(at), at["max_n_modes"], strict=True) for at in sizes if at.get("max_n_modes")]
    names = [[name for name, _ in model.named_parameters()] for model in (stock, base)]
    holds = {
        "more than max_n_modes": any(n > most for pairs in beyond for n, most in pairs),
        "size zero": _grows_from_nothing(base, stock),
        "a deeper base": names[0] != names[1] and config.base.get("n_layers", 0) > config.kwargs["n_layers"],
        "other data": "in_channels" in config.base and config.form != "file",
        "one mode": config.rule == "log-modes" and any(max(ns) // 2 <= 1 for ns in modes),
    }
    return [reason for reason, applies in holds.items() if applies]


def _grows_from_nothing(base: nn.Module, model: nn.Module) -> bool:
    """Whether a parameter has numbers in the model and none at base."""
    sizes = {name: p.numel() for name, p in base.named_parameters()}
    return any(p.numel() and not sizes.get(name, 1) for name, p in model.named_parameters())


def _stored(kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Modes that a kernel stores on each axis: max_n_modes counts these."""
    *others, last = kwargs["n_modes"]
    return (*others, last if kwargs["complex_data"] else last // 2 + 1)


def _modes_of(model: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(ns) for ns in (model.uno_n_modes if isinstance(model, UNO) else [model.n_modes])]


def _parametrize(config: Config, model: nn.Module, folder: Path) -> nn.Module:
    base: Any = {
        "overrides": lambda: config.base,
        "model": config.build_base,
        "callable": lambda: config.build_base,
        "file": lambda: folder / "base.bsh",
    }[config.form]()
    if config.form == "file":
        nm.save_base_shapes(config.build_base(), base)
    return nm.parametrize(model, base, config.rule, init_mult=config.init_mult)


def _refused(call: Callable[[], Any], model: nn.Module, says: str) -> None:
    """``call`` raises a MupError that says so and leaves the model as it was."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    attributes, shapes = dict(vars(model)), [getattr(p, "infshape", None) for p in model.parameters()]
    with pytest.raises(nm.MupError, match=says):
        call()
    assert vars(model) == attributes, "an attribute was changed"
    assert [getattr(p, "infshape", None) for p in model.parameters()] == shapes, "an infshape was changed"
    assert before.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters()), "weights were changed"


def _identity(config: Config, stock: nn.Module) -> None:
    """With itself as base a model keeps its weights and its learning rate, bit for bit."""
    same = refusals(replace(config, base={}, form="model"), stock, stock)
    model = config.build()
    base = {} if config.form == "overrides" else stock
    if same:
        says = "|".join(REASONS[reason] for reason in same)
        _refused(lambda: nm.parametrize(model, base, config.rule), model, says)
        return
    nm.parametrize(model, base, config.rule)
    assert_same(model, stock)
    assert model.state_dict().keys() == stock.state_dict().keys() and type(model) is type(stock)
    for group in nm.param_groups(model, LR, weight_decay=0.1):
        assert (group["lr"], group["lr_mult"], group["weight_decay"]) == (LR, 1, 0.1)
    assert all(group["lr"] == LR for group in nm.param_groups(model, LR, "sgd"))


def _weights_follow(plan: nm.Plan, model: nn.Module, stock: nn.Module) -> None:
    """Each parameter is the stock one times its row's number, and every number of the plan is one."""
    for row, p, q in zip(plan.rows, model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(p, q * row.init_mult, rtol=1e-5, atol=0, msg=row.name)
        assert all(0 < value < math.inf for value in (row.init_mult, row.lr_mult, row.sgd_lr_mult)), row
        assert row.role in ROLES and len(row.axes) == len(row.shape) == len(row.base_shape), row


def _reciprocal(config: Config, plan: nm.Plan, stock: nn.Module, base: nn.Module) -> None:
    """From base to the model and back is where it was: the two plans' multipliers are inverse."""
    lacking = any(row.lacking for row in plan.rows)
    if lacking or _grows_from_nothing(stock, base):
        says = REASONS["a deeper base" if lacking else "size zero"]
        _refused(lambda: nm.parametrize(base, stock, config.rule, init=False), base, says)
        return
    back = nm.summary(nm.parametrize(base, stock, config.rule, init=False))
    for there, here in zip(plan.rows, back.rows, strict=True):
        assert (there.shape, there.base_shape) == (here.base_shape, here.shape), there.name
        for field_ in ("lr_mult", "sgd_lr_mult", "init_mult"):
            grows = "nothing of it grows" not in there.why  # then it is left alone
            master = config.init_mult.get(there.role, 1.0) if field_ == "init_mult" and grows else 1.0
            product = getattr(there, field_) * getattr(here, field_) / master
            assert math.isclose(product, 1, rel_tol=1e-9), f"{there.name}: {field_} there and back is {product}"


def _unknown_parameter_is_refused(config: Config, folder: Path) -> None:
    """Anywhere in the model: a parameter that no adapter knows, or a layer that stands where none should."""
    model = config.build()
    modules = list(model.modules())
    place = modules[config.place % len(modules)]
    if config.seed % 2:
        place.add_module("unheard_of", nn.Linear(3, 3))
    else:
        place.register_parameter("unheard_of", nn.Parameter(torch.ones(3)))
    says = "different parameters|was changed after it was constructed"
    _refused(lambda: _parametrize(config, model, folder), model, says)


def _saved_base_gives_the_same_plan(config: Config, model: nn.Module, folder: Path) -> None:
    nm.save_base_shapes(model, folder / "again.bsh")
    again = nm.parametrize(config.build(), folder / "again.bsh", config.rule, init_mult=config.init_mult)
    assert nm.summary(again) == nm.summary(model)
    assert_same(again, model)


def _one_step(config: Config, stock: nn.Module, model: nn.Module) -> str | None:
    """An optimizer step leaves finite weights and moves some; where the stock model cannot run at all, says how."""
    generator = torch.Generator().manual_seed(config.seed)
    largest = max(max(ns) for ns in _modes_of(stock))
    dtype = torch.cfloat if config.kwargs.get("complex_data") else torch.float
    shape = (2, config.kwargs["in_channels"], *(max(8, largest),) * config.n_dim)
    x = torch.randn(shape, generator=generator, dtype=dtype)
    try:
        y = stock(x)
        y.abs().square().mean().backward()
    except Exception as error:  # neuralop's, on its own model
        return _first_words(error)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = nm.MuAdam(model, lr=LR)
    loss = (model(x) - torch.randn(y.shape, generator=generator, dtype=y.dtype)).abs().square().mean()
    loss.backward()
    optimizer.step()
    nm.check_optimizer(model, optimizer)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not all(map(torch.equal, model.parameters(), before))
    return None


def _first_words(error: Exception, n: int = 6) -> str:
    return f"{type(error).__name__} {' '.join(re.sub(r'[0-9]+', '#', str(error)).split()[:n])}"
