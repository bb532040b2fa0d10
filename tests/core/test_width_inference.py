"""What grows where nobody says so: it is measured, told of where it cannot be, and refused where it would be wrong."""

import threading
import warnings

import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.models import FNO
from neuralop.models.base_model import BaseModel
from torch import nn

import neuralop_mup as nm
from neuralop_mup.core import planning
from neuralop_mup.core.layers import fourier_depth


class Between(nn.Module):
    """Layers as wide as an FNO's before and after it; of the width it keeps nothing that is known."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.encode, self.mix, self.decode = nn.Linear(1, c), nn.Linear(c, c), nn.Linear(c, 1)
        self.fno = FNO((8,), c, c, c, n_layers=1)


class Wide(Between):
    """The same, by a name that is known."""

    def __init__(self, width):
        super().__init__(width)
        self.width = width


class Net(nn.Module):
    """Kernels between channels and a few more parameters, ``own`` by the width."""

    def __init__(self, width, own=lambda width: {}):
        super().__init__()
        self.width, self.own = width, own
        self.lift, self.conv, self.read = nn.Conv1d(1, width, 1), SpectralConv(width, width, (8,)), nn.Conv1d(width, 1, 1)
        for name, value in own(width).items():
            setattr(self, name, value)


def _plan(model, **kwargs):
    """Without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return nm.summary(nm.parametrize(model, **kwargs))


def _raw(*shape, **kwargs):
    return nn.Parameter(torch.randn(*shape), **kwargs)


def test_a_layer_as_wide_as_an_inner_model_is_told_of():
    with pytest.warns(UserWarning, match=r"'encode.weight' of Between, of shape \(64, 1\), is as wide as 'fno'") as told:
        plan = nm.summary(nm.parametrize(Between(64)))
    assert told[0].filename == __file__ and plan["mix.weight"].lr_mult == 1
    # 64 = 4 · 16, by either remedy: hidden layers take 1/4.
    for model, base in ((Between(64), lambda: Between(16)), (Wide(64), {"width": 16})):
        plan = _plan(model, base=base)
        assert [plan[f"{name}.weight"].lr_mult for name in ("encode", "mix", "decode")] == [1, 0.25, 0.25]
        # The FNO's first layer reads a coordinate besides: 17 / 65.
        row = plan["fno.lifting.fcs.0.weight"]
        assert row.role == "hidden" and row.lr_mult == pytest.approx(17 / 65, rel=1e-12)


def test_a_second_width_that_widens_no_kernel_is_told_of():
    class Two(Net):
        def __init__(self, width, hidden_dim):
            super().__init__(width)
            self.hidden_dim = hidden_dim
            self.up, self.down = nn.Conv1d(width, hidden_dim, 1), nn.Conv1d(hidden_dim, width, 1)

    with pytest.warns(
        UserWarning, match="hidden_dim = 256 of Two widens no kernel, and 'up.weight', which grows with width"
    ):
        plan = nm.summary(nm.parametrize(Two(64, 256)))
    assert plan["down.weight"].role == "input"
    plan = _plan(Two(64, 256), base={"width": 32, "hidden_dim": 128})
    assert [plan[f"{name}.weight"].lr_mult for name in ("up", "down")] == [0.5, 0.5]


def test_the_dimension_of_space_is_no_width():
    class Space(Net):
        def __init__(self, width, dim):
            super().__init__(width)
            self.dim = dim
            self.conv = SpectralConv(width, width, (8,) * dim)

    class Model(Net):
        def __init__(self, dim):
            super().__init__(dim)
            self.dim = dim

    assert _plan(Space(64, 2))["conv.weight.tensor"].base_shape == (32, 32, 8, 5)
    assert _plan(Model(64))["conv.weight.tensor"].base_shape[:2] == (32, 32)


@pytest.mark.parametrize("shape", [lambda w: (w, 1), lambda w: (w, 8), lambda w: (3, w)], ids=["readout", "factor", "last"])
def test_a_raw_parameter_that_may_be_summed_over_is_told_of(shape):
    def own(width):
        return {"raw": _raw(*shape(width))}

    with pytest.warns(UserWarning, match=r"'raw'.* grows in one dimension.*nm.register_layer\(Net, \{'raw': nm.Param"):
        assert nm.summary(nm.parametrize(Net(64, own)))["raw"].lr_mult == 1


@pytest.mark.parametrize("shape", [lambda w: (w,), lambda w: (1, w, 16), lambda w: (w, 1, 1), lambda w: (1, 9, w)])
def test_what_is_added_to_features_is_a_vector(shape):
    assert _plan(Net(64, lambda width: {"raw": _raw(*shape(width))}))["raw"].role == "vector"


