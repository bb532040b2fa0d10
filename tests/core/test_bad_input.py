"""Each wrong input is one MupError with a sentence that helps, and leaves the model as it was.

Of `parametrize` first, then of optimizers, checks, files and studies.
"""

import json

import mup
import numpy as np
import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.models import FNO, UQNO

import neuralop_mup as nm
from neuralop_mup.lab import Results, sweep, transfer_study
from neuralop_mup.lab.problems.own import OwnData
from support.cases import BY_NAME, SPHERE
from support.models import Wrapper, parametrized

CASE = BY_NAME["2d"]


def _refused(model, match, base=None, **kwargs):
    """parametrize raises a MupError that matches, and changes neither weights nor attributes."""
    before = {n: (p.detach().clone(), hasattr(p, "infshape")) for n, p in model.named_parameters()}
    had_plan = nm.is_parametrized(model)
    with pytest.raises(nm.MupError, match=match):
        nm.parametrize(model, base=CASE.base if base is None else base, **kwargs)
    assert nm.is_parametrized(model) == had_plan
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name][0]) and hasattr(p, "infshape") == before[name][1], name


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"base": {"n_layers": 9}}, "of which it has no more than the model"),
        ({"base": {"hiden_channels": 8}}, "did you mean 'hidden_channels'"),
        ({"base": {"in_channels": 4}}, "in_channels = 4 .* for the same data"),
        ({"base": {"out_channels": 1}}, "for the same data"),
        ({"base": {"n_modes": (0, 4)}}, r"at least 1 on every axis.*give \(1, 4\)"),
        ({"base": {"n_modes": 4}}, "give as many numbers"),
        ({"base": {"n_modes": (2, 2)}, "rule": "log-modes"}, "operator-norm"),
        ({"base": {"n_modes": (1, 3)}, "rule": "log-modes"}, "operator-norm"),
        ({"base": {"norm": "group_norm"}}, "norm = 'group_norm' and the model None.*same architecture"),
        ({"base": {"separable": True}}, "separable = True and the model False"),
        ({"base": {"factorization": "tucker"}}, "same architecture"),
        # What is said depends on neuralop's version.
        ({"base": {"lifting_channel_ratio": 0}}, "only in the model|where its layer holds no numbers"),
        # The channel MLP has half of one channel at base, which is none: how much it grew cannot be said.
        (
            {"base": {"hidden_channels": 1}},
            r"'fno_blocks.channel_mlp.0.fcs.0.weight' is \(12, 24, 1\) in the model and \(0, 1, 1\) at base.*at least 1",
        ),
        ({"base": 8}, "int; give constructor overrides"),
        ({"base": "no/such/file.bsh"}, "Cannot read"),
        ({"base": lambda: 3}, "base is, or gives, a int"),
        ({"base": lambda: 3 / 0}, "The base function cannot be built: ZeroDivisionError: division by zero"),
        ({"rule": "log_modes"}, "did you mean 'log-modes'"),
        ({"init_mult": {"readot": 1.0}}, "did you mean 'readout'"),
        ({"init_mult": {"kernels": 0.3}}, "no role 'kernels'.*kernel"),
        ({"init_mult": {"kernel": 0}}, "between 1e-12"),
        ({"init_mult": {"readout": -1.0}}, "between 1e-12"),
        ({"init_mult": {"readout": float("nan")}}, "between 1e-12"),
        ({"init_mult": {"readout": 1e300}}, "between 1e-12"),
        ({"init_mult": 2.0}, "a dict by role"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_arguments_that_do_not_fit(arguments, match):
    _refused(CASE.build(), match, **arguments)


def changed(change, model=None):
    """The model of the case, when ``change`` has been at it."""
    change(model := model or CASE.build())
    return model


class Follows(torch.nn.Module):
    """Whose bias is drawn by the fan-in of a weight that it does not have."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.ones(3))


nm.register_layer(Follows, {"bias": nm.Param("vector", ("out",), "fan_in", init_of="wieght")})


def scaled_by_mup():
    theirs, base, delta = (CASE.build(n_modes=(8, 8), hidden_channels=width) for width in (24, 8, 16))
    return mup.set_base_shapes(theirs, base, delta=delta, do_assert=False)


class Mine(FNO):
    """Which hands arguments on."""

    def __init__(self, hidden_channels, **kwargs):
        super().__init__((8, 6), 1, 1, hidden_channels, **kwargs)


class Narrow(SpectralConv):
    """Kernels with a standard deviation of 0.01, where neuralop's is √(2/48)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{**kwargs, "init_std": 0.01})


@pytest.mark.parametrize(
    ("build", "base", "match"),
    [
        (lambda: parametrized(CASE), CASE.base, "parametrized already"),
        (
            lambda: nm.unparametrize(parametrized(CASE)),
            CASE.base,
            "rescaled by an earlier parametrize",
        ),
        (lambda: CASE.build(conv_module=Narrow), CASE.base, "0.049 times its default initialisation"),
        (
            lambda: changed(lambda m: m.lifting.fcs[1].weight.data.mul_(1.5)),
            CASE.base,
            "times its default initialisation((?!registration).)*$",  # of ours, which nobody registered
        ),
        (
            lambda: changed(lambda m: m.lifting.fcs[0].weight.requires_grad_(False)),
            CASE.base,
            "'weight' of module 'lifting.fcs.0' .Conv1d. is frozen",
        ),
        (
            lambda: changed(lambda m: m.fno_blocks.add_module("extra", torch.nn.Linear(3, 3))),
            CASE.base,
            "changed after it was constructed.*'fno_blocks.extra.weight'",
        ),
        (
            lambda: changed(
                lambda m: m.lifting.fcs[0].register_parameter("kernel", m.lifting.fcs[0]._parameters.pop("weight"))
            ),
            CASE.base,
            "init of 'lifting.fcs.0.bias' of Conv1d follows 'lifting.fcs.0.weight', which the model does not have",
        ),
        (
            lambda: changed(lambda m: m.add_module("projection", CASE.build(projection_channel_ratio=4).projection)),
            {},
            "changed after it was constructed",
        ),
        (lambda: CASE.build(max_n_modes=(4, 4)), CASE.base, "must not exceed max_n_modes"),
        (lambda: torch.nn.Bilinear(2, 4, 4), lambda: torch.nn.Bilinear(2, 2, 2), r"\(Bilinear\).*register_layer"),
        (lambda: torch.nn.Linear(2, 2), CASE.base, "has no Fourier kernel of a known type in it"),
        (lambda: changed(lambda m: setattr(m, "n_modes", (4, 4))), CASE.base, "changed after it was constructed"),
        (Follows, Follows, "'bias' of Follows follows 'wieght', which the model does not have"),
        (lambda: Wrapper(parametrized(CASE)), lambda: Wrapper(CASE.build_base()), "parametrized already"),
        (scaled_by_mup, CASE.base, "or by mup"),
    ],
)
def test_models_that_do_not_fit(build, base, match):
    _refused(build(), match, base=base)


def test_base_files_that_do_not_fit(tmp_path):
    """Of no such file, of another model, and cut off."""
    path = tmp_path / "bad.bsh"
    nm.save_base_shapes(BY_NAME["1d"].build_base(), path)
    other = path.read_text()
    for content, match in (
        ("", "not a base-shape file"),
        ("\x00", "not a base-shape"),
        ("a: [1, -2]", "positive integer"),
        ("{}", "usable"),
        (other, "dimensions"),
        (other[:200], "different parameters|not a base-shape file"),
    ):
        path.write_text(content)
        _refused(CASE.build(), match, base=path)


@pytest.mark.parametrize("build", [nm.MuAdam, nm.MuAdamW, nm.MuSGD, nm.param_groups])
def test_optimizer_without_a_plan(build):
    with pytest.raises(nm.MupError, match="call neuralop_mup.parametrize"):
        build(CASE.build(), lr=0.01)
    with pytest.raises(nm.MupError, match="pass the model itself"):
        build(CASE.build().parameters(), lr=0.01)


@pytest.mark.parametrize("build", [nm.MuAdam, nm.MuSGD])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=10),
        lambda optimizer: [group.update(lr=1e-2) for group in optimizer.param_groups],
        lambda optimizer: optimizer.param_groups[-1].update(lr=1.0),
    ],
)
def test_learning_rates_that_a_scheduler_made_equal_are_found_out(build, spoil):
    """Groups keep their multipliers when OneCycleLR(max_lr=…) or a loop of the user's replaces what they scale."""
    model = parametrized(CASE)
    optimizer = build(model, lr=0.01, lr_mult={"readout": 3.0})
    family = "sgd" if build is nm.MuSGD else "adam"
    torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    nm.check_optimizer(model, optimizer, family)
    spoil(optimizer)
    with pytest.raises(nm.MupError, match="do not stand in the plan's ratios"):
        nm.check_optimizer(model, optimizer, family)


