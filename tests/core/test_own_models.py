"""Models of the user: what grows in them is measured. Where it cannot be measured, an error reports the line to write."""

import functools
import pickle

import mup
import pytest
import torch
from mup import MuReadout, MuSharedReadout
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.models import FNO
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import neuralop_mup as nm
from support.cases import BY_NAME
from support.comparing import assert_same
from support.errors import refused
from support.models import Wrapper

READOUT = "projection.fcs.1.weight"


class Gated(FNO):
    """An FNO with another layer and another parameter, built from positional arguments."""

    def __init__(self, *args, gain=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.gate = nn.Linear(self.hidden_channels, self.hidden_channels)
        self.gain = nn.Parameter(torch.full((self.hidden_channels,), gain))


class Own(nn.Module):
    """neuralop's convolution in a model that keeps its arguments."""

    def __init__(self, hidden_channels, n_modes):
        super().__init__()
        self.hidden_channels, self.n_modes = hidden_channels, n_modes
        self.lift = nn.Conv1d(2, hidden_channels, 1)
        self.conv = SpectralConv(hidden_channels, hidden_channels, n_modes)
        self.mix = nn.Conv1d(hidden_channels, hidden_channels, 1)
        self.drop = nn.Conv1d(hidden_channels, 3, 1)

    def forward(self, x):
        x = self.lift(x)
        return self.drop(torch.relu(self.conv(x) + self.mix(x)))


class Forgetful(Own):
    """The same model. It does not keep its width under a known name."""

    def __init__(self, size):
        super().__init__(size, (8,))


class Beside(nn.Module):
    """A convolution and a layer of constant width before an FNO. Only the FNO keeps its arguments."""

    def __init__(self, net, **kwargs):
        super().__init__()
        self.net, self.conv, self.mix = net, SpectralConv(2, 2, (8,), **kwargs), nn.Linear(2, 2)

    def forward(self, x):
        return self.net(self.conv(self.mix(x.mT).mT))


def _fno(width=64, modes=(8,), in_channels=2, **kwargs):
    torch.manual_seed(0)
    return FNO(modes, in_channels, 3, width, n_layers=2, **kwargs)


# --------------------------------------------------------------------------------------- two lines, and nothing else


TWO_LINES = {
    "subclass": (
        lambda: Gated((8,), 2, 3, 64, n_layers=2),
        {"gate.weight": "hidden", "gain": "vector", READOUT: "readout"},
    ),
    "own": (lambda: Own(64, (8,)), {"lift.weight": "input", "mix.weight": "hidden", "drop.weight": "readout"}),
    "encoder": (lambda: Beside(_fno()), {f"net.{READOUT}": "readout"}),
}


@pytest.mark.parametrize(("build", "roles"), TWO_LINES.values(), ids=TWO_LINES)
def test_two_lines(build, roles):
    model = nm.parametrize(build())
    optimizer = nm.MuSOAP(model, steps=10)
    plan = nm.summary(model)
    assert {name: plan[name].role for name in roles} == roles
    model(torch.randn(2, 2, 16)).square().mean().backward()
    optimizer.step()
    nm.check_optimizer(model, optimizer)


def test_an_optimizer_for_a_wrapper_around_a_parametrized_model():
    model = Wrapper(nm.parametrize(_fno(8), base={}))
    for build in (nm.MuAdam, nm.MuSOAP):
        with refused("'inner.net' model.inner.net"):
            build(model, lr=0.02)


# ------------------------------------------------------------------------------------------------ bases that differ


def test_a_base_with_other_objects_for_the_same_choice():
    """A lambda and a partial are not the same objects in the base. Another activation is another choice."""
    for build in (
        lambda width: _fno(width, non_linearity=lambda x: torch.relu(x)),
        lambda width: _fno(width, non_linearity=functools.partial(nn.functional.leaky_relu, negative_slope=0.1)),
    ):
        nm.parametrize(build(8), base=functools.partial(build, 4))
    with refused("non_linearity"):
        nm.parametrize(_fno(8, non_linearity=torch.relu), base=lambda: _fno(4, non_linearity=lambda x: x))


@pytest.mark.parametrize(
    ("build", "base", "names"),
    [
        (
            lambda: Wrapper(_fno(8, norm="instance_norm")),
            lambda: Wrapper(_fno(4, norm="group_norm")),
            "norm='group_norm' 'instance_norm' 'inner.net'",
        ),
        (lambda: Forgetful(8), {"width": 4}, "Forgetful {'width':4}"),
        (lambda: Forgetful(8), None, "base=lambda:Forgetful(…),init_mult"),
        (lambda: Forgetful(8), lambda: Forgetful(8), "Forgetful base"),
        (BY_NAME["2d"].build, {"n_modes": ()}, "n_modes=() (8,6)"),
    ],
)
def test_models_and_bases_that_do_not_fit(build, base, names):
    with refused(names):
        nm.parametrize(build(), base=base)


def test_a_base_that_is_wider_than_the_model():
    with pytest.warns(UserWarning, match="16 channels in the base but 4 in the model"):
        nm.parametrize(_fno(4), base={"hidden_channels": 16})


# ------------------------------------------------------------------------------------------------ raw parameters


class Mixer(nn.Module):
    """A parameter with its own initialization, and ones. It has no reset_parameters."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.up, self.down = nn.Linear(2, width), nn.Linear(width, 1)
        self.weight = nn.Parameter(torch.randn(width, width).mul_(0.7 * width**-0.5))
        self.gain = nn.Parameter(torch.ones(width))


def test_a_raw_parameter_that_grows_in_two_dimensions_has_to_be_described():
    Plain = type("Plain", (Mixer,), {})
    with refused("'weight' (64,64) nm.register_layer(Plain,{'weight'"):
        nm.parametrize(Plain(64), base=Plain(32))
    with refused("'weight' '0' Bilinear"):
        nm.parametrize(nn.Sequential(nn.Bilinear(8, 8, 16)), base=nn.Sequential(nn.Bilinear(8, 4, 8)))


def test_a_description_has_the_size_and_the_initialization_of_a_parameter():
    """Its std, 0.7/√width, is corrected by the rule, and used to initialize a model from the meta device."""

    Described = type("Described", (Mixer,), {})  # Mixer itself stays undescribed for other tests

    def on_meta(init=lambda shape: 0.7 * shape[1] ** -0.5, **draw):
        gain = nm.Param("vector", ("out",), draw=lambda tensor, std: tensor.fill_(1))
        nm.register_layer(Described, {"weight": nm.Param("hidden", ("out", "in"), init, **draw), "gain": gain})
        with torch.device("meta"):
            return nm.parametrize(Described(64), base=Described(16)).to_empty(device="cpu")

    without_draw = on_meta()
    with refused("weight Described Param draw"):
        nm.initialize(without_draw)
    on_meta(lambda shape: 0.02, draw=lambda tensor, std: tensor.normal_())
    with refused("'weight' Described Param init"):
        nm.parametrize(Described(64), base=Described(32))
    model = on_meta(draw=lambda tensor, std: tensor.normal_().mul_(std))
    torch.manual_seed(0)
    nm.initialize(model)
    torch.manual_seed(0)
    usual = nm.parametrize(Described(64), base=Described(16))
    row = nm.summary(usual)["weight"]
    assert row.default_std == pytest.approx(0.7 / 8) and row.init_mult == pytest.approx(1)
    assert_same(model, usual)


# ------------------------------------------------------------------------------------------------ what does not grow


MULTS = {"input": 2.0, "hidden": 3.0, "readout": 5.0, "vector": 7.0, "spectral": 11.0}
KERNELS = [{}, {"separable": True}, {"factorization": "TT", "rank": 0.5, "implementation": "factorized"}]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("base", [None, {"hidden_channels": 16}], ids=["reference", "a base"])
def test_layers_of_constant_width_stay_as_they_are(tmp_path, base, kernel):
    """They keep their initialization, also trained weights, and the base learning rate. The FNO is as it is without them."""
    model = Beside(_fno(), **kernel)
    nn.init.constant_(model.mix.requires_grad_(False).weight, 0.5)
    before = {name: p.clone() for name, p in model.named_parameters()}
    plan = nm.summary(nm.parametrize(model, base=base, init_mult=MULTS))
    inner = nm.summary(nm.parametrize(_fno(), base=base, init_mult=MULTS))
    fixed = {row.name for row in plan if row.fixed}
    assert fixed == {name for name in before if not name.startswith("net.")}
    for row in plan:
        own = row if row.fixed else inner[row.name.removeprefix("net.")]
        assert (row.init_mult, row.lr_mult, row.role) == (own.init_mult, own.lr_mult, own.role)
        if row.fixed:
            assert torch.equal(model.get_parameter(row.name), before[row.name])
            assert (row.init_mult, row.lr_mult, row.sgd_lr_mult, row.frozen) == (1, 1, 1, "mix" in row.name)
    names = {p: name for name, p in model.named_parameters()}
    for optimizer in (nm.MuAdamW(model, lr=0.01, lr_mult=MULTS), nm.MuSOAP(model, lr=0.02, adamw_lr=0.01, lr_mult=MULTS)):
        assert {g["lr"] for g in optimizer.param_groups for p in g["params"] if names[p] in fixed} == {0.01}
        nm.LearnedRates(optimizer).close()
        assert {names[p] for g in optimizer.param_groups if "learned" in g for p in g["params"]} == before.keys() - fixed
    nm.save_base_shapes(model, tmp_path / "base.bsh")
    again = nm.parametrize(Beside(_fno(), **kernel), base=tmp_path / "base.bsh", init_mult=plan.init_mult)
    assert not plan.differences(nm.summary(again))
    assert not plan.differences(nm.summary(nm.load_plan(Beside(_fno(), **kernel), plan)))


def test_multipliers_apply_to_an_fno_at_its_base(tmp_path):
    """No size differs from the base there, and yet everything grows."""
    nm.save_base_shapes(_fno(8), tmp_path / "base.bsh")
    for base in ({}, {"hidden_channels": 8}, _fno(8), tmp_path / "base.bsh"):
        model = nm.parametrize(_fno(8), base=base)
        lrs = {p: group["lr"] for group in nm.param_groups(model, 1.0, lr_mult=MULTS) for p in group["params"]}
        for row in nm.summary(model):
            assert not row.fixed and lrs[model.get_parameter(row.name)] == MULTS[row.role]


# ------------------------------------------------------------------------------------------------ layers of torch


# Width 64 over 16 at base, r = 4: hidden matrices have 1/r of the rate. Torch draws every weight of a recurrent layer
# from U(±1/√hidden). So weights that read the data, and biases, start at half of their size at base, and are doubled.
HIDDEN, DOUBLED, LEFT = ("hidden", 1, 0.25), (2, 1), (1, 1)
OF_TORCH = {
    # U(±√(6/(rows + columns))) of 64 + 2 and of 16 + 2 numbers: √(66/18).
    "attention": (
        lambda w: nn.MultiheadAttention(w, 2, vdim=2),
        {
            "q_proj_weight": HIDDEN,
            "v_proj_weight": ("input", (66 / 18) ** 0.5, 1),
            "out_proj.weight": HIDDEN,
            "in_proj_bias": ("vector", *LEFT),
        },
    ),
    "LSTM": (
        lambda w: nn.LSTM(2, w, 2, proj_size=w // 2),
        {
            "weight_ih_l0": ("input", *DOUBLED),
            "weight_ih_l1": HIDDEN,
            "weight_hh_l0": HIDDEN,
            "weight_hr_l0": HIDDEN,
            "bias_hh_l1": ("vector", *DOUBLED),
        },
    ),
    "transposed convolution": (
        lambda w: nn.ConvTranspose2d(w, 2 * w, 2, groups=2),
        {"weight": HIDDEN, "bias": ("vector", *DOUBLED)},
    ),
    "transposed convolution to data": (
        lambda w: nn.ConvTranspose1d(w, 3, 2),  # drawn with one std at all widths, where a readout starts at 1/r
        {"weight": ("readout", 0.25, 0.25), "bias": ("fixed", 1, 1)},
    ),
}


class WithLayer(nn.Module):
    def __init__(self, width, layer):
        super().__init__()
        self.width, self.layer = width, layer
        self.extra, self.inner = layer(width), _fno(width)


@pytest.mark.parametrize(("layer", "expected"), OF_TORCH.values(), ids=OF_TORCH)
def test_layers_of_torch(layer, expected):
    """Roles, initialization and learning rates of layers that no model of neuralop has."""
    torch.manual_seed(0)
    model = nm.parametrize(WithLayer(64, layer), base={"width": 16})
    plan = nm.summary(model)
    for name, (role, init_mult, lr_mult) in expected.items():
        row = plan[f"extra.{name}"]
        assert (row.tuned_as, row.lr_mult, row.init_mult) == (role, lr_mult, pytest.approx(init_mult)), name
    with torch.device("meta"):
        empty = nm.parametrize(WithLayer(64, layer), base={"width": 16})
    drawn = nm.initialize(empty.to_empty(device="cpu"))
    for p, q in zip(drawn.extra.parameters(), model.extra.parameters(), strict=True):
        assert p.numel() < 64 or float(p.detach().std()) == pytest.approx(float(q.detach().std()), rel=0.25)
    at_base = WithLayer(16, layer)
    before = [p.clone() for p in at_base.parameters()]
    nm.parametrize(at_base, base={"width": 16})
    assert all(map(torch.equal, at_base.parameters(), before))


def test_layers_under_weight_norm():
    """Where they grow they have to be described: a readout was once scaled as a vector."""
    with refused("'extra.parametrizations.weight.original1'"):
        nm.parametrize(WithLayer(64, lambda w: weight_norm(nn.Linear(w, 1))))
    assert nm.summary(nm.parametrize(WithLayer(64, lambda w: weight_norm(nn.Linear(3, 3)))))["extra.bias"].fixed


# ------------------------------------------------------------------------------------------------ constructors


class ByItself(FNO):
    """Its constructor ends with parametrize. It also reads numbers, which tensors on the meta device do not have."""

    def __init__(self, n_modes, hidden_channels, **kwargs):
        super().__init__(n_modes, 2, 3, hidden_channels, n_layers=2, **kwargs)
        self.drops = [rate.item() for rate in torch.linspace(0, 0.1, 3)]
        nm.parametrize(self)


def test_a_constructor_may_call_parametrize():
    torch.manual_seed(0)
    own, plain = ByItself((8,), 64), nm.parametrize(_fno())
    assert_same(own, plain)
    assert [(r.base_shape, r.lr_mult) for r in nm.summary(own)] == [(r.base_shape, r.lr_mult) for r in nm.summary(plain)]
    assert nm.is_parametrized(ByItself((8,), 32))  # models that were built for comparison left no trace


class Defaults(nn.Module):
    """An FNO inside a model with default arguments, which reads numbers."""

    def __init__(self, width=32, n_modes=(8,)):
        super().__init__()
        self.width, self.n_modes = width, n_modes
        self.drops = [rate.item() for rate in torch.linspace(0, 0.1, 3)]
        self.inner = _fno(width, n_modes)


class Forgets(Defaults):
    """It does not keep its arguments."""

    def __init__(self, width=32, n_modes=(8,)):
        super().__init__(width, n_modes)
        del self.width, self.n_modes


class Multiplied(Defaults):
    """Its width is a factor."""

    def __init__(self, width=2):
        super().__init__(int(32 * width))
        self.width = width


class Image(Defaults):
    """Its width is that of square images. The width of its kernels has another name."""

    def __init__(self, width=128, height=128, hidden_channels=64, n_modes=(8,)):
        assert width == height
        super().__init__(hidden_channels, n_modes)
        self.width, self.height, self.hidden_channels = width, height, hidden_channels
        self.readout = nn.Linear(width, width)


@pytest.mark.parametrize("build", [lambda: Forgets(64), Multiplied, lambda: Multiplied(2.0), Image])
def test_a_width_is_one_with_which_kernels_grow(build):
    plan, plain = nm.summary(nm.parametrize(build())), nm.summary(nm.parametrize(_fno()))
    for row in plain:
        own = plan[f"inner.{row.name}"]
        assert (own.base_shape, own.lr_mult, own.init_mult) == (row.base_shape, row.lr_mult, row.init_mult)
    assert all(row.lr_mult == 1 for row in plan if row.name.startswith("readout"))


class WithMuReadout(nn.Module):
    def __init__(self, width=64, readout=MuReadout):
        super().__init__()
        self.width, self.readout = width, readout
        self.lift, self.conv, self.read = nn.Conv1d(1, width, 1), SpectralConv(width, width, (8,)), readout(width, 1)

    def forward(self, x):
        return self.read(torch.tanh(self.conv(self.lift(x))).movedim(1, -1)).movedim(-1, 1)


def test_readouts_of_mup_are_not_scaled_twice():
    """r = 64 / 16 = 4. The effective weight w/4 starts × 4^-1/2, so w × 2, and learns × 1/4, so w × 1. SGD: r² · 1/r = 4.

    Under MuAdam, mup's MuAdam and MuSGD, and with nn.Linear, the output changes by the same.
    """
    plan = nm.summary(nm.parametrize(WithMuReadout(), base={"width": 16}))
    row = plan["read.weight"]
    assert (row.role, row.init_mult, row.lr_mult, row.sgd_lr_mult, row.divisor) == ("readout", 2, 1, 4, 4)
    assert plan["read.bias"].init_mult == pytest.approx(2)  # drawn with std ∝ 1/√width
    results, builds = {}, (nm.MuAdam, lambda m, lr: mup.MuAdam(m.parameters(), lr=lr), nm.MuSGD)
    for readout in (MuReadout, nn.Linear):
        for build in builds:
            torch.manual_seed(0)
            model = nm.parametrize(WithMuReadout(readout=readout), base={"width": 16}, rule="none")
            x = torch.randn(4, 1, 16)
            before = model(x)
            optimizer = build(model, lr=1e-2)
            before.square().mean().backward()
            optimizer.step()
            results.setdefault(build, []).extend([before.detach(), model(x).detach()])
    for before, after, other_before, other_after in results.values():
        torch.testing.assert_close(before, other_before)
        torch.testing.assert_close(after, other_after)
    standard = nm.parametrize(WithMuReadout(), base={"width": 16}, rule="standard")
    assert standard.read.width_mult() == 1


class WithSharedReadout(WithMuReadout):
    def __init__(self, width=64):
        super().__init__(width, nn.Linear)
        self.embed = nn.Embedding(10, width)
        self.classify = MuSharedReadout(self.embed.weight)


def test_a_shared_readout_of_mup_is_its_embedding():
    model = nm.parametrize(WithSharedReadout(), base={"width": 16})
    assert "classify.weight" not in nm.summary(model) and model.classify.width_mult() == 4
    copied = pickle.loads(pickle.dumps(model))
    assert copied.classify.width_mult() == 4


class OnGrid(nn.Module):
    """It keeps a tensor that it was constructed with."""

    def __init__(self, width, grid):
        super().__init__()
        self.width, self.fno = width, FNO((8,), 1, 1, width)
        self.register_buffer("grid", grid)


def test_a_base_function_may_make_its_tensors():
    """It runs on the meta device, where a tensor has no values to compare."""
    model = nm.parametrize(OnGrid(32, torch.ones(8)), base=lambda: OnGrid(16, torch.ones(8)))
    assert nm.summary(model)["fno.projection.fcs.1.weight"].lr_mult == 0.5
    with refused("grid"):
        nm.parametrize(OnGrid(32, torch.ones(8)), base=lambda: OnGrid(16, torch.ones(4)))
