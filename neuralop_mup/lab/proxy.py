"""What tells that a proxy does not stand for its target, each with what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.reading import fourier_blocks
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.problems.mode_energy import mode_energy, off_grid, proxy_advice
from neuralop_mup.lab.summary import Results

__all__ = ["data_notes", "modes_of", "training_notes"]

Modes = tuple[int, ...] | None

HARDLY = 0.9  # of the error of predicting the mean: what has learned less than a tenth tells little of learning
# At 80 to 180 steps optimizers and rates rank otherwise than at 700 and more (benchmarks/suite.py of commit b7062af).
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


def data_notes(
    sample: Mapping[str, Any], n_val: int | None, proxy: Modes, target: Modes, flag: str | None = None, compare: bool = True
) -> list[str]:
    """What the data says against the sizes, or against itself, a sentence each.

    Parameters
    ----------
    sample : mapping
        ``x`` and ``y`` of many samples, as the model is given them.
    n_val : int or None
        Samples by which learning rates are compared.
    proxy, target : tuple of int or None
        ``n_modes`` of the model at the two sizes (:func:`modes_of`).
    flag : str, optional
        The option that sets the proxy's modes, where there is one.
    compare : bool
        Whether the loss compares the prediction with y; one of the user's may not.
    """
    x, y, notes = sample["x"], sample["y"], []
    if proxy is not None and target is not None and any(n < m for n, m in zip(proxy, target, strict=False)):
        if off_grid(sample):
            notes.append(
                "The data is on no grid, so advice on the proxy's modes, from the energy that they keep, does not apply: "
                "compare a proxy with more of them."
            )
        else:
            notes.append(proxy_advice(mode_energy(x, y), proxy, target, flag))
    if n_val is not None and n_val < FEW_SAMPLES:
        notes.append(
            f"Learning rates are compared on {n_val} validation {'sample' if n_val == 1 else 'samples'}: with fewer than "
            f"{FEW_SAMPLES} the differences between their losses are mostly noise, so give more samples."
        )
    if compare and isinstance(y, torch.Tensor) and y.ndim > 2 and (y == y[:1]).all():
        notes.append(
            "The targets of all samples are the same, so there is nothing to learn and no learning rate to choose: look at "
            "what was taken for the output."
        )
    return list(filter(None, notes))


def training_notes(results: Results) -> list[str]:
    """What the base's runs say against it: little learned, few steps, an optimum that is flat.

    An optimum at the edge of its grid is told of by the report, at every size.
    """
    study, rule = results.study, results.study.rules[0]
    best = results.carried(study.base, rule)
    if not best or not all(map(is_complete, best)):
        return []
    what, said = f"The {study.base}" if study.base else "The model", []
    of_mean = [r["metrics"]["mean_loss"] for r in best if r["metrics"].get("mean_loss")]
    loss = fmean(r["metrics"].get("validation_error", r["loss"]) for r in best)  # a score is of another kind
    if of_mean and loss >= HARDLY * fmean(of_mean):
        how = "is worse than" if loss >= fmean(of_mean) else "is hardly better than"
        said.append(
            f"{what} {how} predicting the mean, at its best ({loss:.3g} against {fmean(of_mean):.3g}), so its best values "
            "say little: train it longer, on more samples, or make it larger."
        )
    steps = [r["metrics"]["steps"] for r in best if r["metrics"].get("steps")]
    if steps and max(steps) < FEW_STEPS:
        said.append(
            f"{what} was trained for {max(steps)} steps; below {FEW_STEPS} the best learning rate is that of the first "
            "steps: give it more epochs or smaller batches."
        )
    level = results.level(results.walk(study.base, rule))
    if level and level[-1] >= 4 * level[0] > 0:
        said.append(
            f"At {what[0].lower()}{what[1:]} values of lr from {level[0]:.3g} to {level[-1]:.3g} cannot be told apart: "
            "more seeds or more steps would choose between them, and until then one in the middle is the safest."
        )
    return said
