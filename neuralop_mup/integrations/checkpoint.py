"""Training that goes on from a checkpoint folder of neuralop's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.parametrize import set_plan
from neuralop_mup.core.unwrap import check_unsharded, unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.integrations.plan_files import fit_plan, load_file, plan_in
from neuralop_mup.optim.on_plan import check_optimizer_state


def load_checkpoint(
    folder: str | os.PathLike,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Any = None,
    *,
    name: str | None = None,
) -> int:
    """Load what neuralop's ``Trainer(save_every=…)`` or ``save_training_state`` saved, plan included; all is checked first.

    neuralop's own ``resume_from_dir`` cannot read the weights of an FNO (they come with the constructor's arguments,
    which ``torch.load`` refuses by default). Instead::

        trainer.start_epoch = nm.load_checkpoint("ckpt", model, optimizer, scheduler)
        trainer.train(train_loader, test_loaders, optimizer, scheduler, …)

    Parameters
    ----------
    folder : path
        ``save_dir`` of the Trainer. Its files are unpickled: take them from a source that you trust.
    model : torch.nn.Module
        Parametrized as it was (the plans are compared) or not parametrized (the plan is attached, nothing is rescaled).
    optimizer, scheduler : optional
        Built for ``model``, as they were. Their states are loaded if given.
    name : str, optional
        ``best_model`` or ``model``. By default the one that was saved last, which is the one that the optimizer's state
        and the epoch belong to.

    Returns
    -------
    int
        The epoch to go on with: the one after the last that was saved, 0 if the folder does not say.

    Raises
    ------
    MupError
        If a file is missing, cut off or has no plan, the plan or the weights are another model's, the optimizer's state
        was saved with other weights or is of other groups, the scheduler's is of another kind, or the model is sharded.
        Nothing is loaded then, nor where the optimizer or the scheduler itself refuses its state.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> from neuralop.training import save_training_state
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8})
    >>> optimizer = nm.MuAdam(model, lr=8e-3)
    >>> save_training_state("ckpt", "model", model, optimizer, epoch=4)
    >>> again = nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8})
    >>> nm.load_checkpoint("ckpt", again, nm.MuAdam(again, lr=8e-3))
    5
    """
    folder, bare = Path(folder), unwrap(model)
    check_unsharded(bare, "load_checkpoint")
    if any(p.is_meta for p in bare.parameters()):
        raise MupError("The model is on the meta device, which holds no weights: call model.to_empty(device=…) first.")
    manifest = load_file(folder / "manifest.pt") if (folder / "manifest.pt").is_file() else {}
    path = _weights_file(folder, name, manifest)
    is_latest = manifest.get("model") in (None, path.name)
    if not is_latest and (optimizer is not None or scheduler is not None):
        raise MupError(
            f"The optimizer and scheduler in {str(folder)!r} were saved with {manifest['model']!r}, and {path.name!r} holds "
            "weights of another time: leave name out to go on from the last save, or load these weights alone, without an "
            "optimizer and a scheduler."
        )
    weights = load_file(path)
    plan = fit_plan(bare, plan_in(weights, repr(str(path))), repr(str(path)))
    _check_weights(bare, weights, path)
    states = []
    for part, file, check in (
        (optimizer, "optimizer.pt", check_optimizer_state),
        (scheduler, "scheduler.pt", _check_scheduler_state),
    ):
        if part is not None:
            if not (folder / file).is_file():
                raise MupError(f"{str(folder)!r} has no {file}: it was saved without; pass None to start with a new one.")
            states.append((part, load_file(folder / file)))
            check(*states[-1])

    # Optimizer and scheduler, of whatever class, may still refuse: the weights, which were checked, come after them.
    before = [(part, part.state_dict()) for part, _ in states]
    try:
        for part, state in states:
            part.load_state_dict(state)
    except BaseException:
        for part, state in before:
            part.load_state_dict(state)
        raise
    set_plan(bare, plan)
    bare.load_state_dict(weights)
    return manifest["epoch"] + 1 if is_latest and manifest.get("epoch") is not None else 0


def _weights_file(folder: Path, name: str | None, manifest: Mapping) -> Path:
    """The file of weights to load: the one asked for, else the one that the manifest says was saved last."""
    last = [manifest["model"]] if manifest.get("model") else ["best_model_state_dict.pt", "model_state_dict.pt"]
    names = [f"{name}_state_dict.pt"] if name else last
    found = [path for n in names if (path := folder / n).is_file()]
    if not found:
        raise MupError(f"{str(folder)!r} has no checkpoint: expected {' or '.join(names)}.")
    if len(found) > 1:
        raise MupError(
            f"{str(folder)!r} holds {' and '.join(path.name for path in found)}, and no manifest says which was saved last: "
            "pass name='model' or name='best_model'."
        )
    return found[0]


def _check_weights(model: nn.Module, weights: Mapping, path: Path) -> None:
    ours, theirs = (
        {key: tuple(value.shape) for key, value in state.items() if isinstance(value, torch.Tensor)}
        for state in (model.state_dict(), weights)
    )
    if ours != theirs:
        key = next(k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k))
        raise MupError(
            f"{str(path)!r} has {key!r} of shape {theirs.get(key, 'none')}, the model {ours.get(key, 'none')}: build the "
            "model with the arguments that it was saved with."
        )


def _check_scheduler_state(scheduler: Any, state: Any) -> None:
    """Refuse the state of another kind of scheduler: torch's take whatever attributes a state has."""

    # Without underscore are the settings; verbose is of some versions of torch only.
    ours, theirs = (
        {key for key in kept if not key.startswith("_") and key != "verbose"} if isinstance(kept, Mapping) else set()
        for kept in (scheduler.state_dict(), state)
    )
    if ours != theirs:
        differing = " and ".join(
            f"{what} {', '.join(map(repr, sorted(keys)))}"
            for what, keys in (("has", theirs - ours), ("lacks", ours - theirs))
            if keys
        )
        raise MupError(
            f"The scheduler's state that was saved is not that of a {type(scheduler).__name__} (it {differing}): build the "
            "scheduler as it was, or pass None to go on without its state."
        )
