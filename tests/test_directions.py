"""MuSOAP and MuMuon against the same written out for one parameter, in double precision, whatever lies in a stack."""

import math
from unittest import mock

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import neuralop_mup as nm
from neuralop_mup.optim.matrix import scratch
from neuralop_mup.optim.matrix.newton_schulz import BAND
from neuralop_mup.optim.matrix.reference import muon_steps, soap_steps
from support import small_fno

LAYOUTS = (
    "iob",
    "oib",
    "iobb",
    "liob",
    "cb",
    "cbb",
    "bio",
    "iobp",
    "piob",
    "plio",
    "oi",
    "oil",
    "iibo",
    "ioobb",
    "bi",
    "b",
    "ob",
)


def sizes(draw, layout):
    return [2 if letter == "p" else draw(st.integers(1, 5)) for letter in layout]


@st.composite
def stacks(draw):
    """Layouts and shapes of up to four parameters, some of them alike or transposed."""
    chosen = []
    for layout in draw(st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=3)):
        chosen.append((layout, tuple(sizes(draw, layout))))
    layout, shape = chosen[0]
    swapped = layout.translate(str.maketrans("io", "oi"))
    return [*chosen, draw(st.sampled_from([(layout, shape), (swapped, shape)]))]


def has_full_rank(layout, shape, period):
    """Whether the first Gram matrices have: bases of a null space are anybody's choice."""
    modes = [n for n, letter in zip(shape, layout, strict=True) if letter == "b"]
    rest = math.prod(modes) // max(modes, default=1) * (max(modes, default=1) // min(period, max(modes, default=1)))
    mixed = [n for n, letter in zip(shape, layout, strict=True) if letter in "io"]
    return all(rest * math.prod(mixed) >= n * n for n in mixed)


def trained(kind, members, n_steps, seed, **arguments):
    """Parameters of one group before and after, and their gradients."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = kind(small_fno(), **arguments)
    params = []
    for layout, shape in members:
        dtype = torch.complex128 if "p" not in layout and "b" in layout else torch.float64
        params.append(nn.Parameter(torch.randn(shape, dtype=dtype, generator=generator)))
    layouts = [layout for layout, _ in members]
    optimizer.add_param_group(
        {"params": params, "layouts": layouts, "param_names": list(map(str, range(len(params)))), "lr": 0.1}
    )
    start = [p.detach().clone() for p in params]
    gradients = [[torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in params] for _ in range(n_steps)]
    for of_step in gradients:
        for p, g in zip(params, of_step, strict=True):
            p.grad = g.clone()
        optimizer.step()
    return start, gradients, params


@settings(max_examples=60, deadline=None)
@given(
    members=stacks(),
    period=st.integers(1, 3),
    refresh=st.integers(1, 4),
    nesterov=st.booleans(),
    size=st.sampled_from(["rms", "schatten"]),
    weight_decay=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1000),
    piece=st.sampled_from([8, 100, 2**19]),
)
def test_soap(members, seed, piece, **arguments):
    assume(all(has_full_rank(layout, shape, arguments["period"]) for layout, shape in members))
    with mock.patch.dict(scratch._PIECE, cpu=piece):
        start, gradients, params = trained(nm.MuSOAP, members, 5, seed, momentum=0.8, beta2=0.7, basis_beta=0.6, **arguments)
    for i, (layout, _) in enumerate(members):
        want = soap_steps(
            start[i], [g[i] for g in gradients], layout, lr=0.1, momentum=0.8, beta2=0.7, basis_beta=0.6, **arguments
        )
        # The floor under second moments is 1e-5 of their mean.
        torch.testing.assert_close(params[i].detach(), want, rtol=0, atol=3e-4)


@settings(max_examples=60, deadline=None)
@given(
    members=stacks(),
    period=st.integers(1, 3),
    nesterov=st.booleans(),
    damping=st.sampled_from([0.0, 0.7]),
    weight_decay=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1000),
)
def test_muon(members, seed, **arguments):
    """Each update within the band of the polynomials."""
    start, gradients, params = trained(nm.MuMuon, members, 3, seed, momentum=0.8, **arguments)
    for i, (layout, shape) in enumerate(members):
        want = muon_steps(start[i], [g[i] for g in gradients], layout, lr=0.1, momentum=0.8, **arguments)
        n_in, n_out = (max(1, torch.tensor([s for s, x in zip(shape, layout, strict=True) if x == y]).prod()) for y in "io")
        bound = 3 * arguments["period"] * 0.1 * (n_out / n_in) ** 0.5 * BAND * 3 * min(n_in, n_out) ** 0.5
        assert (params[i] - want).abs().max() <= bound + 1e-9


@pytest.mark.parametrize("steps", [pytest.param(soap_steps, id="soap"), pytest.param(muon_steps, id="muon")])
def test_the_reference_moves_every_mode_by_its_size(steps):
    """One step of random blocks: operator norm lr √(out/in), exactly for one row."""
    g = torch.randn(1, 4, 6, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    moved = -steps(torch.zeros_like(g), [g], "iob", lr=0.1)
    assert torch.allclose(moved[0].norm(dim=0), torch.tensor(0.1 * 2, dtype=torch.float64))
