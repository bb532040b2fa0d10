"""What tells that a proxy does not stand for its target, each with what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.classify import fourier_blocks
from neuralop_mup.problems import OwnData, Problem
from neuralop_mup.problems.mode_energy import mode_energy, off_grid, proxy_advice
from neuralop_mup.tuning.outcome import is_complete, point_loss
from neuralop_mup.tuning.space import params_key
from neuralop_mup.tuning.summary import Results

__all__ = [
    "FEW_STEPS",
    "HARDLY",
    "few_samples_notes",
    "is_coarser",
    "modes_of",
    "resolution_notes",
    "same_targets_notes",
    "sample_of",
    "training_notes",
]

Modes = tuple[int, ...] | None

HARDLY = 0.9  # of the error of predicting the mean: what has learned less than a tenth tells little of learning
# At 80 to 180 steps optimizers and learning rates rank otherwise than at 700 and more (benchmarks/results/suite.md).
FEW_STEPS = 100
FEW_SAMPLES = 10  # of validation: with fewer, one unusual sample moves their mean error by more than a tenth


def modes_of(size: Mapping[str, Any], model: nn.Module | None = None) -> tuple[int, ...] | None:
    """``n_modes`` of a size, one number an axis; None where it is not known, or is not the same in every layer.

    Parameters
    ----------
    size : mapping
        Arguments of the model.
    model : torch.nn.Module, optional
        What they build. Its Fourier blocks say what an argument that was not given is; the argument is asked where it has
        none.
    """
    found = {tuple(block.n_modes) for _, block in fourier_blocks(model)} if model is not None else set()
    if found:
        return found.pop() if len(found) == 1 else None
    n_modes = size.get("n_modes")
    return tuple(n_modes) if isinstance(n_modes, Sequence) and all(isinstance(n, int) for n in n_modes) else None


def is_coarser(proxy: Modes, target: Modes) -> bool:
    """Whether the proxy has fewer modes than the target on some axis, as far as both are known."""
    return proxy is not None and target is not None and any(n < m for n, m in zip(proxy, target, strict=False))


def sample_of(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Training data for a spectrum: all of it, or some hundred samples of what may not fit in memory."""
    return problem.sample() if isinstance(problem, OwnData) else problem.load().train


def resolution_notes(sample: Mapping[str, Any], proxy: Modes, target: Modes, flag: str | None = None) -> tuple[str, ...]:
    """A sentence if the proxy's modes do not resolve the data; nothing where proxy and target have the same modes.

    Parameters
    ----------
    sample : mapping
        ``x`` and ``y`` of many samples, as the model is given them.
    proxy, target : tuple of int or None
        ``n_modes`` of the model at the two sizes (:func:`modes_of`).
    flag : str, optional
        The option that sets the proxy's modes, where there is one.
    """
    if not is_coarser(proxy, target):
        return ()
    if off_grid(sample):
        return (
            "The data is on no grid, so advice on the proxy's modes, from the energy that they keep, does not apply: "
            "compare a proxy with more of them.",
        )
    return tuple(filter(None, [proxy_advice(mode_energy(sample["x"], sample["y"]), proxy, target, flag)]))


def same_targets_notes(y: Any) -> tuple[str, ...]:
    """A sentence if there is nothing to learn: every learning rate is then as good as another."""
    if not isinstance(y, torch.Tensor) or y.ndim < 3 or not (y == y[:1]).all():
        return ()
    return (
        "The targets of all samples are the same, so there is nothing to learn and no learning rate to choose: look at what "
        "was taken for the output.",
    )


def few_samples_notes(n_val: int | None) -> tuple[str, ...]:
    """A sentence if learning rates are compared on very few samples."""
    if n_val is None or n_val >= FEW_SAMPLES:
        return ()
    return (
        f"Learning rates are compared on {n_val} validation {'sample' if n_val == 1 else 'samples'}: with fewer than "
        f"{FEW_SAMPLES} the differences between their losses are mostly noise, so give more samples.",
    )


def training_notes(results: Results) -> list[str]:
    """What the base's runs say against it: little learned, few steps, an optimum that is flat.

    An optimum at the edge of its grid is told of by the report, at every size.
    """
    study, n = results.study, len(results.study.seeds)
    centre = results.centre(study.rules[0])
    if centre is None:
        return []
    what = f"The {study.base}" if study.base else "The model"
    best = [r for r in results.cell(study.base, study.rules[0]) if params_key(r["params"]) == params_key(centre)]
    said = []
    of_mean = [r["metrics"]["mean_loss"] for r in best if is_complete(r) and r["metrics"].get("mean_loss")]
    if of_mean and (loss := point_loss(best, n)) >= HARDLY * fmean(of_mean):
        said.append(
            f"{what} is hardly better than predicting the mean, at its best ({loss:.3g} against {fmean(of_mean):.3g}), so "
            "its best values say little: train it longer, on more samples, or make it larger."
        )
    steps = [r["metrics"]["steps"] for r in best if r["metrics"].get("steps")]
    if steps and max(steps) < FEW_STEPS:
        said.append(
            f"{what} was trained for {max(steps)} steps; below {FEW_STEPS} the best learning rate is that of the first "
            "steps: give it more epochs or smaller batches."
        )
    name = study.walks[0] or "lr"
    level = results.level(results.walk(study.base, study.rules[0], study.walks[0]), name)
    if level and level[-1] >= 4 * level[0] > 0:
        said.append(
            f"At {what[0].lower()}{what[1:]} values of {name} from {level[0]:.3g} to {level[-1]:.3g} cannot be told apart: "
            "more seeds or more steps would choose between them, and until then one in the middle is the safest."
        )
    return said
