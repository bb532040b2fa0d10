import math

import pytest
import torch
from neuralop.models import FNO
from torch.nn import Parameter
from torch.testing import assert_close

from ..musoap import MuSOAP, fno_musoap_param_groups


@pytest.mark.parametrize("n_modes", [1, 4])
@pytest.mark.parametrize("n_channels", [3, 8])
def test_every_mode_is_moved_by_one_operator_norm(n_channels, n_modes):
    # a kernel with one output channel: each mode is one column, whose norm is known exactly
    weight = Parameter(torch.zeros(n_channels, 1, n_modes, dtype=torch.cfloat))
    weight.grad = torch.randn_like(weight) * torch.logspace(0, -3, n_modes)
    optimizer = MuSOAP([{"params": [weight], "layouts": ["iob"]}], lr=0.1, period=1)
    optimizer.step()

    # lr * sqrt(out / in), however large the mode's gradient is
    norms = torch.linalg.vector_norm(weight.detach(), dim=(0, 1))
    assert_close(norms, torch.full((n_modes,), 0.1 / math.sqrt(n_channels)))


@pytest.mark.parametrize("period", [1, 2, 3])
def test_modes_take_turns(period):
    weight = Parameter(torch.zeros(2, 2, 6, dtype=torch.cfloat))
    optimizer = MuSOAP([{"params": [weight], "layouts": ["iob"]}], lr=0.1, period=period)
    for step in range(period):
        weight.grad = torch.randn_like(weight)
        optimizer.step()
        moved = (weight.detach() != 0).any(0).any(0)
        assert moved.sum() == 6 // period * (step + 1)


def test_second_moments_are_real():
    weight = Parameter(torch.randn(4, 4, 8, dtype=torch.cfloat))
    weight.grad = torch.randn_like(weight)
    optimizer = MuSOAP([{"params": [weight], "layouts": ["iob"]}])
    optimizer.step()
    assert not optimizer.state[weight]["exp_avg_sq"].is_complex()


@pytest.mark.parametrize("factorization", [None, "tucker", "cp", "tt"])
@pytest.mark.parametrize("separable", [False, True])
def test_groups_of_an_fno(factorization, separable):
    if separable and factorization is not None:
        pytest.skip("factors of separable kernels are those of dense ones")
    model = FNO((4, 4), 2, 1, 8, n_layers=2, factorization=factorization, rank=0.5, separable=separable)
    chosen, rest = fno_musoap_param_groups(model, lr=0.03)
    names = {p: name for name, p in model.named_parameters()}
    kernels = {name for name in names.values() if "convs" in name and "weight" in name and not name.endswith("weights")}

    # every parameter has one group, kernels have a layout (but for the weights of a CP kernel's components), biases
    # and the ends of the model have none
    assert sorted(map(names.get, chosen["params"] + rest["params"])) == sorted(names.values())
    assert kernels <= {names[p] for p in chosen["params"]}
    ends = {"lifting.fcs.0.weight", "projection.fcs.1.weight"}
    assert ends <= {names[p] for p in rest["params"]}
    assert all(p.ndim == len(layout) for p, layout in zip(chosen["params"], chosen["layouts"]))

    # two layers instead of four: sqrt(4 / 2) times the size of update
    assert math.isclose(chosen["lr"], 0.03 * math.sqrt(2))


@pytest.mark.parametrize("size", [1e-12, 1e-22, 1e-30])
def test_tiny_gradients_leave_numbers(size):
    weight = Parameter(torch.randn(4, 3, 5, dtype=torch.cfloat))
    weight.grad = size * torch.randn_like(weight)
    weight.grad[:, :, 2] = 0
    before = weight.detach().clone()
    MuSOAP([{"params": [weight], "layouts": ["iob"]}], period=1).step()
    assert weight.isfinite().all()
    assert_close(weight[:, :, 2].detach(), before[:, :, 2])  # without a gradient it is left alone


@pytest.mark.parametrize("separable", [False, True])
def test_a_resumed_training_goes_on_as_it_would_have(separable):
    def trained(steps, state=None):
        torch.manual_seed(0)
        model = FNO((8,), 1, 1, 8, n_layers=2, separable=separable)
        optimizer = MuSOAP(fno_musoap_param_groups(model))
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        x = torch.randn(8, 1, 16)
        if state is not None:
            for part, own in zip((model, optimizer, scheduler), state):
                part.load_state_dict(own)
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            scheduler.step()
        return model.state_dict(), optimizer.state_dict(), scheduler.state_dict()

    whole, resumed = trained(8)[0], trained(4, trained(4))[0]
    whole.pop("_metadata"), resumed.pop("_metadata")
    assert_close(resumed, whole, rtol=0, atol=0)


def test_what_it_cannot_train_is_refused():
    weight = Parameter(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="groups with layouts"):
        MuSOAP([weight])
    with pytest.raises(ValueError, match="1 layouts for 2 parameters"):
        MuSOAP([{"params": [weight, Parameter(torch.zeros(2))], "layouts": ["oi"]}])


def test_an_fno_learns():
    torch.manual_seed(0)
    model = FNO((8,), 1, 1, 8, n_layers=2)
    optimizer = MuSOAP(fno_musoap_param_groups(model, lr=0.1))
    x = torch.randn(8, 1, 16)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(x) - x.roll(1, -1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize(
    "arguments",
    [{"lr": -1.0}, {"lr": math.nan}, {"momentum": 1.0}, {"betas": (0.9, 1.5)}, {"period": 0}, {"refresh": 0.5}],
)
def test_invalid_arguments(arguments):
    with pytest.raises(ValueError, match="Invalid"):
        MuSOAP([{"params": [Parameter(torch.zeros(2, 2))], "layouts": ["oi"]}], **arguments)
