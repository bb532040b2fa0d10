"""Models of the user's own: what grows in them is measured, and what cannot be measured is told with the line to write."""

import functools
import json
import warnings

import numpy as np
import pytest
import torch
from neuralop.layers.channel_mlp import ChannelMLP
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.models import FNO, UQNO
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import is_parametrized

import neuralop_mup as nm
from support.cases import BY_NAME
from support.comparing import assert_same
from support.models import Wrapper


class Encoder(Wrapper):
    """Layers of sizes of their own before an FNO, one of them trained elsewhere and frozen."""

    def __init__(self, inner):
        super().__init__(inner)
        self.embedding = nn.Embedding(5, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 2)
        nn.init.constant_(self.head.weight, 0.5)
        self.head.requires_grad_(False)

    def forward(self, x):
        tokens = self.lstm(self.embedding(torch.arange(x.shape[-1], device=x.device) % 5).unsqueeze(0))[0]
        tokens = self.head(self.attention(tokens, tokens, tokens)[0])
        return super().forward(x + tokens.mT)


class Gated(FNO):
    """neuralop's own with a layer and a parameter more, built from positional arguments."""

    def __init__(self, *args, gain=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.gate = nn.Linear(self.hidden_channels, self.hidden_channels)
        self.gain = nn.Parameter(torch.full((self.hidden_channels,), gain))


class Own(nn.Module):
    """A model of one's own with neuralop's convolution, which keeps its arguments."""

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
    """The same, which does not say how wide it is."""

    def __init__(self, size):
        super().__init__(size, (8,))


def _fno(width=64, modes=(8,), in_channels=2, **kwargs):
    torch.manual_seed(0)
    return FNO(modes, in_channels, 3, width, n_layers=2, **kwargs)


# --------------------------------------------------------------------------------------- two lines, and nothing else


READOUT = "projection.fcs.1.weight"
TWO_LINES = {
    "subclass": (
        lambda: Gated((8,), 2, 3, 64, n_layers=2),
        {"gate.weight": "hidden", "gain": "vector", READOUT: "readout"},
        (16,),
    ),
    "own": (lambda: Own(64, (8,)), {"lift.weight": "input", "mix.weight": "hidden", "drop.weight": "readout"}, (16,)),
    "encoder": (lambda: Encoder(_fno()), {f"inner.net.{READOUT}": "readout"}, (16,)),
    "wrapper": (lambda: Wrapper(Wrapper(_fno())), {"inner.net.inner.net.lifting.fcs.1.weight": "hidden"}, (16,)),
    "uqno": (lambda: UQNO(_fno()), {f"residual_model.{READOUT}": "readout"}, (16,)),
    "uno": (
        BY_NAME["uno_norm"].build,
        {"lifting.fcs.0.weight": "input", "lifting.fcs.1.weight": "input", "projection.fcs.0.weight": "readout"},
        (16, 16),
    ),
    "codano": (BY_NAME["codano"].build, {"lifting.fcs.1.weight": "input", "projection.fcs.0.weight": "readout"}, (8, 8)),
}


@pytest.mark.parametrize(("build", "roles", "grid"), TWO_LINES.values(), ids=TWO_LINES)
def test_two_lines(build, roles, grid):
    model = nm.parametrize(build())
    optimizer = nm.MuSOAP(model, steps=10)
    plan = nm.summary(model)
    assert {name: plan[name].role for name in roles} == roles
    assert all(words in str(plan) for words in ("the reference size", "of twice the width", "of twice the modes"))
    output = model(torch.randn(2, 2, *grid))
    loss = sum(part.square().mean() for part in (output if isinstance(output, tuple) else (output,)))
    loss.backward()
    optimizer.step()
    nm.check_optimizer(model, optimizer)


def test_what_does_not_grow_is_left_alone():
    """An encoder keeps its own initialization (also a trained, frozen one's) and the base rate; all else is the FNO's."""
    model = Encoder(_fno(128))
    before = {name: p.clone() for name, p in model.named_parameters()}
    plan, alone = nm.summary(nm.parametrize(model)), nm.summary(nm.parametrize(_fno(128)))
    for row in plan:
        own = alone[row.name.removeprefix("inner.net.")] if row.name.startswith("inner.net.") else row
        assert (row.init_mult, row.lr_mult, row.role) == (own.init_mult, own.lr_mult, own.role)
        if own is row:
            assert (row.init_mult, row.lr_mult) == (1, 1) and "nothing of it grows" in row.why
            assert torch.equal(before[row.name], model.get_parameter(row.name))
    assert plan["head.weight"].frozen


def test_writing_the_reference_size_down_gives_what_is_taken_without_a_base():
    taken = nm.summary(nm.parametrize(_fno()))
    assert taken.init_mult == {"kernel": 0.1}
    for base in ({"hidden_channels": 32, "n_modes": [16]}, lambda: _fno(32, (16,)), _fno(32, (16,))):
        assert not taken.differences(nm.summary(nm.parametrize(_fno(), base=base)))
    for how in ({"base": {"hidden_channels": 16}}, {"rule": "standard"}, {"init_mult": {"kernel": 1.0}}):
        assert nm.summary(nm.parametrize(_fno(), **how)).init_mult == {}


def test_a_wrapped_model_trains_checks_and_is_drawn_as_any_other(tmp_path):
    def wrapped(width=16):
        return nm.parametrize(Wrapper(_fno(width)), base=lambda: Wrapper(_fno(8)))

    model = wrapped()
    nm.save_base_shapes(model, tmp_path / "base.bsh")
    nm.parametrize(Wrapper(_fno(32)), base=tmp_path / "base.bsh")
    wrapped().load_state_dict(model.state_dict())
    with torch.device("meta"):
        empty = wrapped()
    empty.to_empty(device="cpu")
    torch.manual_seed(0)
    assert_same(nm.initialize(empty), wrapped())
    assert not nm.summary(model).differences(nm.summary(nm.parametrize(Wrapper(_fno(16)), base={"hidden_channels": 8})))
    batch = {"x": torch.randn(2, 2, 16), "y": torch.randn(2, 3, 16)}
    bare, inside = (
        nm.coord_check(build, [8, 16], [batch], lr=1e-3).slopes
        for build in (lambda width: nm.parametrize(_fno(width), base=lambda: _fno(8)), wrapped)
    )
    assert bare == [{**s, "block": s["block"].removeprefix("inner.net.")} for s in inside]


def test_an_optimizer_of_a_wrapper_whose_part_is_parametrized():
    model = Wrapper(nm.parametrize(_fno(), base={"hidden_channels": 8}))
    for build in (nm.MuAdam, nm.MuSOAP):
        with pytest.raises(nm.MupError, match="its part 'inner.net' is: pass model.inner.net"):
            build(model, lr=0.02)


# ------------------------------------------------------------------------------------------------ bases that differ


def test_a_subclass_is_the_parents_but_for_what_is_new():
    plan = nm.summary(nm.parametrize(Gated((8,), 2, 3, 64, n_layers=2), base={"hidden_channels": 32}))
    of_parent = nm.summary(nm.parametrize(_fno(), base=_fno(32)))
    assert [plan[row.name] for row in of_parent] == list(of_parent)
    assert (plan["gate.weight"].lr_mult, plan["gain"].lr_mult) == (0.5, 1)


def test_a_second_width_is_measured_against_the_base():
    class Wide(FNO):
        def __init__(self, hidden_channels, lifted):
            super().__init__((8,), 2, 3, hidden_channels, n_layers=2)
            self.lifting = ChannelMLP(2 + 1, hidden_channels, hidden_channels=lifted)

    roles = {lifted: nm.summary(nm.parametrize(Wide(16, 12), base=Wide(8, lifted))) for lifted in (12, 6)}
    assert [roles[12][f"lifting.fcs.{i}.weight"].role for i in (0, 1)] == ["input", "input"]
    assert [roles[6][f"lifting.fcs.{i}.weight"].role for i in (0, 1)] == ["input", "hidden"]


def test_activations_and_arrays_may_be_written_anew():
    """A lambda, a partial and a tensor are other objects at base, and the same choice."""

    class Scaled(FNO):
        def __init__(self, *args, mean, **kwargs):
            super().__init__(*args, **kwargs)
            self.register_buffer("mean", torch.as_tensor(mean))

    for build in (
        lambda width: _fno(width, non_linearity=lambda x: torch.relu(x)),
        lambda width: _fno(width, non_linearity=functools.partial(nn.functional.leaky_relu, negative_slope=0.1)),
        *(lambda width, mean=mean: Scaled((8,), 1, 1, width, mean=mean * 1) for mean in (torch.ones(2), np.ones(2))),
    ):
        nm.parametrize(build(32), base=functools.partial(build, 16))
    with pytest.raises(nm.MupError, match="base has non_linearity"):
        nm.parametrize(_fno(32, non_linearity=torch.relu), base=lambda: _fno(16, non_linearity=lambda x: x))


def test_a_base_function_that_seeds_leaves_the_callers_random_numbers():
    def seeded():
        torch.manual_seed(7)
        return _fno(8)

    torch.manual_seed(3)
    model = FNO((8,), 2, 3, 16, n_layers=2)
    state = torch.get_rng_state()
    nm.parametrize(model, base=seeded)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("build", "base", "match"),
    [
        (_fno, {"in_channels": 1}, "in_channels = 1 and the model 2.*for the same data"),
        (lambda: Wrapper(_fno(norm="instance_norm")), lambda: Wrapper(_fno(8, norm="group_norm")),
         "norm = 'group_norm' and the model 'instance_norm' in 'inner.net'"),
        (lambda: Wrapper(_fno()), {"width": 8}, "base has the key 'width', which FNO does not take"),
        (lambda: Forgetful(64), {"width": 8}, r"cannot be built from overrides \{'width': 8\}"),
        (lambda: Forgetful(64), None, r"Forgetful does not .*nm.parametrize\(model, base=lambda: Forgetful\(…\), init_mult"),
        (lambda: Forgetful(64), lambda: Forgetful(64), "same width, and Forgetful keeps no.*give a base of another width"),
        *((BY_NAME["2d"].build, {"n_modes": modes}, r"n_modes = .*the model has .\d, \d.: give as many numbers, one")
          for modes in ((4,), 4, (4, 4, 4), ())),
        (_fno, {"hidden_channel": 8}, "'hidden_channel', which FNO does not take: did you mean 'hidden_channels'"),
    ],
)  # fmt: skip
def test_models_and_bases_that_do_not_fit(build, base, match):
    with pytest.raises(nm.MupError, match=match):
        nm.parametrize(build(), base=base)


