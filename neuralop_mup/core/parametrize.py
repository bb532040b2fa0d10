"""Attach a plan to a model, remove it, and save base shapes."""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from neuralop_mup.core.build_models import is_built_to_compare
from neuralop_mup.core.check_init import check_init
from neuralop_mup.core.describe_model import describe_model
from neuralop_mup.core.infshape import save_shapes
from neuralop_mup.core.make_plan import make_plan
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.rules import DEFAULT_RULE, ModeRule
from neuralop_mup.core.state_dict_hooks import (
    ATTRIBUTE,
    CopiesShapes,
    attach_hooks,
    attach_shapes,
    detach_hooks,
)
from neuralop_mup.core.unwrap import check_unsharded, unwrap
from neuralop_mup.core.weights_status import WeightsStatus, set_status, status_of
from neuralop_mup.errors import MupError
from neuralop_mup.validation import check_names

Model = TypeVar("Model", bound=nn.Module)

_COPIES_SHAPES = "_neuralop_mup_copies_shapes"


def parametrize(
    model: Model,
    base: Mapping | nn.Module | Callable[[], nn.Module] | str | os.PathLike | None = None,
    rule: str | ModeRule = DEFAULT_RULE,
    *,
    init: bool = True,
    init_mult: Mapping[str, float] | None = None,
    **unknown: Any,
) -> Model:
    """Put a freshly constructed model into maximal update parametrization, in place.

    The function rescales the default initialisation. Forward pass, class and ``state_dict`` keys do not change. At base
    shapes weights stay bit-identical; only without a base, kernels start at a tenth (see ``init_mult``). Build the optimizer
    afterwards (:func:`neuralop_mup.MuAdam`, …).

    A constructor may end with ``parametrize(self)``. The call does nothing in models that this package builds for
    comparison.

    Parameters
    ----------
    model : torch.nn.Module
        An untrained model (see ``init``) from ``neuralop.models``, or with layers registered by
        :func:`neuralop_mup.register_layer`. Spectral layers of published FNO code are recognised, with a warning
        (docs/howto/model.md). DistributedDataParallel, DataParallel or torch.compile may wrap the whole model; apply
        ``fully_shard`` and AveragedModel afterwards.
    base : mapping, torch.nn.Module, callable or path, optional
        The model size for tuning: constructor overrides such as
        ``{"hidden_channels": 32, "n_modes": (12, 12)}``, a model, a function that returns one, or a file from
        :func:`save_base_shapes` or mup. Default: the reference size of the default learning rates, 32 channels and n_modes
        16 on each axis. ``{"n_layers": 4}`` is a base with fewer, equal Fourier layers. Only ``MuSOAP`` scales with depth
        (``base_depth``), since no depth rule held for the other optimizers (docs/howto/proxy.md).
    rule : {"operator-norm", "log-modes", "none", "standard"} or callable, default "operator-norm"
        How kernels scale with Fourier modes, on top of the width rule. ``operator-norm`` keeps the expected norm of a
        kernel's largest block at its base value. ``log-modes`` is Theorem 3.5 of the paper below, the limit of few channels
        and many modes. ``none`` scales only with width. ``standard`` is the standard parametrization. A callable receives
        the kernel's :class:`~neuralop_mup.core.rules.Size` and its Size at base, and returns the mode factor κ;
        ``neuralop_mup.rules.RULES`` has the rules above.
    init : bool, default True
        True rescales the weights. On the meta device :func:`initialize` draws them later. False attaches the plan with its
        learning rates and keeps the weights, for trained models.
    init_mult : mapping, optional
        Multipliers of the initialisation by role, e.g. ``{"readout": 0.5}``, on top of the rule. Tune them on the proxy and
        reuse them. Roles: input, hidden, readout, vector, spectral. ``kernel`` multiplies a Fourier kernel as a whole,
        ``spectral`` each factor of a factorized one. ``kernel`` defaults to 0.1 without a base under the default rule,
        because this trains to lower errors (docs/evidence/optimizers.md), otherwise to 1. Multipliers do not affect
        parameters that do not grow.
    **unknown
        Raises an error with the most similar name.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    MupError
        If the model is parametrized, sharded, averaged or partly wrapped; if ``init`` is True and weights differ from their
        default initialisation or are frozen; if a parameter is shared or its role unknown; if base is deeper, unreadable or
        another architecture; or if every axis has K = n_modes // 2 ≤ 1 under ``log-modes``. The model does not change then.

    References
    ----------
    Li, Yoo, Yang, "Maximal Update Parametrization and Zero-Shot Hyperparameter Transfer for Fourier Neural
    Operators", ICML 2025, https://arxiv.org/abs/2506.19396.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = FNO(n_modes=(64,), in_channels=1, out_channels=1, hidden_channels=128)
    >>> model = nm.parametrize(model, base={"n_modes": (16,), "hidden_channels": 32})
    >>> optimizer = nm.MuAdam(model, lr=8e-3)

    Without a base, for an optimizer's default learning rate:

    >>> model = nm.parametrize(FNO(n_modes=(64,), in_channels=1, out_channels=1, hidden_channels=128))
    >>> optimizer = nm.MuSOAP(model)
    """
    check_names(unknown, parametrize)
    if is_built_to_compare():
        return model
    bare = _bare(model)
    plan, messages = make_plan(bare, unwrap(base), rule, init_mult, trainable=init)
    check_no_plan(bare, rescales=init)
    for message in messages:
        warnings.warn(message, UserWarning, stacklevel=2)
    status = WeightsStatus.TRAINED if not init else WeightsStatus.FRESH if _on_meta(bare) else WeightsStatus.SCALED
    if status is WeightsStatus.SCALED:
        check_init(bare, plan)
        scale_weights(bare, plan)
    set_plan(bare, replace(plan, init_applied=status is WeightsStatus.SCALED), status)
    return model


