"""Plans in files, and training that goes on from a checkpoint folder of neuralop's."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralop_mup.errors import MupError
from neuralop_mup.parametrize import check_no_plan, get_plan, is_parametrized, set_plan
from neuralop_mup.plan import Plan, Row, make_rows
from neuralop_mup.roles import Found, classify
from neuralop_mup.rules import RULES, reason_of
from neuralop_mup.travel import check_same_plan, stored_plan
from neuralop_mup.wrapping import check_unsharded, unwrap

__all__ = ["check_optimizer_state", "load_checkpoint", "load_plan", "save_plan"]


def save_plan(model: nn.Module, path: str | os.PathLike) -> None:
    """Write the plan of a model to a file (JSON): base shapes, rule and its version, every multiplier.

    ``torch.save(model.state_dict(), …)`` and neuralop's ``save_checkpoint`` carry the plan by themselves; a file is for
    formats that keep tensors alone, such as ``torch.distributed.checkpoint``.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model, wrapped or not.
    path : path
        The file to write; on a failure an older one stays.

    Raises
    ------
    MupError
        If the model is not parametrized, its weights are still to be drawn, or the file cannot be written.
    """
    plan = get_plan(model)
    if plan.init_pending:
        raise MupError("The weights are still to be drawn: call neuralop_mup.initialize(model) before saving its plan.")
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(plan.to_json())
        os.replace(part, target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise MupError(
            f"Cannot write the plan to {os.fspath(path)!r}: {error.strerror}. Give a path that you may write to."
        ) from error


def load_plan(model: nn.Module, source: str | os.PathLike | Mapping | Plan) -> nn.Module:
    """Attach the plan that weights were saved with, without rescaling anything.

    For a model whose weights come from a checkpoint, before or after they are loaded: one that neuralop's
    ``from_checkpoint`` returned, or one built anew. On a model that is parametrized already the plans are compared.

    Parameters
    ----------
    model : torch.nn.Module
        The model, wrapped or not, sharded or not.
    source : path, mapping or Plan
        A file from :func:`save_plan`, a saved state dict (``model_state_dict.pt``), a state dict, or a plan. A saved
        state dict is unpickled: take one from a source that you trust.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    MupError
        If the source is unreadable, cut off or without a plan; the plan is another model's, of another version of the
        rules, or not the one that the model has. The message says what differs; the model is as it was.
    """
    plan = _plan_from(source)
    bare = unwrap(model)
    if not isinstance(bare, nn.Module):
        raise MupError(f"Expected a torch.nn.Module, got {type(model).__name__}: pass the model itself.")
    plan = _fitted(bare, plan, _name(source))
    # Weights that are still to come stay so: load_state_dict brings them.
    pending = is_parametrized(bare) and get_plan(bare).init_pending
    set_plan(bare, replace(plan, init_pending=pending))
    return model


def _plan_from(source: Any) -> Plan:
    if isinstance(source, Plan):
        return source
    if isinstance(source, Mapping):
        plan = stored_plan(source)
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        try:
            with path.open("rb") as file:
                is_text = file.read(1) == b"{"
            if is_text:
                return Plan.from_json(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise MupError(f"Cannot read a plan from {str(path)!r}: {error}.") from error
        except MupError as error:
            raise MupError(f"{str(path)!r}: {error}") from error
        plan = stored_plan(_load(path))
    else:
        raise MupError(f"A plan comes from a file, a state dict or a Plan, not from {type(source).__name__}.")
    if plan is None:
        raise MupError(
            f"{_name(source)} has no plan: it was saved from a model that was not parametrized, or its entries were copied "
            "out of the state dict. Give the file that neuralop_mup.save_plan wrote, or parametrize the model with "
            "init=False."
        )
    return plan


def _name(source: Any) -> str:
    return repr(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else f"This {type(source).__name__}"


def _load(path: Path) -> Any:
    try:
        # neuralop puts classes and functions into its state dicts, which the weights-only default refuses.
        return torch.load(path, map_location="cpu", weights_only=False)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise MupError(f"Cannot read {str(path)!r}: {error.strerror}.") from error
    except Exception as error:  # torch's, zip's and pickle's errors share no base class
        raise MupError(f"{str(path)!r} cannot be loaded: it is cut off, or no file of torch.save ({error}).") from error


def _fitted(model: nn.Module, plan: Plan, source: str) -> Plan:
    """The plan as this model's, with all that rows carry; refused if it is not what its base shapes and rule make of it."""
    if plan.init_pending:
        raise MupError(f"{source} was saved before its weights were drawn: save the plan after neuralop_mup.initialize.")
    if is_parametrized(model):
        ours = get_plan(model)
        check_same_plan(ours, plan, f"{source} belongs")
        return replace(ours, init_applied=plan.init_applied, init_pending=False)
    check_no_plan(model)
    found = classify(model, trainable=False)
    rows = {row.name: row for row in plan.rows}
    lines = [f"{name}: not in the model" for name in rows if name not in found]
    lines += [f"{name}: not in the plan" for name in found if name not in rows]
    for name in [] if lines else found:
        if (sizes := _sizes(found[name], rows[name].axes, rows[name].shape)) is not None:
            lines.append(f"{name}: {sizes}")
    if not lines:
        again = _again(plan, found)
        lines = plan.differences(again)
    if lines:
        raise MupError(
            f"The plan of {source} is not one of this {type(model).__name__} ("
            + "; ".join(lines[:4])
            + (f"; … {len(lines) - 4} more" if len(lines) > 4 else "")
            + "): build the model with the arguments that it was saved with."
        )
    reason = plan.reason or (reason_of(plan.rule) if plan.rule in RULES else "")
    return replace(plan, rows=tuple(_with_numbers_of(rows[row.name], row) for row in again.rows), reason=reason)