def test_a_base_that_is_wider_than_the_model():
    with pytest.warns(UserWarning, match="The base is wider than the model: .* 16 channels at base and 4 here"):
        nm.parametrize(_fno(4), base={"hidden_channels": 16})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nm.parametrize(_fno(4), base={"hidden_channels": 16}, rule="standard")
        nm.parametrize(_fno(16), base={"hidden_channels": 16, "n_modes": (16,)})


# ------------------------------------------------------------------------------------------------ raw parameters


class Mixer(nn.Module):
    """Drawn in its constructor at a size of its own, with ones beside; it has no reset_parameters."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.up, self.down = nn.Linear(2, width), nn.Linear(width, 1)
        self.weight = nn.Parameter(torch.randn(width, width).mul_(0.7 * width**-0.5))
        self.gain = nn.Parameter(torch.ones(width))


def test_a_raw_parameter_that_grows_in_two_dimensions_has_to_be_described():
    says = (
        r"Two dimensions of parameter 'weight' .*\(Plain\), of shape \(64, 64\), grow.*nm.register_layer\(Plain, \{'weight'"
    )
    Plain = type("Plain", (Mixer,), {})
    with pytest.raises(nm.MupError, match=says):
        nm.parametrize(Plain(64), base=Plain(32))
    with pytest.raises(nm.MupError, match="'weight' of module '0' .Bilinear"):
        nm.parametrize(nn.Sequential(nn.Bilinear(8, 8, 16)), base=nn.Sequential(nn.Bilinear(8, 4, 8)))


def test_one_description_says_how_large_a_parameter_is_and_how_it_is_drawn():
    """The size that the rule corrects, 0.7/√width, by which the draw on a model from the meta device goes, too."""

    def registered(init=lambda shape: 0.7 * shape[1] ** -0.5, **draw):
        gain = nm.Param("vector", ("out",), draw=lambda tensor, std: tensor.fill_(1))
        nm.register_layer(Mixer, {"weight": nm.Param("hidden", ("out", "in"), init, **draw), "gain": gain})
        with torch.device("meta"):
            return nm.parametrize(Mixer(64), base=Mixer(16))

    with pytest.raises(nm.MupError, match=r"initialisation of weight \(Mixer\) is not known.*a Param whose draw says how"):
        nm.initialize(registered().to_empty(device="cpu"))
    registered(lambda shape: 0.02, draw=lambda tensor, std: tensor.normal_())
    with pytest.raises(nm.MupError, match="'weight' has a root mean square.*registration of Mixer is wrong: Param's init"):
        nm.parametrize(Mixer(64), base=Mixer(32))
    model = registered(draw=lambda tensor, std: tensor.normal_().mul_(std)).to_empty(device="cpu")
    torch.manual_seed(0)
    nm.initialize(model)
    torch.manual_seed(0)
    usual = nm.parametrize(Mixer(64), base=Mixer(16))
    row = nm.summary(usual)["weight"]
    assert row.default_std == pytest.approx(0.7 / 8) and row.init_mult == pytest.approx(1)
    assert_same(model, usual)
    assert torch.equal(model.gain, torch.ones(64))


def test_a_plan_is_a_collection_of_rows():
    plan = nm.summary(nm.parametrize(_fno()))
    assert list(plan) == list(plan.rows) and len(plan) == len(plan.rows)
    assert "lifting.fcs.0.weight" in plan and "lifting" not in plan


# ------------------------------------------------------------------------------------------------ what does not grow


class Beside(nn.Module):
    """A convolution and a layer of channels of their own beside an FNO, which alone keeps its arguments."""

    def __init__(self, net, separable=False, **kwargs):
        super().__init__()
        self.net, self.conv, self.mix = net, SpectralConv(2, 2, (8,), separable=separable, **kwargs), nn.Linear(2, 2)

    def forward(self, x):
        return self.net(self.conv(self.mix(x.mT).mT))


MULTS = {"input": 2.0, "hidden": 3.0, "readout": 5.0, "vector": 7.0, "spectral": 11.0}
# As they are built, which is at base, too.
KERNELS = [
    {},
    {"separable": True},
    *({"factorization": f, "rank": 0.5, "implementation": "factorized"} for f in ("CP", "TT")),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("base", [None, lambda: Beside(_fno(32))], ids=["reference", "a base"])
def test_what_does_not_grow_beside_an_fno_takes_no_multipliers(tmp_path, base, kernel):
    def build(init_mult=MULTS):
        given = None if base is None else lambda: Beside(_fno(32), **kernel)
        return nm.parametrize(model, base=given, init_mult=init_mult)

    model = Beside(_fno(), **kernel)
    before = {name: p.clone() for name, p in model.named_parameters()}
    plan = nm.summary(build())
    fixed = {row.name for row in plan if row.fixed}
    assert fixed == {name for name in before if not name.startswith("net.")}
    assert {name for name, p in model.named_parameters() if torch.equal(p, before[name])} & fixed == fixed
    assert all((plan[name].init_mult, plan[name].lr_mult, plan[name].sgd_lr_mult) == (1, 1, 1) for name in fixed)
    assert {line.split()[1] for line in str(plan).splitlines() if line.split()[0] in fixed} == {"fixed"}

    names = {p: name for name, p in model.named_parameters()}
    for optimizer in (nm.MuAdamW(model, lr=0.01, lr_mult=MULTS), nm.MuSOAP(model, lr=0.02, aux_lr=0.01, lr_mult=MULTS)):
        assert {g["lr"] for g in optimizer.param_groups for p in g["params"] if names[p] in fixed} == {0.01}
        rates = nm.LearnedRates(optimizer)
        assert rates.lr_mult == pytest.approx(MULTS)
        learned = {names[p] for g in optimizer.param_groups if "learned" in g for p in g["params"]}
        assert learned == before.keys() - fixed
        rates.close()
        model(torch.randn(2, 2, 16)).square().mean().backward()
        optimizer.step()
        nm.check_optimizer(model, optimizer)

    nm.save_base_shapes(model, tmp_path / "base.bsh")
    nm.save_plan(model, tmp_path / "plan.json")
    assert nm.summary(nm.parametrize(Beside(_fno(), **kernel), base=tmp_path / "base.bsh", init_mult=plan.init_mult)) == plan
    assert nm.summary(nm.load_plan(Beside(_fno(), **kernel), tmp_path / "plan.json")) == plan


def test_multipliers_apply_to_an_fno_at_its_base(tmp_path):
    """Nothing differs there from the base, and yet everything grows."""
    nm.save_base_shapes(_fno(), tmp_path / "base.bsh")
    for base in ({}, {"hidden_channels": 64}, _fno, _fno(), tmp_path / "base.bsh"):
        model = nm.parametrize(_fno(), base=base)
        plan = nm.summary(model)
        assert not any(row.fixed for row in plan)
        lrs = {p: group["lr"] for group in nm.param_groups(model, 1.0, lr_mult=MULTS) for p in group["params"]}
        assert {row.name: lrs[model.get_parameter(row.name)] for row in plan} == {row.name: MULTS[row.role] for row in plan}


def test_a_plan_saved_before_kernels_could_be_fixed_stays_what_it_was():
    plan = nm.summary(nm.parametrize(Beside(_fno())))
    stored = json.loads(plan.to_json())
    for row in stored["rows"]:
        del row["fixed"]
    for row in stored["rows"]:
        if row["name"] == "conv.weight.tensor":
            row.update(init_mult=0.1, why="spectral")
    loaded = nm.summary(nm.load_plan(Beside(_fno()), nm.Plan.from_json(json.dumps(stored))))
    assert loaded["conv.weight.tensor"].init_mult == 0.1 and not loaded["conv.weight.tensor"].fixed
    assert loaded["mix.weight"].fixed and plan["conv.weight.tensor"].init_mult == 1


def test_a_model_that_keeps_no_arguments_is_told_what_to_write():
    model = nn.Sequential(SpectralConv(32, 32, (8,)))
    with pytest.raises(nm.MupError, match="Sequential does not keep all its constructor arguments, .* Write the base down"):
        nm.parametrize(model)


# ------------------------------------------------------------------------------------------------ layers of torch


# Of a width of 64 over one of 16 at base, r = 4: hidden matrices have 1/r of the rate. Torch draws all of a recurrent layer
# from U(±1/√hidden), so that what reads the data, and every bias, starts at half of its size at base, and is doubled.
HIDDEN, DOUBLED, LEFT = ("hidden", 1, 0.25), (2, 1), (1, 1)
OF_TORCH = {
    "attention": (
        lambda w: nn.MultiheadAttention(w, 2),
        {
            "in_proj_weight": HIDDEN,
            "out_proj.weight": HIDDEN,
            "in_proj_bias": ("vector", *LEFT),
            "out_proj.bias": ("vector", *LEFT),
        },
    ),
    # U(±√(6/(rows + columns))) of 64 + 2 and of 16 + 2 numbers: √(66/18).
    "attention of data": (
        lambda w: nn.MultiheadAttention(w, 2, vdim=2),
        {"q_proj_weight": HIDDEN, "k_proj_weight": HIDDEN, "v_proj_weight": ("input", (66 / 18) ** 0.5, 1)},
    ),
    "transformer": (
        lambda w: nn.TransformerEncoderLayer(w, 2, w),
        {"self_attn.in_proj_weight": HIDDEN, "linear1.weight": HIDDEN},
    ),
    "LSTM": (
        lambda w: nn.LSTM(2, w, 2),
        {
            "weight_ih_l0": ("input", *DOUBLED),
            "weight_ih_l1": HIDDEN,
            "weight_hh_l0": HIDDEN,
            "bias_hh_l1": ("vector", *DOUBLED),
        },
    ),
    "projected LSTM": (
        lambda w: nn.LSTM(2, w, proj_size=w // 2),
        {"weight_ih_l0": ("input", *DOUBLED), "weight_hh_l0": HIDDEN, "weight_hr_l0": HIDDEN},
    ),
    "GRU": (lambda w: nn.GRU(w, w, bidirectional=True), {"weight_ih_l0": HIDDEN, "weight_hh_l0_reverse": HIDDEN}),
    "RNNCell": (lambda w: nn.RNNCell(2, w), {"weight_ih": ("input", *DOUBLED), "weight_hh": HIDDEN}),
    "transposed convolution": (
        lambda w: nn.ConvTranspose2d(w, 2 * w, 2, groups=2),
        {"weight": HIDDEN, "bias": ("vector", *DOUBLED)},
    ),
    "transposed convolution by channel": (lambda w: nn.ConvTranspose1d(w, w, 3, groups=w), {"weight": ("vector", *LEFT)}),
    "transposed convolution to data": (
        lambda w: nn.ConvTranspose1d(w, 3, 2),  # drawn alike at all widths, where a readout starts at 1/r
        {"weight": ("readout", 0.25, 0.25), "bias": ("fixed", 1, 1)},
    ),
    "weight norm of data": (lambda w: weight_norm(nn.Linear(3, 3)), {"bias": ("fixed", 1, 1)}),
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
        assert (row.role if not row.fixed else "fixed", row.lr_mult) == (role, lr_mult), name
        assert row.init_mult == pytest.approx(init_mult), name
    with torch.device("meta"):
        drawn = nm.parametrize(WithLayer(64, layer), base={"width": 16}).to_empty(device="cpu")
    drawn = model if is_parametrized(model.extra) else nm.initialize(drawn)
    for p, q in zip(drawn.extra.parameters(), model.extra.parameters(), strict=True):
        assert p.numel() < 64 or float(p.detach().std()) == pytest.approx(float(q.detach().std()), rel=0.25)
    at_base = WithLayer(16, layer)
    before = [p.clone() for p in at_base.parameters()]
    nm.parametrize(at_base, base={"width": 16})
    assert all(torch.equal(p, q) for p, q in zip(before, at_base.parameters(), strict=True))


class Normed(nn.Module):
    """A matrix of its own under weight_norm."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, width) * width**-0.5)
        weight_norm(self)


