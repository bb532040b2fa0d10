"""``train_many``: my model and my data, many settings, all trained at once."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from neuralop_mup.errors import MupError
from neuralop_mup.experiments.own_runs import OwnRuns
from neuralop_mup.experiments.together import train_all
from neuralop_mup.tuning.outcome import Outcome

__all__ = ["train_many"]


def train_many(
    build: Callable[..., nn.Module],
    configs: Sequence[Mapping[str, Any]],
    data: Any,
    *,
    base: Mapping[str, Any],
    loss: Any = "l2",
    rule: str = "log-modes",
    processor: Any = None,
    measure: bool = True,
    memory: float | None = None,
    **fixed: Any,
) -> list[Outcome]:
    """Train one model under many settings, those of one size as one program where that is faster.

    Each run has the weights, the order of samples and the learning rates that it would have by itself, and its losses are
    equal to those to rounding. A run that diverges is recorded, and the others go on.

    Parameters
    ----------
    build : callable
        ``build(**size)`` returns a fresh model as neuralop (or you) would initialise it.
    configs : sequence of mapping
        Settings of each run: ``lr``, ``seed``, ``lr_mult.ROLE``, ``init_mult.ROLE``, ``beta2``, ``weight_decay``,
        ``aux_lr``, ``optimizer``, ``epochs``, ``schedule``, …; and ``model``, the arguments of ``build`` (default:
        ``base``).
    data, loss, processor
        As for :func:`neuralop_mup.tune`.
    base : mapping
        Arguments of ``build`` for the base model.
    rule : str
    measure : bool
        Time a few steps of both ways first, and take the faster one; else as many at once as memory allows.
    memory : float, optional
        Bytes that runs may take at once; default half of what is free.
    **fixed
        Settings that every run has.

    Returns
    -------
    list of dict
        One for each configuration, in order: ``outcome`` ("complete", "diverged", …), ``error``, ``loss``, ``metrics`` and
        ``seconds``, its share of the time.

    Raises
    ------
    MupError
        If there is nothing to train.

    Warns
    -----
    UserWarning
        Says how runs were trained: how many at once, or why one by one.

    Examples
    --------
    >>> ends = train_many(build, [{"lr": lr} for lr in (1e-3, 2e-3, 4e-3)], "heat.npz",
    ...                   base={"hidden_channels": 16, "n_modes": (8,)}, epochs=20)  # doctest: +SKIP
    """
    if not callable(build) or not configs:
        raise MupError(f"build={build!r} must be a function, and configs ({len(configs)} given) must not be empty.")
    full = [{"model": dict(base), "base": dict(base), "rule": rule, **fixed, **c} for c in configs]
    with tempfile.TemporaryDirectory() as folder:
        run = OwnRuns(build, data, loss, processor, Path(folder) / "checkpoints")
        groups: dict[str, list[int]] = {}
        for number, config in enumerate(full):
            groups.setdefault(run.group(config), []).append(number)
        ends: dict[int, Outcome] = {}
        for numbers in groups.values():
            notes: list[str] = []
            done = train_all(run, [full[n] for n in numbers], measure=measure, memory=memory, note=notes.append)
            ends.update(zip(numbers, (outcome for outcome, _ in done), strict=True))
            for note in notes:
                warnings.warn(note, stacklevel=2)
    return [ends[number] for number in range(len(full))]
