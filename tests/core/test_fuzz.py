"""Random FNO, TFNO and UNO configurations: each is put into μP as the plan says, or refused in a sentence, untouched.

100 cases, the same ones each time. More of them, drawn anew (a seed is optional):

    FUZZ_CASES=5000 pytest tests/test_fuzz.py --hypothesis-seed=1
"""

import contextlib
import copy
import io
import math
import os
import re
import warnings
from collections import Counter
from functools import partial

import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from neuralop.models import FNO, TFNO, UNO

import neuralop_mup as nm
from neuralop_mup.core.rules import ROLES, RULES
from support.comparing import assert_same, learning_rates_are_mups

CASES = int(os.environ.get("FUZZ_CASES", 100))
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
# Constructor arguments of all three, and of FNO and TFNO; a value that is written twice is drawn more often.
OPTIONS = {
    "in_channels": (1, 2, 3),
    "out_channels": (1, 2, 3),
    "fno_skip": ("linear", "linear", "identity", None),
    "channel_mlp_skip": ("linear", "identity", None),
    "channel_mlp_expansion": (0.5, 0.25, 1.0, 2.0, 1.3),
    "implementation": ("factorized", "reconstructed"),
    "preactivation": (False, False, True),
    "positional_embedding": ("grid", None),
    "domain_padding": (None, None, None, 0.25),
    "norm": (None, None, "group_norm", "instance_norm", "batch_norm"),
    "factorization": (None, None, "tucker", "cp", "tt"),
    "rank": (0.5, 0.1, 0.3, 0.8, 1.0),
}
FNO_OPTIONS = {
    "n_layers": (1, 2),
    "fno_skip": (*OPTIONS["fno_skip"], "soft-gating"),
    "channel_mlp_skip": (*OPTIONS["channel_mlp_skip"], "soft-gating"),
    "lifting_channel_ratio": (2, 0, 0.5, 1, 1.7),
    "projection_channel_ratio": (2, 0.5, 1, 1.7),
    "use_channel_mlp": (True, True, True, False),
    "stabilizer": (None, None, "tanh"),
    "separable": (False, False, True),
    "complex_data": (False, False, False, True),
}
LARGEST = {1: (20, 40), 2: (9, 32), 3: (6, 9)}  # modes and width


def build(cls, seed, kwargs):
    """The same weights each time; arguments are copied, since neuralop keeps (and may change) the lists it is given."""
    with torch.random.fork_rng(), contextlib.redirect_stdout(io.StringIO()):  # UNO prints while it is built
        torch.manual_seed(seed)
        model = cls(**copy.deepcopy(kwargs))
    for layer in model.modules():  # torch leaves the bias of a layer without inputs as the memory was
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        if isinstance(weight, torch.nn.Parameter) and not weight.numel() and bias is not None:
            torch.nn.init.zeros_(bias)
    return model


@st.composite
def configs(draw):
    """Class, seed, arguments, those that differ at base (which may be the larger one), and how parametrize is called."""
    cls, n_dim = draw(st.sampled_from([FNO, FNO, TFNO, UNO])), draw(st.sampled_from([1, 2, 2, 3]))
    options = OPTIONS if cls is UNO else OPTIONS | FNO_OPTIONS
    kwargs = {key: draw(st.sampled_from(values)) for key, values in options.items()}
    factors = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))  # of UNO's layers

    def sizes():
        modes, width = st.tuples(*[st.integers(2, LARGEST[n_dim][0])] * n_dim), draw(st.integers(2, LARGEST[n_dim][1]))
        if cls is not UNO:
            return {"n_modes": draw(modes), "hidden_channels": width}
        width = min(width, 8)
        layers = {"uno_out_channels": [f * width for f in factors], "uno_n_modes": [list(draw(modes)) for _ in factors]}
        return {"hidden_channels": width, **layers}

    kwargs |= sizes()
    base = sizes()
    if cls is UNO:
        kwargs |= {"n_layers": len(factors), "uno_scalings": [[1] * n_dim for _ in factors]}
        kwargs |= {"lifting_channels": 8, "projection_channels": 6}
    else:  # stored modes that base may exceed; a shallower base is one, a deeper is none; nor is one of other data
        kwargs |= draw(st.sampled_from([{}, {}, {}, {"max_n_modes": tuple(n + 2 for n in kwargs["n_modes"])}]))
        base |= draw(st.sampled_from([*[{}] * 4, {"n_layers": 1}, {"n_layers": 3}, {"in_channels": 4}]))
    forms = ("model", "callable", "file") if cls is UNO else ("overrides", "model", "callable", "file")
    how = {"rule": draw(st.sampled_from(list(RULES)))}
    how["init_mult"] = draw(st.sampled_from([*[{}] * 8, *({role: 0.5} for role in ROLES)]))
    return cls, draw(st.integers(0, 99)), kwargs, base, draw(st.sampled_from(forms)), how


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
    cls, seed, kwargs, overrides, form, how = config
    fresh, state = partial(build, cls, seed), torch.get_rng_state()
    same, model = fresh(kwargs), fresh(kwargs)
    if taken(same, stock, lambda: nm.parametrize(same, {} if form == "overrides" else stock, how["rule"])):
        assert_same(same, stock)
        assert {(g["lr"], g["weight_decay"]) for g in nm.param_groups(same, LR, weight_decay=0.1)} == {(LR, 0.1)}
    file = folder / "base.bsh"
    forms = {"overrides": overrides, "model": base, "callable": lambda: fresh(kwargs | overrides), "file": file}

    def call():
        if form == "file":
            nm.save_base_shapes(base, file)
        nm.parametrize(model, forms[form], **how)

    if not taken(model, stock, call):
        return False
    assert torch.equal(state, torch.get_rng_state()), "parametrize drew random numbers"
    for row, p, q in zip(nm.summary(model), model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(p, q * row.init_mult, rtol=1e-5, atol=0, msg=row.name)
        assert all(0 < value < math.inf for value in (row.init_mult, row.lr_mult, row.sgd_lr_mult)), row
    learning_rates_are_mups(model)
    nm.save_base_shapes(model, file)
    assert nm.summary(nm.parametrize(fresh(kwargs), file, **how)) == nm.summary(model)
    return True


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
        cls, seed, kwargs, base, *_ = config
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch|tensorly|tltorch|neuralop")
            warnings.filterwarnings("ignore", "The base is wider")
            try:
                models = build(cls, seed, kwargs), build(cls, seed, kwargs | base)
            except Exception:  # whatever a constructor raises
                reject()  # drawn again: max_examples counts those that neuralop itself can build
            seen[check(config, *models, tmp_path)] += 1

    run()
    assert seen[True] > 0.5 * CASES and seen[False] > 0.02 * CASES, seen