def test_parametrized_layers_that_grow_have_to_be_described():
    """A readout under weight_norm was taken for a vector."""
    with pytest.raises(nm.MupError, match="'extra.parametrizations.weight.original1' is what torch computes a weight from"):
        nm.parametrize(WithLayer(64, lambda w: weight_norm(nn.Linear(w, 1))))
    readout = nm.Param("readout", ("out", "in"), init=lambda shape: shape[1] ** -0.5)
    nm.register_layer(Normed, {"parametrizations.weight.original1": readout})
    row = nm.summary(nm.parametrize(WithLayer(64, Normed)))["extra.parametrizations.weight.original1"]
    assert (row.role, row.lr_mult, row.init_mult) == ("readout", 0.5, pytest.approx(0.5**0.5))


# ------------------------------------------------------------------------------------------------ constructors


class ByItself(FNO):
    """Its constructor ends with parametrize, and reads numbers, which the meta device has none of."""

    def __init__(self, n_modes, hidden_channels, **kwargs):
        super().__init__(n_modes, 2, 3, hidden_channels, n_layers=2, **kwargs)
        self.drops = [rate.item() for rate in torch.linspace(0, 0.1, 3)]
        nm.parametrize(self)


def test_a_constructor_may_parametrize():
    torch.manual_seed(0)
    own = ByItself((8,), 64)
    alone = nm.parametrize(_fno())
    assert all(torch.equal(p, q) for p, q in zip(own.parameters(), alone.parameters(), strict=True))
    assert [(r.base_shape, r.lr_mult) for r in nm.summary(own)] == [(r.base_shape, r.lr_mult) for r in nm.summary(alone)]
    assert nm.is_parametrized(ByItself((8,), 32))  # what was built for comparison left no trace


