"""Classes of the user's own: wrappers around models that are known, registrations, and what is said of wrong ones."""

import warnings

import pytest
import torch
from neuralop.layers.channel_mlp import ChannelMLP
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from cases import BY_NAME
from support import assert_same


class Wrapper(nn.Module):
    """Nobody registers this class."""

    def __init__(self, inner):
        super().__init__()
        self.inner = nn.ModuleDict({"net": inner})

    def forward(self, *args, **kwargs):
        return self.inner["net"](*args, **kwargs)


class Lifted(Wrapper):
    """The same with a layer and a parameter of its own."""

    def __init__(self, inner):
        super().__init__(inner)
        self.lift = nn.Conv1d(1, 2, 1)
        self.scale = nn.Parameter(torch.ones(2))


def _fno(width=16, in_channels=2, **kwargs):
    torch.manual_seed(0)
    return FNO((8,), in_channels, 3, width, n_layers=2, **kwargs)


def _wrapped(width=16):
    return nm.parametrize(Wrapper(_fno(width)), base=lambda: Wrapper(_fno(8)))


# ------------------------------------------------------------------------------------ a wrapper around a known model


def test_a_wrapped_model_trains_checks_and_is_drawn_as_any_other(tmp_path):
    model = _wrapped()
    optimizer = nm.MuSOAP(model, 0.02)
    nm.check_optimizer(model, optimizer)
    nm.save_base_shapes(model, tmp_path / "base.bsh")
    nm.parametrize(Wrapper(_fno(32)), base=tmp_path / "base.bsh")
    model(torch.randn(2, 2, 16)).square().mean().backward()
    optimizer.step()
    _wrapped().load_state_dict(model.state_dict())
    with torch.device("meta"):
        empty = _wrapped()
    empty.to_empty(device="cpu")
    torch.manual_seed(0)
    assert_same(nm.initialize(empty), _wrapped())


def test_a_coordinate_check_looks_into_a_wrapper():
    batch = {"x": torch.randn(2, 2, 16), "y": torch.randn(2, 3, 16)}
    bare, wrapped = (
        nm.coord_check(build, [8, 16], [batch], lr=1e-3).slopes
        for build in (lambda width: nm.parametrize(_fno(width), base=lambda: _fno(8)), _wrapped)
    )
    assert {"inner.net.lifting", "inner.net.fno_blocks.0", "inner.net.projection"} <= {s["block"] for s in wrapped}
    assert bare == [{**s, "block": s["block"].removeprefix("inner.net.")} for s in wrapped]


LINE = r"'inner': nm.Place\(False, False\), 'lift': nm.Place\(\?, \?\)\}\)"


@pytest.mark.parametrize(
    ("build", "base", "match"),
    [
        # An FNO's inputs have a fixed number of channels, also where nobody says what its wrapper does.
        (
            lambda: Wrapper(_fno(16, 16)),
            lambda: Wrapper(_fno(8, 8)),
            r"lifting.fcs.0.weight' is \(32, 17, 1\).*\(16, 9, 1\).*'in_fixed'",
        ),
        (
            lambda: Wrapper(_fno(norm="instance_norm")),
            lambda: Wrapper(_fno(8, norm="group_norm")),
            "norm = 'group_norm' and the model 'instance_norm' in 'inner.net'",
        ),
        # A layer beside the wrapped model: with the line to write, of the outermost class that needs it.
        (
            lambda: Lifted(_fno()),
            lambda: Lifted(_fno(8)),
            r"'scale' of module '\(the model\)' \(Lifted\).*nobody registered Lifted \(the model\).*"
            r"nm.register_layer\(Lifted, \{'scale': nm.Param\(…\), " + LINE,
        ),
        (lambda: Wrapper(Lifted(_fno())), lambda: Wrapper(Lifted(_fno(8))), r"registered Lifted \('inner.net'\)"),
        (
            lambda: nn.ModuleDict({"a": Lifted(Lifted(_fno()))}),
            lambda: nn.ModuleDict({"a": Lifted(Lifted(_fno(8)))}),
            r"nobody registered Lifted \('a'\)",
        ),
        # A linear layer, or a class registered by a function, is nothing without its place.
        *(
            (
                lambda layer=layer: Wrapper(layer()),
                lambda layer=layer: Wrapper(layer()),
                r"registered Wrapper.*Place\(\?, \?\)",
            )
            for layer in (lambda: nn.Linear(2, 2), lambda: nn.LayerNorm(3), lambda: BY_NAME["2d"].build().fno_blocks)
        ),
        # Overrides that cannot be used are repeated.
        (lambda: Wrapper(_fno()), {"width": 8}, r"from overrides \{'width': 8\}"),
        (BY_NAME["uno"].build, {"width": 8}, r"from overrides \{'width': 8\}"),
        # Numbers of axes.
        *(
            (
                BY_NAME["2d"].build,
                {"n_modes": modes},
                r"n_modes = .*the model has .\d, \d.: give as many numbers, one for each",
            )
            for modes in ((4,), 4, (4, 4, 4), ())
        ),
        (_fno, {"n_modes": 4}, r"n_modes = 4, and the model has \(8,\): give as many numbers"),
    ],
)
def test_models_and_bases_that_do_not_fit(build, base, match):
    with pytest.raises(nm.MupError, match=match):
        nm.parametrize(build(), base=base)


