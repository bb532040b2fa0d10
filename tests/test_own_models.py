"""Classes of the user's own: wrappers around models that are known, registrations, and what is said of wrong ones."""

import warnings

import pytest
import torch
from cases import BY_NAME, CASES
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from neuralop_mup.core.registry import stands_alone


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


# ------------------------------------------------------------------------------------ a wrapper around a known model


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_wrapped_model_has_the_plan_that_it_has_by_itself(case):
    bare, wrapped = case.build(), Wrapper(Wrapper(case.build()))
    nm.parametrize(bare, base=case.build_base)
    nm.parametrize(wrapped, base=lambda: Wrapper(Wrapper(case.build_base())))
    ours, theirs = nm.summary(wrapped).rows, nm.summary(bare).rows
    numbers = ("role", "axes", "shape", "base_shape", "init_mult", "lr_mult", "sgd_lr_mult", "eps_mult", "default_std")
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.name == f"inner.net.inner.net.{other.name}"
        assert [getattr(mine, key) for key in numbers] == [getattr(other, key) for key in numbers]
    assert all(torch.equal(p, q) for p, q in zip(wrapped.parameters(), bare.parameters(), strict=True))


def test_a_wrapped_model_trains_checks_and_is_drawn_as_any_other(tmp_path):
    model = nm.parametrize(Wrapper(_fno()), base=lambda: Wrapper(_fno(8)))
    optimizer = nm.MuSOAP(model, 0.02)
    nm.check_optimizer(model, optimizer)
    nm.save_base_shapes(model, tmp_path / "base.bsh")
    nm.parametrize(Wrapper(_fno(32)), base=tmp_path / "base.bsh")
    x = torch.randn(2, 2, 16)
    model(x).square().mean().backward()
    optimizer.step()
    again = nm.parametrize(Wrapper(_fno()), base=lambda: Wrapper(_fno(8)))
    again.load_state_dict(model.state_dict())
    with torch.device("meta"):
        empty = Wrapper(_fno())
    nm.parametrize(empty, base=lambda: Wrapper(_fno(8))).to_empty(device="cpu")
    torch.manual_seed(0)
    drawn, fresh = nm.initialize(empty), nm.parametrize(Wrapper(_fno()), base=lambda: Wrapper(_fno(8)))
    assert all(torch.equal(p, q) for p, q in zip(drawn.parameters(), fresh.parameters(), strict=True))


def test_a_coordinate_check_looks_into_a_wrapper():
    batch = {"x": torch.randn(2, 2, 16), "y": torch.randn(2, 3, 16)}
    checks = [
        nm.coord_check(
            lambda width, wrap=wrap: nm.parametrize(wrap(_fno(width)), base=lambda: wrap(_fno(8))), [8, 16], [batch], lr=1e-3
        )
        for wrap in (nn.Identity().forward, Wrapper)
    ]
    bare, wrapped = ([{**s, "block": s["block"].removeprefix("inner.net.")} for s in check.slopes] for check in checks)
    assert {"lifting", "fno_blocks.0", "projection"} <= {s["block"] for s in wrapped}
    assert wrapped == bare


def test_a_wrapper_may_not_feed_its_width_to_the_model():
    """An FNO's inputs have a fixed number of channels, also where nobody says what its wrapper does."""
    with pytest.raises(nm.MupError, match=r"lifting.fcs.0.weight' is \(32, 17, 1\).*\(16, 9, 1\).*'in_fixed'"):
        nm.parametrize(Wrapper(_fno(16, 16)), base=lambda: Wrapper(_fno(8, 8)))


def test_choices_of_a_wrapped_model_are_compared():
    with pytest.raises(nm.MupError, match="norm = 'group_norm' and the model 'instance_norm' in 'inner.net'"):
        base = Wrapper(_fno(8, norm="group_norm"))
        nm.parametrize(Wrapper(_fno(norm="instance_norm")), base=base)


