"""Each wrong input raises a MupError that names it, and the model stays unchanged: parametrize first, then other calls."""

import json
from functools import partial

import mup
import numpy as np
import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.models import FNO, UQNO

import neuralop_mup as nm
from neuralop_mup.lab import Results, sweep, transfer_study
from neuralop_mup.lab.data.own import OwnData
from support.cases import BY_NAME
from support.errors import refused
from support.models import Wrapper, parametrized

CASE = BY_NAME["2d"]
EMPTY_LAYERS = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")


def is_refused(model, names, base=None, **kwargs):
    """parametrize raises an error with these names, and changes neither weights nor attributes."""
    before = {n: (p.detach().clone(), hasattr(p, "infshape")) for n, p in model.named_parameters()}
    had_plan = nm.is_parametrized(model)
    with refused(names):
        nm.parametrize(model, base=CASE.base if base is None else base, **kwargs)
    assert nm.is_parametrized(model) == had_plan
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name][0]) and hasattr(p, "infshape") == before[name][1], name


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"base": {"n_layers": 9}}, "base fno_blocks.convs.2.bias"),
        ({"base": {"hiden_channels": 8}}, "'hiden_channels' 'hidden_channels'"),
        ({"base": {"in_channels": 4}}, "in_channels=4"),
        ({"base": {"out_channels": 1}}, "out_channels=1"),
        ({"base": {"n_modes": (0, 4)}}, "n_modes (0,4) (1,4)"),
        ({"base": {"n_modes": 4}}, "n_modes=4 (8,6)"),
        ({"base": {"n_modes": (2, 2)}, "rule": "log-modes"}, "operator-norm"),
        ({"base": {"n_modes": (1, 3)}, "rule": "log-modes"}, "operator-norm"),
        ({"base": {"norm": "group_norm"}}, "norm='group_norm' None"),
        ({"base": {"separable": True}}, "separable=True False"),
        ({"base": {"factorization": "tucker"}}, "factorization='tucker'"),
        ({"base": {"lifting_channel_ratio": 0}}, "lifting"),
        # At base the channel MLP has half of one channel, which is none, so that its growth is undefined.
        ({"base": {"hidden_channels": 1}}, "'fno_blocks.channel_mlp.0.fcs.0.weight' (12,24,1) (0,1,1)"),
        ({"base": 8}, "base int"),
        ({"base": "no/such/file.bsh"}, "no/such/file.bsh"),
        ({"base": lambda: 3}, "base int"),
        ({"base": lambda: 3 / 0}, "base ZeroDivisionError:divisionbyzero"),
        ({"rule": "log_modes"}, "'log_modes' 'log-modes'"),
        ({"init_mult": {"readot": 1.0}}, "'readot' 'readout'"),
        ({"init_mult": {"kernels": 0.3}}, "'kernels' kernel"),
        ({"init_mult": {"kernel": 0}}, "kernel 1e-12"),
        ({"init_mult": {"readout": float("nan")}}, "readout nan 1e-12"),
        ({"init_mult": {"readout": 1e300}}, "readout 1e+300 1e-12"),
        ({"init_mult": 2.0}, "init_mult 2.0"),
    ],
)
@EMPTY_LAYERS
def test_arguments_that_do_not_fit(arguments, names):
    is_refused(CASE.build(), names, **arguments)


def changed(change, model=None):
    """Return the case's model, or ``model``, after a change to it."""
    model = model or CASE.build()
    change(model)
    return model


def scaled_by_mup():
    theirs, base, delta = (CASE.build(n_modes=(8, 8), hidden_channels=width) for width in (24, 8, 16))
    return mup.set_base_shapes(theirs, base, delta=delta, do_assert=False)


