"""Large models: built on the meta device, parametrized there, given memory once, and drawn as neuralop draws them."""

import pytest
import torch
from torch import nn

import neuralop_mup as nm
from support.cases import BY_NAME
from support.comparing import assert_same, rates
from support.models import OTHER_ORDER, drawn, parametrized, pending

CASE = BY_NAME["2d"]
# In these, constructors draw layers in another order than they are held in, so the same numbers fall elsewhere.


@pytest.mark.parametrize("name", OTHER_ORDER)
def test_same_spread_where_the_order_differs(name):
    """Root mean square of each parameter over 5 seeds; of n numbers it scatters by at most 1/√(2n)."""
    usual, models = ([build(BY_NAME[name], seed) for seed in range(5)] for build in (parametrized, drawn))
    for key, p in usual[0].named_parameters():
        a, b = (
            torch.stack([m.get_parameter(key).detach() for m in group]).abs().square().mean().sqrt().item()
            for group in (usual, models)
        )
        assert a == pytest.approx(b, rel=6 / (5 * p.numel()) ** 0.5), key


def test_ties_that_to_empty_cuts():
    """LocalNO's stencils are one tensor under two names."""
    from neuralop.layers.differential_conv import FiniteDifferenceConvolution

    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.lift, self.drop = nn.Conv2d(2, width, 1), nn.Conv2d(width, 3, 1)
            self.stencil = FiniteDifferenceConvolution(width, width, n_dim=2)

    with torch.device("meta"):
        model = nm.parametrize(Net(24), base=Net(8))
    model = nm.initialize(model.to_empty(device="cpu"))
    assert model.stencil.weight is model.stencil.conv.weight
    nm.MuAdam(model, lr=0.01)


def test_an_optimizer_and_a_checkpoint_before_the_weights_are_refused(tmp_path):
    model = pending(CASE)
    assert "init × still to come" in str(nm.summary(model))
    for stage in ("is on the meta device", "are still to be drawn"):
        for build in (nm.MuAdam, nm.MuSGD, nm.param_groups):
            with pytest.raises(nm.MupError, match=stage):
                build(model, lr=0.01)
        assert not any(hasattr(p, "infshape") for p in model.parameters())  # so mup's optimizers refuse it, too
        model = model.to_empty(device="cpu")
    with pytest.raises(nm.MupError, match="before saving its plan"):
        nm.save_plan(model, "plan.json")
    parametrized(CASE).save_checkpoint(tmp_path, "model")
    with pytest.raises(nm.MupError, match="on the meta device, which holds no weights"):
        nm.load_checkpoint(tmp_path, pending(CASE))


def test_initialize_once_and_in_its_place():
    model, half = pending(CASE), CASE.build()
    half.projection.to("meta")
    for call, match in (
        (lambda: nm.initialize(CASE.build()), "is not parametrized"),
        (lambda: nm.initialize(parametrized(CASE)), "drawn already"),
        (lambda: nm.initialize(model), "on the meta device still"),
        (lambda: nm.initialize(nm.initialize(model.to_empty(device="cpu"))), "drawn already"),
        (lambda: nm.parametrize(nm.unparametrize(model), base=CASE.base), "rescaled by an earlier parametrize"),
        (lambda: nm.parametrize(half, base=CASE.base), "'projection.fcs.0.weight' .* is on the meta device and others are"),
    ):
        with pytest.raises(nm.MupError, match=match):
            call()
    assert not nm.is_parametrized(half)


class Odd(nn.Module):
    """A layer that draws in its constructor, or keeps a buffer: what it drew cannot be known."""

    def __init__(self, buffer):
        super().__init__()
        self.register_buffer("grid", torch.linspace(0, 1, 3) if buffer else None, persistent=False)
        self.weight = None if buffer else nn.Parameter(torch.full((24,), 0.3))


class Eye(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        nn.init.eye_(self.weight)


nm.register_layer(Odd, lambda layer: {"weight": nm.Param("vector", ("out",))} if layer.weight is not None else {})


@pytest.mark.parametrize(
    ("build", "name"),
    [(lambda: Odd(True), "grid"), (lambda: Odd(False), "weight"), (Eye, "weight")],
    ids=["a tensor", "a parameter", "a layer"],
)
def test_unknown_init_is_refused(build, name):
    """Nothing is drawn then; weights that come from a file need not be drawn."""

    def whole():
        return nn.Sequential(CASE.build(), build())

    with torch.device("meta"):
        model = nm.parametrize(whole(), base=whole)
    model.to_empty(device="cpu")
    for p in model.parameters():
        p.data.fill_(7)
    with pytest.raises(nm.MupError, match=rf"default initialisation of 1.{name} \(.*\) is not known"):
        nm.initialize(model)
    assert all((p == 7).all() for p in model.parameters())
    trained = nm.parametrize(whole(), base=whole)
    model.load_state_dict(trained.state_dict())
    assert_same(model, trained)


@pytest.mark.parametrize("plan", ["in the state dict", "before the weights", "after the weights"])
def test_loading_instead_of_drawing(plan, tmp_path):
    """A state dict has its plan with it; a format that keeps tensors alone needs the plan from a file."""
    trained, model = parametrized(CASE, seed=1), pending(CASE)
    nm.save_plan(trained, tmp_path / "plan.json")
    if plan == "before the weights":
        nm.load_plan(model, tmp_path / "plan.json")
    model.to_empty(device="cpu")
    model.load_state_dict(trained.state_dict() if "state" in plan else dict(trained.named_parameters()))
    if plan == "after the weights":
        nm.load_plan(model, tmp_path / "plan.json")
    assert_same(model, trained)
    assert nm.summary(model) == nm.summary(trained)
    assert rates(nm.MuAdam(model, lr=0.01), model) == rates(nm.MuAdam(trained, lr=0.01), trained)
    with pytest.raises(nm.MupError, match="drawn already"):
        nm.initialize(model)
