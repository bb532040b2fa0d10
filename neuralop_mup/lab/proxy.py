"""What tells that a proxy does not stand for its target, each with what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.reading import fourier_blocks
from neuralop_mup.lab.problems.mode_energy import mode_energy, off_grid, proxy_advice

Modes = tuple[int, ...] | None

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