class Narrow(SpectralConv):
    """Kernels with a standard deviation of 0.01, where neuralop's is √(2/48)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{**kwargs, "init_std": 0.01})


@pytest.mark.parametrize(
    ("build", "base", "names"),
    [
        (lambda: parametrized(CASE), None, "FNO"),
        (lambda: nm.unparametrize(parametrized(CASE)), None, "parametrize init=False"),
        (lambda: CASE.build(conv_module=Narrow), None, "0.049 init=False"),
        (lambda: changed(lambda m: m.lifting.fcs[1].weight.data.mul_(1.5)), None, "lifting.fcs.1.weight init=False"),
        (lambda: changed(lambda m: m.lifting.fcs[0].weight.requires_grad_(False)), None, "'weight' 'lifting.fcs.0' Conv1d"),
        (
            lambda: changed(lambda m: m.fno_blocks.add_module("extra", torch.nn.Linear(3, 3))),
            None,
            "'fno_blocks.extra.weight'",
        ),
        (
            lambda: changed(
                lambda m: m.lifting.fcs[0].register_parameter("kernel", m.lifting.fcs[0]._parameters.pop("weight"))
            ),
            None,
            "'lifting.fcs.0.bias' Conv1d 'lifting.fcs.0.weight'",
        ),
        (
            lambda: changed(lambda m: m.add_module("projection", CASE.build(projection_channel_ratio=4).projection)),
            {},
            "projection.fcs.0.weight",
        ),
        (lambda: CASE.build(max_n_modes=(4, 4)), None, "max_n_modes"),
        (lambda: torch.nn.Bilinear(2, 4, 4), lambda: torch.nn.Bilinear(2, 2, 2), "Bilinear register_layer"),
        (lambda: torch.nn.Linear(2, 2), None, "Linear"),
        (lambda: changed(lambda m: setattr(m, "n_modes", (4, 4))), None, "n_modes"),
        (lambda: Wrapper(parametrized(CASE)), lambda: Wrapper(CASE.build_base()), "Wrapper"),
        (scaled_by_mup, None, "mup"),
    ],
)
def test_models_that_do_not_fit(build, base, names):
    is_refused(build(), names, base=base)


@pytest.mark.parametrize("content", ["", "\x00", "a: [1, -2]", "{}", "other", "cut off"])
def test_base_files_that_do_not_fit(content, tmp_path):
    """Files of another kind, of another model, and a damaged one."""
    path = tmp_path / "bad.bsh"
    nm.save_base_shapes(BY_NAME["1d"].build_base(), path)
    whole = path.read_text()
    path.write_text({"other": whole, "cut off": whole[:200]}.get(content, content))
    is_refused(CASE.build(), "", base=path)


@pytest.mark.parametrize("build", [nm.MuAdam, nm.MuAdamW, nm.MuSGD, nm.param_groups])
def test_optimizer_without_a_plan(build):
    with refused("neuralop_mup.parametrize"):
        build(CASE.build(), lr=0.01)
    with refused("model"):
        build(CASE.build().parameters(), lr=0.01)


@pytest.mark.parametrize("build", [nm.MuAdam, nm.MuSGD])
@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=10),
        lambda optimizer: [group.update(lr=1e-2) for group in optimizer.param_groups],
        lambda optimizer: optimizer.param_groups[-1].update(lr=1.0),
    ],
)
def test_learning_rates_that_a_scheduler_made_equal_are_refused(build, change):
    """Groups keep their multipliers when OneCycleLR(max_lr=…) or a user's loop replaces their learning rates."""
    model = parametrized(CASE)
    optimizer = build(model, lr=0.01, lr_mult={"readout": 3.0})
    family = "sgd" if build is nm.MuSGD else "adam"
    torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    nm.check_optimizer(model, optimizer, family)
    change(optimizer)
    with refused("plan"):
        nm.check_optimizer(model, optimizer, family)


def plan_of_the_future():
    stored = json.loads(nm.summary(parametrized(CASE)).to_json())
    stored["rows"][0]["colour"] = "blue"
    return nm.Plan.from_json(json.dumps(stored))


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