def test_a_layer_beside_a_wrapped_model_may_be_registered():
    class Registered(Lifted):
        pass

    both = {"scale": nm.Param("vector", ("out_fixed",)), "inner": nm.Place(False, False), "lift": nm.Place(False, False)}
    nm.register_layer(Registered, both)
    nm.parametrize(Wrapper(Registered(_fno())), base=lambda: Wrapper(Registered(_fno(8))))


def test_an_optimizer_of_a_wrapper_whose_part_is_parametrized():
    model = Wrapper(nm.parametrize(_fno(), base={"hidden_channels": 8}))
    for build in (nm.MuAdam, nm.MuSOAP):
        with pytest.raises(nm.MupError, match="its part 'inner.net' is: pass model.inner.net"):
            build(model, lr=0.02)


# -------------------------------------------------------------------------------------------------- a wrong Place


GROWING, LIFT, DROP = nm.Place(True, True), nm.Place(False, True), nm.Place(True, False)


@pytest.mark.parametrize(
    ("places", "channels", "match"),
    [
        (
            [GROWING] * 3,
            (1, 1),
            r"registration of Net the axis 'in' of 'lift.weight' grows.*is 1 in the model and at base.*Place\(False, True\)",
        ),
        ([LIFT, GROWING, GROWING], (1, 1), r"'out' of 'drop.weight' grows.*is 1 in.*give 'drop' Place\(True, False\)"),
        ([GROWING] * 3, (2, 3), r"'in' of 'lift.weight' grows.*is 2 in.*Place\(False, True\)"),
        ([LIFT, GROWING, GROWING], (2, 3), r"'out' of 'drop.weight' grows.*is 3 in.*Place\(True, False\)"),
        ([LIFT, GROWING, DROP], (1, 1), None),
        ([LIFT, GROWING, DROP], (2, 3), None),
    ],
)
def test_channels_that_cannot_grow(places, channels, match):
    """Two and three channels are a model's data as one is: nothing else would read, or write, it."""

    class Net(nn.Module):
        def __init__(self, width, second):
            super().__init__()
            self.lift = nn.Conv1d(channels[0], width, 1)
            self.mix = nn.Conv1d(width, second, 1)
            self.drop = nn.Conv1d(second, channels[1], 1)

    nm.register_layer(Net, dict(zip(("lift", "mix", "drop"), places, strict=True)))
    nm.parametrize(Net(8, 8), base=Net(8, 8))  # nothing grows, so nothing can be said
    if match:
        with pytest.raises(nm.MupError, match=match):
            nm.parametrize(Net(8, 8), base=Net(4, 4))
    else:
        nm.parametrize(Net(8, 8), base=Net(4, 4))
        nm.parametrize(Net(8, 6), base=Net(4, 6))  # a second width may stay: that is the base's business


def test_a_parameter_of_one_entry_cannot_grow():
    class Gated(nn.Linear):
        def __init__(self, width):
            super().__init__(2, width, bias=False)
            self.gate = nn.Parameter(torch.ones(1))

    nm.register_layer(
        Gated, {"weight": nm.Param("input", ("out", "in_fixed"), "fan_in"), "gate": nm.Param("vector", ("out",))}
    )
    with pytest.raises(nm.MupError, match="of Gated the axis 'out' of 'gate' grows.*it is 1 in.*write 'out_fixed'"):
        nm.parametrize(Gated(8), base=Gated(4))


# ------------------------------------------------------------------------------------------ mistakes in registrations


