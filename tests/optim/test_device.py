"""A GPU without one: what a step of MuSOAP asks of the device that parameters are on, and steps that a graph repeats."""

import copy
from collections import Counter
from contextlib import contextmanager, nullcontext

import pytest
import torch
from neuralop.models import FNO
from torch.optim import adam, adamw
from torch.utils._python_dispatch import TorchDispatchMode

import neuralop_mup as nm
from neuralop_mup.optim.follow import effective_lrs
from neuralop_mup.optim.musoap import optimizer as module
from neuralop_mup.optim.musoap.capture import Captured, capture_steps
from neuralop_mup.optim.musoap.checks import GradientCheck
from support.models import small_fno
from support.training import random_gradients

WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "linalg_eigh", "_linalg_eigh"}


# Beside views, what makes no kernel run: memory, and numbers that torch makes tensors of.
NO_WORK = {"_local_scalar_dense", "empty", "empty_like", "empty_strided", "scalar_tensor", "lift_fresh", "promote_types"}
NO_WORK |= {"detach", "alias"}


class OnDevice(TorchDispatchMode):
    """How many operators run, which of them read something back, and which mix tensors of the host and of the device."""

    def __init__(self):
        super().__init__()
        self.counts, self.wrong = Counter(), []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name, kwargs = function.__name__.partition(".")[0], kwargs or {}
        flat = [x for a in (*args, *kwargs.values()) for x in (a if isinstance(a, (list, tuple)) else [a])]
        on = {x.device.type for x in flat if isinstance(x, torch.Tensor)}
        if on == {"cpu", "meta"} or ("meta" in on and (name in WAITS or kwargs.get("device") == torch.device("cpu"))):
            self.wrong.append((name, on))
        is_view = any(a.alias_info is not None and not a.alias_info.is_write for a in function._schema.arguments)
        if "meta" in on and not is_view and name not in NO_WORK:
            self.counts[name] += 1
        return function(*args, **kwargs)


@pytest.fixture
def device(monkeypatch):
    """The meta device as one like CUDA: its tensors hold no numbers, so that nothing can be read back unnoticed."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())  # which it has not
    for owner in (adam, adamw):  # torch 2.9 made one of them of the other
        monkeypatch.setattr(owner, "_get_capturable_supported_devices", lambda *args, **kwargs: ["meta"], raising=False)
    monkeypatch.setattr(GradientCheck, "_ask", lambda *args: None)  # one copy to the host, which nothing waits for
    return torch.device("meta")


CASES = {
    "2D": ((8, 8), {}, {}),
    "1D, every mode at every step": ((8,), {}, {"period": 1}),
    "3D, what is bad is left out": ((4, 4, 4), {}, {"check": "skip"}),
    "separable, nothing is looked at": ((8, 8), {"separable": True}, {"check": "off"}),
    "Tucker": ((8, 8), {"factorization": "tucker", "rank": 0.3}, {}),
    "as it is captured": ((8, 8), {}, {"capturable": True}),
}


def built(device, modes, width, n_layers, kernels, **arguments):
    """Both as they are after ``model.to(device)``: the optimizer refuses a model whose weights have no numbers."""
    model = nm.parametrize(FNO(modes, 1, 1, width, n_layers=n_layers, **kernels), base={"hidden_channels": 8})
    optimizer = nm.MuSOAP(model, steps=100, foreach=True, **arguments)
    parameters = dict(model.to(device).named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [parameters[name] for name in group["param_names"]]
    return model, optimizer


def steps_of(model, optimizer, n):
    """What is asked of the device by each of so many steps with clipped gradients."""
    for _ in range(n):
        for p in model.parameters():
            p.grad = torch.empty_like(p)
        with OnDevice() as seen, torch.no_grad():
            nm.clip_spectral_grad_value_(model, 0.01)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert not seen.wrong
        with OnDevice() as seen:
            optimizer.step()
        yield seen


@pytest.mark.parametrize("case", CASES)
def test_a_step_stays_on_its_device(case, device):
    """Plain steps, renewals of the bases and measured ranks: nothing is read back after the first step, which decomposes
    Gram matrices, and no tensor of the host is mixed in."""
    modes, kernels, more = CASES[case]
    model, optimizer = built(device, modes, 16, 2, kernels, **more)
    first, *others = steps_of(model, optimizer, 12)
    assert {name for name, _ in first.wrong} == {"_linalg_eigh"} and not any(seen.wrong for seen in others)
    states = [x for p in optimizer.state for name, x in optimizer.state[p].items() if torch.is_tensor(x)]
    assert {x.device.type for x in states if x.ndim} == {"meta"}
    if more.get("capturable"):
        assert {x.device.type for x in states} == {"meta"}


def test_a_plain_step_has_at_most_200_operators(device):
    """Of an FNO of four layers in 2D: a step that renews no bases and measures no ranks, on the device as it comes."""
    model, optimizer = built(device, (16, 16), 32, 4, {})
    numbers = [sum(seen.counts.values()) for seen in steps_of(model, optimizer, 19)]
    assert max(numbers[12:]) <= 200, numbers


# ------------------------------------------------------------------------------------------------ steps that are captured


class Graph(TorchDispatchMode):
    """As a CUDA graph: what was called is called again on the same memory, with the numbers of the host as they were."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, out))
        return out

    def replay(self):
        for function, args, kwargs, out in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(*([x] if isinstance(x, torch.Tensor) else x or () for x in (out, again)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextmanager
def capturing(graph, held):
    """What is captured is not made: memory is as before then."""
    before = [x.clone() for x in held()]
    with graph:
        yield
    for x, old in zip(held(), before, strict=True):
        x.copy_(old)


@pytest.fixture
def captured(monkeypatch):
    """A model of which steps are captured, on a CPU."""
    model = small_fno()
    optimizer = nm.MuSOAP(model, steps=60, foreach=True, check="next", capturable=True)

    def held():
        states = [x for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x)]
        return [p.detach() for p in model.parameters()] + states + [optimizer._check.count]

    def on_device(*args, **kwargs):  # AdamW that counts its steps on a CPU too
        return adamw.adamw(*args, **{**kwargs, "capturable": True, "foreach": True})

    for owner in (adam, adamw):
        monkeypatch.setattr(owner, "_get_capturable_supported_devices", lambda *args, **kwargs: ["cpu"], raising=False)
    monkeypatch.setattr(module, "adamw", on_device)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool: capturing(graph, held))
    vars(optimizer)["_on_device"] = Captured(optimizer)
    return model, optimizer