@pytest.mark.skipif(not SPHERE, reason="torch_harmonics is not installed")
def test_alias_that_was_untied():
    model = BY_NAME["local_no"].build()
    conv = model.local_no_blocks.differential[0]
    conv.weight = torch.nn.Parameter(conv.weight.detach().clone())
    _refused(model, "should be one tensor under two names", base=BY_NAME["local_no"].base)


def plan_of_the_future():
    stored = json.loads(nm.summary(parametrized(CASE)).to_json())
    stored["rows"][0]["colour"] = "blue"
    return nm.Plan.from_json(json.dumps(stored))


OTHER_AXES = torch.nn.Parameter(torch.zeros(3, 3, dtype=torch.cfloat))


def optimizer_from_before_parametrize():
    model = CASE.build()
    early = torch.optim.Adam(model.parameters(), lr=0.01)
    nm.check_optimizer(nm.parametrize(model, base=CASE.base), early)


def optimizer_of_another_plan():
    model = parametrized(CASE)
    stale = nm.MuAdam(model, lr=0.01)
    nm.parametrize(nm.unparametrize(model), base={"hidden_channels": 12}, init=False)
    nm.check_optimizer(model, stale)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2))


def registered(name, *axes):
    nm.register_layer(Layer, {name: nm.Param("vector", axes)})
    nm.parametrize(Layer(), base=Layer())


