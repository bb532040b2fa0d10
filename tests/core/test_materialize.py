"""Large models: built and parametrized on the meta device, then allocated once and initialized as neuralop does it."""

import pytest
import torch
from neuralop.layers.differential_conv import FiniteDifferenceConvolution
from torch import nn

import neuralop_mup as nm
from support.cases import BY_NAME
from support.comparing import assert_same, rates
from support.errors import refused
from support.models import drawn, parametrized, pending

CASE = BY_NAME["2d"]


@pytest.mark.parametrize("name", ["uno_tucker", "like_physicsnemo_fno_3d"])
def test_same_spread_where_constructors_draw_in_another_order(name):
    """Root mean square of each parameter over 5 seeds. That of n numbers scatters by at most 1/√(2n)."""
    usual, models = ([build(BY_NAME[name], seed) for seed in range(5)] for build in (parametrized, drawn))
    for key, p in usual[0].named_parameters():
        values = [torch.stack([m.get_parameter(key).detach() for m in group]) for group in (usual, models)]
        a, b = (group.abs().square().mean().sqrt().item() for group in values)
        assert a == pytest.approx(b, rel=6 / (5 * p.numel()) ** 0.5), key


def test_ties_that_to_empty_cuts():
    """LocalNO's stencils are one tensor under two names."""

    def net(width):
        stencil = FiniteDifferenceConvolution(width, width, n_dim=2)
        return nn.Sequential(nn.Conv2d(2, width, 1), stencil, nn.Conv2d(width, 3, 1))

    with torch.device("meta"):
        model = nm.parametrize(net(24), base=net(8))
    nm.initialize(model.to_empty(device="cpu"))
    assert model[1].weight is model[1].conv.weight
    with refused("initialize"):
        nm.initialize(model)


def test_optimizers_and_checkpoints_are_refused_before_initialization(tmp_path):
    model = pending(CASE)
    parametrized(CASE).save_checkpoint(tmp_path, "model")
    with refused("meta"):
        nm.load_checkpoint(tmp_path, model)
    for stage in ("meta", "initialize"):
        for build in (nm.MuAdam, nm.MuSGD, nm.param_groups):
            with refused(stage):
                build(model, lr=0.01)
        model = model.to_empty(device="cpu")
    with refused("initialize"):
        nm.save_plan(model, "plan.json")


def test_models_that_cannot_be_initialized_are_refused():
    for model, names in (
        (CASE.build(), "parametrize"),
        (parametrized(CASE), "initialize"),
        (pending(CASE), "meta"),
    ):
        with refused(names):
            nm.initialize(model)


class Eye(nn.Linear):
    """A layer with initial weights that cannot be computed again."""

    def __init__(self):
        super().__init__(2, 2)
        nn.init.eye_(self.weight)


def test_unknown_initial_values_are_refused():
    """The weights then stay as they are. Loading weights needs no initialization."""

    def whole():
        return nn.Sequential(CASE.build(), Eye())

    with torch.device("meta"):
        model = nm.parametrize(whole(), base=whole)
    model.to_empty(device="cpu")
    for p in model.parameters():
        p.data.fill_(7)
    with refused("1.weight"):
        nm.initialize(model)
    assert all((p == 7).all() for p in model.parameters())
    trained = nm.parametrize(whole(), base=whole)
    model.load_state_dict(trained.state_dict())
    assert_same(model, trained)


@pytest.mark.parametrize("plan", ["in the state dict", "before the weights", "after the weights"])
def test_loading_instead_of_drawing(plan, tmp_path):
    """A state dict contains its plan. A format with only tensors needs the plan from a file."""
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