def filled(model, seed):
    """Gradients in the same memory as before."""
    before = [p.grad for p in model.parameters()]
    random_gradients(model, seed)
    for p, grad in zip(model.parameters(), before, strict=True):
        p.grad = p.grad if grad is None else grad.copy_(p.grad)


def test_captured_steps_are_the_same(captured):
    """Under a schedule, to the end of the training, with a bad gradient on the way; the numbers of steps go on."""
    models, optimizers = zip(captured, (small_fno(), None), strict=True)
    optimizers = [optimizers[0], nm.MuSOAP(models[1], steps=60, foreach=True, check="next")]
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 15, 0.5) for optimizer in optimizers]
    for t in range(50):
        told = []
        for model, optimizer, schedule in zip(models, optimizers, schedules, strict=True):
            filled(model, t)
            if t == 37:
                next(model.parameters()).grad.view(-1)[0] = torch.nan
            with pytest.raises(nm.MupError, match="an earlier step was not finite") if t == 38 else nullcontext():
                optimizer.step()
            schedule.step()
            told.append((effective_lrs(optimizer), [group["taken"] for group in optimizer.param_groups]))
        assert told[0] == told[1]
    assert len(optimizers[0]._on_device._graphs) == optimizers[0].cycle == 10
    torch.testing.assert_close([*models[0].parameters()], [*models[1].parameters()], rtol=1e-4, atol=1e-6)
    steps = [[state["step"] for state in optimizer.state_dict()["state"].values()] for optimizer in optimizers]
    assert steps[0] == steps[1]
    assert "_on_device" not in vars(copy.deepcopy(optimizers[0]))


CHANGES = {
    "gradients": [
        lambda model, optimizer: random_gradients(model),
        lambda model, optimizer: setattr(next(model.parameters()), "grad", None),
    ],
    "weights": [lambda model, optimizer: [setattr(p, "data", p.data.clone()) for p in model.parameters()]],
    "settings": [lambda model, optimizer: [group.update(weight_decay=0.5) for group in optimizer.param_groups]],
    "states": [lambda model, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))],
}


@pytest.mark.parametrize(("what", "change"), [(what, change) for what, own in CHANGES.items() for change in own])
def test_a_step_that_would_not_be_what_was_captured_is_refused(captured, what, change):
    """A graph would go on with old gradients, a frozen decay, or memory that nobody reads."""
    model, optimizer = captured
    for t in range(12):
        filled(model, t)
        optimizer.step()
    change(model, optimizer)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(nm.MupError, match=f"The {what} of this optimizer changed or moved since its steps were captured"):
        optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))


def test_what_cannot_be_captured_is_refused(monkeypatch):
    optimizer = nm.MuSOAP(small_fno())
    with pytest.raises(nm.MupError, match="all parameters on one CUDA device .* these are on cpu, with check='now': train"):
        capture_steps(optimizer)
    assert not optimizer.param_groups[0]["capturable"] and "_on_device" not in vars(optimizer)
