"""What an experiment is: sizes, rules, grids of hyperparameters and how each run is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from neuralop_mup.problems import Problem, get_problem
from neuralop_mup.training import build_model

__all__ = ["Experiment", "Modes", "odd_grids_work"]

Modes = int | tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment at one size.

    Attributes
    ----------
    name, size : str
        What it is called: ``"darcy-modes"``, ``"cpu"``.
    shows : str
        What it measures, and which figure or table of the paper that is.
    problem : str
    preset : str
        Preset of the problem; ``problem_args`` are changed in it.
    models : tuple of (hidden_channels, K)
        K modes per sign on each axis (or one number an axis), so ``n_modes = 2 K``. The first is the base.
    grids : dict of str to tuple
        Values of each hyperparameter, in ascending order.
    swept : tuple of str
        Hyperparameters that are walked at every size, one at a time; the others keep their value. A learning rate that
        is not among them is tuned at the base and kept.
    rules : tuple of str
        Rules to compare.
    searched : tuple of str
        Rules that are walked over the grid beyond the base; the others train the base's best point only.
    seeds : tuple of int
    epochs, batch_size, beta2, schedule
        See :data:`neuralop_mup.training.DEFAULTS`.
    under_mup : dict
        Settings of a run that hold for every rule but "standard".
    device : str
    notes : tuple of str
        What the reader must know besides, such as a departure from the paper.
    """

    name: str
    size: str
    shows: str
    problem: str
    models: tuple[tuple[int, Modes], ...]
    grids: Mapping[str, tuple[float, ...]]
    rules: tuple[str, ...]
    searched: tuple[str, ...]
    epochs: int
    preset: str = "cpu"
    problem_args: Mapping[str, Any] = field(default_factory=dict)
    swept: tuple[str, ...] = ("lr",)
    seeds: tuple[int, ...] = (0, 1, 2)
    batch_size: int = 20
    beta2: float = 0.999
    schedule: str = "cosine"
    under_mup: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    notes: tuple[str, ...] = ()

    @property
    def described_problem(self) -> Problem:
        """The problem with every argument."""
        from neuralop_mup.problems import PROBLEMS

        get_problem(self.problem)  # refuses a name that does not exist
        return PROBLEMS[self.problem].preset(self.preset, **self.problem_args)

    def model(self, index: int) -> dict[str, Any]:
        """FNO's arguments at the size of that index."""
        width, k = self.models[index]
        per_axis = (k,) * self.described_problem.n_dim if isinstance(k, int) else k
        return {"hidden_channels": width, "n_modes": tuple(2 * modes for modes in per_axis), "n_layers": 4}

    def label(self, index: int) -> str:
        """``K = 8``, or ``width 64, K = 32`` where the width varies too."""
        width, k = self.models[index]
        text = f"K = {k if isinstance(k, int) else '×'.join(map(str, k))}"
        return text if len({w for w, _ in self.models}) == 1 else f"width {width}, {text}"

    def trained_as(self, index: int, rule: str) -> str:
        """The rule under which a size is trained for ``rule``.

        At the base every rule is the standard parametrization bit for bit, so its runs serve all rules that train with
        the same settings.
        """
        if index > 0 or rule == "standard":
            return rule
        return next(r for r in self.rules if r != "standard") if self.under_mup else "standard"

    @property
    def defaults(self) -> dict[str, Any]:
        """Value of each hyperparameter with a grid, where it is neither walked nor tuned."""
        return {name: getattr(self, name, None) for name in self.grids}

    @property
    def fixed(self) -> dict[str, Any]:
        """Settings that every run has."""
        settings = {name: getattr(self, name) for name in ("epochs", "batch_size", "beta2", "schedule", "device")}
        problem = self.described_problem
        return {
            "problem": self.problem,
            "problem_args": asdict(problem),
            **{name: value for name, value in settings.items() if name not in self.grids},
        }

    def config(self, index: int, rule: str, point: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """What :func:`neuralop_mup.training.train_run` is given."""
        model = {"model": self.model(index), "base": self.model(0), "rule": rule}
        extra = {} if rule == "standard" else self.under_mup
        return {**self.fixed, **extra, **model, **point, "seed": seed}

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides the result; a folder is resumed only with the same (grid, seeds and rules may grow)."""
        return {
            "experiment": self.name,
            "size": self.size,
            "models": [self.model(i) for i in range(len(self.models))],
            "grid": {name: list(values) for name, values in self.grids.items()},
            "swept": list(self.swept),
            "rules": list(self.rules),
            "searched": list(self.searched),
            "seeds": list(self.seeds),
            "fixed": self.fixed,
            "defaults": {k: v for k, v in self.defaults.items() if v is not None},
            "under_mup": dict(self.under_mup),
        }

    def check(self) -> None:
        """Refuse what would fail in every run: a grid too coarse for the modes, an undefined rule.

        Raises
        ------
        MupError
        """
        problem = self.described_problem
        with torch.device("meta"):
            for index in range(len(self.models)):
                for rule in self.rules:
                    build_model(problem, self.model(index), self.model(0), rule)


def odd_grids_work() -> bool:
    """Whether the installed SpectralConv is right on grids with an odd number of points.

    neuralop 2.0.0 shifts the spectrum back by ``fftshift`` instead of its inverse, which differ on odd grids. With
    weights of one, a low mode must pass unchanged.
    """
    from neuralop.layers.spectral_convolution import SpectralConv

    with torch.random.fork_rng(devices=[]):
        conv = SpectralConv(1, 1, (4, 4), bias=False)
    with torch.no_grad():
        conv.weight.tensor.fill_(1.0)
        wave = torch.cos(2 * torch.pi * torch.arange(9) / 9)[:, None].expand(9, 9)
        return torch.allclose(conv(wave[None, None])[0, 0], wave, atol=1e-4)
