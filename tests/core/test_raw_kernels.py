"""Fourier kernels of other people's layers: recognised by two proofs, proposed by one. Look-alikes are neither."""

import re
import warnings

import pytest
import torch
from torch import nn

import neuralop_mup as nm
from neuralop_mup.core.describe_model import describe_model
from neuralop_mup.core.raw_kernels import recognise
from support.errors import refused, warned
from support.raw_models import (
    Autoregressive,
    Exchanged,
    Forgetful,
    Net,
    Pairs,
    RawConv1d,
    RawConv2d,
    RawConv3d,
)

RECOGNISES = pytest.mark.filterwarnings("ignore:No description covers")
SINGLE = "modes_single"


def _axes(layer):
    return {name: info.param.axes for name, info in recognise(layer, describe_model(layer)).items() if info.recognised}


def _line(error):
    """The registration in a message."""
    return re.search(r"Write (nm\.register_layer\(.*\))\.", str(error)).group(1)


def _own(cls, **members):
    """A class of its own, so that registrations do not reach other tests."""
    return type(cls.__name__, (cls,), members)


# ------------------------------------------------------------------------------------------------ what is recognised


@pytest.mark.parametrize(
    ("layer", "names", "axes"),
    [
        (lambda: RawConv1d(20, 20, 12), ["weights1"], ("in", "out", SINGLE)),
        (lambda: RawConv2d(20, 24, 12, 6), ["weights1", "weights2"], ("in", "out", SINGLE, SINGLE)),
        (lambda: RawConv3d(6, 6, 4, 5, 6), [f"weights{i}" for i in range(1, 5)], ("in", "out", *[SINGLE] * 3)),
        (lambda: Pairs(20, 20, 12, 12), ["weights1", "weights2"], ("in", "out", SINGLE, SINGLE, "pair")),
        (lambda: Exchanged(20, 20, 12), ["weights1"], ("out", "in", SINGLE)),
        (lambda: Forgetful(20, 20, [6, 5]), ["_weight"], ("in", "out", "modes", SINGLE)),
        (lambda: Forgetful(20, 20, 6), ["_weight"], ("in", "out", "modes", SINGLE)),
    ],
    ids=["1d", "2d", "3d", "pairs", "exchanged", "forgetful", "one number"],
)
def test_kernels_of_published_code(layer, names, axes):
    torch.manual_seed(0)
    model = layer()
    state, before = torch.get_rng_state(), {name: p.clone() for name, p in model.named_parameters()}
    assert _axes(model) == dict.fromkeys(names, axes)
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_one_warning_and_a_note_in_the_plan():
    with warned("'weights1', 'weights2' of RawConv2d") as caught:
        model = nm.parametrize(Autoregressive(1))
    assert len(caught) == 1 and caught[0].filename == __file__
    assert "nm.register_layer(RawConv2d, dict.fromkeys(('weights1', 'weights2'), nm.Param('spectral'" in str(
        caught[0].message
    )
    plan = nm.summary(model)
    assert "recognised by plane waves" in plan["conv.weights1"].why and "recognised" not in plan["fc0.weight"].why
    assert nm.Plan.from_json(plan.to_json()) == plan


@RECOGNISES
def test_multipliers_of_a_kernel():
    """Width 64 over 32: the default init, ∝ 1/(in·out), is 1/4. Sums of one sign want 1/r_in = 1/2, so the factor is 2."""
    row = nm.summary(nm.parametrize(Net(64), base={"width": 32}, rule="none"))["convs.0.weights1"]
    assert (row.role, row.init_mult, row.lr_mult) == ("spectral", pytest.approx(2), 0.5)
    plan = nm.summary(nm.parametrize(Net(64, 16), base={"width": 32, "modes": 8}))
    row = plan["convs.1.weights1"]
    kappa = nm.rules.mode_factor("operator-norm", row.size, row.base_size)
    assert kappa != 1 and row.size.modes == (16,) and row.base_size.modes == (8,)
    assert (row.init_mult, row.lr_mult) == (pytest.approx(2 * kappa), pytest.approx(kappa / 2))


class OneKernel(nn.Module):
    """The mean of what a kernel makes of the same field in all channels."""

    def __init__(self, width):
        super().__init__()
        self.width, self.conv = width, RawConv1d(width, width, 4)

    def forward(self, x):
        return self.conv(x.expand(1, self.width, -1)).mean(1)


