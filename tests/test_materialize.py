"""Large models: built on the meta device, parametrized there, given memory once, and drawn as neuralop draws them."""

import pytest
import torch
from cases import BY_NAME, CASES
from torch import nn

import neuralop_mup as nm
from neuralop_mup.core.default_init import check_drawable

CASE = BY_NAME["2d"]
# neuralop cannot construct LocalNO on the meta device. In these, constructors draw layers in another order
# than they are held in, so the same numbers fall elsewhere.
OTHER_ORDER = tuple(name for name in ("uno", "uno_tucker", "rno", "rno_tucker") if name in BY_NAME)
OTHER_ORDER += tuple(name for name in BY_NAME if "physicsnemo_fno" in name)


def pending(case):
    with torch.device("meta"):
        model = case.build()
    return nm.parametrize(model, base=case.base)


def drawn(case, seed=0):
    model = pending(case).to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):  # whatever is not drawn shows
        tensor.data.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else -7)
    torch.manual_seed(seed)
    return nm.initialize(model)


def rates(model):
    names = {id(p): name for name, p in model.named_parameters()}
    groups = nm.param_groups(model, lr=0.01, weight_decay=0.1)
    return {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}


@pytest.mark.parametrize("case", [c for c in CASES if not c.name.startswith("local_no")], ids=lambda c: c.name)
def test_same_weights_as_the_usual_path(case):
    """With the seed of the usual path, bit for bit: weights, buffers, learning rates, plan."""
    usual, model = nm.parametrize(case.build(), base=case.base), drawn(case)
    if case.name not in OTHER_ORDER:
        for (name, p), q in zip(model.named_parameters(), usual.named_parameters(), strict=True):
            assert name == q[0]
            assert torch.equal(p, q[1]), name
        for (name, p), q in zip(model.named_buffers(), usual.buffers(), strict=True):
            assert torch.equal(p, q), name
    assert rates(model) == rates(usual)
    assert nm.summary(model) == nm.summary(usual)


@pytest.mark.parametrize("name", OTHER_ORDER)
def test_same_spread_where_the_order_differs(name):
    """Root mean square of each parameter over 30 seeds; of n numbers it scatters by at most 1/√(2n)."""
    usual = [nm.parametrize(BY_NAME[name].build(seed), base=BY_NAME[name].base) for seed in range(5)]
    models = [drawn(BY_NAME[name], seed) for seed in range(5)]
    for key, p in usual[0].named_parameters():
        a, b = (
            torch.stack([dict(m.named_parameters())[key].detach().abs().square().mean() for m in group]).mean().sqrt().item()
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

    nm.register_layer(Net, {"lift": nm.Place(False, True), "stencil": nm.Place(True, True), "drop": nm.Place(True, False)})
    with torch.device("meta"):
        model = nm.parametrize(Net(24), base=Net(8))
    model = nm.initialize(model.to_empty(device="cpu"))
    assert model.stencil.weight is model.stencil.conv.weight
    nm.MuAdam(model, lr=0.01)


def test_an_optimizer_before_the_weights_is_refused():
    model = pending(CASE)
    assert "init × still to come" in str(nm.summary(model))
    for stage in ("is on the meta device", "are still to be drawn"):
        for build in (nm.MuAdam, nm.MuSGD, nm.param_groups):
            with pytest.raises(nm.MupError, match=stage):
                build(model, lr=0.01)
        assert not any(hasattr(p, "infshape") for p in model.parameters())  # so mup's optimizers refuse it, too
        model = model.to_empty(device="cpu")
    for path in ("plan.json",):
        with pytest.raises(nm.MupError, match="before saving its plan"):
            nm.save_plan(model, path)


def test_initialize_once_and_in_its_place():
    with pytest.raises(nm.MupError, match="is not parametrized"):
        nm.initialize(CASE.build())
    with pytest.raises(nm.MupError, match="drawn already"):
        nm.initialize(nm.parametrize(CASE.build(), base=CASE.base))
    model = pending(CASE)
    with pytest.raises(nm.MupError, match="on the meta device still"):
        nm.initialize(model)
    model = nm.initialize(model.to_empty(device="cpu"))
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(nm.MupError, match="drawn already"):
        nm.initialize(model)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    nm.unparametrize(model)
    with pytest.raises(nm.MupError, match="rescaled by an earlier parametrize"):
        nm.parametrize(model, base=CASE.base)


def test_half_on_meta_is_refused():
    model = CASE.build()
    model.projection.to("meta")
    with pytest.raises(nm.MupError, match="'projection.fcs.0.weight' .* is on the meta device and others are not"):
        nm.parametrize(model, base=CASE.base)
    assert not nm.is_parametrized(model)


class _Odd(nn.Module):
    """A layer that draws in its constructor, and keeps a buffer: what it drew cannot be known."""

    def __init__(self, buffer):
        super().__init__()
        if buffer:
            self.register_buffer("grid", torch.linspace(0, 1, 3), persistent=False)
        else:
            self.weight = nn.Parameter(torch.full((24,), 0.3))


@pytest.mark.parametrize(("buffer", "name"), [(True, "extra.grid"), (False, "extra.weight")])
def test_unknown_init_is_refused(buffer, name):
    nm.register_layer(_Odd, {"weight": nm.Param("vector", ("out",))})
    with torch.device("meta"):
        model = CASE.build()
        model.lifting.extra = _Odd(buffer)
    with pytest.raises(nm.MupError, match=rf"default initialisation of {name} \(_Odd\) is not known"):
        check_drawable(model.lifting)

    class Linear(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            nn.init.eye_(self.weight)

    with pytest.raises(nm.MupError, match="weight"):
        check_drawable(Linear())


def test_loading_instead_of_drawing():
    trained = nm.parametrize(CASE.build(), base=CASE.base)
    model = pending(CASE).to_empty(device="cpu")
    model.load_state_dict(trained.state_dict())
    assert rates(model) == rates(trained) and nm.summary(model) == nm.summary(trained)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), trained.parameters(), strict=True))
    with pytest.raises(nm.MupError, match="drawn already"):
        nm.initialize(model)


def test_loading_tensors_alone(tmp_path):
    """A format without metadata, and the plan from a file: before or after the weights."""
    trained = nm.parametrize(CASE.build(), base=CASE.base)
    nm.save_plan(trained, tmp_path / "plan.json")
    tensors = {name: p.detach() for name, p in trained.named_parameters()}
    for plan_first in (True, False):
        model = pending(CASE)
        if plan_first:
            nm.load_plan(model, tmp_path / "plan.json")
        model.to_empty(device="cpu")
        with pytest.raises(nm.MupError, match="still to be drawn"):
            nm.MuAdam(model, lr=0.01)
        model.load_state_dict(tensors)
        if not plan_first:
            nm.load_plan(model, tmp_path / "plan.json")
        assert nm.summary(model) == nm.summary(trained)
        assert rates(model) == rates(trained)


def test_a_checkpoint_needs_memory_to_go_to(tmp_path):
    nm.parametrize(CASE.build(), base=CASE.base).save_checkpoint(tmp_path, "model")
    with pytest.raises(nm.MupError, match="on the meta device, which holds no weights"):
        nm.load_checkpoint(tmp_path, pending(CASE))
