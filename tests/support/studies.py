"""A small FNO, data for it, and studies that train it briefly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from neuralop.models import FNO
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm
from neuralop_mup.lab import plots
from neuralop_mup.lab.decisions import decide
from neuralop_mup.lab.target import Tuned

BASE, TARGET = {"hidden_channels": 4, "n_modes": (4,)}, {"hidden_channels": 8, "n_modes": (8,)}
LRS = [0.005, 0.02]


def build(in_channels=1, out_channels=1, n_layers=2, **size):
    return FNO(in_channels=in_channels, out_channels=out_channels, n_layers=n_layers, **size)


SETTINGS = {"build": build, "base": BASE, "target": TARGET, "space": {"lr": LRS}, "epochs": 1, "batch_size": 8}


def fields(n: int = 40, seed: int = 0, channels: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and outputs of shape (n, channels, 32): random walks, and the same shifted by one point."""
    x = torch.randn(n, channels, 32, generator=torch.Generator().manual_seed(seed)).cumsum(-1)
    return x, 3.0 * x.roll(1, -1) + 1.0


def physical(n: int = 40, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Fields whose mean and standard deviation are far from 0 and 1."""
    x, y = fields(n, seed)
    return 50.0 + 9.0 * x, 1000.0 + 70.0 * y


def loaders(order: torch.Generator | None = None) -> dict[str, DataLoader]:
    """32 training and 8 validation samples in batches of 8; ``order`` shuffles those for training."""
    train = DataLoader(TensorDataset(*fields(32)), 8, shuffle=order is not None, generator=order)
    return {"train": train, "val": DataLoader(TensorDataset(*fields(8, 1)), 8)}


def save_pair(pair: Any, path: str | Path) -> str | Path:
    np.savez(path, **{key: np.asarray(values) for key, values in zip("xy", pair, strict=True)})
    return path


def relative_error(prediction: torch.Tensor, y: torch.Tensor) -> float:
    """The mean of the relative L2 errors of the samples."""
    return float(((prediction - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean())


def quick_tune(folder: Path, data: Any, **more: Any) -> Tuned:
    """Two rates at the base and the best at the target, one epoch each."""
    settings = {**SETTINGS, "seeds": (0,), "progress": False, "n_workers": 1, **more}
    return nm.tune(settings.pop("build"), data, folder=folder, **settings)


def run_ids(data: Any, **more: Any) -> set[str]:
    """The keys of the runs that :func:`quick_tune` would train. Nothing is trained."""
    settings = {**SETTINGS, "seeds": (0,), "rules": ("operator-norm",), "optimizer": "soap", "device": "cpu", **more}
    study = decide(settings.pop("build"), data, "unused", **settings).study
    return {run.id for point in [*study.tuning, *study.target_points(study.example)] for run in point}


@pytest.fixture(autouse=True, scope="module")
def no_figures() -> Iterator[None]:
    """Reports without figures, which take longer than a small training run, in each module that imports this."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("plot_samples", "plot_curves"):
            patch.setattr(plots, name, lambda *_, **__: None)
        yield
