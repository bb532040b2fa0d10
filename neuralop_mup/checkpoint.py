"""Save and load plans in plan files, state dicts and neuralop's checkpoint folders."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from neuralop_mup.core.describe_model import ParameterInfo, describe_model
from neuralop_mup.core.infshape import GROWS
from neuralop_mup.core.layers.registry import UNKNOWN, Param
from neuralop_mup.core.make_plan import make_rows
from neuralop_mup.core.parametrize import check_no_plan, get_plan, is_parametrized, set_plan
from neuralop_mup.core.plan import ParamPlan, Plan
from neuralop_mup.core.raw_kernels import RECOGNISED
from neuralop_mup.core.rules import RULES
from neuralop_mup.core.state_dict_hooks import KEY, check_same_plan
from neuralop_mup.core.unwrap import check_unsharded, unwrap
from neuralop_mup.core.weights_status import WeightsStatus, status_of
from neuralop_mup.core.width_dims import assign_roles
from neuralop_mup.errors import MupError, listed
from neuralop_mup.files import replace_file
from neuralop_mup.optim.checks import check_same_groups

# Activations that neuralop's state dicts contain as arguments of a constructor.
_ACTIVATIONS = [getattr(functional, name) for name in ("elu", "gelu", "leaky_relu", "mish", "relu", "selu", "silu", "tanh")]


def save_plan(model: nn.Module, path: str | os.PathLike) -> None:
    """Write a model's plan, with its base shapes, versioned rule and multipliers, to a JSON file.

    A state dict already includes the plan. Use a plan file for formats that store only tensors, such as
    ``torch.distributed.checkpoint``.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model. It may be wrapped.
    path : path
        File to write. On failure, an existing file is left unchanged.

    Raises
    ------
    MupError
        If the model is not parametrized, if its weights have not been initialised yet, or if the file cannot be written.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8})
    >>> nm.save_plan(model, "plan.json")
    """
    plan = get_plan(model)
    if status_of(unwrap(model)) is WeightsStatus.FRESH:
        raise MupError(
            "The weights have not been initialised yet. Call neuralop_mup.initialize(model) before saving the plan."
        )
    with replace_file(path, "the plan") as part:
        part.write_text(plan.to_json())


def load_plan(model: nn.Module, source: str | os.PathLike | Mapping | Plan, *, trusted: bool = False) -> nn.Module:
    """Attach a saved plan to a model without rescaling its weights.

    Use it before or after loading weights from a checkpoint. ``MuSOAP`` then uses its default learning rate for trained
    weights. If the model is already parametrized, the two plans must agree.

    Parameters
    ----------
    model : torch.nn.Module
        The model. It may be wrapped or sharded.
    source : path, mapping or Plan
        A file from :func:`save_plan`, a state dict, a file with a state dict, or a plan.
    trusted : bool, default False
        Whether to load a file that contains other objects than tensors, plain values and layers of neuralop and torch.
        Such a file can run any code: only pass True if you trust its source.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    MupError
        If the source is unreadable, could run code or has no plan, or the plan does not fit the model. The model does not
        change then.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> nm.save_plan(nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8}), "plan.json")
    >>> model = nm.load_plan(FNO((8,), 1, 1, 16), "plan.json")
    >>> nm.summary(model)["lifting.fcs.1.weight"].lr_mult
    0.5
    """
    bare, name = unwrap(model), f"This {type(source).__name__}"
    if isinstance(source, (str, os.PathLike)):
        name, source = repr(os.fspath(source)), load_file(Path(source), trusted)
    plan = fit_plan(bare, plan_in(source, name), name)
    set_plan(bare, plan, _status_with_loaded_weights(bare))
    return model


def load_checkpoint(
    folder: str | os.PathLike,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Any = None,
    *,
    name: str | None = None,
    trusted: bool = False,
) -> int:
    """Load a checkpoint written by neuralop's Trainer or ``save_training_state``, including its plan.

    All files are validated before any state is loaded. neuralop's ``resume_from_dir`` performs no such checks and repeats
    the last saved epoch. To resume training, use this function instead::

        trainer.start_epoch = nm.load_checkpoint("ckpt", model, optimizer, scheduler)
        trainer.train(train_loader, test_loaders, optimizer, scheduler, …)

    Parameters
    ----------
    folder : path
        ``save_dir`` of the Trainer.
    model : torch.nn.Module
        The model. If it has no plan, the saved plan is attached. Otherwise the two plans must agree.
    optimizer, scheduler : optional
        Optimizer and scheduler of ``model``, built as in the saved run. If given, their saved states are loaded.
    name : str, optional
        ``best_model`` or ``model``. Default: the last one saved, to which optimizer state and epoch belong.
    trusted : bool, default False
        As in :func:`load_plan`.

    Returns
    -------
    int
        Epoch to continue with, or 0 if the checkpoint does not store an epoch.

    Raises
    ------
    MupError
        If a file is missing or unreadable or could run code, a plan, weights or states do not fit, or the model is sharded.
        Nothing is loaded then.

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
        raise MupError("The model is on the meta device, without weights: call model.to_empty(device=…) first.")
    manifest = load_file(folder / "manifest.pt", trusted) if (folder / "manifest.pt").is_file() else {}
    path = _weights_file(folder, name, manifest)
    is_latest = manifest.get("model") in (None, path.name)
    if not is_latest and (optimizer is not None or scheduler is not None):
        raise MupError(
            f"The optimizer and scheduler in {str(folder)!r} were saved with {manifest['model']!r}, but {path.name!r} "
            "contains the weights of a different epoch. Omit name to continue from the last save, or load these weights "
            "without an optimizer and a scheduler."
        )
    weights = load_file(path, trusted)
    plan = fit_plan(bare, plan_in(weights, repr(str(path))), repr(str(path)))
    files = ((optimizer, "optimizer.pt"), (scheduler, "scheduler.pt"))
    states = [(part, load_file(folder / file, trusted)) for part, file in files if part is not None]
    if optimizer is not None:
        check_same_groups(optimizer, states[0][1])
    if scheduler is not None:
        _check_scheduler_state(*states[-1])
    for part, state in states:
        part.load_state_dict(state)
    set_plan(bare, plan, _status_with_loaded_weights(bare))
    bare.load_state_dict(weights)
    return manifest["epoch"] + 1 if is_latest and manifest.get("epoch") is not None else 0


