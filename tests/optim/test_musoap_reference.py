"""MuSOAP against docs/upstream/musoap.py, its slow and obvious version in one file, in double precision."""

import copy
import importlib.util
import math
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from neuralop_mup.optim.musoap import optimizer as module
from support.models import in_double, small_fno
from support.training import random_gradients

FILE = Path(__file__).parents[2] / "docs" / "upstream" / "musoap.py"
spec = importlib.util.spec_from_file_location("upstream_musoap", FILE)
upstream = importlib.util.module_from_spec(spec)
spec.loader.exec_module(upstream)

# Dense, joint, separable, pairs of real numbers, linear layers, and factors of Tucker, CP and tensor-train kernels.
LAYOUTS = ["iob", "oib", "iobb", "liob", "cb", "cbb", "bio", "iobp", "piob", "plio", "oi", "oil", "iibo", "ioobb"]
LAYOUTS += ["bi", "b", "ob", "ioii", "bo", "lio", "ioi", "obi", "obl"]


@st.composite
def members(draw):
    """Draw layouts and shapes of up to four parameters, some of them equal or transposed."""
    chosen = [
        (layout, tuple(2 if letter == "p" else draw(st.integers(1, 5)) for letter in layout))
        for layout in draw(st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=3))
    ]
    layout, shape = chosen[0]
    return [*chosen, (draw(st.sampled_from([layout, layout.translate(str.maketrans("io", "oi"))])), shape)]


def has_full_rank(layout, shape, period):
    """Whether the first Gram matrices have full rank: bases of a null space are arbitrary."""
    modes = [n for n, letter in zip(shape, layout, strict=True) if letter == "b"]
    rest = math.prod(modes) // max(modes, default=1) * (max(modes, default=1) // min(period, max(modes, default=1)))
    mixed = [n for n, letter in zip(shape, layout, strict=True) if letter in "io"]
    return all(rest * math.prod(mixed) >= n * n for n in mixed)


@settings(max_examples=25, deadline=None)
@given(
    members=members(),
    stride=st.integers(1, 3),
    refresh=st.integers(1, 4),
    weight_decay=st.sampled_from([0.0, 0.3]),
    chunk=st.sampled_from([1, 2**17]),
    seed=st.integers(0, 1000),
)
def test_random_parameters_in_random_batches(members, seed, chunk, stride, **arguments):
    assume(all(has_full_rank(layout, shape, stride) for layout, shape in members))
    arguments |= {"momentum": 0.8, "beta2": 0.7}
    torch.manual_seed(seed)
    dtypes = [torch.complex128 if "p" not in layout and "b" in layout else torch.float64 for layout, _ in members]
    fast = [nn.Parameter(torch.randn(shape, dtype=t)) for (_, shape), t in zip(members, dtypes, strict=True)]
    slow = copy.deepcopy(fast)
    group = {"layouts": [layout for layout, _ in members], "lr": 0.1}
    ours = nm.MuSOAP(small_fno(), mode_stride=stride, **arguments)
    ours.add_param_group({"params": fast, "param_names": [str(i) for i in range(len(fast))], **group})
    theirs = upstream.MuSOAP([{"params": slow, **group}], period=stride, **arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(module._CHUNK, "cpu", chunk)
        for _ in range(4):
            for p, q in zip(fast, slow, strict=True):
                p.grad = torch.randn(p.shape, dtype=p.dtype)
                q.grad = p.grad.clone()
            ours.step()
            theirs.step()
    for p, q in zip(fast, slow, strict=True):  # the floor under second moments is 1e-5 of their mean
        torch.testing.assert_close(p.detach(), q.detach(), rtol=0, atol=3e-4)


MODELS = {
    "dense": {},
    "separable": {"separable": True},
    **{name: {"factorization": name, "rank": 0.3, "implementation": "factorized"} for name in ("tucker", "cp", "tt")},
}


@pytest.mark.parametrize("name", MODELS)
def test_groups_and_steps_of_models(name):
    """They are those of the reference, at the base, where AdamW has one learning rate."""
    torch.manual_seed(0)
    model = in_double(nm.parametrize(FNO((6, 8), 2, 3, 8, n_layers=2, **MODELS[name]), base={"hidden_channels": 8}))
    models = model, copy.deepcopy(model)
    ours = nm.MuSOAP(models[0], lr=0.02, adamw_lr=0.003)
    theirs = upstream.MuSOAP(upstream.fno_musoap_param_groups(models[1], lr=0.02, aux_lr=0.003))
    names = {p: n for n, p in models[1].named_parameters()}
    chosen, _ = theirs.param_groups
    mine = {n: x for g in ours.param_groups if g["layouts"] for n, x in zip(g["param_names"], g["layouts"], strict=True)}
    assert {names[p]: x for p, x in zip(chosen["params"], chosen["layouts"], strict=True)} == mine
    assert chosen["lr"] == ours.param_groups[0]["lr"]
    for seed in range(10):
        for model, optimizer in zip(models, (ours, theirs), strict=True):
            random_gradients(model, seed)
            optimizer.step()
    one, other = (dict(model.named_parameters()) for model in models)
    compared = [n for n in one if n not in mine or has_full_rank(mine[n], one[n].shape, period=2)]
    assert set(one) - set(mine) < set(compared)
    for n in compared:
        torch.testing.assert_close(one[n], other[n], rtol=0, atol=1e-5, msg=lambda text, n=n: f"{n}: {text}")
