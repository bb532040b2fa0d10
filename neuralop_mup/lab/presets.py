"""The one table of presets: how each problem is trained at each size.

Sizes: ``cpu`` takes minutes on two cores, ``gpu`` an hour or a few on one GPU, ``paper`` is the setting of Li, Yoo and
Yang, ICML 2025 (arXiv 2506.19396), section 4. What a problem without a row gets, :func:`preset_of` says.
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

SIZES = ("cpu", "gpu", "paper")
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
    data : str
        Preset of the problem's own arguments; ``problem_args`` are changed in it.
    under_mup : dict
        Settings of a run that hold for every rule but "standard".
    """

    proxy: tuple[int, int | tuple[int, ...]]
    target: tuple[int, int | tuple[int, ...]]
    epochs: int
    lr: tuple[float, float] = (1e-3, 6.4e-2)
    batch_size: int = 20
    schedule: str = "cosine"
    data: str = "cpu"
    problem_args: Mapping[str, Any] = field(default_factory=dict)
    under_mup: Mapping[str, Any] = field(default_factory=dict)


_SMALL_FLOW = {
    **{"n_train": 80, "n_val": 20, "n_test": 20, "grid": 16, "time_points": 16},
    **{"reynolds": 20.0, "time": 1.0, "forcing_wavenumber": 2},
}
_DARCY = {
    "cpu": Preset(
        proxy=(8, (14, 12)),
        target=(32, 16),
        epochs=8,
        lr=(2e-3, 1.28e-1),
        problem_args={"n_train": 200, "n_val": 100, "n_test": 100, "grid": 32},
    ),
    "gpu": Preset(
        proxy=(16, 6),
        target=(128, 48),
        epochs=40,
        lr=(5e-4, 6.4e-2),
        data="gpu",
        problem_args={"n_train": 1000, "n_val": 200, "n_test": 200, "grid": 62},
    ),
    "paper": Preset(
        proxy=(64, 6), target=(64, 48), epochs=300, lr=(5e-4, 3.2e-2), schedule="halve:100,150,200", data="paper"
    ),
}

#: (problem, size) → how it is trained. Li, Yoo and Yang: width 64, from K = 3 (n_modes counts both signs) to the most they
#: train.
PRESETS: dict[tuple[str, str], Preset] = {
    ("burgers", "cpu"): Preset(proxy=(8, 16), target=(64, 64), epochs=16, lr=(4e-3, 1.28e-1), problem_args={"n_train": 400}),
    ("burgers", "gpu"): Preset(
        proxy=(16, 32),
        target=(128, 256),
        epochs=40,
        lr=(5e-4, 6.4e-2),
        data="gpu",
        problem_args={"n_train": 800, "n_val": 200, "n_test": 200, "grid": 1024},
    ),
    ("burgers", "paper"): Preset(
        proxy=(64, 6), target=(64, 1024), epochs=750, lr=(5e-4, 3.2e-2), schedule="halve:50", data="paper"
    ),
    **{(name, size): preset for name in ("darcy", "darcy-pino") for size, preset in _DARCY.items()},
    ("burgers-pino", "cpu"): Preset(
        proxy=(4, (32, 24)),
        target=(32, 32),
        epochs=12,
        lr=(2e-3, 1.28e-1),
        batch_size=10,
        problem_args={"n_train": 100, "n_val": 40, "grid": 64, "time_points": 32},
    ),
    ("burgers-pino", "gpu"): Preset(proxy=(16, 8), target=(128, 64), epochs=20, lr=(5e-4, 6.4e-2), data="gpu"),
    # Not in the paper; this is its Burgers schedule.
    ("burgers-pino", "paper"): Preset(
        proxy=(16, 8), target=(128, 64), epochs=750, lr=(5e-4, 3.2e-2), schedule="halve:50", data="gpu"
    ),
    ("navier-stokes", "cpu"): Preset(
        proxy=(4, (4, 14, 8)),
        target=(32, (4, 16, 16)),
        epochs=8,
        lr=(4e-3, 2.56e-1),
        batch_size=4,
        problem_args=_SMALL_FLOW,
    ),
    ("navier-stokes", "gpu"): Preset(
        proxy=(8, 6),
        target=(64, 48),
        epochs=10,
        lr=(5e-4, 3.2e-2),
        batch_size=2,
        data="gpu",
        problem_args={"n_train": 100, "time_points": 48},
    ),
    # 50 000 iterations at batch 2 are 125 epochs of 800 samples; the learning rate halves at 20 000 and 40 000.
    ("navier-stokes", "paper"): Preset(
        proxy=(64, 6),
        target=(64, 48),
        epochs=125,
        lr=(5e-4, 3.2e-2),
        schedule="halve:50,100",
        batch_size=2,
        data="paper",
        under_mup={"clip_spectral": 0.01},  # the paper clips under μP only, and on Navier–Stokes only
    ),
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
    batch = batch_size or max(1, min(20, max(4, problem.n_train // 8), problem.n_train))
    epochs = max(20, math.ceil(ENOUGH_STEPS / math.ceil(problem.n_train / batch)))
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
    presets = PROBLEMS[name].presets
    data = presets.get(row.data if row else size, {} if row else None)
    if data is None:
        known = [s for s in SIZES if s in presets or (name, s) in PRESETS]
        raise MupError(f"The problem {name!r} has no preset {size!r}; it has {', '.join(known)}.")
    return get_problem(name, **{**data, **(row.problem_args if row else {}), **arguments})


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