def registered(name, role, *axes, layer=Layer, **how):
    nm.register_layer(layer, {name: nm.Param(role, axes, **how)})
    nm.parametrize(Layer(), base=Layer())


BILINEAR = partial(registered, "weight", layer=torch.nn.Bilinear)


def groups(**arguments):
    return nm.param_groups(parametrized(CASE), **{"lr": 0.1, **arguments})


def study(**changes):
    return transfer_study(**{"proxy": {"w": 1}, "target": {"w": 2}, "space": {"lr": [0.1, 0.2]}, **changes})


OTHER_AXES = torch.nn.Parameter(torch.zeros(3, 3, dtype=torch.cfloat))


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: groups(lr=float("inf")), "lr inf"),
        (lambda: groups(lr=float("nan")), "lr nan"),
        (lambda: groups(lr=-1.0), "lr -1"),
        (lambda: groups(lr="0.1"), "lr '0.1'"),
        (lambda: groups(lr=None), "lr None"),
        (lambda: groups(lr=True), "lr True"),
        (lambda: groups(weight_decay=-1), "weight_decay -1"),
        (lambda: groups(lr_mult={"kernel": 2.0}), "'kernel' spectral"),
        (lambda: groups(optimizer="adma"), "'adma' 'adam'"),
        (
            lambda: nm.MuAdam(changed(lambda m: m.add_module("extra", torch.nn.Linear(2, 2)), parametrized(CASE)), lr=0.1),
            "'extra. parametrize",
        ),
        (
            lambda: nm.MuSOAP(
                changed(lambda m: setattr(m.fno_blocks.convs[0].weight, "tensor", OTHER_AXES), parametrized(CASE))
            ),
            "fno_blocks.convs.0.weight.tensor parametrize",
        ),
        (optimizer_from_before_parametrize, "parametrize"),
        (optimizer_of_another_plan, "plan"),
        (
            lambda: nm.check_optimizer(parametrized(CASE), torch.optim.Adam(CASE.build().parameters())),
            "'fno_blocks.convs.0.bias'",
        ),
        (lambda: nm.summary(CASE.build()), "parametrize"),
        (lambda: nm.parametrize(FNO), "FNO(…)"),
        (lambda: nm.save_base_shapes(CASE.build(), "/no/such/folder.bsh"), "/no/such/folder.bsh"),
        (lambda: nm.clip_spectral_grad_value_(parametrized(CASE), 0), "0"),
        (lambda: nm.clip_spectral_grad_value_(CASE.build().lifting.fcs[0], 1.0), "Conv1d"),
        (lambda: nm.register_layer(torch.nn.Linear(2, 2), {}), "class"),
        (lambda: BILINEAR("kernel", "out", "in", "in"), "'kernel'"),
        (lambda: BILINEAR("hidden", "out", "in", "mode"), "'mode'"),
        (lambda: BILINEAR("hidden", "out", "in"), "weight"),
        (lambda: registered("scael", "vector", "out"), "Layer 'scael' 'scale'"),
        (lambda: registered("scale", "vector", "out", "in"), "(2,) Layer 2"),
        (lambda: registered("scale", "vector", "out", init="fan_in", init_of="wieght"), "'scale' Layer 'wieght'"),
        (lambda: nm.parametrize(torch.nn.Bilinear(2, 2, 2), base=torch.nn.Bilinear(1, 1, 1)), "weight Bilinear"),
        (lambda: nm.parametrize(torch.nn.Sequential(torch.nn.LazyLinear(3)), base={}), "0.weight"),
        (lambda: nm.parametrize(UQNO(parametrized(CASE)), base={}), "UQNO"),
        (plan_of_the_future, "JSON colour"),
        (lambda: study(space={3: [1]}), "3"),
        (lambda: study(proxy=8), "proxy=8"),
        (lambda: study(rule=("none",)), "rule"),
        (lambda: Results.load("/no/such/folder"), "/no/such/folder"),
        (lambda: sweep("train.py", {"lr": [1]}, folder="/tmp/none"), "'train.py'"),
        (lambda: OwnData(files=()), "()"),
    ],
)
def test_other_calls_that_cannot_work(call, names):
    with refused(names):
        call()


