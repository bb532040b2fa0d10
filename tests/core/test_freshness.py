"""Weights are scaled once, never twice: what is under μP already is seen, and what is fresh is never taken for it."""

import pytest

import neuralop_mup as nm
from support.cases import BY_NAME
from support.comparing import assert_same
from support.models import parametrized
from support.training import train

CASE, ONE = BY_NAME["2d"], BY_NAME["1d"]


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("name", ["1d", "2d", "no_channel_mlp", "tt_factorized", "separable", "uno"])
def test_loaded_weights_are_not_rescaled(name, steps):
    """Weights under μP, fresh or trained, loaded into a new model: parametrize sees that they are not neuralop's."""
    case = BY_NAME[name]
    model, again = parametrized(case), case.build(seed=1)
    train(case, model, nm.MuAdamW(model, lr=5e-3), steps)
    again.load_state_dict(model.state_dict())
    with pytest.raises(nm.MupError, match="init=False"):
        nm.parametrize(again, base=case.base)
    assert not nm.is_parametrized(again)
    nm.load_plan(again, model.state_dict())
    assert_same(again, model)
    with pytest.raises(nm.MupError, match="rescaled by an earlier"):
        nm.parametrize(nm.unparametrize(again), base=case.base)


def test_kernels_scaled_by_a_few_percent_are_seen():
    """Modes alone, 6 → 8 by 4 → 6: κ = √(log 6 / log 12) = 0.849 on kernels, and every other multiplier is 1."""
    base = {"n_modes": (6, 4)}
    model = nm.parametrize(CASE.build(), base=base, rule="log-modes")
    assert {row.role for row in nm.summary(model).rows if row.init_mult != 1} == {"spectral"}
    again = CASE.build(seed=1)
    again.load_state_dict(model.state_dict())
    with pytest.raises(nm.MupError, match="scaled by this very plan already"):
        nm.parametrize(again, base=base, rule="log-modes")


def test_fresh_models_are_never_refused():
    """The checks for freshness raise no false alarm: 40 seeds of a tiny and of a usual model."""
    for seed in range(40):
        parametrized(ONE, seed)
        nm.parametrize(ONE.build(seed, hidden_channels=9), base={"hidden_channels": 8})
    parametrized(CASE, 1, rule="none")
