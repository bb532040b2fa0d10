"""Optimizers by name, optimizers built from parameters, and kernels that receive no gradient."""

import pkgutil
import warnings

import pytest
from neuralop.training import AdamW

import neuralop_mup as nm
from support.errors import refused
from support.models import KERNEL, small_fno
from support.training import backward


@pytest.mark.parametrize(
    ("name", "build", "settings"),
    [
        ("musoap", nm.MuSOAP, {"steps": 100, "momentum": 0.9}),
        ("MuSOAP", nm.MuSOAP, {"lr": 0.02}),
        ("adam", nm.MuAdam, {"lr": 2e-3, "betas": (0.8, 0.9)}),
        ("adamw", nm.MuAdamW, {"lr": 2e-3, "impl": AdamW}),
        ("sgd", nm.MuSGD, {"momentum": 0.9}),
    ],
)
def test_a_configuration_names_the_optimizer(name, build, settings):
    """Hydra resolves the name after ``_target_`` and calls it with the other entries."""
    config = {"_target_": "neuralop_mup.optimizer", "name": name, **settings}
    model = small_fno("none")
    optimizer, expected = pkgutil.resolve_name(config.pop("_target_"))(model, **config), build(model, **settings)
    assert type(optimizer) is type(expected)
    for ours, theirs in zip(optimizer.param_groups, expected.param_groups, strict=True):
        assert {key: ours[key] for key in ours if key != "params"} == {key: theirs[key] for key in theirs if key != "params"}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"name": "musoup"}, "'musoup' 'musoap'"),
        ({"name": "lion"}, "'lion' adamw musoap"),
        ({"name": None}, "None musoap"),
        ({"name": "musoap", "step": 10}, "'step' 'steps'"),
        ({"name": "adam", "beta": 0.9}, "'beta' 'betas'"),
        ({"name": "sgd", "lr": -1}, "lr -1"),
    ],
)
def test_wrong_names_and_settings(settings, names):
    with refused(names):
        nm.optimizer(small_fno("none"), **settings)


BUILDERS = [nm.MuSOAP, nm.MuAdam, nm.MuAdamW, nm.MuSGD, nm.optimizer]


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_optimizers_refuse_parameters_in_place_of_the_model(build):
    """LightningCLI passes parameters by position, and hydra by name."""
    parameters = list(small_fno("none").parameters())
    messages = []
    for call in (lambda: build(parameters), lambda: build(params=parameters, lr=0.01)):
        with refused("model itself neuralop_mup.optimizer(model configure_optimizers") as caught:
            call()
        messages.append(str(caught.value))
    assert len(set(messages)) == 1


def without_a_gradient(*names, requires_grad=True):
    """Return a model with gradients in all parameters but these, and its optimizer before the first step."""
    model = small_fno("none")
    optimizer = nm.MuSOAP(model, steps=10)
    backward(model, optimizer)
    for name in names:
        model.get_parameter(name).grad = None
        model.get_parameter(name).requires_grad_(requires_grad)
    return model, optimizer


def test_musoap_warns_at_its_first_step_of_kernels_without_a_gradient():
    model, optimizer = without_a_gradient(KERNEL)
    with pytest.warns(UserWarning, match="no gradient.*" + KERNEL):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()


def test_no_warning_without_gradients_or_for_frozen_kernels():
    names = [name for name, _ in small_fno("none").named_parameters()]
    for model, optimizer in (
        without_a_gradient(),
        without_a_gradient(*names),
        without_a_gradient(KERNEL, requires_grad=False),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            nm.check_optimizer(model, optimizer)
            optimizer.step()
            optimizer.zero_grad()
            nm.check_optimizer(model, optimizer)


def test_check_optimizer_warns_of_kernels_with_a_zero_gradient():
    model, optimizer = without_a_gradient()
    model.get_parameter(KERNEL).grad.zero_()
    with pytest.warns(UserWarning, match="no gradient.*" + KERNEL):
        nm.check_optimizer(model, optimizer)
    optimizer.zero_grad(set_to_none=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nm.check_optimizer(model, optimizer)
