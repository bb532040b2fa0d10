"""Each wrong input is one MupError with a sentence that helps, and leaves the model as it was."""

import mup
import numpy as np
import pytest
import torch
from cases import BY_NAME, SPHERE
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.models import FNO, UNO, UQNO

import neuralop_mup as nm

CASE = BY_NAME["2d"]


def _refused(model, match, base=None, **kwargs):
    """parametrize raises a MupError that matches, and changes neither weights nor attributes."""
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    had_plan = nm.is_parametrized(model)
    with pytest.raises(nm.MupError, match=match):
        nm.parametrize(model, base=CASE.base if base is None else base, **kwargs)
    assert nm.is_parametrized(model) == had_plan
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]), name
        assert had_plan or not hasattr(p, "infshape")


@pytest.mark.parametrize(
    ("base", "match"),
    [
        ({"n_layers": 9}, "no deeper than its target"),
        ({"hiden_channels": 8}, "did you mean 'hidden_channels'"),
        ({"in_channels": 4}, "same in_channels"),
        ({"out_channels": 1}, "same in_channels"),
        ({"n_modes": (0, 4)}, r"at least 1 on every axis.*give \(1, 4\)"),
        ({"n_modes": 4}, "n_modes needs 2 numbers"),
        ({"norm": "group_norm"}, "which is no size"),
        ({"separable": True}, "which is no size"),
        ({"factorization": "tucker"}, "which is no size"),
        ({"lifting_channel_ratio": 0}, "only in the model|where its layer holds no numbers"),  # by neuralop's version
        (8, "int; give constructor overrides"),
        ("no/such/file.bsh", "Cannot read"),
    ],
)
def test_base_that_does_not_fit(base, match):
    _refused(CASE.build(), match, base=base)


def test_k_equal_one_has_an_alternative():
    model = FNO((2, 2), 1, 1, 16, n_layers=1)
    _refused(model, "operator-norm", base={"hidden_channels": 8}, rule="log-modes")
    for n_modes in ((2, 2), (1, 3)):
        _refused(CASE.build(), "operator-norm", base={"n_modes": n_modes}, rule="log-modes")
    nm.parametrize(model, base={"hidden_channels": 8})


@pytest.mark.parametrize(
    ("content", "match"),
    [("", "not a base-shape file"), ("\x00", "not a base-shape"), ("a: [1, -2]", "positive integer"), ("{}", "usable")],
)
def test_unreadable_base_file(tmp_path, content, match):
    path = tmp_path / "bad.bsh"
    path.write_text(content)
    _refused(CASE.build(), match, base=path)


def test_base_file_of_another_model_or_cut_off(tmp_path):
    path = tmp_path / "other.bsh"
    nm.save_base_shapes(BY_NAME["1d"].build_base(), path)
    _refused(CASE.build(), "dimensions", base=path)
    path.write_text(path.read_text()[:200])
    _refused(CASE.build(), "different parameters|not a base-shape file", base=path)


def test_base_file_where_it_cannot_be_written(tmp_path):
    with pytest.raises(nm.MupError, match="Cannot write"):
        nm.save_base_shapes(CASE.build(), tmp_path / "no" / "such" / "folder.bsh")


def test_parametrized_twice():
    _refused(nm.parametrize(CASE.build(), base=CASE.base), "parametrized already")


def test_optimizer_without_a_plan():
    for build in (nm.MuAdam, nm.MuAdamW, nm.MuSGD, nm.param_groups):
        with pytest.raises(nm.MupError, match="call neuralop_mup.parametrize"):
            build(CASE.build(), lr=0.01)
        with pytest.raises(nm.MupError, match="pass the model itself"):
            build(CASE.build().parameters(), lr=0.01)
    with pytest.raises(nm.MupError, match="not parametrized"):
        nm.summary(CASE.build())


def test_optimizer_built_before_parametrize_is_found_out():
    model = CASE.build()
    early = torch.optim.Adam(model.parameters(), lr=0.01)
    nm.parametrize(model, base=CASE.base)
    with pytest.raises(nm.MupError, match="built before parametrize"):
        nm.check_optimizer(model, early)
    nm.check_optimizer(model, nm.MuAdam(model, lr=0.01, lr_mult={"spectral": 2.0}))
    with pytest.raises(nm.MupError, match="does not hold"):
        nm.check_optimizer(model, torch.optim.Adam(CASE.build().parameters(), lr=0.01))