def _again(plan: Plan, found: Mapping[str, Found]) -> Plan:
    """The plan that a saved one's base shapes and rule make of a model."""
    shapes, at_base = ({row.name: getattr(row, kind) for row in plan.rows} for kind in ("shape", "base_shape"))
    known = plan.function is not None or plan.rule in RULES
    rule = plan.mode_rule if known else "none"
    again = make_rows(found, shapes, at_base, rule, plan.init_mult, plan.correct_tt)
    if not known:  # a function of somebody's: what it made of kernels stands in the file and nowhere else
        again = tuple(_with_numbers_of(plan[row.name], row) if row.size and row.size.modes else row for row in again)
    return replace(plan, rows=again)


def _with_numbers_of(saved: Row, row: Row) -> Row:
    numbers = ("init_mult", "lr_mult", "sgd_lr_mult", "eps_mult", "why")
    return replace(row, **{key: getattr(saved, key) for key in numbers})


def _sizes(f: Found, axes: Sequence[str], shape: Sequence[int]) -> str | None:
    """How a plan's shape of a parameter contradicts the model's; active modes may differ where only part of them is used."""
    if tuple(axes) != f.param.axes:
        return f"axes {', '.join(axes)} in the plan, {', '.join(f.param.axes)} in the model"
    grows = f.shape != f.tensor_shape
    for kind, planned, here, stored in zip(axes, shape, f.shape, f.tensor_shape, strict=True):
        if planned != here and not (grows and kind.startswith("modes") and planned <= stored):
            return f"shape {'×'.join(map(str, shape))} in the plan, {'×'.join(map(str, f.shape))} in the model"
    return None


