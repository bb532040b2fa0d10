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
    model = nm.initialize(model.to_empty(device="cpu"))
    assert model[1].weight is model[1].conv.weight
    nm.MuAdam(model, lr=0.01)


def test_optimizers_and_checkpoints_are_refused_before_initialization(tmp_path):
    model = pending(CASE)
    for stage in ("meta", "initialize"):
        for build in (nm.MuAdam, nm.MuSGD, nm.param_groups):
            with refused(stage):
                build(model, lr=0.01)
        assert not any(hasattr(p, "infshape") for p in model.parameters())  # so that mup's optimizers also refuse it
        model = model.to_empty(device="cpu")
    with refused("initialize"):
        nm.save_plan(model, "plan.json")
    parametrized(CASE).save_checkpoint(tmp_path, "model")
    with refused("meta"):
        nm.load_checkpoint(tmp_path, pending(CASE))


def test_initialize_works_once():
    initialized = nm.initialize(pending(CASE).to_empty(device="cpu"))
    for model, names in (
        (CASE.build(), "parametrize"),
        (parametrized(CASE), "initialize"),
        (pending(CASE), "meta"),
        (initialized, "initialize"),
    ):
        with refused(names):
            nm.initialize(model)


def test_models_with_some_layers_on_the_meta_device_are_refused():
    model = CASE.build()
    model.projection.to("meta")
    with refused("'projection.fcs.0.weight' meta"):
        nm.parametrize(model, base=CASE.base)


class Odd(nn.Module):
    """A layer with a tensor or a parameter from its constructor, which cannot be computed again."""

    def __init__(self, **tensors):
        super().__init__()
        self.register_buffer("grid", tensors.get("grid"), persistent=False)
        self.weight = tensors.get("weight")


class Eye(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        nn.init.eye_(self.weight)


nm.register_layer(Odd, lambda layer: {"weight": nm.Param("vector", ("out",))} if layer.weight is not None else {})


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: Odd(grid=torch.linspace(0, 1, 3)), "grid"),
        (lambda: Odd(weight=nn.Parameter(torch.full((24,), 0.3))), "weight"),
        (Eye, "weight"),
    ],
    ids=["a tensor", "a parameter", "a layer"],
)
def test_unknown_initial_values_are_refused(build, name):
    """The weights then stay as they are. Loading weights needs no initialization."""

    def whole():
        return nn.Sequential(CASE.build(), build())

    with torch.device("meta"):
        model = nm.parametrize(whole(), base=whole)
    model.to_empty(device="cpu")
    for p in model.parameters():
        p.data.fill_(7)
    with refused(f"1.{name}"):
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
    with refused("initialize"):
        nm.initialize(model)