@pytest.mark.parametrize("build", [nm.MuAdam, nm.MuSGD, nm.MuMuon])
def test_learning_rates_that_a_scheduler_made_equal_are_found_out(build):
    """Groups keep their multipliers when OneCycleLR(max_lr=…) or a loop of the user's replaces what they scale."""
    model = nm.parametrize(CASE.build(), base=CASE.base)
    family = "sgd" if build is nm.MuSGD else "adam"
    for spoil in (
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=10),
        lambda optimizer: [group.update(lr=1e-2) for group in optimizer.param_groups],
        lambda optimizer: optimizer.param_groups[-1].update(lr=1.0),
    ):
        optimizer = build(model, lr=0.01)
        nm.check_optimizer(model, optimizer, family)
        spoil(optimizer)
        with pytest.raises(nm.MupError, match="do not stand in the plan's ratios"):
            nm.check_optimizer(model, optimizer, family)
    scaled = build(model, lr=0.01, lr_mult={"readout": 3.0})
    torch.optim.lr_scheduler.StepLR(scaled, 1, 0.1)
    nm.check_optimizer(model, scaled, family)


def test_frozen_and_shared_parameters():
    frozen = CASE.build()
    frozen.lifting.fcs[0].weight.requires_grad_(False)
    _refused(frozen, "'weight' of module 'lifting.fcs.0' .Conv1d. is frozen")
    shared = CASE.build()
    shared.fno_blocks.fno_skips[1].conv.weight = shared.fno_blocks.fno_skips[0].conv.weight
    _refused(shared, "is shared with 'fno_blocks.fno_skips.0.conv.weight'")


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_base_without_numbers_where_the_model_has_some():
    """The channel MLP has half of one channel at base, which is none: how much it grew cannot be said."""
    match = r"'fno_blocks.channel_mlp.0.fcs.0.weight' is \(12, 24, 1\) in the model and \(0, 1, 1\) at base.*at least 1"
    _refused(CASE.build(), match, base={"hidden_channels": 1})


def test_what_is_not_supported_is_named():
    _refused(torch.nn.Bilinear(2, 2, 2), r"\(Bilinear\).*register_layer")
    _refused(torch.nn.Sequential(torch.nn.LSTM(2, 2)), r"\(LSTM\)")
    _refused(torch.nn.LayerNorm((2, 3)), r"\(LayerNorm\)")
    _refused(torch.nn.Linear(2, 2), "keeps no constructor arguments")


def test_every_model_refuses_a_planted_layer(case):
    model = case.build()
    model.extra = torch.nn.Linear(3, 3)
    _refused(model, "'weight' of module 'extra' .Linear.", base=case.base)


@pytest.mark.parametrize("name", ["uno", "codano"])
def test_overrides_for_a_model_that_keeps_no_arguments(name):
    _refused(BY_NAME[name].build(), r"keeps no constructor arguments.*function that returns one.*lambda: ", base={})


def test_base_function_that_fails():
    def broken():
        raise RuntimeError("no such size")

    _refused(CASE.build(), "The base function cannot be built: RuntimeError: no such size", base=broken)
    _refused(CASE.build(), "torch.nn.Module, got int", base=lambda: 3)


def test_fixed_hidden_channels_of_uno():
    def wider():
        return UNO(2, 3, 8, 8, 8, n_layers=1, uno_out_channels=[8], uno_n_modes=[(4, 4)], uno_scalings=[[1, 1]])

    def build():
        return UNO(2, 3, 8, 16, 16, n_layers=1, uno_out_channels=[8], uno_n_modes=[(4, 4)], uno_scalings=[[1, 1]])

    _refused(build(), "lifting_channels", base=wider)


def test_a_part_that_is_parametrized_already():
    part = nm.parametrize(CASE.build(), base=CASE.base)
    with pytest.raises(nm.MupError, match="This UQNO is parametrized already"):
        nm.parametrize(UQNO(part), base=lambda: UQNO(CASE.build()))


@pytest.mark.skipif(not SPHERE, reason="torch_harmonics is not installed")
def test_alias_that_was_untied():
    model = BY_NAME["local_no"].build()
    conv = model.local_no_blocks.differential[0]
    conv.weight = torch.nn.Parameter(conv.weight.detach().clone())
    _refused(model, "should be one tensor under two names", base=BY_NAME["local_no"].base)