def test_a_constructor_that_reads_numbers_draws_no_weights_for_comparison(monkeypatch):
    drawn, normal_ = [], torch.Tensor.normal_
    monkeypatch.setattr(torch.Tensor, "normal_", lambda p, *rest: drawn.append(p.is_meta) or normal_(p, *rest))
    model = Defaults(64)
    assert not all(drawn)  # some that are real
    drawn.clear()
    nm.parametrize(model)
    assert drawn and all(drawn)


class Defaults(nn.Module):
    """Around an FNO, with defaults; it reads numbers."""

    def __init__(self, width=32, n_modes=(8,)):
        super().__init__()
        self.width, self.n_modes = width, n_modes
        self.drops = [rate.item() for rate in torch.linspace(0, 0.1, 3)]
        self.inner = _fno(width, n_modes)


class Forgets(Defaults):
    """The same, which keeps nothing."""

    def __init__(self, width=32, n_modes=(8,)):
        super().__init__(width, n_modes)
        del self.width, self.n_modes


class Multiplied(Defaults):
    """Whose width is no number of channels."""

    def __init__(self, width=1.0):
        super().__init__(int(64 * width))
        self.width = width


class Image(Defaults):
    """Whose width is that of its images."""

    def __init__(self, width, channels):
        super().__init__(channels)
        self.width, self.channels = width, channels
        self.readout = nn.Linear(width, width)


