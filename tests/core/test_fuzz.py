"""Random configurations of FNO: parametrize follows its plan, or raises and leaves the model unchanged.

A test run has the same 40 configurations each time. For other and more configurations (the seed is optional):

    FUZZ_CASES=5000 pytest -n0 tests/core/test_fuzz.py --hypothesis-seed=1
"""

import copy
import math
import os
import re

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.core.rules import ROLES, RULES
from support.comparing import assert_same, learning_rates_are_mups

CASES = int(os.environ.get("FUZZ_CASES", 25))
LR = 7e-3
# What an error names: an argument, a parameter, or the rule to use instead.
NAMES = r"n_modes|n_layers|in_channels|operator-norm|\.(weight|bias|tensor|factor)"
LARGEST = {1: (20, 40), 2: (9, 32), 3: (6, 9)}  # modes and width, by number of axes
# A value that occurs twice is drawn more often.
OPTIONS = {
    "in_channels": (1, 2, 3),
    "out_channels": (1, 2, 3),
    "n_layers": (1, 2),
    "fno_skip": ("linear", "linear", "identity", "soft-gating", None),
    "channel_mlp_skip": ("linear", "identity", "soft-gating", None),
    "channel_mlp_expansion": (0.5, 0.25, 1.0, 2.0, 1.3),
    "use_channel_mlp": (True, True, True, False),
    "lifting_channel_ratio": (2, 0, 0.5, 1, 1.7),
    "projection_channel_ratio": (2, 0.5, 1, 1.7),
    "implementation": ("factorized", "reconstructed"),
    "preactivation": (False, False, True),
    "positional_embedding": ("grid", None),
    "domain_padding": (None, None, None, 0.25),
    "norm": (None, None, "group_norm", "instance_norm", "batch_norm"),
    "stabilizer": (None, None, "tanh"),
    "factorization": (None, None, "tucker", "cp", "tt"),
    "rank": (0.5, 0.1, 0.3, 0.8, 1.0),
    "separable": (False, False, True),
    "complex_data": (False, False, False, True),
}


def build(kwargs):
    """Return the same weights for the same arguments, which are copied, because neuralop keeps lists."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = FNO(**copy.deepcopy(kwargs))
    for layer in model.modules():  # torch does not initialize the bias of a layer without inputs
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        if isinstance(weight, torch.nn.Parameter) and not weight.numel() and bias is not None:
            torch.nn.init.zeros_(bias)
    return model


@st.composite
def configurations(draw):
    """Arguments, changes at base (also to larger sizes), the form of the base, further arguments of parametrize."""
    n_dim = draw(st.sampled_from([1, 2, 2, 3]))
    modes, width = LARGEST[n_dim]
    size = st.fixed_dictionaries(
        {"n_modes": st.tuples(*[st.integers(2, modes)] * n_dim), "hidden_channels": st.integers(2, width)}
    )
    kwargs = {key: draw(st.sampled_from(values)) for key, values in OPTIONS.items()} | draw(size)
    # A base may have fewer layers, but neither more layers nor other data.
    base = draw(size) | draw(st.sampled_from([*[{}] * 4, {"n_layers": 1}, {"n_layers": 3}, {"in_channels": 4}]))
    if draw(st.sampled_from([False, False, False, True])):
        kwargs["max_n_modes"] = tuple(max(pair) + 2 for pair in zip(kwargs["n_modes"], base["n_modes"], strict=True))
    init_mult = draw(st.sampled_from([*[{}] * 8, *({role: 0.5} for role in ROLES)]))
    form = draw(st.sampled_from(["overrides", "model", "callable", "file"]))
    return kwargs, base, form, {"rule": draw(st.sampled_from(list(RULES))), "init_mult": init_mult}


def succeeds(model, stock, base, **how):
    """Whether parametrize succeeds. If not, the error has a name in it and the model is unchanged."""
    attributes = dict(vars(model))
    try:
        nm.parametrize(model, base, **how)
    except nm.MupError as error:
        assert re.search(NAMES, str(error)), error
        assert vars(model) == attributes and not any(hasattr(p, "infshape") for p in model.parameters())
        assert_same(model, stock)
        return False
    return True


def check(configuration, stock, base, file):
    kwargs, overrides, form, how = configuration
    state, same, model = torch.get_rng_state(), build(kwargs), build(kwargs)
    if succeeds(same, stock, {} if form == "overrides" else stock, rule=how["rule"]):
        assert_same(same, stock)
        assert {(g["lr"], g["weight_decay"]) for g in nm.param_groups(same, LR, weight_decay=0.1)} == {(LR, 0.1)}
    forms = {"overrides": overrides, "model": base, "callable": lambda: build(kwargs | overrides), "file": file}
    nm.save_base_shapes(base, file)
    if not succeeds(model, stock, forms[form], **how):
        return False
    assert torch.equal(state, torch.get_rng_state()), "parametrize drew random numbers"
    for row, p, q in zip(nm.summary(model).rows, model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(p, q * row.init_mult, rtol=1e-5, atol=0, msg=row.name)
        assert all(0 < value < math.inf for value in (row.init_mult, row.lr_mult, row.sgd_lr_mult)), row
    learning_rates_are_mups(model)
    nm.save_base_shapes(model, file)
    assert nm.summary(nm.parametrize(build(kwargs), file, **how)) == nm.summary(model)
    return True


@pytest.mark.filterwarnings("ignore:::torch|tensorly|tltorch|neuralop", "ignore:The base is wider")
def test_parametrize_follows_its_plan_or_changes_nothing(tmp_path):
    outcomes = []

    @settings(
        max_examples=CASES,
        derandomize="FUZZ_CASES" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(configurations())
    def run(configuration):
        kwargs, base, *_ = configuration
        try:
            models = build(kwargs), build(kwargs | base)
        except Exception:  # whatever a constructor raises
            reject()  # max_examples counts those that neuralop can build
        outcomes.append(check(configuration, *models, tmp_path / "base.bsh"))

    run()
    assert outcomes.count(True) > 0.5 * len(outcomes) and outcomes.count(False) > 0.02 * len(outcomes)