def _status_with_loaded_weights(model: nn.Module) -> WeightsStatus:
    """Return the status of a model whose weights are, or will be, loaded from a file."""
    if not is_parametrized(model):
        return WeightsStatus.TRAINED
    status = status_of(model)
    return status if status in (WeightsStatus.FRESH, WeightsStatus.TRAINED) else WeightsStatus.LOADED


def plan_in(source: Any, name: str) -> Plan:
    """Return ``source`` if it is a plan, or the plan in a state dict or in a dict of state dicts."""
    if isinstance(source, Plan):
        return source
    states = [source, *source.values()] if isinstance(source, Mapping) else []
    for metadata in (getattr(state, "_metadata", None) for state in states):
        for entry in metadata.values() if isinstance(metadata, Mapping) else ():
            if isinstance(entry, Mapping) and KEY in entry:
                return Plan.from_json(entry[KEY])
    raise MupError(
        f"{name} has no plan: the saved model was not parametrized, or its entries were copied to a new dict. Pass a file "
        "written by neuralop_mup.save_plan, or call parametrize(model, init=False) and then load the weights."
    )


def load_file(path: Path, trusted: bool = False) -> Any:
    """Load a plan or what torch saved; a pickle cannot run code unless it is ``trusted``."""
    try:
        with path.open("rb") as file:
            is_text = file.read(1) == b"{"
        if is_text:
            return Plan.from_json(path.read_text())
        with torch.serialization.safe_globals([*_ACTIVATIONS, *_layers()]):
            return torch.load(path, map_location="cpu", weights_only=not trusted)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise MupError(f"Cannot read {str(path)!r}: {error.strerror}.") from error
    except Exception as error:  # torch's, zip's and pickle's errors share no base class
        if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise MupError(
                f"{str(path)!r} contains {found[1]}, and loading it could run code. If you trust the source of this file, "
                "pass trusted=True."
            ) from error
        raise MupError(f"{str(path)!r} cannot be loaded: it is truncated, or not from torch.save ({error}).") from error


def _layers(kind: type[nn.Module] = nn.Module) -> Iterator[type[nn.Module]]:
    """Yield the classes of layers that are loaded: a model without a plan saves them as arguments of its constructor."""
    for own in kind.__subclasses__():
        if own.__module__.startswith(("neuralop.layers.", "neuralop_mup.", "torch.nn.modules.")):
            yield own
        yield from _layers(own)