def _bare(model: nn.Module) -> nn.Module:
    """Return the model inside its wrappers. Raise MupError for averages and sharded models."""
    if isinstance(model, AveragedModel):
        raise MupError(
            "An AveragedModel copies the weights of a model that trains. Call parametrize on that model first, then average "
            "it: AveragedModel(nm.parametrize(model, …)). The average keeps the plan."
        )
    if isinstance(model, type):
        raise MupError(f"{model.__name__} is a class. Pass a model, such as {model.__name__}(…).")
    bare = unwrap(model)
    if isinstance(bare, nn.Module):
        check_unsharded(bare, "parametrize")
    return bare


def _on_meta(model: nn.Module) -> bool:
    meta = [name for name, p in model.named_parameters() if p.is_meta]
    if 0 < len(meta) < len(list(model.parameters())):
        raise MupError(
            f"Parameter {meta[0]!r} of this {type(model).__name__} is on the meta device and others are not. Build the "
            "whole model there (with torch.device('meta'): …) or elsewhere, or pass init=False to attach only the plan."
        )
    return bool(meta)


def scale_weights(model: nn.Module, plan: Plan) -> None:
    """Multiply freshly drawn weights by the plan's ``init_mult``."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for row in plan.rows:
            if row.init_mult != 1:
                parameters[row.name].mul_(row.init_mult)


def set_plan(model: nn.Module, plan: Plan, status: WeightsStatus) -> None:
    """Attach a plan and the status of its weights to a bare model."""
    set_status(model, status)
    setattr(model, ATTRIBUTE, plan)
    attach_shapes(model)
    attach_hooks(model)
    setattr(model, _COPIES_SHAPES, CopiesShapes(model))


def check_no_plan(model: nn.Module, rescales: bool = False) -> None:
    """Raise MupError if the model or a part of it has a plan or mup's infshapes, or had a plan and ``rescales``."""
    has_plan = any(hasattr(part, ATTRIBUTE) or (rescales and status_of(part) is not None) for part in model.modules())
    if has_plan or any(hasattr(p, "infshape") for p in model.parameters()):
        raise MupError(
            f"This {type(model).__name__}, or a part of it, is already parametrized by this package or by mup, or was "
            "before unparametrize. Rescaling its weights twice would distort them. Build a new model, or call "
            "neuralop_mup.unparametrize on that part and pass init=False."
        )


