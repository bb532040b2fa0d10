"""The one table of presets: how each problem is trained at each size.

``cpu`` takes minutes on two cores. What a problem without a row gets, :func:`preset_of` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.problems import PROBLEMS, Problem, get_problem
from neuralop_mup.lab.problems.mode_energy import ModeEnergy

__all__ = ["EXTENDS", "PRESETS", "SIZES", "Preset", "odd_grids_work", "preset_of", "problem_with"]

SIZES = ("cpu",)
#: Below so many steps of the proxy its best learning rate is that of the first steps (docs/howto/proxy.md).
ENOUGH_STEPS = 300
#: ``n_modes`` of a target that follows from its data, at most, by axes.
_MOST_MODES = {1: 512, 2: 64, 3: 24}
#: Values by which a grid of learning rates that nobody gave may grow where the best lies at its edge.
EXTENDS = 2


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How a problem is trained at a size.

    Attributes
    ----------
    proxy, target : (hidden_channels, n_modes)
        The two sizes of ``transfer``; one number of modes stands for every axis. At size ``cpu`` the proxy's modes keep
        99.9 % of the targets' spectral energy, as :mod:`neuralop_mup.lab.proxy` asks of any proxy.
    lr : (float, float)
        Ends of the factor-2 grid of learning rates under Adam.
    epochs, batch_size, schedule
        See :class:`~neuralop_mup.lab.settings.Settings`.
    problem_args : dict
        Arguments of the problem.
    under_mup : dict
        Settings of a run that hold for every rule but "standard".
    """

    proxy: tuple[int, int | tuple[int, ...]]
    target: tuple[int, int | tuple[int, ...]]
    epochs: int
    lr: tuple[float, float] = (1e-3, 6.4e-2)
    batch_size: int = 20
    schedule: str = "cosine"
    problem_args: Mapping[str, Any] = field(default_factory=dict)
    under_mup: Mapping[str, Any] = field(default_factory=dict)


_DARCY = Preset(
    proxy=(8, (14, 12)),
    target=(32, 16),
    epochs=8,
    lr=(2e-3, 1.28e-1),
    problem_args={"n_train": 200, "n_val": 100, "n_test": 100, "grid": 32},
)

#: (problem, size) → how it is trained.
PRESETS: dict[tuple[str, str], Preset] = {
    ("burgers", "cpu"): Preset(proxy=(8, 16), target=(64, 64), epochs=16, lr=(4e-3, 1.28e-1), problem_args={"n_train": 400}),
    ("darcy", "cpu"): _DARCY,
    ("darcy-pino", "cpu"): _DARCY,
}


def preset_of(
    problem: Problem, size: str = "cpu", *, batch_size: int | None = None, energy: ModeEnergy | None = None
) -> Preset:
    """The row of a problem or, where it has none, sizes and epochs that follow from its grid, its samples and its spectrum.

    Then the target has width 64 (32 in 3D) and modes up to half of what the grid holds, 32 at most (16 in 3D), or as many as
    the data needs where that is more; the proxy a quarter of its width. The proxy's modes are those that keep 99.9 % of the
    targets' energy; where no energy is known, a quarter of the target's. Batches are an eighth of the data, from 4 to 20
    samples. Epochs are 20, or as many as make 300 steps.

    Parameters
    ----------
    problem : Problem
    size : str
    batch_size : int, optional
        The one that was asked for.
    energy : ModeEnergy, optional
        Of the data.
    """
    if row := PRESETS.get((problem.name, size)):
        return row
    most = 16 if problem.n_dim > 2 else 32
    target = tuple(max(4, min(most, points // 2 - points // 2 % 4)) for points in problem.grid_shape)
    proxy = tuple(max(4, modes // 4 - modes // 4 % 2) for modes in target)
    if energy is not None:
        # A kernel's size goes with the product over the axes, so there is an end to it; there the advice says what the
        # target itself leaves out.
        needed = [min(_MOST_MODES[problem.n_dim], max(4, n)) for n in energy.enough()]
        target = tuple(max(modes, need) for modes, need in zip(target, needed, strict=True))
        proxy = tuple(needed)
    width = 32 if problem.n_dim > 2 else 64
    n_train = problem.n_train if isinstance(problem, Problem) else problem.load().counts()["train"]
    batch = batch_size or max(1, min(20, max(4, n_train // 8), n_train))
    epochs = max(20, math.ceil(ENOUGH_STEPS / math.ceil(n_train / batch)))
    return Preset(proxy=(width // 4, proxy), target=(width, target), epochs=epochs, batch_size=batch)


def problem_with(name: str, size: str, arguments: Mapping[str, Any]) -> Problem:
    """A problem with the data of its preset and the user's arguments on top.

    Raises
    ------
    MupError
        For a problem, size or argument that does not exist.
    """
    if name not in PROBLEMS:
        raise MupError(f"There is no problem {name!r}; {nearest(str(name), PROBLEMS)}")
    if size not in SIZES:
        raise MupError(f"There is no preset {size!r}; {nearest(str(size), SIZES)}")
    row = PRESETS.get((name, size))
    return get_problem(name, **{**(row.problem_args if row else {}), **arguments})


def odd_grids_work() -> bool:
    """Whether the installed SpectralConv is right on grids with an odd number of points.

    neuralop 2.0.0 shifts the spectrum back by ``fftshift`` instead of its inverse, which differ on odd grids. With
    weights of one, a low mode must pass unchanged.
    """
    import torch
    from neuralop.layers.spectral_convolution import SpectralConv

    with torch.random.fork_rng(devices=[]):
        conv = SpectralConv(1, 1, (4, 4), bias=False)
    with torch.no_grad():
        conv.weight.tensor.fill_(1.0)
        wave = torch.cos(2 * torch.pi * torch.arange(9) / 9)[:, None].expand(9, 9)
        return torch.allclose(conv(wave[None, None])[0, 0], wave, atol=1e-4)