# ------------------------------------------------------------------------------------ neuralop's checkpoint folders


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
        was saved with other weights or is of other groups, or the model is sharded. Nothing is loaded then.
    """
    folder, bare = Path(folder), unwrap(model)
    check_unsharded(bare, "load_checkpoint")
    if any(p.is_meta for p in bare.parameters()):
        raise MupError("The model is on the meta device, which holds no weights: call model.to_empty(device=…) first.")
    manifest = _load(folder / "manifest.pt") if (folder / "manifest.pt").is_file() else {}
    path = _weights_file(folder, name, manifest)
    is_latest = manifest.get("model") in (None, path.name)
    if not is_latest and (optimizer is not None or scheduler is not None):
        raise MupError(
            f"The optimizer and scheduler in {str(folder)!r} were saved with {manifest['model']!r}, and {path.name!r} holds "
            "weights of another time: leave name out to go on from the last save, or load these weights alone, without an "
            "optimizer and a scheduler."
        )
    weights = _load(path)
    plan = _plan_from_weights(weights, path)
    plan = _fitted(bare, plan, repr(str(path)))
    _check_weights(bare, weights, path)
    states = []
    for part, file in ((optimizer, "optimizer.pt"), (scheduler, "scheduler.pt")):
        if part is None:
            continue
        if not (folder / file).is_file():
            raise MupError(f"{str(folder)!r} has no {file}: it was saved without; pass None to start with a new one.")
        states.append((part, _load(folder / file)))
    if optimizer is not None:
        check_optimizer_state(optimizer, states[0][1])

    set_plan(bare, plan)
    bare.load_state_dict(weights)
    for part, state in states:
        part.load_state_dict(state)
    return manifest["epoch"] + 1 if is_latest and manifest.get("epoch") is not None else 0


def _weights_file(folder: Path, name: str | None, manifest: Mapping) -> Path:
    """The file of weights to load: the one asked for, else the one that the manifest says was saved last."""
    names = [f"{n}_state_dict.pt" for n in ((name,) if name else ("best_model", "model"))]
    if name is None and manifest.get("model") is not None:
        names = [manifest["model"]]
    found = [path for n in names if (path := folder / n).is_file()]
    if not found:
        raise MupError(f"{str(folder)!r} has no checkpoint: expected {' or '.join(names)}.")
    if len(found) > 1:
        raise MupError(
            f"{str(folder)!r} holds {' and '.join(path.name for path in found)}, and no manifest says which was saved last: "
            "pass name='model' or name='best_model'."
        )
    return found[0]


def _plan_from_weights(weights: Any, path: Path) -> Plan:
    plan = stored_plan(weights)
    if plan is None:
        raise MupError(
            f"{str(path)!r} carries no plan: it was saved from a model that was not parametrized, so its weights are not "
            "scaled. To train on from them, parametrize with init=False and load them by model.load_checkpoint."
        )
    return plan


def _check_weights(model: nn.Module, weights: Mapping, path: Path) -> None:
    def sizes(state: Mapping) -> dict[str, tuple[int, ...]]:
        return {key: tuple(value.shape) for key, value in state.items() if isinstance(value, torch.Tensor)}

    ours, theirs = sizes(model.state_dict()), sizes(weights)
    if ours != theirs:
        key = next(k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k))
        raise MupError(
            f"{str(path)!r} has {key!r} of shape {theirs.get(key, 'none')}, the model {ours.get(key, 'none')}: build the "
            "model with the arguments that it was saved with."
        )


def check_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping) -> None:
    """Refuse the saved state of an optimizer whose groups are not those of ``optimizer``.

    torch compares the numbers of groups and parameters alone, and then takes every learning rate from the file.

    Raises
    ------
    MupError
        If groups differ in number, parameters, name, or the rule's or the masters' multipliers.
    """
    ours, theirs = optimizer.param_groups, state.get("param_groups") if isinstance(state, Mapping) else None
    if not isinstance(theirs, list):
        raise MupError("This is not the state dict of an optimizer (it has no param_groups): save optimizer.state_dict().")
    problem = None
    if len(ours) != len(theirs):
        problem = f"{len(theirs)} groups were saved, the optimizer has {len(ours)}"
    for a, b in zip(ours, theirs, strict=False):
        if problem:
            break
        if len(a["params"]) != len(b["params"]):
            problem = f"group {a.get('name')!r} has {len(a['params'])} parameters, {len(b['params'])} were saved"
        elif a.get("name") != b.get("name"):
            problem = f"group {a.get('name')!r} was saved as {b.get('name')!r}"
        values: list[dict[str, Any]] = [{key: group.get(key) for key in ("rule_mult", "lr_mult")} for group in (a, b)]
        if "mode_mult" in a and all(v["rule_mult"] and v["lr_mult"] for v in values):
            # Its modes may have grown since: both are then right in their time. What was tuned is not of the time.
            values = [{"lr_mult / rule_mult": v["lr_mult"] / v["rule_mult"]} for v in values]
        for key in values[0]:
            x, y = (v[key] for v in values)
            if x != y and (x is None or y is None or not math.isclose(x, y, rel_tol=1e-9)):
                problem = problem or f"{key} of group {a.get('name')!r} is {x}, saved was {y}"
    if problem:
        raise MupError(
            f"This optimizer state belongs to other groups ({problem}): build the optimizer as it was, with the same base, "
            "rule and lr_mult (and base_depth of MuMuon), from neuralop_mup's optimizers or param_groups."
        )