def unparametrize(model: Model) -> Model:
    """Remove the plan from a model and keep its weights.

    The weights stay scaled, so attach another plan with ``init=False``.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model, wrapped or not, or one with only mup's ``infshape``: from mup itself, or from a checkpoint of
        UQNO, which stores the parameters of its base model as objects.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    MupError
        If the model is not parametrized.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8})
    >>> model = nm.unparametrize(model)
    >>> nm.is_parametrized(model)
    False
    >>> model = nm.parametrize(model, base={"hidden_channels": 8}, rule="none", init=False)
    """
    bare = unwrap(model)
    has_infshape = isinstance(bare, nn.Module) and any(hasattr(p, "infshape") for p in bare.parameters())
    if not has_infshape or any(hasattr(module, ATTRIBUTE) for module in bare.modules()):
        get_plan(model)
    plan = vars(bare).pop(ATTRIBUTE, None)
    if plan is None or not plan.init_applied:
        set_status(bare, None)  # scaled weights keep their status
    vars(bare).pop(_COPIES_SHAPES, None)
    detach_hooks(bare)
    for parameter in bare.parameters():
        if hasattr(parameter, "infshape"):
            del parameter.infshape
    return model


def is_parametrized(model: nn.Module) -> bool:
    """Return whether a model has a plan.

    Parameters
    ----------
    model : torch.nn.Module
        Any model, wrapped or not.

    Returns
    -------
    bool
        True also for copies and after :func:`~neuralop_mup.load_plan`.

    Raises
    ------
    MupError
        If FSDP1 wraps the model, or a wrapper covers only a part of it.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = FNO((8,), 1, 1, 16)
    >>> nm.is_parametrized(model)
    False
    >>> nm.is_parametrized(nm.parametrize(model))
    True
    """
    return hasattr(unwrap(model), ATTRIBUTE)


def get_plan(model: nn.Module) -> Plan:
    """Return the plan of a parametrized model.

    Raises
    ------
    MupError
        If the model is not parametrized.
    """
    if not isinstance(model, nn.Module):
        raise MupError(
            f"Expected a parametrized model, got {type(model).__name__}. Pass the model itself, not its parameters."
        )
    bare = unwrap(model)
    if not is_parametrized(bare):
        if parts := [name for name, module in bare.named_modules() if name and hasattr(module, ATTRIBUTE)]:
            raise MupError(
                f"Only the part {parts[0]!r} of this {type(bare).__name__} is parametrized. Pass model.{parts[0]} and train "
                "the rest with a second optimizer, or call neuralop_mup.parametrize on a new, whole model."
            )
        raise MupError(
            f"This {type(bare).__name__} is not parametrized. Call neuralop_mup.parametrize(model) first, "
            "then build the optimizer."
        )
    attach_shapes(bare)
    return getattr(bare, ATTRIBUTE)


def kernels_and_axes(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the kinds of axes of each kernel parameter of a bare model. Reading them from its plan is fast."""
    if (plan := vars(model).get(ATTRIBUTE)) is not None:
        return {row.name: row.axes for row in plan.rows if row.role == "spectral"}
    return {name: info.param.axes for name, info in describe_model(model).items() if info.param.role == "spectral"}


def save_base_shapes(model: nn.Module, path: str | os.PathLike) -> None:
    """Save base shapes in mup's file format, to pass the path to :func:`parametrize` as ``base``.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model, to save its base, or another model, to save it as a base.
    path : path
        The file to write: base sizes of each parameter, ``null`` for a fixed dimension. Kernels also have mode dimensions
        (stored modes: n_modes, n_modes // 2 + 1 on the last axis).

    Raises
    ------
    MupError
        If the role of a parameter is unknown, or the file cannot be written.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> nm.save_base_shapes(FNO((8,), 1, 1, 16), "base.yaml")
    >>> model = nm.parametrize(FNO((16,), 1, 1, 32), base="base.yaml")
    """
    model = unwrap(model)
    plan = get_plan(model) if is_parametrized(model) else make_plan(model, model, "standard")[0]
    save_shapes({row.name: row.mup_shape() for row in plan.rows if not row.lacking}, path)