def test_a_layer_beside_a_wrapped_model_is_refused_with_the_line_to_write():
    match = (
        r"'scale' of module '\(the model\)' \(Lifted\).*nobody registered Lifted \(the model\).*"
        r"nm.register_layer\(Lifted, \{'scale': nm.Param\(…\), "
        r"'inner': nm.Place\(False, False\), 'lift': nm.Place\(\?, \?\)\}\)"
    )
    model = Lifted(_fno())
    with pytest.raises(nm.MupError, match=match):
        nm.parametrize(model, base=lambda: Lifted(_fno(8)))
    with pytest.raises(nm.MupError, match=r"nobody registered Lifted \('inner.net'\)"):
        nm.parametrize(Wrapper(model), base=lambda: Wrapper(Lifted(_fno(8))))  # what holds it needs no registration

    class Registered(Lifted):
        pass

    both = {"scale": nm.Param("vector", ("out_fixed",)), "inner": nm.Place(False, False), "lift": nm.Place(False, False)}
    nm.register_layer(Registered, both)
    nm.parametrize(Wrapper(Registered(_fno())), base=lambda: Wrapper(Registered(_fno(8))))


def test_the_outermost_class_that_was_not_registered_is_named():
    model = nn.ModuleDict({"a": Lifted(Lifted(_fno()))})
    with pytest.raises(nm.MupError, match=r"nobody registered Lifted \('a'\)"):
        nm.parametrize(model, base=model)


def test_layers_that_depend_on_their_place_are_not_guessed():
    """A linear layer, or a class registered by a function, is nothing without its place."""
    assert not stands_alone(nn.Linear(2, 2))
    assert stands_alone(_fno())
    for layer in (nn.Linear(2, 2), nn.LayerNorm(3), BY_NAME["2d"].build().fno_blocks):
        with pytest.raises(nm.MupError, match=r"nobody registered Wrapper.*'inner': nm.Place\(\?, \?\)"):
            nm.parametrize(Wrapper(layer), base=Wrapper(layer))


def test_an_optimizer_of_a_wrapper_whose_part_is_parametrized():
    model = Wrapper(nm.parametrize(_fno(), base={"hidden_channels": 8}))
    for build in (nm.MuAdam, nm.MuSOAP):
        with pytest.raises(nm.MupError, match="its part 'inner.net' is: pass model.inner.net"):
            build(model, lr=0.02)


# -------------------------------------------------------------------------------------------------- a wrong Place


def _net(places, channels):
    """A model of three layers, of a class of its own, registered with ``places``."""

    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.lift = nn.Conv1d(channels[0], width, 1)
            self.mix = nn.Conv1d(width, width, 1)
            self.drop = nn.Conv1d(width, channels[1], 1)

    nm.register_layer(Net, {name: nm.Place(*place) for name, place in zip(("lift", "mix", "drop"), places, strict=True)})
    return Net


GROWING, LIFT, DROP = (True, True), (False, True), (True, False)


@pytest.mark.parametrize(
    ("places", "channels", "match"),
    [
        (
            [GROWING] * 3,
            (1, 1),
            r"of Net says by Place\(True, True\).*into 'lift' grow.*is 1 in the model and at base.*\(False, True\)",
        ),
        ([LIFT, GROWING, GROWING], (1, 1), r"out of 'drop' grow.*there is 1.*give it Place\(True, False\)"),
        # Two and three channels: nothing of the model would read, or write, the data's.
        ([GROWING] * 3, (2, 3), r"into 'lift' grow.*there are 2.*Place\(False, True\)"),
        ([LIFT, GROWING, GROWING], (2, 3), r"out of 'drop' grow.*there are 3.*Place\(True, False\)"),
        ([LIFT, GROWING, DROP], (1, 1), None),
        ([LIFT, GROWING, DROP], (2, 3), None),
    ],
)
def test_channels_that_cannot_grow(places, channels, match):
    net = _net(places, channels)
    if match is None:
        nm.parametrize(net(8), base=net(4))
        return
    with pytest.raises(nm.MupError, match=match):
        nm.parametrize(net(8), base=net(4))
    nm.parametrize(net(8), base=net(8))  # nothing grows, so nothing can be said