def test_a_description_ends_the_doubt():
    class Read(Net):
        """Reads by a raw matrix."""

    nm.register_layer(Read, {"raw": nm.Param("readout", ("in", "out_fixed"), init=lambda shape: 1.0)})
    row = _plan(Read(64, lambda width: {"raw": _raw(width, 1)}), base={"width": 16})["raw"]
    # r = 4: learning rate 1/4; drawn alike at all sizes, so that init 1/r is by the multiplier alone.
    assert (row.role, row.lr_mult, row.init_mult) == ("readout", 0.25, 0.25)


def test_parameters_in_a_list_are_described_by_who_has_the_list():
    def own(width):
        return {"raws": nn.ParameterList([_raw(width, width)])}

    with pytest.raises(nm.MupError, match=r"nm.register_layer\(type\(model\), \{'raws.0': nm.Param"):
        nm.parametrize(Net(64, own))


def test_a_layer_that_makes_matrices_is_told_of():
    def own(width):
        return {"makes": nn.Linear(8, width**2)}

    with pytest.warns(UserWarning, match=r"'makes.weight', of shape \(8, 4096\)|'makes.weight', of shape \(4096, 8\)"):
        nm.parametrize(Net(64, own))


def test_an_output_that_is_a_sum_over_channels_is_told_of():
    class Product(Net):
        """Branch and trunk."""

        def __init__(self, width):
            super().__init__(width)
            self.read, self.trunk = nn.Linear(width, width), nn.Linear(2, width)

    with pytest.warns(UserWarning, match="No parameter reads channels that grow, as 'read.weight' does, and writes") as told:
        nm.parametrize(Product(64))
    assert told[0].filename == __file__


