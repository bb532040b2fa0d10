"""parametrize scales weights once: it refuses weights under μP, and never refuses fresh weights."""

import pytest

import neuralop_mup as nm
from support.cases import BY_NAME
from support.comparing import assert_same
from support.errors import refused
from support.models import parametrized
from support.training import train

CASE, ONE = BY_NAME["2d"], BY_NAME["1d"]


@pytest.mark.parametrize(
    ("name", "steps"), [("1d", 0), ("2d", 3), ("no_channel_mlp", 0), ("tt_factorized", 3), ("separable", 1), ("uno", 1)]
)
def test_loaded_weights_are_not_rescaled(name, steps):
    """Weights under μP, fresh or trained, are loaded into a new model: they are not neuralop's initial weights."""
    case = BY_NAME[name]
    model, again = parametrized(case), case.build(seed=1)
    train(case, model, nm.MuAdamW(model, lr=5e-3), steps)
    again.load_state_dict(model.state_dict())
    with refused("init=False"):
        nm.parametrize(again, base=case.base)
    assert not nm.is_parametrized(again)
    nm.load_plan(again, model.state_dict())
    assert_same(again, model)
    with refused("parametrize"):
        nm.parametrize(nm.unparametrize(again), base=case.base)


def test_kernels_scaled_by_a_few_percent_are_refused():
    """Only modes change, 6 → 8 by 4 → 6: κ = √(log 6 / log 12) = 0.849 on kernels, and every other multiplier is 1."""
    how = {"base": {"n_modes": (6, 4)}, "rule": "log-modes"}
    model, again = nm.parametrize(CASE.build(), **how), CASE.build(seed=1)
    assert {row.role for row in nm.summary(model).rows if row.init_mult != 1} == {"spectral"}
    again.load_state_dict(model.state_dict())
    with refused("plan init=False"):
        nm.parametrize(again, **how)


def test_fresh_models_are_never_refused():
    """The checks for freshness raise no false alarm over the seeds of a tiny and of a usual model."""
    for seed in range(20):
        parametrized(ONE, seed)
        nm.parametrize(ONE.build(seed, hidden_channels=9), base={"hidden_channels": 8})
