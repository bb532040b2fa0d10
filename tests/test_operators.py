"""What a step asks of a device: how many operators, none that waits for it, and little memory."""

import statistics
import weakref
from collections import Counter

import pytest
import torch
from neuralop.models import FNO
from torch.utils._python_dispatch import TorchDispatchMode

import neuralop_mup as nm
from neuralop_mup.optim.matrix import scratch
from support import random_gradients

KINDS = (nm.MuMuon, nm.MuSOAP)
WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "linalg_eigh", "_linalg_eigh"}
# Beside views, what makes no kernel run: memory, and numbers that torch makes tensors of.
NO_WORK = {
    "_local_scalar_dense",
    "empty",
    "empty_like",
    "empty_strided",
    "scalar_tensor",
    "lift_fresh",
    "promote_types",
    "detach",
    "alias",
}


class Operators(TorchDispatchMode):
    """Counts operators but for views, and the most memory that new tensors held at a time."""

    def __init__(self):
        super().__init__()
        self.counts, self.held, self.most = Counter(), 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function.__name__.partition(".")[0]
        is_view = any(a.alias_info is not None and not a.alias_info.is_write for a in function._schema.arguments)
        if not is_view and not name.startswith("_record_function"):
            self.counts[name] += 1
        if isinstance(out, torch.Tensor) and not is_view and not any(r.alias_info for r in function._schema.returns):
            storage = out.untyped_storage()
            self.held += storage.nbytes()
            self.most = max(self.most, self.held)
            weakref.finalize(storage, self._free, storage.nbytes())
        return out

    def _free(self, n):
        self.held -= n


@pytest.fixture
def as_elsewhere(monkeypatch):
    """Stacks and pieces as on a device that is no CPU."""
    monkeypatch.setattr(scratch, "_CHUNK", {})
    monkeypatch.setattr(scratch, "_PIECE", {})


def counted(kind, model, n_steps, skip, **settings):
    optimizer = kind(model, foreach=True, check="next", **settings)
    found = []
    for seed in range(n_steps):
        random_gradients(model, seed)
        with Operators() as operators, torch.no_grad():
            optimizer._step()  # without the hook before it, which reads learning rates that are on a CPU
        found.append(operators)
        optimizer._check.__dict__["_answer"] = None  # on a GPU it is read from the host's own memory
    return found[skip:]


@pytest.mark.parametrize("kind", KINDS)
def test_operators_of_a_step(kind, as_elsewhere):
    """An FNO of 4 layers in 2D: at most 200, in the median of 20 steps, and none that waits."""
    model = nm.parametrize(FNO((16, 16), 1, 1, 32), base={"hidden_channels": 16})
    steps = counted(kind, model, 30, skip=10)
    numbers = [sum(n for name, n in step.counts.items() if name not in NO_WORK) for step in steps]
    assert statistics.median(numbers) <= 200


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_waits(kind, as_elsewhere, monkeypatch):
    """Without AdamW, which on a CPU reads the number of its steps there. Only the first step decomposes Gram matrices."""
    monkeypatch.setattr("neuralop_mup.optim.matrix.optimizer.adamw_step", lambda *args: None)
    model = nm.parametrize(FNO((8, 8), 1, 1, 8), base={"hidden_channels": 4})
    steps = counted(kind, model, 22, skip=1, capturable=True)
    assert [WAITS & set(step.counts) for step in steps] == [set()] * 21


@pytest.mark.parametrize("pieces", [2**30, 2**18])
@pytest.mark.parametrize("kind", KINDS)
def test_temporaries(kind, pieces, as_elsewhere, monkeypatch):
    """At most 2.5 times the bytes of one kernel, where kernels are large enough for a stack of their own."""
    monkeypatch.setattr(scratch, "_CHUNK_ELSEWHERE", 2**14)
    monkeypatch.setattr(scratch, "_PIECE", {"cpu": pieces})
    model = nm.parametrize(FNO((32, 32), 1, 1, 32, n_layers=2), base={"hidden_channels": 16})
    kernel = model.fno_blocks.convs[0].weight.tensor
    steps = counted(kind, model, 12, skip=2)
    assert max(step.most for step in steps) <= 2.5 * kernel.numel() * kernel.element_size()


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_gradient_counts_as_zero_and_is_refused_at_the_next_step(kind):
    model = nm.parametrize(FNO((8,), 1, 1, 8), base={"hidden_channels": 4})
    optimizer = kind(model, check="next", weight_decay=0.0)
    random_gradients(model)
    next(iter(model.parameters())).grad.fill_(torch.nan)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    random_gradients(model)
    with pytest.raises(nm.MupError, match="step before this one was not finite.*counted as zero"):
        optimizer.step()
    optimizer.step()
    assert all(torch.isfinite(torch.view_as_real(p) if p.is_complex() else p).all() for p in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_capturable_step_is_the_same_and_refuses_a_learning_rate_that_is_a_number(kind):
    weights = []
    for capturable in (False, True):
        torch.manual_seed(0)
        model = nm.parametrize(FNO((8,), 1, 1, 8), base={"hidden_channels": 4})
        optimizer = kind(model, capturable=capturable)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        for seed in range(4):
            random_gradients(model, seed)
            optimizer.step()
            schedule.step()
        weights.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(*weights)
    assert optimizer.cycle == {nm.MuMuon: 2, nm.MuSOAP: 10}[kind]
    optimizer.param_groups[0]["lr"] = float(optimizer.param_groups[0]["lr"])
    with pytest.raises(nm.MupError, match="learning rate of group 'hidden' is the number 0.0.*fill_"):
        optimizer.step()