def test_a_second_width_may_stay():
    """Here the hidden width of one layer stays at 6 while the rest grows: it is a width, and the base's business."""

    class Net(nn.Module):
        def __init__(self, width, second):
            super().__init__()
            self.lift, self.up = nn.Linear(2, width), nn.Linear(width, second)
            self.down, self.drop = nn.Linear(second, width), nn.Linear(width, 2)

    places = {"lift": LIFT, "up": GROWING, "down": GROWING, "drop": DROP}
    nm.register_layer(Net, {name: nm.Place(*place) for name, place in places.items()})
    nm.parametrize(Net(16, 6), base=Net(8, 6))


def test_a_parameter_of_one_entry_cannot_grow():
    class Gated(nn.Linear):
        def __init__(self, width):
            super().__init__(2, width, bias=False)
            self.gate = nn.Parameter(torch.ones(1))

    nm.register_layer(
        Gated, {"weight": nm.Param("input", ("out", "in_fixed"), "fan_in"), "gate": nm.Param("vector", ("out",))}
    )
    with pytest.raises(nm.MupError, match="Gated says that the axis 'out' of 'gate' grows.*1 entry.*write 'out_fixed'"):
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
    nm.register_layer(Gated, both)
    with pytest.raises(nm.MupError, match="the adapter of Gated says nothing of 'gate'"):
        nm.parametrize(Gated(), base=Gated())
    # A name that this configuration of the layer lacks is none of a mistake.
    nm.register_layer(Gated, {**both, "gate": nm.Place(False, False), "bias": nm.Param("vector", ("out_fixed",))})
    nm.parametrize(Gated(), base=Gated())


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
    with pytest.raises(nm.MupError, match="has a root mean square") as error:
        nm.parametrize(ours, base={"hidden_channels": 8})
    assert "registration" not in str(error.value)


# ------------------------------------------------------------------------------------------------------- wrong bases


def test_a_base_of_another_number_of_axes():
    def build():
        return FNO((8, 8), 1, 1, 8, n_layers=1)

    for wrong, example in (((4,), r"\(4, 4\)"), (4, r"\(4, 4\)"), ((4, 4, 4), r"\(4, 4\)"), ((), r"\(8, 8\)")):
        with pytest.raises(nm.MupError, match=f"2 axes: n_modes needs 2 numbers, one for each, such as {example}"):
            nm.parametrize(build(), base={"n_modes": wrong})
    with pytest.raises(nm.MupError, match=r"1 axis: n_modes needs 1 number, one for each, such as \(4,\)"):
        nm.parametrize(_fno(), base={"n_modes": 4})


def test_overrides_that_cannot_be_used_are_repeated():
    for model in (Wrapper(_fno()), BY_NAME["uno"].build()):
        with pytest.raises(nm.MupError, match=r"from overrides \{'width': 8\}"):
            nm.parametrize(model, base={"width": 8})


def test_a_base_that_is_wider_than_the_model():
    with pytest.warns(UserWarning, match="The base is wider than the model: .* 16 channels at base and 4 here"):
        nm.parametrize(_fno(4), base={"hidden_channels": 16})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nm.parametrize(_fno(4), base={"hidden_channels": 16}, rule="standard")
        nm.parametrize(_fno(16), base={"hidden_channels": 16, "n_modes": (16,)})
        batch = {"x": torch.randn(2, 2, 16), "y": torch.randn(2, 3, 16)}
        nm.coord_check(lambda w: nm.parametrize(_fno(w), base={"hidden_channels": 16}), [8, 16], [batch], lr=1e-3, seeds=1)