@RECOGNISES
@pytest.mark.filterwarnings("ignore:No parameter reads")
def test_one_step_changes_the_output_equally_at_all_widths():
    """Adam's first step is ± lr: all channels add up, in · lr / r_in."""
    wave, changes = torch.cos(2 * torch.pi * torch.arange(16) / 16), []
    for width in (8, 16, 32):
        model = nm.parametrize(OneKernel(width), base={"width": 8}, rule="none")
        optimizer, before = nm.MuAdam(model, lr=0.01), model(wave).detach()
        (-(model(wave) * wave).mean()).backward()
        optimizer.step()
        changes.append(model(wave).detach() - before)
    assert changes[0].abs().max() > 0.05
    for change in changes[1:]:
        torch.testing.assert_close(change, changes[0], rtol=1e-3, atol=1e-4)


@RECOGNISES
def test_training_and_loading_without_a_registration(tmp_path):
    torch.manual_seed(0)
    model = nm.parametrize(Net(16))
    optimizer = nm.MuSOAP(model, steps=2)
    for _ in range(2):
        model(torch.randn(2, 2, 32)).square().mean().backward()
        optimizer.step()
    nm.check_optimizer(model, optimizer)
    nm.save_plan(model, tmp_path / "plan.json")
    trained = Net(16)
    trained.load_state_dict({name: p.detach() for name, p in model.named_parameters()})
    nm.load_plan(trained, tmp_path / "plan.json")
    assert not nm.summary(trained).differences(nm.summary(model))
    assert nm.summary(trained)["convs.0.weights1"].why == nm.summary(model)["convs.0.weights1"].why


# ------------------------------------------------------------------------------------------------ one proof of two


class Gaussian(RawConv1d):
    def drawn(self, *shape):
        return torch.randn(*shape, dtype=torch.cfloat) * (2 / (shape[0] + shape[1])) ** 0.5


class Unknown(RawConv1d):
    def drawn(self, *shape):
        return torch.randn(*shape, dtype=torch.cfloat) * shape[2] ** -1.5


class Conditional(RawConv2d):
    def forward(self, x, condition):
        return super().forward(x * condition)


def test_a_kernel_that_is_drawn_otherwise_is_proposed():
    """The word for its init is measured where one of the package's words fits."""
    conv = _own(Gaussian)
    with refused("'weights1' (32,32,8) planewaves") as caught:
        nm.parametrize(Net(32, conv=conv))
    line = _line(caught.value)
    assert (
        line == "nm.register_layer(Gaussian, {'weights1': nm.Param('spectral', ('in', 'out', 'modes_single'), 'mean_fan')})"
    )
    exec(line, {"nm": nm, "Gaussian": conv})
    assert nm.summary(nm.parametrize(Net(32, conv=conv)))["convs.0.weights1"].init == "mean_fan"
    with refused("'weights1' init=…"):
        nm.parametrize(Net(32, conv=Unknown))


def test_trained_weights_are_proposed_not_recognised():
    conv = _own(RawConv1d)
    model = Net(32, conv=conv)
    for p in model.parameters():
        p.data += 1e-3 * torch.randn_like(p)
    with refused("'weights1'") as caught:
        nm.parametrize(model, init=False)
    exec(_line(caught.value), {"nm": nm, "RawConv1d": conv})
    assert nm.summary(nm.parametrize(model, init=False))["convs.0.weights1"].init == "positive"


def test_a_layer_that_does_not_run_is_proposed_from_its_values():
    """One line for both of its kernels."""

    class Model(Autoregressive):
        def __init__(self, width=32):
            super().__init__(1, 8, 8, width)
            self.conv = conv(width, width, 8, 8)

    conv = _own(Conditional)
    with refused("dict.fromkeys(('weights1','weights2') planewavesfailed") as caught:
        nm.parametrize(Model())
    exec(_line(caught.value), {"nm": nm, "Conditional": conv})
    assert nm.summary(nm.parametrize(Model()))["conv.weights2"].axes == ("in", "out", SINGLE, SINGLE)