class Square(Image):
    """The same, of square images, with a width of its kernels beside."""

    def __init__(self, width=128, height=128, hidden_channels=64, n_modes=(8,)):
        assert width == height
        super().__init__(width, hidden_channels)
        self.height, self.hidden_channels, self.n_modes = height, hidden_channels, n_modes
        self.inner = _fno(hidden_channels, n_modes)


class Twice(Defaults):
    """Whose width is a factor that is a whole number."""

    def __init__(self, width=2):
        super().__init__(32 * width)
        self.width = width


NO_WIDTHS = {
    "kept": lambda: Forgets(64),
    "factor": Multiplied,
    "image": lambda: Image(128, 64),
    "beside": Square,
    "twice": Twice,
}


@pytest.mark.parametrize("build", NO_WIDTHS.values(), ids=NO_WIDTHS)
def test_a_width_is_one_with_which_kernels_grow(build):
    plan, alone = nm.summary(nm.parametrize(build())), nm.summary(nm.parametrize(_fno()))
    for row in alone:
        own = plan[f"inner.{row.name}"]
        assert (own.base_shape, own.lr_mult, own.init_mult) == (row.base_shape, row.lr_mult, row.init_mult)
    assert all(row.lr_mult == 1 for row in plan if row.name.startswith("readout"))
