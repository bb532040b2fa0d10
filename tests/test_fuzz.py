"""Random FNO, TFNO and UNO configurations: each is put into μP as the plan says, or refused in a sentence, untouched.

500 cases, the same ones each time. More of them, drawn anew (a seed is optional):

    FUZZ_CASES=5000 pytest tests/test_fuzz.py --hypothesis-seed=1
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections import Counter

import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from neuralop.models import UNO

import neuralop_mup as nm
from fuzz import configs
from support import assert_same, learning_rates_are_mups

CASES = int(os.environ.get("FUZZ_CASES", 500))
LR = 7e-3
# What parametrize refuses of what neuralop can build.
REFUSED = "|".join(
    (
        "must not exceed max_n_modes",
        "at base, where its layer holds no numbers",
        "only in the base: .*no more than the model",
        "for the same data",
        "the mode factor divides by Σ log K, which is zero",
    )
)


def parametrize(config, model, base, folder):
    forms = {"overrides": config.base, "model": base, "callable": config.build_base, "file": folder / "base.bsh"}
    if config.form == "file":
        nm.save_base_shapes(base, forms["file"])
    return nm.parametrize(model, forms[config.form], config.rule, init_mult=config.init_mult)


def taken(model, stock, call):
    """Whether ``call`` puts the model into μP; if not, it says why and leaves the model as it was."""
    attributes = dict(vars(model))
    try:
        call()
    except nm.MupError as error:
        assert re.search(REFUSED, str(error)), error
        assert vars(model) == attributes and not any(hasattr(p, "infshape") for p in model.parameters())
        assert_same(model, stock)
        return False
    return True


def check(config, stock, base, folder):
    same, model, state = config.build(), config.build(), torch.get_rng_state()
    own = {} if config.form == "overrides" else stock
    if taken(same, stock, lambda: nm.parametrize(same, own, config.rule)):
        assert_same(same, stock)
        assert {(g["lr"], g["weight_decay"]) for g in nm.param_groups(same, LR, weight_decay=0.1)} == {(LR, 0.1)}
    if not taken(model, stock, lambda: parametrize(config, model, base, folder)):
        return False
    assert torch.equal(state, torch.get_rng_state()), "parametrize drew random numbers"
    for row, p, q in zip(nm.summary(model), model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(p, q * row.init_mult, rtol=1e-5, atol=0, msg=row.name)
        assert all(0 < value < math.inf for value in (row.init_mult, row.lr_mult, row.sgd_lr_mult)), row
    learning_rates_are_mups(model)
    nm.save_base_shapes(model, folder / "again.bsh")
    again = nm.parametrize(config.build(), folder / "again.bsh", config.rule, init_mult=config.init_mult)
    assert nm.summary(again) == nm.summary(model)
    step(config, stock, model)
    return True


def step(config, stock, model):
    """An optimizer step leaves finite weights and moves some, where the stock model runs at all."""
    largest = max(max(ns) for ns in (stock.uno_n_modes if isinstance(stock, UNO) else [stock.n_modes]))
    dtype = torch.cfloat if config.kwargs.get("complex_data") else torch.float
    x = torch.randn(2, config.kwargs["in_channels"], *(max(8, largest),) * config.n_dim, dtype=dtype)
    try:
        stock(x).abs().square().mean().backward()
    except Exception:  # neuralop's, on its own model
        return
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = nm.MuAdam(model, lr=LR)
    (model(x) - 1).abs().square().mean().backward()
    optimizer.step()
    nm.check_optimizer(model, optimizer)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not all(map(torch.equal, model.parameters(), before))


def test_invariants(tmp_path):
    seen = Counter()

    @settings(
        max_examples=CASES,
        derandomize="FUZZ_CASES" not in os.environ,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(configs())
    def run(config):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch|tensorly|tltorch|neuralop")
            try:
                stock, base = config.build(), config.build_base()
            except Exception:  # whatever a constructor raises
                reject()  # drawn again: max_examples counts those that neuralop itself can build
            seen[check(config, stock, base, tmp_path)] += 1

    run()
    assert seen[True] > 0.5 * CASES and seen[False] > 0.02 * CASES, seen