def study(**changes):
    return transfer_study(**{"proxy": {"w": 1}, "target": {"w": 2}, "space": {"lr": [0.1, 0.2]}, **changes})


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: nm.param_groups(parametrized(CASE), lr=float("inf")), "lr is inf"),
        (lambda: nm.param_groups(parametrized(CASE), lr=float("nan")), "lr is nan"),
        (lambda: nm.param_groups(parametrized(CASE), lr=-1.0), "lr is -1"),
        (lambda: nm.param_groups(parametrized(CASE), lr="0.1"), "lr is '0.1'"),
        (lambda: nm.param_groups(parametrized(CASE), lr=None), "lr is None"),
        (lambda: nm.param_groups(parametrized(CASE), lr=True), "lr is True"),
        (lambda: nm.param_groups(parametrized(CASE), lr=0.1, weight_decay=-1), "weight_decay"),
        (lambda: nm.param_groups(parametrized(CASE), lr=0.1, lr_mult={"kernel": 2.0}), "no role 'kernel'"),
        (lambda: nm.param_groups(parametrized(CASE), lr=0.1, optimizer="adma"), "did you mean 'adam'"),
        (
            lambda: nm.MuAdam(changed(lambda m: m.add_module("extra", torch.nn.Linear(2, 2)), parametrized(CASE)), lr=0.1),
            "changed after parametrize",
        ),
        (
            lambda: nm.MuSOAP(
                changed(lambda m: setattr(m.fno_blocks.convs[0].weight, "tensor", OTHER_AXES), parametrized(CASE))
            ),
            "changed after parametrize",
        ),
        (optimizer_from_before_parametrize, "built before parametrize"),
        (optimizer_of_another_plan, "does not follow the plan"),
        (lambda: nm.check_optimizer(parametrized(CASE), torch.optim.Adam(CASE.build().parameters())), "does not hold"),
        (lambda: nm.summary(CASE.build()), "not parametrized"),
        (lambda: nm.parametrize(FNO), r"FNO is a class: give a model, FNO\(…\)"),
        (lambda: nm.parametrize(Mine(32), base={"hidden_channel": 16}), "did you mean 'hidden_channels'"),
        (lambda: nm.save_base_shapes(CASE.build(), "/no/such/folder.bsh"), "Cannot write"),
        (lambda: nm.clip_spectral_grad_value_(parametrized(CASE), 0), "above 0"),
        (lambda: nm.clip_spectral_grad_value_(CASE.build().lifting.fcs[0], 1.0), "no Fourier kernel"),
        (lambda: nm.register_layer(torch.nn.Linear(2, 2), {}), "class, not an instance"),
        (lambda: nm.register_layer(torch.nn.Bilinear, {"weight": nm.Param("kernel", ("out", "in", "in"))}), "a role of"),
        (lambda: registered("scael", "out"), "Layer names 'scael', .* no such parameter: did you mean 'scale'"),
        (lambda: registered("scale", "out", "in"), r"has shape \(2,\), but Layer is described with 2 axes"),
        (lambda: nm.register_layer(torch.nn.Bilinear, {"weight": nm.Param("hidden", ("out", "in", "mode"))}), "axes are of"),
        (lambda: nm.register_layer(torch.nn.Bilinear, {"weight": nm.Param("hidden", ("out", "in"))}), "say how it is drawn"),
        (lambda: nm.parametrize(torch.nn.Bilinear(2, 2, 2), base=torch.nn.Bilinear(1, 1, 1)), "Two dimensions of"),
        (lambda: nm.parametrize(torch.nn.Sequential(torch.nn.LazyLinear(3)), base={}), "has no shape yet"),
        (lambda: nm.parametrize(UQNO(parametrized(CASE)), base={}), "This UQNO, or a part of it, is parametrized already"),
        (plan_of_the_future, "not the JSON of a plan.*colour"),
        (lambda: study(space={3: [1]}), "keys must be strings"),
        (lambda: study(proxy=8), "proxy=8 must be a dict of sizes"),
        (lambda: study(rule=("none",)), "must be a name"),
        (lambda: Results.load("/no/such/folder"), "holds no study"),
        (lambda: sweep("train.py", {"lr": [1]}, folder="/tmp/none"), "give a function"),
        (lambda: OwnData(files=()), r"There is no data file in \[\]"),
    ],
)
def test_other_calls_that_cannot_work(call, match):
    with pytest.raises(nm.MupError, match=match) as caught:
        call()
    assert len(str(caught.value)) > 30


