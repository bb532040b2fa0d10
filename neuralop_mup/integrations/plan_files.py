"""Plans in files: written beside weights, and attached to a model whose weights come from a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.depth import Layers, match_layers
from neuralop_mup.core.growth import place
from neuralop_mup.core.infshape import GROWS
from neuralop_mup.core.parametrize import check_no_plan, get_plan, is_parametrized, set_plan
from neuralop_mup.core.plan import Plan, Row
from neuralop_mup.core.plan_state import PLAN_CONFIRMED, check_same_plan, stored_plan
from neuralop_mup.core.planning import make_rows
from neuralop_mup.core.reading import ParameterInfo, read
from neuralop_mup.core.rules import RULES, reason_of
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.files import replace_file

__all__ = ["fit_plan", "load_file", "load_plan", "save_plan"]


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

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8})
    >>> nm.save_plan(model, "plan.json")
    """
    plan = get_plan(model)
    if plan.init_pending:
        raise MupError("The weights are still to be drawn: call neuralop_mup.initialize(model) before saving its plan.")
    with replace_file(path, "the plan") as part:
        part.write_text(plan.to_json())


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

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> nm.save_plan(nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8}), "plan.json")
    >>> model = nm.load_plan(FNO((8,), 1, 1, 16), "plan.json")
    >>> nm.summary(model)["lifting.fcs.1.weight"].lr_mult
    0.5
    """
    plan = _plan_from(source)
    bare = unwrap(model)
    if not isinstance(bare, nn.Module):
        raise MupError(f"Expected a torch.nn.Module, got {type(model).__name__}: pass the model itself.")
    plan = fit_plan(bare, plan, _name(source))
    # Weights that are still to come stay so: load_state_dict brings them.
    pending = is_parametrized(bare) and get_plan(bare).init_pending
    set_plan(bare, replace(plan, init_pending=pending))
    setattr(bare, PLAN_CONFIRMED, True)  # a dict of tensors alone may follow
    return model


def _plan_from(source: Any) -> Plan:
    if isinstance(source, Plan):
        return source
    if isinstance(source, Mapping):
        return plan_in(source, _name(source))
    if not isinstance(source, (str, os.PathLike)):
        raise MupError(f"A plan comes from a file, a state dict or a Plan, not from {type(source).__name__}.")
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
    return plan_in(load_file(path), _name(source))


def plan_in(state: Any, source: str) -> Plan:
    """The plan that a state dict, or a dict of several, carries; ``source`` is what a refusal calls it."""
    plan = stored_plan(state)
    if plan is None:
        raise MupError(
            f"{source} has no plan: it was saved from a model that was not parametrized, so its weights are not scaled, or "
            "its entries were copied out of the state dict. Give the file that neuralop_mup.save_plan wrote; or parametrize "
            "the model with init=False, and load the weights after."
        )
    return plan


def _name(source: Any) -> str:
    return repr(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else f"This {type(source).__name__}"


def load_file(path: Path) -> Any:
    try:
        # neuralop puts classes and functions into its state dicts, which the weights-only default refuses.
        return torch.load(path, map_location="cpu", weights_only=False)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise MupError(f"Cannot read {str(path)!r}: {error.strerror}.") from error
    except Exception as error:  # torch's, zip's and pickle's errors share no base class
        raise MupError(f"{str(path)!r} cannot be loaded: it is cut off, or no file of torch.save ({error}).") from error


def fit_plan(model: nn.Module, plan: Plan, source: str) -> Plan:
    """The plan as this model's, with all that rows carry; refused if it is not what its base shapes and rule make of it."""
    if plan.init_pending:
        raise MupError(f"{source} was saved before its weights were drawn: save the plan after neuralop_mup.initialize.")
    if is_parametrized(model):
        ours = get_plan(model)
        check_same_plan(ours, plan, f"{source} belongs")
        return replace(ours, init_applied=plan.init_applied, init_pending=False)
    check_no_plan(model)
    found = read(model)
    rows = {row.name: row for row in plan.rows}
    lines = [f"{name}: not in the model" for name in rows if name not in found]
    lines += [f"{name}: not in the plan" for name in found if name not in rows]
    if not lines:
        found = _as_planned(found, rows)
        lines = [line for name in found if (line := _size_difference(found[name], rows[name]))]
    if not lines:
        again = _remake_plan(plan, found)
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


def _remake_plan(plan: Plan, found: Mapping[str, ParameterInfo]) -> Plan:
    """The plan that a saved one's base shapes and rule make of a model."""
    shapes, at_base = ({row.name: getattr(row, kind) for row in plan.rows} for kind in ("shape", "base_shape"))
    known = plan.function is not None or plan.rule in RULES
    rule = plan.mode_rule if known else "none"
    names = {row.name for row in plan.rows}
    layers = match_layers(names, {row.name for row in plan.rows if not row.lacking}, plan.kernels)
    layers = layers or {name: Layers(name) for name in names}  # then the comparison says what differs
    again = make_rows(found, shapes, at_base, rule, plan.init_mult, layers)
    if not known:  # a function of somebody's: what it made of kernels stands in the file and nowhere else
        again = tuple(_with_numbers_of(plan[row.name], row) if row.size and row.size.modes else row for row in again)
    return replace(plan, rows=again)


def _as_planned(found: Mapping[str, ParameterInfo], rows: Mapping[str, Row]) -> dict[str, ParameterInfo]:
    """What was read of a model, with those dimensions growing of which the saved rows say so."""
    of_rank = {name: info for name, info in found.items() if len(info.shape) == len(rows[name].axes)}
    grows = {name: tuple(kind in GROWS for kind in rows[name].axes) for name in of_rank}
    return {**found, **place(of_rank, grows, trainable=False)}


def _with_numbers_of(saved: Row, row: Row) -> Row:
    numbers = ("init_mult", "lr_mult", "sgd_lr_mult", "why")
    return replace(row, **{key: getattr(saved, key) for key in numbers})


def _size_difference(f: ParameterInfo, row: Row) -> str:
    """How a plan's shape of a parameter contradicts the model's; active modes may differ where only part of them is used."""
    if row.axes != f.param.axes or len(row.shape) != len(f.shape):
        return f"{row.name}: axes {', '.join(row.axes)} in the plan, {', '.join(f.param.axes)} in the model"
    grows = f.shape != f.tensor_shape
    for kind, planned, here, stored in zip(row.axes, row.shape, f.shape, f.tensor_shape, strict=True):
        if planned != here and not (grows and kind.startswith("modes") and planned <= stored):
            in_plan, in_model = ("×".join(map(str, shape)) for shape in (row.shape, f.shape))
            return f"{row.name}: shape {in_plan} in the plan, {in_model} in the model"
    return ""
