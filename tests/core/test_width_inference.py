"""Which dimensions grow is measured. Where this is impossible, a warning or an error reports the line to write."""

import json
import threading
import warnings

import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from neuralop_mup.core import make_plan
from neuralop_mup.optim.musoap.depth import estimate_depth
from support.errors import refused, warned


class Around(nn.Module):
    """Layers as wide as an FNO, before and after it. It does not keep its width."""

    def __init__(self, c):
        super().__init__()
        self.encode, self.mix, self.decode = nn.Linear(1, c), nn.Linear(c, c), nn.Linear(c, 1)
        self.fno = FNO((8,), c, c, c, n_layers=1)


class Net(nn.Module):
    """A spectral convolution between two pointwise layers, and the attributes that ``extra(width)`` returns."""

    def __init__(self, width=64, extra=lambda width: {}):
        super().__init__()
        self.width, self.extra = width, extra
        self.lift, self.conv, self.read = nn.Conv1d(1, width, 1), SpectralConv(width, width, (8,)), nn.Conv1d(width, 1, 1)
        for name, value in extra(width).items():
            setattr(self, name, value)


def _plan(model, **kwargs):
    """Return the plan. Fail on a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return nm.summary(nm.parametrize(model, **kwargs))


def _raw(*shape, **kwargs):
    return nn.Parameter(torch.randn(*shape), **kwargs)


def test_layers_as_wide_as_an_inner_model():
    with warned("'encode.weight' of Around.*'fno'") as caught:
        plan = nm.summary(nm.parametrize(Around(64)))
    assert caught[0].filename == __file__ and plan["mix.weight"].lr_mult == 1
    # 64 = 4 · 16, so hidden layers get 1/4. The FNO's first layer also reads a coordinate: 17 / 65.
    plan = _plan(Around(64), base=lambda: Around(16))
    lr_mults = [plan[f"{name}.weight"].lr_mult for name in ("encode", "mix", "decode", "fno.lifting.fcs.0")]
    assert lr_mults == pytest.approx([1, 0.25, 0.25, 17 / 65], rel=1e-12)


def test_a_second_width_that_widens_no_kernel():
    class TwoWidths(Net):
        def __init__(self, width, hidden_dim):
            super().__init__(width)
            self.hidden_dim = hidden_dim
            self.up, self.down = nn.Conv1d(width, hidden_dim, 1), nn.Conv1d(hidden_dim, width, 1)

    with pytest.warns(UserWarning, match="hidden_dim = 256 of TwoWidths.*'up.weight'"):
        plan = nm.summary(nm.parametrize(TwoWidths(64, 256)))
    assert plan["down.weight"].role == "input"
    plan = _plan(TwoWidths(64, 256), base={"width": 32, "hidden_dim": 128})
    assert [plan[f"{name}.weight"].lr_mult for name in ("up", "down")] == [0.5, 0.5]


def test_modes_in_one_argument_for_each_axis():
    """``dim`` is no width here."""

    class Classic(Net):
        def __init__(self, modes1, modes2, width, dim):
            super().__init__(width)
            self.modes1, self.modes2, self.dim = modes1, modes2, dim
            self.conv = SpectralConv(width, width, (modes1, modes2) * (dim // 2))

    assert _plan(Classic(32, 32, 64, 2))["conv.weight.tensor"].base_shape == (32, 32, 16, 9)


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        *((lambda w, shape=shape: {"raw": _raw(*shape(w))}, r"nm.register_layer\(Net, \{'raw': nm.Param")
          for shape in (lambda w: (w, 1), lambda w: (w, 8), lambda w: (3, w))),
        (lambda w: {"makes": nn.Linear(8, w**2)}, "'makes.weight'"),
        (lambda w: {"read": nn.Linear(w, w), "trunk": nn.Linear(2, w)}, "'read.weight'"),
    ],
    ids=["readout", "factor", "last", "a layer that makes matrices", "a sum of products"],
)  # fmt: skip
def test_layers_that_may_be_summed_over(extra, match):
    with warned(match) as caught:
        plan = nm.summary(nm.parametrize(Net(64, extra)))
    assert caught[0].filename == __file__
    assert "raw" not in plan or plan["raw"].lr_mult == 1


@pytest.mark.parametrize("shape", [lambda w: (w,), lambda w: (1, w, 16), lambda w: (w, 1, 1)])
def test_what_is_added_to_features_is_a_vector(shape):
    assert _plan(Net(64, lambda width: {"raw": _raw(*shape(width))}))["raw"].role == "vector"


def test_a_described_parameter_raises_no_warning():
    class Read(Net):
        pass

    nm.register_layer(Read, {"raw": nm.Param("readout", ("in", "out_fixed"), init=lambda shape: 1.0)})
    row = _plan(Read(64, lambda width: {"raw": _raw(width, 1)}), base={"width": 16})["raw"]
    # r = 4: learning rate 1/4. It is drawn with one std at all sizes, so the multiplier is all of 1/r.
    assert (row.role, row.lr_mult, row.init_mult) == ("readout", 0.25, 0.25)


def test_constants_of_a_constructor_stay_as_they_are():
    model = Net(64, lambda width: {"frequencies": _raw(width // 2, requires_grad=False)})
    before = model.frequencies.clone()
    assert _plan(model)["frequencies"].fixed and torch.equal(model.frequencies, before)


def test_shared_layers():
    """A layer with several names is one layer, and its depth counts each use."""

    class Tied(Net):
        def __init__(self, width):
            super().__init__(width)
            self.convs = nn.ModuleList([self.conv] * 3)
            self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
            self.b.weight = self.a.weight

    model = Tied(64)
    plan = _plan(model, base={"width": 16})
    assert ("convs.0.weight.tensor" in plan, "b.weight" in plan, "b.bias" in plan) == (False, False, True)
    assert plan["a.weight"].lr_mult == 0.25
    assert estimate_depth(model, ["conv"]) == (4, False)


def test_a_kernel_that_writes_the_output_starts_as_a_readout_does():
    model = Net(64, lambda width: {"read": SpectralConv(width, 1, (8,))})
    row = _plan(model, base={"width": 16}, rule="none")["read.weight.tensor"]
    # neuralop draws √(2 / (in + out)): √(17/65) = 0.5114 from base to model; wanted is 16/64 = 0.25 with a rate of 0.25.
    assert row.role == "spectral" and row.lr_mult == 0.25
    assert row.init_mult == pytest.approx(0.25 / 0.511408, rel=1e-5)


def test_a_kernel_that_grows_on_one_side(monkeypatch):
    def lift():
        return Net(256, lambda width: {"lift": SpectralConv(3, width, (8,))})

    plan = _plan(model := lift(), base={"width": 16})
    row, square = plan["lift.weight.tensor"], plan["conv.weight.tensor"]
    # κ is that of a square kernel, and near 1 without more modes. The rates only differ by r_in, which is 1 and 16.
    assert row.lr_mult == pytest.approx(16 * square.lr_mult, rel=1e-12) and 0.95 < row.lr_mult < 1.05
    # In release 0.3, κ had a factor √in, here (16 / 256)^½. Plans of that release keep it.
    monkeypatch.setattr(make_plan, "REVISION", 0)
    former, _ = make_plan.make_plan(lift(), {"width": 16})
    monkeypatch.undo()
    assert 0.25 < former["lift.weight.tensor"].lr_mult < 0.4
    stored = json.loads(former.text)
    assert stored.pop("revision") == 0
    loaded = nm.summary(nm.load_plan(lift(), nm.Plan.from_json(json.dumps(stored))))
    assert loaded == former
    with refused("plan"):
        nm.load_plan(model, former)


class Given(Net):
    """A model with a module and a tensor as arguments. Its constructor draws the module's weights again."""

    def __init__(self, width, act, grid):
        super().__init__(width)
        self.act = act
        self.register_buffer("grid", grid)
        self.apply(lambda module: module.reset_parameters() if isinstance(module, nn.Linear) else None)


def test_modules_and_tensors_as_arguments():
    model = Given(64, nn.Linear(3, 3), torch.zeros(4))
    before = model.act.weight.clone()
    assert _plan(model, base={"width": 16})["read.weight"].lr_mult == 0.25
    assert torch.equal(model.act.weight, before)  # the base and other sizes are built with copies
    locked = nn.GELU()
    locked.lock = threading.Lock()  # cannot be copied
    assert _plan(Given(64, locked, torch.zeros(4)), base={"width": 16})["read.weight"].lr_mult == 0.25
