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
from neuralop_mup.core.plan_state import PLAN_CONFIRMED, check_same_plan, listed, stored_plan
from neuralop_mup.core.planning import make_rows
from neuralop_mup.core.reading import ParameterInfo, read
from neuralop_mup.core.rules import RULES
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.files import replace_file


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
    bare = unwrap(model)
    if not isinstance(bare, nn.Module):
        raise MupError(f"Expected a torch.nn.Module, got {type(model).__name__}: pass the model itself.")
    name = f"This {type(source).__name__}"
    if isinstance(source, (str, os.PathLike)):
        name, source = repr(os.fspath(source)), load_file(Path(source))
    elif not isinstance(source, (Mapping, Plan)):
        raise MupError(f"A plan comes from a file, a state dict or a Plan, not from {type(source).__name__}.")
    plan = fit_plan(bare, source if isinstance(source, Plan) else plan_in(source, name), name)
    # Weights that are still to come stay so: load_state_dict brings them.
    set_plan(bare, replace(plan, init_pending=is_parametrized(bare) and get_plan(bare).init_pending))
    setattr(bare, PLAN_CONFIRMED, True)  # a dict of tensors alone may follow
    return model


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


def load_file(path: Path) -> Any:
    """What is in a file: a plan, if it is JSON, else what ``torch.save`` wrote."""
    try:
        with path.open("rb") as file:
            is_text = file.read(1) == b"{"
        # neuralop puts classes and functions into its state dicts, which the weights-only default refuses.
        return Plan.from_json(path.read_text()) if is_text else torch.load(path, map_location="cpu", weights_only=False)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise MupError(f"Cannot read {str(path)!r}: {error.strerror}.") from error
    except MupError as error:
        raise MupError(f"{str(path)!r}: {error}") from error
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
    found, rows = read(model), {row.name: row for row in plan.rows}
    lines = [f"{name}: not in the model" for name in rows if name not in found]
    lines += [f"{name}: not in the plan" for name in found if name not in rows]
    lines = lines or [line for name in found if (line := _shape_difference(found[name], rows[name]))]
    if not lines:
        again = _remake_plan(plan, found)
        lines = plan.differences(again)
    if lines:
        raise MupError(
            f"The plan of {source} is not one of this {type(model).__name__} ({listed(lines)}): build the model with the "
            "arguments that it was saved with."
        )
    return again


def _remake_plan(plan: Plan, found: Mapping[str, ParameterInfo]) -> Plan:
    """The plan that a saved one's base shapes and rule make of a model; those dimensions grow of which its rows say so."""
    found = place(found, {row.name: tuple(kind in GROWS for kind in row.axes) for row in plan.rows}, trainable=False)
    shapes, at_base = ({row.name: getattr(row, kind) for row in plan.rows} for kind in ("shape", "base_shape"))
    layers = match_layers(shapes, {row.name for row in plan.rows if not row.lacking}, plan.kernels)
    layers = layers or {name: Layers(name) for name in shapes}  # then the comparison says what differs
    known = plan.function is not None or plan.rule in RULES
    rows = make_rows(found, shapes, at_base, plan.mode_rule if known else "none", plan.init_mult, layers)
    if not known:  # a function of somebody's: what it made of kernels stands in the file and nowhere else
        numbers = ("init_mult", "lr_mult", "sgd_lr_mult", "why")
        saved = {row.name: {key: getattr(row, key) for key in numbers} for row in plan.rows if row.role == "spectral"}
        rows = tuple(replace(row, **saved.get(row.name, {})) for row in rows)
    return replace(plan, rows=rows)


def _shape_difference(f: ParameterInfo, row: Row) -> str:
    """How a plan's shape of a parameter contradicts the model's; active modes may differ where only part of them is used."""
    fits = len(row.axes) == len(row.shape) == len(f.shape) and all(
        planned == here or (f.shape != f.tensor_shape and kind.startswith("modes") and planned <= stored)
        for kind, planned, here, stored in zip(row.axes, row.shape, f.shape, f.tensor_shape, strict=True)
    )
    in_plan, in_model = ("×".join(map(str, shape)) for shape in (row.shape, f.shape))
    return "" if fits else f"{row.name}: shape {in_plan} in the plan, {in_model} in the model"