def test_constants_of_a_constructor_are_left_alone():
    model = Net(64, lambda width: {"frequencies": _raw(width // 2, requires_grad=False)})
    before = model.frequencies.clone()
    assert _plan(model)["frequencies"].fixed and torch.equal(model.frequencies, before)


def test_a_layer_used_under_several_names_is_one_and_counts_as_often():
    class Tied(Net):
        def __init__(self, width):
            super().__init__(width)
            self.convs = nn.ModuleList([self.conv] * 3)
            self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
            self.b.weight = self.a.weight

    model = Tied(64)
    later = FNO((8,), 1, 1, 32, n_layers=2)
    later.fno_blocks.fno_skips[1].conv.weight = later.fno_blocks.fno_skips[0].conv.weight
    assert _plan(later, base={"hidden_channels": 16})["fno_blocks.fno_skips.0.conv.weight"].lr_mult == 0.5

    plan = _plan(model, base={"width": 16})
    names = [row.name for row in plan]
    assert "convs.0.weight.tensor" not in names and "b.weight" not in names and "b.bias" in names
    assert plan["a.weight"].lr_mult == 0.25
    assert fourier_depth(model, ["conv"]) == 4
    x, optimizer = torch.randn(2, 64, 16), nm.MuAdamW(model, lr=1e-3)
    model.b(model.a(model.convs[1](x).mT)).square().mean().backward()
    optimizer.step()


def test_an_attribute_called_n_layers_is_the_depth_of_neuralops_layers_alone():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n_layers, self.kernel = 3, _raw(8, 8, 4)

    nm.register_layer(Block, {"kernel": nm.Param("spectral", ("in", "out", "modes_single"), init="positive")})
    assert fourier_depth(nn.Sequential(Block(), Block()), ["0", "1"]) == 2


def test_a_kernel_that_writes_the_output_starts_as_a_readout_does():
    class Spectral(Net):
        def __init__(self, width):
            super().__init__(width)
            self.read = SpectralConv(width, 1, (8,))

    row = _plan(Spectral(64), base={"width": 16}, rule="none")["read.weight.tensor"]
    # neuralop draws √(2 / (in + out)): √(17/65) = 0.5114 from base to model; wanted is 16/64 = 0.25 with a rate of 0.25.
    assert row.role == "spectral" and row.lr_mult == 0.25
    assert row.init_mult == pytest.approx(0.25 / 0.511408, rel=1e-5)


def test_a_kernel_of_which_one_side_grows_takes_the_mode_factor_of_a_square_one(monkeypatch):
    class Lift(Net):
        def __init__(self, width):
            super().__init__(width)
            self.lift = SpectralConv(3, width, (8,))

    plan = _plan(model := Lift(256), base={"width": 16})
    lift, square = plan["lift.weight.tensor"], plan["conv.weight.tensor"]
    # r_in = 1 for three channels, and 16: the rates differ by that alone, and κ of width alone is near 1.
    assert lift.lr_mult == pytest.approx(16 * square.lr_mult, rel=1e-12) and 0.95 < lift.lr_mult < 1.05
    # A plan of release 0.3 had √in in κ, here (16 / 256)^½ but for the modes; it stays what it was.
    monkeypatch.setattr(planning, "REVISION", 0)
    former = planning.make_plan(Lift(256), {"width": 16})
    monkeypatch.undo()
    assert 0.25 < former["lift.weight.tensor"].lr_mult < 0.4
    text = former.to_json().replace('"revision": 0, ', "")
    loaded = nm.summary(nm.load_plan(Lift(256), nm.Plan.from_json(text)))
    assert loaded.revision == 0 and loaded["lift.weight.tensor"].lr_mult == former["lift.weight.tensor"].lr_mult
    with pytest.raises(nm.MupError, match="another plan"):
        nm.load_plan(model, former)


def test_weights_of_zero_are_fresh():
    class Zero(Net):
        def __init__(self, width):
            super().__init__(width)
            self.gate = nn.Linear(32, 2 * width)
            nn.init.zeros_(self.gate.weight)

    assert _plan(Zero(64))["gate.weight"].role == "input"


@pytest.mark.parametrize("width", [32, 64, 512])
def test_an_initialization_of_ones_own_is_refused_at_every_width(width):
    model = Net(width)
    nn.init.normal_(model.read.weight, std=0.01)
    told = r"'read.weight' (has a root mean square|reaches)"
    if width >= 64:
        with pytest.raises(nm.MupError, match=told):
            nm.parametrize(model, base={"width": 16})


def test_complex_layers_of_torch_are_fresh():
    model = Net(64, lambda width: {"mix": nn.Linear(width, width, dtype=torch.cfloat)})
    assert _plan(model, base={"width": 16})["mix.weight"].lr_mult == 0.25
    model = Net(64, lambda width: {"mix": nn.Linear(width, width, dtype=torch.cfloat)})
    with torch.no_grad():
        model.mix.weight *= 0.7
    with pytest.raises(nm.MupError, match="'mix.weight' has a root mean square of 0.(6|7)"):
        nm.parametrize(model, base={"width": 16})


def test_layers_that_take_their_sizes_from_data_are_compared_with_a_base_that_is_given():
    class Lazy(Net):
        def __init__(self, width):
            super().__init__(width)
            self.late = nn.LazyLinear(1)
            self.late(torch.zeros(1, width))

    def run(width):
        with torch.device("cpu"):
            return Lazy(width)

    assert nm.summary(nm.parametrize(run(64), base=lambda: run(16)))["late.weight"].lr_mult == 0.25


def test_modules_and_buffers_are_arguments_that_are_kept():
    class Given(Net):
        def __init__(self, width, act, grid):
            super().__init__(width)
            self.act = act
            self.register_buffer("grid", grid)
            self.apply(lambda module: module.reset_parameters() if isinstance(module, nn.Linear) else None)

    model = Given(64, nn.Linear(3, 3), torch.zeros(4))
    before = model.act.weight.clone()
    assert _plan(model, base={"width": 16})["read.weight"].lr_mult == 0.25
    assert torch.equal(model.act.weight, before)  # a base and probes are built, which draw the weights of theirs


def test_an_optional_argument_that_is_a_module_is_not_missed():
    class Optional(nn.Module):
        def __init__(self, width=16, loss=None):
            super().__init__()
            self.width, self.loss = width, loss
            self.fno = FNO((8,), 1, 1, width, n_layers=1)

    assert _plan(Optional(loss=nn.Linear(2, 2)))["fno.projection.fcs.1.weight"].role == "readout"


def test_a_module_that_cannot_be_copied_is_handed_over():
    class Held(Net):
        def __init__(self, width, act):
            super().__init__(width)
            self.act = act

    act = nn.GELU()
    act.lock = threading.Lock()
    assert _plan(Held(64, act), base={"width": 16})["read.weight"].lr_mult == 0.25


def test_words_of_a_subclass_of_neuralops_base_class_are_looked_at():
    class Own(BaseModel, name="own-in-space"):
        def __init__(self, hidden_channels=16, dim=2, latent_dim=16):
            super().__init__()
            self.encode = nn.Conv2d(1, latent_dim, 1)
            self.fno = FNO((6,) * dim, latent_dim, 1, hidden_channels, n_layers=1)

    plan = nm.summary(nm.parametrize(Own(64)))
    assert plan["encode.weight"].fixed and plan["fno.projection.fcs.1.weight"].base_shape[1] == 64


def test_kernels_by_modes_along_each_axis_have_the_reference_modes():
    class Classic(nn.Module):
        def __init__(self, modes1, modes2, width):
            super().__init__()
            self.modes1, self.modes2, self.width = modes1, modes2, width
            self.lift, self.conv = nn.Linear(1, width), SpectralConv(width, width, (modes1, modes2))
            self.read = nn.Linear(width, 1)

    assert _plan(Classic(32, 32, 64))["conv.weight.tensor"].base_shape == (32, 32, 16, 9)