def test_unknown_layer_and_renamed_parameter_are_refused():
    planted = CASE.build()
    planted.fno_blocks.extra = torch.nn.Linear(3, 3)
    _refused(planted, "'weight' of module 'fno_blocks.extra'")
    renamed = CASE.build()
    conv = renamed.lifting.fcs[0]
    conv.kernel = conv.weight
    del conv._parameters["weight"]
    _refused(renamed, "'kernel' of module 'lifting.fcs.0'")


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"rule": "log_modes"}, "did you mean 'log-modes'"),
        ({"init_mult": {"readot": 1.0}}, "did you mean 'readout'"),
        ({"init_mult": {"readout": -1.0}}, "between 1e-12"),
        ({"init_mult": {"readout": float("nan")}}, "between 1e-12"),
        ({"init_mult": {"readout": 1e300}}, "between 1e-12"),
        ({"init_mult": 2.0}, "a dict by role"),
    ],
)
def test_wrong_arguments(kwargs, match):
    _refused(CASE.build(), match, **kwargs)


def test_wrong_optimizer_arguments():
    model = nm.parametrize(CASE.build(), base=CASE.base)
    for kwargs, match in [
        ({"lr": float("inf")}, "lr is inf"),
        ({"lr": -1.0}, "lr is -1"),
        ({"lr": 0.1, "weight_decay": -1}, "weight_decay"),
        ({"lr": 0.1, "lr_mult": {"kernel": 2.0}}, "no role 'kernel'"),
        ({"lr": 0.1, "optimizer": "adma"}, "did you mean 'adam'"),
    ]:
        with pytest.raises(nm.MupError, match=match):
            nm.param_groups(model, **kwargs)
    with pytest.raises(nm.MupError, match="eps"):
        nm.MuAdam(model, lr=0.1, scale_eps=True)
    with pytest.raises(nm.MupError, match="above 0"):
        nm.clip_spectral_grad_value_(model, 0)
    with pytest.raises(nm.MupError, match="no Fourier kernel"):
        nm.clip_spectral_grad_value_(nm.unparametrize(model).lifting.fcs[0], 1.0)


def test_parameters_changed_after_parametrize():
    model = nm.parametrize(CASE.build(), base=CASE.base)
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(nm.MupError, match="changed after parametrize"):
        nm.MuAdam(model, lr=0.1)


def test_register_layer_with_a_stock_init_of_nothing():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.ones(3))

    nm.register_layer(Layer, {"bias": nm.Param("vector", ("out",), "fan_in", init_of="wieght")})
    _refused(Layer(), "'bias' follows 'wieght', which the model does not have", base=Layer())


def test_lists_of_the_model_are_not_appended_to():
    """GNOBlock appends to the list of hidden widths that it is given: the base's must not be the model's."""
    model = BY_NAME["fnogno"].build()
    stored = list(model._init_kwargs["gno_channel_mlp_hidden_layers"])
    overrides = {**BY_NAME["fnogno"].base, "gno_channel_mlp_hidden_layers": (widths := [12, 10])}
    nm.parametrize(model, base=overrides)
    assert (model._init_kwargs["gno_channel_mlp_hidden_layers"], widths) == (stored, [12, 10])


def test_register_layer_refuses_what_is_no_role():
    with pytest.raises(nm.MupError, match="class, not an instance"):
        nm.register_layer(torch.nn.Linear(2, 2), {})
    with pytest.raises(nm.MupError, match="a role of"):
        nm.register_layer(torch.nn.Bilinear, {"weight": nm.Param("kernel", ("out", "in", "in"))})
    with pytest.raises(nm.MupError, match="axes are of"):
        nm.register_layer(torch.nn.Bilinear, {"weight": nm.Param("hidden", ("out", "in", "mode"))})
    with pytest.raises(nm.MupError, match="No adapter"):  # and nothing was registered
        nm.parametrize(torch.nn.Bilinear(2, 2, 2), base={})


# ------------------------------------------------------------------------------ weights that are not fresh any more


def test_weights_are_never_rescaled_twice():
    again = nm.unparametrize(nm.parametrize(CASE.build(), base=CASE.base))
    _refused(again, "rescaled by an earlier parametrize")
    nm.parametrize(again, base=CASE.base, init=False)
    inner = nm.parametrize(CASE.build(), base=CASE.base)
    nm.register_layer(_Wrapper, {"inner": nm.Place(False, False)})
    with pytest.raises(nm.MupError, match="parametrized already"):
        nm.parametrize(_Wrapper(inner), base=_Wrapper(CASE.build_base()))
    theirs = CASE.build(n_modes=(8, 8))
    mup.set_base_shapes(
        theirs,
        CASE.build(n_modes=(8, 8), hidden_channels=8),
        delta=CASE.build(n_modes=(8, 8), hidden_channels=16),
        do_assert=False,
    )
    with pytest.raises(nm.MupError, match="or by mup"):
        nm.parametrize(theirs, base=CASE.base)