def test_a_mistyped_name_is_told():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = nn.Linear(2, 2), nn.Linear(2, 2)
            self.scale = nn.Parameter(torch.ones(2))

    both = {"scale": nm.Param("vector", ("out_fixed",)), "up": nm.Place(False, False)}
    for wrong, right, claims in (
        ("gatee", "gate", {**both, "gatee": nm.Place(True, True)}),
        ("scael", "scale", {"gate": nm.Place(False, False), "up": both["up"], "scael": both["scale"]}),
    ):
        nm.register_layer(Gated, claims)
        with pytest.raises(nm.MupError, match=f"Gated names '{wrong}', .* no such child or parameter: .* mean '{right}'"):
            nm.parametrize(Gated(), base=Gated())
    # A Place is for a child, a Param for a parameter.
    for wrong, line in (({"scale": both["up"]}, "'scale': nm.Param"), ({"up": both["scale"]}, "'up': nm.Place")):
        nm.register_layer(Gated, {**both, "gate": nm.Place(False, False), **wrong})
        with pytest.raises(nm.MupError, match=rf"adapter of Gated says nothing of '\w+'\. Add {line}[^,]*(, \?\))? to its"):
            nm.parametrize(Gated(), base=Gated())
    nm.register_layer(Gated, both)
    with pytest.raises(nm.MupError, match="the adapter of Gated says nothing of 'gate'"):
        nm.parametrize(Gated(), base=Gated())
    # A name that this configuration of the layer lacks is none of a mistake.
    nm.register_layer(Gated, {**both, "gate": nm.Place(False, False), "bias": nm.Param("vector", ("out_fixed",))})
    nm.parametrize(Gated(), base=Gated())


class GatedFNO(FNO):
    """neuralop's own with a layer and a parameter more."""

    def __init__(self, width):
        super().__init__((8,), 2, 3, width, n_layers=2)
        self.gate = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(width))


GATE, GAIN = {"gate": nm.Place(True, True)}, {"gain": nm.Param("vector", ("out",))}


def test_a_subclass_says_only_what_is_new_in_it():
    with pytest.raises(
        nm.MupError, match=r"nm\.register_layer\(GatedFNO, \{'gain': nm\.Param\(…\), 'gate': nm\.Place\(\?, \?\)\}\)"
    ):
        nm.parametrize(GatedFNO(16), base=GatedFNO(8))
    nm.register_layer(GatedFNO, GATE)
    with pytest.raises(nm.MupError, match=r"adapter of GatedFNO says nothing of 'gain'\. Add 'gain': nm\.Param"):
        nm.parametrize(GatedFNO(16), base=GatedFNO(8))
    nm.register_layer(GatedFNO, {**GATE, **GAIN})
    plan = nm.summary(nm.parametrize(GatedFNO(16), base=GatedFNO(8)))
    of_parent = nm.summary(nm.parametrize(_fno(), base=_fno(8)))
    assert [plan[row.name] for row in of_parent.rows] == list(of_parent.rows)
    assert (plan["gate.weight"].role, plan["gate.weight"].lr_mult, plan["gain"].role) == ("hidden", 0.5, "vector")


def test_a_subclass_may_be_read_otherwise_than_its_parent():
    """A projection whose inputs do not grow; the rest stays the parent's."""

    class Closed(GatedFNO):
        pass

    nm.register_layer(GatedFNO, {**GATE, **GAIN})
    nm.register_layer(Closed, {"gate": nm.Place(False, False)})
    with pytest.raises(nm.MupError, match="'gate.weight'"):  # which has as many channels as the width, and so grows
        nm.parametrize(Closed(16), base=Closed(8))


class Wide(FNO):
    """Its lifting has a hidden layer of a width of its own, and its projection is another class than neuralop's."""

    def __init__(self, width, projection=None):
        super().__init__((8,), 2, 3, width, n_layers=2, lifting_channel_ratio=1)
        self.lifting = ChannelMLP(2 + 1, width, hidden_channels=12)
        self.projection = projection or self.projection


LIFTING = {"lifting.fcs.0": nm.Place(False, False), "lifting.fcs.1": nm.Place(False, True)}


def test_a_subclass_may_go_into_a_place_that_its_parent_gives_whole():
    """And it may be wrong about it; and what is said of a child whole outdoes what a parent says of its inside."""
    nm.register_layer(Wide, {"lifting": nm.Place(False, False)})
    with pytest.raises(
        nm.MupError, match=r"'lifting.fcs.1.weight' is \(16, 12, 1\).*\(8, 12, 1\).*an axis of kind 'out_fixed'"
    ):
        nm.parametrize(Wide(16), base=Wide(8))
    nm.register_layer(Wide, LIFTING)
    plan = nm.summary(nm.parametrize(Wide(16), base=Wide(8)))
    assert [plan[f"lifting.fcs.{i}.weight"].axes[:2] for i in (0, 1)] == [("out_fixed", "in_fixed"), ("out", "in_fixed")]
    assert plan["projection.fcs.0.weight"].role == "hidden"  # still the parent's

    class Whole(Wide):
        pass

    nm.register_layer(Whole, {"lifting": nm.Place(False, True)})
    assert nm.summary(nm.parametrize(Whole(16), base=Whole(16)))["lifting.fcs.0.weight"].axes[:2] == ("out", "in_fixed")


