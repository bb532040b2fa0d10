"""What a proxy's modes keep of the data, worked out by hand, and what is said of a proxy that tells little."""

import math
import re

import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.models import FNO, UNO

import neuralop_mup as nm
from neuralop_mup.lab.plan import data_notes, modes_of
from neuralop_mup.lab.problems.mode_energy import ENOUGH, mode_energy

POINTS = torch.arange(32) / 32


def wave(k, size=1.0, points=POINTS):
    return size * torch.cos(2 * math.pi * k * points)


def fields(*rows):
    return torch.stack(rows)[:, None]


def test_shares_by_hand():
    """Two modes, amplitudes 3 and 1: energies 9 and 1 of 10. The mean, whatever it is, does not count."""
    energy = mode_energy(fields(5 + wave(1, 3) + wave(6)))
    assert energy.kept((1,)) == pytest.approx((0,), abs=1e-12)
    assert [energy.kept((n,))[0] for n in (2, 11, 12, 99)] == pytest.approx([0.9, 0.9, 1, 1])
    assert energy.enough() == (12,) and energy.enough(0.89) == (2,)


def test_each_axis_by_itself():
    """cos(2πx) cos(2π 5y), a third of its size in cos(2π 3x): on axis 0 energies 9 : 1, on axis 1 all at 5 and 0.

    Axis 0 keeps −n/2 … n/2 − 1, so n = 2 has half of frequency 1, and n = 6 half of frequency 3: 0.45 and 0.9 + 0.05.
    """
    y = torch.outer(wave(1), wave(5)) + torch.outer(wave(3), torch.ones(32)) / math.sqrt(2) / 3
    energy = mode_energy(y[None, None])
    assert [energy.kept((n, 10)) for n in (2, 3, 4, 6, 7)] == [pytest.approx((k, 1)) for k in (0.45, 0.9, 0.9, 0.95, 1)]
    assert energy.enough() == (8, 10) and energy.kept((6, 1))[1] == pytest.approx(0.1)


def test_complex_fields_and_either_sign():
    turning = torch.polar(torch.ones(32), 2 * math.pi * 4 * POINTS)
    for field, enough in ((turning, 10), (turning.conj(), 8)):  # frequencies 4 and −4: 8 modes are −4 … 3
        assert mode_energy(fields(field)).enough() == (enough,)


def test_channels_count_alike_and_what_does_not_vary_not_at_all():
    """Normalized, as the model sees them: a large channel does not hide a small one, and a constant one is nothing."""
    y = torch.stack([wave(1, 100), wave(8, 0.01), torch.ones(32)])[None]
    assert mode_energy(y).kept((14,)) == pytest.approx((0.5,))
    assert mode_energy(torch.ones(4, 1, 16)).enough() == (2,)


@pytest.mark.parametrize("n_modes", [(6,), (5,), (6, 6), (5, 7), (4, 5, 6)])
def test_what_is_kept_is_what_neuralops_layer_lets_through(n_modes):
    """A kernel of ones passes the modes that it has. Fields whose energy is on one axis alone measure that axis."""

    grid = (12, 14, 16)[-len(n_modes) :]
    conv = SpectralConv(1, 1, n_modes, bias=False)
    torch.nn.init.ones_(conv.weight.tensor)
    for axis in range(len(grid)):
        spectrum = torch.fft.fftn(torch.randn(4, 1, *grid), dim=tuple(range(2, len(grid) + 2)))
        for other in set(range(len(grid))) - {axis}:  # frequencies 1 and −1 alone, which every n_modes here has
            frequency = (torch.fft.fftfreq(grid[other]) * grid[other]).round().abs()
            spectrum.movedim(other + 2, -1)[..., frequency != 1] = 0
        y = torch.fft.ifftn(spectrum, dim=tuple(range(2, len(grid) + 2))).real
        y = torch.cat([y, y.flip(axis + 2)])  # as much in each frequency as in its negative
        y = y - y.mean()
        through = conv(y).square().sum() / y.square().sum()
        assert mode_energy(y).kept(n_modes)[axis] == pytest.approx(float(through), rel=1e-4), axis


@pytest.mark.parametrize(
    ("proxy", "target", "said"),
    [
        ((4,), (32,), "n_modes = 4 keep 90 % .*99.9 %.*give it n_modes = 12.$"),
        ((4,), (8,), "give it n_modes = 8"),
        ((12,), (32,), None),
        ((4,), (4,), None),  # nothing moves there
        ((8,), (8,), None),
        (None, (32,), None),
    ],
)
def test_advice(proxy, target, said):
    y = fields(wave(1, 3) + wave(6))
    notes = data_notes({"x": y, "y": y}, None, proxy, target, compare=False, energy=mode_energy(y))
    assert ENOUGH == 0.999 and len(notes) == (said is not None)
    assert not notes or re.search(said, notes[0])


def _fno(n_modes=(16,), **size):
    return FNO(n_modes=n_modes, in_channels=1, out_channels=1, n_layers=1, **size)


@pytest.mark.parametrize("target", [{"n_modes": (16,)}, {}], ids=["said", "a default of build"])
def test_tune_warns(tmp_path, target):
    x = torch.randn(24, 1, 32, generator=torch.Generator().manual_seed(0))
    data = {"train": (x, x.roll(1, -1)), "val": (x[:4], x[:4].roll(1, -1))}
    base, target = {"hidden_channels": 4, "n_modes": (4,)}, {"hidden_channels": 8, **target}
    with pytest.warns(UserWarning, match="spectral energy.*give it n_modes = 16"):
        tuned = nm.tune(
            _fno, data, base=base, target=target, folder=tmp_path, epochs=1, batch_size=8, seeds=(0,), compare=(),
            space={"lr": [1e-2]}, progress=False, n_workers=1,
        )  # fmt: skip
    assert "spectral energy" in tuned.report.read_text()
    metrics = tuned.results.records[0]["metrics"]
    assert metrics["steps"] == 3


def test_modes_are_those_of_the_layers():
    assert modes_of(FNO((8, 6), 1, 1, 4, n_layers=1)) == (8, 6)
    assert modes_of(torch.nn.Linear(1, 1)) is None
    several = {"uno_out_channels": [8, 8], "uno_n_modes": [[8, 8], [4, 4]], "uno_scalings": [[1, 1], [1, 1]]}
    uno = UNO(1, 1, 8, n_layers=2, channel_mlp_skip="linear", **several)
    assert modes_of(uno) is None  # what of the data its layers keep is not one number an axis