class _Wrapper(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner


def test_weights_initialised_in_another_way():
    class Small(SpectralConv):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **{**kwargs, "init_std": 0.01})

    _refused(CASE.build(conv_module=Small), "0.049 times its default initialisation")  # 0.01 over √(2/48)
    trained = CASE.build()
    with torch.no_grad():
        trained.lifting.fcs[1].weight.mul_(1.5)
    _refused(trained, "times its default initialisation")
    nm.parametrize(trained, base=CASE.base, init=False)


# ------------------------------------------------------------------------------ a base that is not what it seems


def test_subclasses_that_hand_arguments_on():
    class Mine(FNO):
        def __init__(self, hidden_channels, **kwargs):
            super().__init__((8, 6), 1, 1, hidden_channels, **kwargs)

    model = Mine(32, projection_channel_ratio=4)
    plan = nm.summary(nm.parametrize(model, base={"hidden_channels": 16}))
    assert plan["projection.fcs.1.weight"].base_shape == (1, 64, 1)
    with pytest.raises(nm.MupError, match="did you mean 'hidden_channels'"):
        nm.parametrize(Mine(32), base={"hidden_channel": 16})


def test_model_changed_after_construction():
    model = CASE.build()
    model.n_modes = (4, 4)
    _refused(model, "changed after it was constructed")
    replaced = CASE.build()
    replaced.projection = CASE.build(projection_channel_ratio=4).projection
    _refused(replaced, "changed after it was constructed", base={})


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
    _refused(CASE.build(**ours), "same architecture", base={**CASE.base, **theirs})
    base = CASE.build(**{**ours, **CASE.base, **theirs})
    _refused(CASE.build(**ours), "same architecture", base=base)


def test_a_frozen_base_model_is_no_obstacle():
    nm.parametrize(CASE.build(), base=CASE.build_base().requires_grad_(False))


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


def test_modes_beyond_max_n_modes():
    with pytest.raises(nm.MupError, match="must not exceed max_n_modes"):
        nm.parametrize(CASE.build(max_n_modes=(4, 4)), base=CASE.base)


# ------------------------------------------------------------------------------ numbers of other kinds


def test_numpy_numbers_are_numbers(tmp_path):
    model = CASE.build(n_modes=tuple(np.array([8, 6])))
    nm.parametrize(model, base=CASE.base, init_mult={"readout": np.float32(0.5)})
    nm.summary(model).to_json()
    nm.param_groups(model, lr=np.float64(0.1))
    nm.save_base_shapes(model, tmp_path / "base.bsh")
    nm.parametrize(CASE.build(), base=tmp_path / "base.bsh")


@pytest.mark.parametrize("lr", ["0.1", None, True, float("nan")])
def test_learning_rates_that_are_none(lr):
    with pytest.raises(nm.MupError, match="lr is"):
        nm.param_groups(nm.parametrize(CASE.build(), base=CASE.base), lr=lr)


def test_stale_optimizer_of_ours_is_found_out():
    model = nm.parametrize(CASE.build(), base=CASE.base)
    stale = nm.MuAdam(model, lr=0.01)
    nm.parametrize(nm.unparametrize(model), base={"hidden_channels": 12}, init=False)
    with pytest.raises(nm.MupError, match="does not follow the plan"):
        nm.check_optimizer(model, stale)


def test_coupled_weight_decay_is_warned_about():
    model = nm.parametrize(CASE.build(), base=CASE.base)
    with pytest.warns(UserWarning, match="use MuAdamW"):
        nm.MuAdam(model, lr=0.01, weight_decay=0.1)


def test_groups_leave_the_optimizers_own_weight_decay_alone():
    model = nm.parametrize(CASE.build(), base=CASE.base)
    optimizer = torch.optim.AdamW(nm.param_groups(model, lr=1e-3), lr=1e-3, weight_decay=0.1)
    assert {g["weight_decay"] for g in optimizer.param_groups} == {0.1}


def test_matrices_say_how_they_are_drawn():
    with pytest.raises(nm.MupError, match="say how it is drawn"):
        nm.register_layer(_Wrapper, {"weight": nm.Param("hidden", ("out", "in"))})
    with pytest.raises(nm.MupError, match="axes are of the kinds"):
        nm.register_layer(_Wrapper, {"weight": nm.Param("hidden", ("out", "inn"), "fan_in")})


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