def test_a_subclass_with_another_class_in_a_place_of_its_parent():
    class Head(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, width))

    nm.register_layer(Wide, LIFTING)
    with pytest.raises(
        nm.MupError, match=r"nobody registered Head \('projection'\). Write nm.register_layer\(Head, \{'weight'"
    ):
        nm.parametrize(Wide(16, Head(16)), base=Wide(8, Head(8)))


def test_a_layer_that_is_derived_from_a_known_one_keeps_its_place():
    """Its own parameter is stated; what its parent has goes by the place where it stands, the readout here."""

    class Scaled(nn.Linear):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.scale = nn.Parameter(torch.ones(1))

    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.up, self.down = nn.Linear(2, width), Scaled(width, 1)

    nm.register_layer(Scaled, {"scale": nm.Param("vector", ("fixed",))})
    nm.register_layer(Net, {"up": nm.Place(False, True), "down": nm.Place(True, False)})
    plan = nm.summary(nm.parametrize(Net(16), base=Net(8)))
    assert (plan["down.weight"].role, plan["up.weight"].role) == ("readout", "input")


def test_an_init_may_be_a_function_and_a_wrong_one_is_doubted():
    class Mixer(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(0.02 * torch.randn(width, width))

    with pytest.raises(nm.MupError, match="say how it is drawn.*or a function of its shape"):
        nm.register_layer(Mixer, {"weight": nm.Param("hidden", ("out", "in"))})
    nm.register_layer(Mixer, {"weight": nm.Param("hidden", ("out", "in"), "fan_in")})
    with pytest.raises(nm.MupError, match="'weight' has a root mean square.*registration of Mixer is wrong: Param's init"):
        nm.parametrize(Mixer(64), base=Mixer(32))
    nm.register_layer(Mixer, {"weight": nm.Param("hidden", ("out", "in"), lambda shape: 0.02)})
    nm.parametrize(Mixer(64), base=Mixer(32))
    ours = _fno()
    with torch.no_grad():
        ours.fno_blocks.convs[0].weight.tensor.mul_(3)
    with pytest.raises(nm.MupError, match="has a root mean square((?!registration).)*$"):
        nm.parametrize(ours, base={"hidden_channels": 8})


class Mixer(nn.Module):
    """Drawn in its constructor at a size of its own, with ones beside; it has no reset_parameters."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(2, width), nn.Linear(width, 1)
        self.weight = nn.Parameter(torch.randn(width, width).mul_(0.7 * width**-0.5))
        self.gain = nn.Parameter(torch.ones(width))


def test_one_description_says_how_large_a_parameter_is_and_how_it_is_drawn():
    """The size that the rule corrects, 0.7/√width, by which the draw on a model from the meta device goes, too."""
    places = {"up": nm.Place(False, True), "down": nm.Place(True, False)}

    def registered(**draw):
        weight = nm.Param("hidden", ("out", "in"), lambda shape: 0.7 * shape[1] ** -0.5, **draw)
        gain = nm.Param("vector", ("out",), draw=lambda tensor, std: tensor.fill_(1))
        nm.register_layer(Mixer, {**places, "weight": weight, "gain": gain})
        with torch.device("meta"):
            return nm.parametrize(Mixer(64), base=Mixer(16))

    with pytest.raises(nm.MupError, match=r"initialisation of weight \(Mixer\) is not known.*a Param whose draw says how"):
        registered()
    model = registered(draw=lambda tensor, std: tensor.normal_().mul_(std)).to_empty(device="cpu")
    torch.manual_seed(0)
    nm.initialize(model)
    torch.manual_seed(0)
    usual = nm.parametrize(Mixer(64), base=Mixer(16))
    row = nm.summary(usual)["weight"]
    assert row.default_std == pytest.approx(0.7 / 8) and row.init_mult == pytest.approx(1)
    assert_same(model, usual)
    assert torch.equal(model.gain, torch.ones(64))


def test_a_base_that_is_wider_than_the_model():
    with pytest.warns(UserWarning, match="The base is wider than the model: .* 16 channels at base and 4 here"):
        nm.parametrize(_fno(4), base={"hidden_channels": 16})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nm.parametrize(_fno(4), base={"hidden_channels": 16}, rule="standard")
        nm.parametrize(_fno(16), base={"hidden_channels": 16, "n_modes": (16,)})
        batch = {"x": torch.randn(2, 2, 16), "y": torch.randn(2, 3, 16)}
        nm.coord_check(lambda w: nm.parametrize(_fno(w), base={"hidden_channels": 16}), [8, 16], [batch], lr=1e-3, seeds=1)
