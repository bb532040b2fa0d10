"""How much of the data's energy the modes of a proxy keep, worked out by hand, and the advice that follows."""

import math

import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.models import FNO, UNO

from neuralop_mup.lab.decisions import data_notes, modes_of
from neuralop_mup.lab.problems.mode_energy import ENOUGH, mode_energy

POINTS = torch.arange(32) / 32


def wave(k, size=1.0):
    return size * torch.cos(2 * math.pi * k * POINTS)


def test_shares_by_hand():
    """Amplitudes 3 and 1 have energies 9 and 1 of 10. The mean does not count."""
    energy = mode_energy((5 + wave(1, 3) + wave(6))[None, None])
    assert energy.kept((1,)) == pytest.approx((0,), abs=1e-12)
    assert [energy.kept((n,))[0] for n in (2, 11, 12, 99)] == pytest.approx([0.9, 0.9, 1, 1])
    assert (energy.enough(), energy.enough(0.89)) == ((12,), (2,))


def test_each_axis_separately():
    """cos(2πx) cos(2π 5y) and a third of its size in cos(2π 3x): energies 9 : 1 on axis 0, all at 5 and 0 on axis 1.

    Axis 0 keeps −n/2 … n/2 − 1, so n = 2 has half of frequency 1, and n = 6 half of frequency 3: 0.45 and 0.9 + 0.05.
    """
    y = torch.outer(wave(1), wave(5)) + torch.outer(wave(3), torch.ones(32)) / math.sqrt(2) / 3
    energy = mode_energy(y[None, None])
    assert [energy.kept((n, 10)) for n in (2, 3, 4, 6, 7)] == [pytest.approx((k, 1)) for k in (0.45, 0.9, 0.9, 0.95, 1)]
    assert energy.kept((6, 1))[1] == pytest.approx(0.1)
    assert energy.enough() == (8, 10)


def test_complex_fields():
    """Of frequencies 4 and −4, 8 modes keep −4 … 3."""
    turning = torch.polar(torch.ones(32), 2 * math.pi * 4 * POINTS)[None, None]
    assert (mode_energy(turning).enough(), mode_energy(turning.conj()).enough()) == ((10,), (8,))


def test_channels_count_equally():
    """A large channel does not hide a small one, and a constant one does not count."""
    y = torch.stack([wave(1, 100), wave(8, 0.01), torch.ones(32)])[None]
    assert mode_energy(y).kept((14,)) == pytest.approx((0.5,))
    assert mode_energy(torch.ones(4, 1, 16)).enough() == (2,)


@pytest.mark.parametrize("n_modes", [(6,), (5,), (5, 7), (4, 5, 6)])
def test_kept_energy_is_what_the_layer_of_neuralop_passes(n_modes):
    """A kernel of ones passes the modes that it has. Fields with energy on one axis measure that axis."""
    grid = (12, 14, 16)[-len(n_modes) :]
    dims = tuple(range(2, len(grid) + 2))
    conv = SpectralConv(1, 1, n_modes, bias=False)
    torch.nn.init.ones_(conv.weight.tensor)
    for axis in range(len(grid)):
        spectrum = torch.fft.fftn(torch.randn(4, 1, *grid), dim=dims)
        for other in set(range(len(grid))) - {axis}:  # only frequencies 1 and −1, which every n_modes here has
            frequency = (torch.fft.fftfreq(grid[other]) * grid[other]).round().abs()
            spectrum.movedim(other + 2, -1)[..., frequency != 1] = 0
        y = torch.fft.ifftn(spectrum, dim=dims).real
        y = torch.cat([y, y.flip(axis + 2)])  # as much in each frequency as in its negative
        y = y - y.mean()
        passed = conv(y).square().sum() / y.square().sum()
        assert mode_energy(y).kept(n_modes)[axis] == pytest.approx(float(passed), rel=1e-4), axis


@pytest.mark.parametrize(
    ("proxy", "target", "advised"),
    [((4,), (32,), 12), ((4,), (8,), 8), ((12,), (32,), None), ((4,), (4,), None), (None, (32,), None)],
)
def test_advice(proxy, target, advised):
    y = (wave(1, 3) + wave(6))[None, None]
    notes = data_notes({"x": y, "y": y}, None, proxy, target, compare=False, energy=mode_energy(y))
    assert (ENOUGH, len(notes)) == (0.999, int(advised is not None))
    assert all(f"n_modes = {advised}" in note and "90 %" in note for note in notes)


def test_modes_of_models():
    assert modes_of(FNO((8, 6), 1, 1, 4, n_layers=1)) == (8, 6)
    assert modes_of(torch.nn.Linear(1, 1)) is None
    several = {"uno_out_channels": [8, 8], "uno_n_modes": [[8, 8], [4, 4]], "uno_scalings": [[1, 1], [1, 1]]}
    assert modes_of(UNO(1, 1, 8, n_layers=2, channel_mlp_skip="linear", **several)) is None  # they differ between layers
