"""MuSOAP on a GPU, tested without one: operators of a step on the meta device, and steps as replayed CUDA graphs."""

import copy
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from neuralop.models import FNO
from torch.optim import adam, adamw
from torch.utils._python_dispatch import TorchDispatchMode

import neuralop_mup as nm
from neuralop_mup.contrib.cuda_graphs import Captured, capture_steps
from neuralop_mup.optim.learning_rate import effective_lrs
from neuralop_mup.optim.musoap import optimizer as module
from neuralop_mup.optim.musoap.gradient_check import GradientCheck
from support.errors import refused
from support.models import small_fno
from support.training import random_gradients

# Operators that wait for the device.
WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "linalg_eigh", "_linalg_eigh"}
# Operators that start no kernel, as views do not: they allocate memory, or make a tensor of a number.
NO_WORK = {"_local_scalar_dense", "empty", "empty_like", "empty_strided", "scalar_tensor", "lift_fresh", "promote_types"}
NO_WORK |= {"detach", "alias"}


class OnDevice(TorchDispatchMode):
    """Count operators that run, and note those that read something back or mix tensors of host and device."""

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


def let_adamw_count_on(device, monkeypatch):
    """Let torch's AdamW count its steps on this device."""
    for owner in (adam, adamw):  # torch 2.9 made one of them of the other
        monkeypatch.setattr(owner, "_get_capturable_supported_devices", lambda *args, **kwargs: [device], raising=False)


@pytest.fixture
def device(monkeypatch):
    """Use the meta device like CUDA: its tensors hold no numbers, so that nothing can be read back unnoticed."""
    let_adamw_count_on("meta", monkeypatch)
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())  # which it has not
    monkeypatch.setattr(GradientCheck, "_send", lambda *args: None)  # one copy to the host, which nothing waits for
    return torch.device("meta")


CASES = {
    "2D": ((4, 4), {"n_layers": 4}, {}),
    "1D, every mode at every step": ((8,), {}, {"period": 1}),
    "separable, gradients are not checked": ((4, 4), {"separable": True}, {"check": "off", "capturable": True}),
    "Tucker, bad steps are skipped": ((4, 4), {"factorization": "tucker", "rank": 0.3}, {"check": "skip"}),
}


def steps_of(model, optimizer, n):
    """Yield the operators of each of n steps with clipped gradients."""
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
    """Nothing is read back after the first step, which decomposes Gram matrices, and no tensor of the host is mixed in.

    Steps 2 and 4 renew bases, steps up to 5 measure ranks. The 7th does neither and has at most 200 operators
    for four dense layers.
    """
    modes, sizes, more = CASES[case]
    model = nm.parametrize(FNO(modes, 1, 1, 16, **{"n_layers": 1, **sizes}), base={"hidden_channels": 8})
    optimizer = nm.MuSOAP(model, steps=100, refresh=4, foreach=True, **more)
    parameters = dict(model.to(device).named_parameters())
    for group in optimizer.param_groups:  # it refuses to be built for weights without numbers
        group["params"] = [parameters[name] for name in group["param_names"]]
    first, *others = steps_of(model, optimizer, 7)
    assert {name for name, _ in first.wrong} == {"_linalg_eigh"}
    assert not any(seen.wrong for seen in others)
    assert 50 < others[-1].counts.total() <= (200 if case == "2D" else 400)
    states = [x for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x)]
    assert {x.device.type for x in states if x.ndim or more.get("capturable")} == {"meta"}


# ------------------------------------------------------------------------------------------------ steps that are captured


class Graph(TorchDispatchMode):
    """Stand in for a CUDA graph: repeat the same calls on the same memory, with the host's numbers as they were.

    A captured step is executed at once here, and not at the first replay.
    """

    def __init__(self):
        super().__init__()
        self.calls, self.replays = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, out))
        return out

    def replay(self):
        self.replays += 1
        for function, args, kwargs, out in self.calls if self.replays > 1 else ():
            again = function(*args, **kwargs)
            for old, new in zip(*([x] if isinstance(x, torch.Tensor) else x or () for x in (out, again)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


SETTINGS = {"steps": 20, "refresh": 2, "foreach": True, "check": "next"}


@pytest.fixture
def captured(monkeypatch):
    """Return a model and its optimizer, whose steps are captured on a CPU, in a cycle of two."""
    model = small_fno(width=4)
    optimizer = nm.MuSOAP(model, **SETTINGS, capturable=True)
    let_adamw_count_on("cpu", monkeypatch)
    # torch's AdamW does not count steps on a CPU by itself.
    monkeypatch.setattr(module, "adamw", lambda *args, **own: adamw.adamw(*args, **{**own, "capturable": True}))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool: graph)
    vars(optimizer)["_on_device"] = Captured(optimizer)
    return model, optimizer


def fill_gradients(model, seed):
    """Write gradients to the same memory as before."""
    before = [p.grad for p in model.parameters()]
    random_gradients(model, seed)
    for p, grad in zip(model.parameters(), before, strict=True):
        p.grad = p.grad if grad is None else grad.copy_(p.grad)


def test_captured_steps_are_the_same(captured):
    """They are, under a schedule and with a bad gradient on the way."""
    plain = small_fno(width=4)
    models, optimizers = (captured[0], plain), (captured[1], nm.MuSOAP(plain, **SETTINGS))
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5) for optimizer in optimizers]
    for t in range(14):
        rates = []
        for model, optimizer, schedule in zip(models, optimizers, schedules, strict=True):
            fill_gradients(model, t)
            if t == 8:
                next(model.parameters()).grad.view(-1)[0] = torch.nan
            with refused("earlierstep") if t == 9 else nullcontext():
                optimizer.step()
            schedule.step()
            rates.append((effective_lrs(optimizer), [group["taken"] for group in optimizer.param_groups]))
        assert rates[0] == rates[1]
    assert len(optimizers[0]._on_device._graphs) == optimizers[0].cycle == 2
    torch.testing.assert_close([*models[0].parameters()], [*models[1].parameters()], rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(*(optimizer.state_dict()["state"].values() for optimizer in optimizers), strict=True):
        assert ours["step"] == theirs["step"]
    assert "_on_device" not in vars(copy.deepcopy(optimizers[0]))


CHANGES = [
    ("gradients", lambda model, optimizer: random_gradients(model)),
    ("gradients", lambda model, optimizer: setattr(next(model.parameters()), "grad", None)),
    ("weights", lambda model, optimizer: [setattr(p, "data", p.data.clone()) for p in model.parameters()]),
    ("settings", lambda model, optimizer: optimizer.param_groups[0].update(weight_decay=0.5)),
    ("states", lambda model, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))),
]


@pytest.mark.parametrize(("what", "change"), CHANGES)
def test_a_step_that_differs_from_the_captured_one_is_refused(captured, what, change):
    """A graph would go on with old gradients, a frozen decay, or memory that nobody reads."""
    model, optimizer = captured
    for t in range(4):
        fill_gradients(model, t)
        optimizer.step()
    change(model, optimizer)
    before = [p.clone() for p in model.parameters()]
    with refused(f"The{what} captured zero_grad"):
        optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))


def test_an_optimizer_on_a_cpu_cannot_be_captured():
    optimizer = nm.MuSOAP(small_fno(width=4))
    with refused("CUDA cpu check='now'"):
        capture_steps(optimizer)
    assert not optimizer.param_groups[0]["capturable"] and "_on_device" not in vars(optimizer)