def test_an_undescribed_class_gets_one_line_for_all_its_parameters():
    class Two(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.randn(width, width)) for _ in range(2))

    class Model(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.width, self.two, self.drop = width, Two(width), nn.Linear(width, 1)

    with refused("nm.register_layer(Two,dict.fromkeys(('a','b'),nm.Param(…)))"):
        nm.parametrize(Model(8), base=Model(4))


def test_registrations_of_a_class_add_up():
    conv, param = _own(RawConv2d), nm.Param("spectral", ("in", "out", SINGLE, SINGLE), "positive")
    nm.register_layer(conv, {"weight1": param})  # a typo
    with refused("'weight1'"):
        describe_model(conv(4, 4, 2, 2))
    for name in ("weights1", "weights2"):
        nm.register_layer(conv, {name: param})
    assert {info.param.role for info in describe_model(conv(4, 4, 2, 2)).values()} == {"spectral"}


def test_numbers_of_one_sign_in_a_registration():
    """rand/√in at r = 2: its default init falls as 1/√2, and sums of one sign want 1/2."""

    class Root(RawConv1d):
        def drawn(self, *shape):
            return torch.rand(*shape, dtype=torch.cfloat) * shape[0] ** -0.5

    def register(**sign):
        init = lambda shape: (2 / 3 / shape[0]) ** 0.5  # noqa: E731
        nm.register_layer(Root, {"weights1": nm.Param("spectral", ("in", "out", SINGLE), init, **sign)})
        return nm.summary(nm.parametrize(Net(64, conv=Root), base={"width": 32}, rule="none"))["convs.0.weights1"]

    with refused("'convs.0.weights1' one_sign=True"):
        register()
    assert register(one_sign=True).init_mult == pytest.approx(0.5**0.5)


# ------------------------------------------------------------------------------------------------ look-alikes


def _modes(x, n):
    return torch.fft.rfft(x)[..., :n]


def _fields(modes, n):
    return torch.fft.irfft(modes, n=n)


def _mixed(a, w):
    return torch.einsum("bix,iox->box", a, w)


def _positions(x, w):
    return nn.functional.pad(_mixed(x[..., : w.shape[2]] + 0j, w).real, (0, x.shape[-1] - w.shape[2]))


def _cosines(n, k):
    return torch.cos(torch.pi * torch.arange(k)[:, None] * (torch.arange(n) + 0.5) / n)


def _chebyshev(n, k):
    return torch.cos(torch.arange(k)[:, None] * torch.acos(torch.linspace(-1, 1, n)))


def _in_basis(basis):
    def forward(x, w):
        b = basis(x.shape[-1], w.shape[2])
        return _mixed(x @ b.mT + 0j, w).real @ b / x.shape[-1]

    return forward


def _haar(n, k):
    at = torch.arange(n)[None] * 8 // n
    return torch.where((at >> (torch.arange(k)[:, None] % 3)) % 2 == 0, 1.0, -1.0)


def _state_space(x, w):
    poles = torch.exp(-w.abs()[..., None] * torch.arange(x.shape[-1])).sum(2)
    return _fields(_mixed(torch.fft.rfft(x), torch.fft.rfft(poles)), x.shape[-1])


LOOK_ALIKES = {
    "complex linear": lambda x, w: torch.einsum("bix,iok->box", x + 0j, w).real,
    "AFNO": lambda x, w: _fields(torch.relu(torch.view_as_real(_mixed(_modes(x, w.shape[2]), w))).sum(-1) + 0j, x.shape[-1]),
    "position table": _positions,
    "gate": lambda x, w: x * w.mean((0, 2)).abs()[:, None],
    "state space": _state_space,
    "logarithms": lambda x, w: _fields(_mixed(_modes(x, w.shape[2]), torch.exp(w)), x.shape[-1]),
    "wavelets": _in_basis(_haar),
    "cosine transform": _in_basis(_cosines),
    "Chebyshev": _in_basis(_chebyshev),
    "mode mixing": lambda x, w: _fields(_mixed(_modes(x, w.shape[2]), w).roll(1, -1), x.shape[-1]),
    "sum over modes": lambda x, w: _fields(_mixed(_modes(x, w.shape[2]).sum(-1, keepdim=True), w), x.shape[-1]),
    "factor 1/in": lambda x, w: _fields(_mixed(_modes(x, w.shape[2]), w) / w.shape[0], x.shape[-1]),
    "factor 1/modes": lambda x, w: _fields(_mixed(_modes(x, w.shape[2]), w) / w.shape[2], x.shape[-1]),
    "long convolution": lambda x, w: _fields(_mixed(torch.fft.rfft(x), torch.fft.rfft(w.real, n=x.shape[-1])), x.shape[-1]),
    "diagonal": lambda x, w: _fields(_modes(x, w.shape[2]) * w.diagonal().mT, x.shape[-1]),
    "squares": lambda x, w: _fields(_mixed(_modes(x, w.shape[2]), w * w), x.shape[-1]),
}  # fmt: skip


@pytest.mark.parametrize("forward", LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_look_alikes_are_refused(forward):
    """They are drawn as kernels are, so that only the waves tell them apart."""
    Alike = type("Alike", (RawConv1d,), {"forward": lambda self, x: forward(x, self.weights1)})
    layer = Alike(8, 8, 6)
    assert layer(torch.randn(2, 8, 32)).shape == (2, 8, 32)
    assert not _axes(layer)
    with refused("'weights1' planewavesfailed register_layer"):
        nm.parametrize(Net(16, conv=Alike), base={"width": 8})


class Flagged(RawConv1d):
    """It keeps an argument only as a function."""

    def __init__(self, in_channels, out_channels, modes1, by_width=False):
        super().__init__(in_channels, out_channels, modes1)
        self.gain = self.inverse_width if by_width else self.one

    def inverse_width(self):
        return 1 / self.in_channels

    def one(self):
        return 1.0

    def forward(self, x):
        return super().forward(x) * self.gain()


def test_a_layer_that_cannot_be_built_again_is_no_proof():
    assert _axes(Flagged(8, 8, 6)) and not _axes(Flagged(8, 8, 6, by_width=True))
    layer = RawConv1d(8, 8, 6)
    layer.forward = lambda x: x
    assert not _axes(layer)


class Experts(nn.Module):
    """Several kernels in one tensor."""

    def __init__(self, channels, modes, experts=3):
        super().__init__()
        self.channels, self.modes, self.experts = channels, modes, experts
        self.weights = nn.Parameter(torch.rand(channels, channels, modes, experts, dtype=torch.cfloat) / channels**2)

    def forward(self, x):
        return _fields(_mixed(_modes(x, self.modes), self.weights.mean(-1)), x.shape[-1])


def test_experts_are_no_kernel():
    assert not _axes(Experts(8, 6))


# ------------------------------------------------------------------------------------------------ arguments from shapes


@RECOGNISES
def test_arguments_that_are_not_kept_are_solved_from_shapes():
    model = nm.parametrize(Autoregressive(4, width=64))
    plan = nm.summary(model)
    assert "solved from the model's shapes: num_channels = 4, initial_step = 10" in plan.at_base
    assert plan["fc0.weight"].base_shape == (32, 42) and plan["conv.weights2"].base_shape == (32, 32, 16, 16)
    nm.MuSOAP(model, steps=10)


class Named(Net):
    """It stores its modes under a similar name, and its width not at all."""

    def __init__(self, modes, width):
        super().__init__(width, modes)
        self.modes1 = modes
        del self.modes, self.width, self.conv


class Ambiguous(Net):
    """``side`` is as wide as the model unless an argument gives its size."""

    def __init__(self, width, side=0):
        super().__init__(width)
        del self.width
        self.side = nn.Linear(side or width, 3)


@RECOGNISES
def test_solutions_have_to_agree_on_what_grows():
    assert nm.summary(nm.parametrize(Named(12, 24)))["convs.0.weights1"].base_shape == (32, 32, 16)
    with refused("Ambiguous 'side':0 'side':24 base=lambda:Ambiguous(…)"):
        nm.parametrize(Ambiguous(24))
    assert nm.summary(nm.parametrize(Ambiguous(24), base=lambda: Ambiguous(8)))["side.weight"].role == "readout"


class OneNumber(RawConv1d):
    """It has the names of neuralop's convolution."""

    def __init__(self, in_channels, out_channels, n_modes):
        super().__init__(in_channels, out_channels, n_modes)
        self.n_modes, self.weight = n_modes, None


@RECOGNISES
def test_one_number_of_modes_for_all_axes():
    model = Net(16, conv=OneNumber)
    model.n_modes = 8
    nm.parametrize(model)
    nm.MuSOAP(model, steps=10)
    nm.MuAdam(model, lr=0.01)
    assert nm.summary(model)["convs.0.weights1"].base_shape == (32, 32, 16)


def test_no_warning_without_raw_kernels():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nm.parametrize(nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 1)), base=nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)))
