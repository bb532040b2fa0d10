"""``train``: a model and data in; the trained model and a report out, and nothing searched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.lab.plan import asked, make_plan
from neuralop_mup.lab.tuning import Tuned, trained


def train(
    build: Callable[..., nn.Module],
    data: Any,
    *,
    target: Mapping[str, Any],
    folder: str | Path,
    base: Mapping[str, Any] | None = None,
    read: Mapping[str, Any] | None = None,
    loss: Any = "l2",
    score: Any = None,
    rule: str = DEFAULT_RULE,
    optimizer: Any = "soap",
    lr: float | None = None,
    epochs: int = 50,
    batch_size: int = 20,
    seed: int = 0,
    processor: Any = None,
    device: str = "auto",
    progress: bool = True,
    weight_decay: float | None = None,
    beta2: float | None = None,
    schedule: str | None = None,
    clip_spectral: float | None = None,
    aux_lr: float | None = None,
    soap: Mapping[str, Any] | None = None,
    kernel_init: str | None = None,
) -> Tuned:
    """Train a model on data under MuSOAP, at the learning rate that follows from the number of steps: nothing is searched.

    It is what :func:`neuralop_mup.tune` does with its target, in one run in this process, and the same call resumes there.

    Parameters
    ----------
    build : callable
        ``build(**target)`` returns a fresh model as neuralop (or you) would initialise it.
    data, folder, read, loss, score, processor, progress
        As for :func:`neuralop_mup.tune`. A score stands in the report; nothing is chosen by it.
    target : mapping
        Arguments of ``build`` for the model that is wanted.
    base : mapping, optional
        Arguments of ``build`` for the size at which the learning rate is meant, which is not trained; by default the
        reference size of :func:`neuralop_mup.parametrize`.
    rule, optimizer, weight_decay, beta2, schedule, clip_spectral, aux_lr, soap, kernel_init
        As for :func:`neuralop_mup.tune`.
    lr : float, optional
        Learning rate at the base. By default that of the formula for the number of steps; under an optimizer that has none,
        its own default.
    epochs, batch_size : int, default 50, 20
        ``batch_size`` holds for data that does not come as loaders.
    seed : int, default 0
        Of the weights and of the order of the samples.
    device : str, default "auto"
        torch's name of it; ``"auto"``: a GPU, or the CPU.

    Returns
    -------
    Tuned
        With ``.predict``, ``.model``, ``.processor``, ``.split``, ``.results`` and ``.report``: the page, with the errors by
        sample, by channel and by time, and a figure of samples of the test data. :func:`neuralop_mup.load_tuned` reads it
        from the folder.

    Raises
    ------
    MupError
        If the data or the size cannot work, if the folder cannot be written or is too small, or if the run did not complete.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> def build(**size):
    ...     return FNO(in_channels=1, out_channels=1, **size)
    >>> x, target = torch.randn(120, 1, 16), {"hidden_channels": 32, "n_modes": (8,)}
    >>> how = {"epochs": 2, "progress": False}
    >>> trained = nm.train(build, (x, x.roll(1, -1)), target=target, folder="runs", **how)
    >>> trained.predict(x[:2]).shape, trained.report.name
    (torch.Size([2, 1, 16]), 'report.md')
    """
    found = asked(
        folder,
        alone=True,
        target=target,
        base=base,
        space=None if lr is None else {"lr": [lr]},
        rules=(rule,),
        optimizer=optimizer,
        seeds=(seed,),
        epochs=epochs,
        batch_size=batch_size,
        device=device,
        kernel_init=kernel_init,
        weight_decay=weight_decay,
        beta2=beta2,
        schedule=schedule,
        clip_spectral=clip_spectral,
        aux_lr=aux_lr,
        soap=soap,
    )
    plan = make_plan(*found, build, data, read=read, loss=loss, score=score, processor=processor)
    plan.study.train.shows = progress
    return trained(plan, "train", folder, processor, progress, n_workers=1)