def fit_plan(model: nn.Module, plan: Plan, source: str) -> Plan:
    """Return the plan completed for this model; raise MupError if it does not match the model or its own rule."""
    if is_parametrized(model):
        ours = get_plan(model)
        check_same_plan(ours, plan, f"{source} belongs")
        return replace(ours, init_applied=plan.init_applied)
    found = describe_model(model)
    check_no_plan(model)
    unmatched = sorted(found.keys() ^ {row.name for row in plan})
    lines = [f"{name} is not in the {'plan' if name in found else 'model'}" for name in unmatched]
    lines = lines or [line for name, info in found.items() if (line := _shape_difference(info, plan[name]))]
    if not lines:
        again = _remake_plan(plan, found)
        lines = plan.differences(again)
    if lines:
        raise MupError(
            f"The plan of {source} does not match this {type(model).__name__} ({listed(lines)}). Build the model with the "
            "same arguments as the saved model."
        )
    return again


def _remake_plan(plan: Plan, found: Mapping[str, ParameterInfo]) -> Plan:
    """Recompute a model's plan from the base shapes, growing dimensions and rule of a saved plan."""
    grows = {row.name: tuple(kind in GROWS and not row.fixed for kind in row.axes) for row in plan.rows}
    found = dict(found)
    for row in plan.rows:  # trained weights no longer have the initial values that identify a kernel
        if RECOGNISED in row.why and found[row.name].param.init == UNKNOWN:
            param = Param(row.role, row.axes, row.init)
            found[row.name] = replace(found[row.name], param=param, recognised=True)
    found = assign_roles(found, grows, trainable=False)
    for row in plan.rows:
        found[row.name] = replace(found[row.name], shape=row.shape, base_shape=row.base_shape, lacking=row.lacking)
    if plan.function is not None or plan.rule in RULES:
        return replace(plan, rows=make_rows(found, plan.mode_rule, plan.init_mult, plan.revision))
    # The rule is a user-defined function that is not available, so the kernels' multipliers are read from the file.
    rows = make_rows(found, "none", plan.init_mult, plan.revision)
    numbers = ("init_mult", "lr_mult", "sgd_lr_mult", "why")
    return replace(
        plan,
        rows=tuple(
            replace(row, **{key: getattr(plan[row.name], key) for key in numbers}) if row.role == "spectral" else row
            for row in rows
        ),
    )


def _shape_difference(f: ParameterInfo, row: ParamPlan) -> str:
    """Describe how a shape in the plan differs from the model's; a plan may have fewer active modes than are stored."""
    fits = len(row.axes) == len(row.shape) == len(f.shape) and all(
        planned == here or (f.shape != f.tensor_shape and kind.startswith("modes") and planned <= stored)
        for kind, planned, here, stored in zip(row.axes, row.shape, f.shape, f.tensor_shape, strict=True)
    )
    in_plan, in_model = ("×".join(map(str, shape)) for shape in (row.shape, f.shape))
    return "" if fits else f"{row.name} has shape {in_plan} in the plan but {in_model} in the model"


def _weights_file(folder: Path, name: str | None, manifest: Mapping) -> Path:
    last = [manifest["model"]] if manifest.get("model") else ["best_model_state_dict.pt", "model_state_dict.pt"]
    names = [f"{name}_state_dict.pt"] if name else last
    found = [path for n in names if (path := folder / n).is_file()]
    if not found:
        raise MupError(f"{str(folder)!r} contains no checkpoint. Expected {' or '.join(names)}.")
    if len(found) > 1:
        raise MupError(
            f"{str(folder)!r} contains {' and '.join(path.name for path in found)}, but no manifest that selects one of "
            "them. Pass name='model' or name='best_model'."
        )
    return found[0]


def _check_scheduler_state(scheduler: Any, state: Any) -> None:
    """Raise MupError if the state is from a different scheduler class, because torch's schedulers accept any attributes."""

    # Names of settings have no leading underscore. Only some versions of torch store verbose.
    ours, theirs = (
        {key for key in kept if not key.startswith("_") and key != "verbose"} if isinstance(kept, Mapping) else set()
        for kept in (scheduler.state_dict(), state)
    )
    if ours != theirs:
        raise MupError(
            f"The saved scheduler state does not belong to a {type(scheduler).__name__}. Build the scheduler as in the "
            "saved run, or pass None to continue without its state."
        )