def test_lists_of_the_model_are_not_appended_to():
    """GNOBlock appends to the list of hidden widths that it is given: the base's must not be the model's."""
    model = BY_NAME["fnogno"].build()
    stored = list(model._init_kwargs["gno_channel_mlp_hidden_layers"])
    overrides = {**BY_NAME["fnogno"].base, "gno_channel_mlp_hidden_layers": (widths := [12, 10])}
    nm.parametrize(model, base=overrides)
    assert (model._init_kwargs["gno_channel_mlp_hidden_layers"], widths) == (stored, [12, 10])


# ------------------------------------------------------------------------------ a base that is not what it seems


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"norm": "instance_norm"}, {"norm": None}),
        ({"fno_skip": None}, {"fno_skip": "identity"}),
        ({}, {"stabilizer": "tanh"}),
        ({}, {"preactivation": True}),
        ({}, {"domain_padding": 0.3}),
        ({}, {"non_linearity": torch.nn.functional.relu}),
    ],
)
def test_base_of_another_architecture_with_the_same_parameters(ours, theirs):
    for base in ({**CASE.base, **theirs}, CASE.build(**{**ours, **CASE.base, **theirs})):
        _refused(CASE.build(**ours), "same architecture", base=base)


def test_mup_files_that_do_not_say_how_much_the_model_grew(tmp_path):
    path = str(tmp_path / "width.bsh")
    one = BY_NAME["1d"]
    mup.make_base_shapes(one.build_base(), one.build(hidden_channels=16, n_modes=one.base_modes), savefile=path)
    _refused(one.build(), "no base size .null. for the 'modes_half'", base=path)  # only the width varied
    nm.parametrize(one.build(), base=path, rule="none")
    mup.make_base_shapes(one.build_base(), one.build(hidden_channels=8), savefile=path)
    _refused(one.build(), "no base size", base=path, rule="none")  # only the modes varied
    capped = BY_NAME["max_n_modes"]
    mup.make_base_shapes(capped.build_base(), capped.build(max_n_modes=(12, 12)), savefile=path)
    _refused(capped.build(), "uses only part of its modes", base=path)


# ------------------------------------------------------------------------------ numbers of other kinds


def test_numpy_numbers_are_numbers(tmp_path):
    model = CASE.build(n_modes=tuple(np.array([8, 6])))
    nm.parametrize(model, base=CASE.base, init_mult={"readout": np.float32(0.5)})
    nm.summary(model).to_json()
    nm.param_groups(model, lr=np.float64(0.1))
    nm.save_base_shapes(model, tmp_path / "base.bsh")


@pytest.mark.parametrize(
    ("build", "given"),
    [
        (nm.MuSOAP, {"lr": 0.1, "aux_lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "beta2": 0.9, "eps": 0.1}),
        (nm.MuSOAP, {"start_error": 0.1}),
        (nm.MuSOAP, {"betas": 0.9}),
        (nm.MuAdamW, {"lr": 0.1, "weight_decay": 0.1}),
        (nm.MuSGD, {"lr": 0.1}),
    ],
)
def test_an_optimizer_of_numpy_numbers_has_a_state_that_torch_loads(build, given, tmp_path):
    numbers = {key: np.float64(value) for key, value in given.items()}
    numbers = {key: (value, value) if key == "betas" else value for key, value in numbers.items()}
    torch.save(build(parametrized(CASE), **numbers).state_dict(), tmp_path / "state.pt")
    torch.load(tmp_path / "state.pt")


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_file_of_base_shapes_may_have_layers_without_numbers(tmp_path):
    """A channel MLP of a quarter of 2 channels has none; at base that is only right where the model has none either."""

    def build(width):
        return FNO((4,), 1, 1, width, n_layers=1, channel_mlp_expansion=0.25)

    path = tmp_path / "base.bsh"
    nm.save_base_shapes(nm.parametrize(build(2), base={"hidden_channels": 2}), path)
    nm.parametrize(build(2), base=path)
    with pytest.raises(nm.MupError, match="holds no numbers"):
        nm.parametrize(build(8), base=path)