def test_lists_of_the_model_are_not_appended_to():
    """GNOBlock appends to the list of hidden widths: the base must have its own list."""
    model = BY_NAME["fnogno"].build()
    stored = list(model._init_kwargs["gno_channel_mlp_hidden_layers"])
    widths = [12, 10]
    nm.parametrize(model, base={**BY_NAME["fnogno"].base, "gno_channel_mlp_hidden_layers": widths})
    assert (model._init_kwargs["gno_channel_mlp_hidden_layers"], widths) == (stored, [12, 10])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"norm": "instance_norm"}, {"norm": None}),
        ({"fno_skip": None}, {"fno_skip": "identity"}),
        ({}, {"stabilizer": "tanh"}),
        ({}, {"domain_padding": 0.3}),
        ({}, {"non_linearity": torch.nn.functional.relu}),
    ],
)
def test_base_of_another_architecture_with_the_same_parameters(ours, theirs):
    (name,) = theirs
    for base in ({**CASE.base, **theirs}, CASE.build(**{**ours, **CASE.base, **theirs})):
        is_refused(CASE.build(**ours), name, base=base)


def test_mup_files_in_which_a_size_does_not_vary(tmp_path):
    path = str(tmp_path / "width.bsh")
    one, capped = BY_NAME["1d"], BY_NAME["max_n_modes"]
    mup.make_base_shapes(one.build_base(), one.build(hidden_channels=16, n_modes=one.base_modes), savefile=path)
    is_refused(one.build(), "null 'modes_half'", base=path)  # only the width varied
    nm.parametrize(one.build(), base=path, rule="none")
    mup.make_base_shapes(one.build_base(), one.build(hidden_channels=8), savefile=path)
    is_refused(one.build(), "null", base=path, rule="none")  # only the modes varied
    mup.make_base_shapes(capped.build_base(), capped.build(max_n_modes=(12, 12)), savefile=path)
    is_refused(capped.build(), "modes", base=path)


def test_numpy_numbers_are_numbers(tmp_path):
    model = nm.parametrize(CASE.build(n_modes=tuple(np.array([8, 6]))), init_mult={"readout": np.float32(0.5)})
    nm.summary(model).to_json()
    nm.save_base_shapes(model, tmp_path / "base.bsh")


TENTH = np.float64(0.1)


@pytest.mark.parametrize(
    ("build", "numbers"),
    [
        (nm.MuSOAP, dict.fromkeys(("lr", "adamw_lr", "weight_decay", "momentum", "beta2", "eps"), TENTH)),
        (nm.MuSOAP, {"start_error": TENTH}),
        (nm.MuSOAP, {"betas": (TENTH, TENTH)}),
        (nm.MuAdamW, {"lr": TENTH, "weight_decay": TENTH}),
        (nm.MuSGD, {"lr": TENTH}),
    ],
)
def test_torch_loads_the_state_of_an_optimizer_with_numpy_numbers(build, numbers, tmp_path):
    torch.save(build(parametrized(CASE), **numbers).state_dict(), tmp_path / "state.pt")
    torch.load(tmp_path / "state.pt")


@EMPTY_LAYERS
def test_base_shape_files_with_layers_without_numbers(tmp_path):
    """A quarter of 2 channels is none. A base without numbers only fits a model without numbers."""

    def build(width):
        return FNO((4,), 1, 1, width, n_layers=1, channel_mlp_expansion=0.25)

    path = tmp_path / "base.bsh"
    nm.save_base_shapes(nm.parametrize(build(2), base={"hidden_channels": 2}), path)
    nm.parametrize(build(2), base=path)
    is_refused(build(8), "fno_blocks.channel_mlp.0.fcs.0.weight", base=path)
