"""Attach a plan to a model, remove a plan, and save base shapes."""

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
    """Convert a newly constructed model to maximal update parametrization, in place.

    The function rescales the default initialisation. The forward pass, the class and the ``state_dict`` keys do not change.
    If the model has the shapes of the base, its weights are bit-identical. As an exception, kernels are multiplied by 0.1 if
    no base is given (see ``init_mult``). Build the optimizer afterwards (:func:`neuralop_mup.MuAdam`, …).

    A constructor may end with ``parametrize(self)``. This call has no effect in models that the package builds for
    comparison.

    Parameters
    ----------
    model : torch.nn.Module
        An untrained model (see ``init``) from ``neuralop.models``, or a model with layers that are registered with
        :func:`neuralop_mup.register_layer`. Spectral layers of published FNO code are recognised, with a warning
        (docs/howto/model.md). The model may be wrapped in DistributedDataParallel, DataParallel or torch.compile. Apply
        ``fully_shard`` and AveragedModel after this function.
    base : mapping, torch.nn.Module, callable or path, optional
        The model size for tuning. Pass constructor overrides such as ``{"hidden_channels": 32, "n_modes": (12, 12)}``, a
        model, a function that returns a model, or a file from :func:`save_base_shapes` or mup. The default is the reference
        size of the default learning rates: 32 channels and n_modes 16 on each axis. The base may also have fewer Fourier
        layers, e.g. ``{"n_layers": 4}``, if all layers are equal. Only ``MuSOAP`` scales with depth (``base_depth``),
        because we found no depth rule for the other optimizers (docs/howto/proxy.md).
    rule : {"operator-norm", "log-modes", "none", "standard"} or callable, default "operator-norm"
        How kernels scale with Fourier modes, in addition to the width rule. ``operator-norm`` keeps the expected norm of a
        kernel's largest block at its base value. ``log-modes`` is Theorem 3.5 of the paper below, which is the limit of few
        channels and many modes. ``none`` only scales with width. ``standard`` is the standard parametrization. A callable
        receives the kernel's :class:`~neuralop_mup.core.rules.Size` and its Size in the base model, and returns the mode
        factor κ. ``neuralop_mup.rules.RULES`` contains the rules above.
    init : bool, default True
        Whether to rescale the weights. On the meta device, :func:`initialize` draws them later. Pass False for trained
        models, to attach the plan with its learning rates and keep the weights.
    init_mult : mapping, optional
        Additional multipliers of the initialisation by role, e.g. ``{"readout": 0.5}``. Tune them on a small proxy model and
        reuse them. The roles are input, hidden, readout, vector and spectral. ``kernel`` multiplies a complete Fourier
        kernel, whereas ``spectral`` multiplies each factor of a factorized kernel. The default of ``kernel`` is 0.1 with the
        default rule and no base, because this gives lower errors (docs/evidence/optimizers.md), and 1 otherwise. Multipliers
        do not affect parameters that do not grow.
    **unknown
        Unknown arguments raise an error that suggests the most similar name.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    MupError
        If the model is already parametrized, sharded, averaged or partly wrapped. If ``init`` is True and weights are frozen
        or differ from their default initialisation. If a parameter is shared or its role is unknown. If the base is deeper
        than the model, unreadable or of a different architecture. If every axis has K = n_modes // 2 ≤ 1 under
        ``log-modes``. In these cases, the model is left unchanged.

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

    Without a base, to use an optimizer's default learning rate:

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
    """Return the model without its wrappers; raise MupError if it is averaged or sharded."""
    if isinstance(model, AveragedModel):
        raise MupError(
            "An AveragedModel contains a copy of the model that is trained, so it cannot be parametrized itself. "
            "Parametrize the model first: AveragedModel(nm.parametrize(model, …)). The averaged model keeps the plan."
        )
    if isinstance(model, type):
        raise MupError(
            f"model must be an instance of torch.nn.Module, got the class {model.__name__}. Pass an instance such as "
            f"{model.__name__}(…)."
        )
    bare = unwrap(model)
    if isinstance(bare, nn.Module):
        check_unsharded(bare, "parametrize")
    return bare


def _on_meta(model: nn.Module) -> bool:
    meta = [name for name, p in model.named_parameters() if p.is_meta]
    if 0 < len(meta) < len(list(model.parameters())):
        raise MupError(
            f"Parameter {meta[0]!r} of this {type(model).__name__} is on the meta device, but other parameters are not. "
            "Build all of the model on the meta device (with torch.device('meta'): …) or all of it on another device. To "
            "only attach the plan, pass init=False."
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
    """Attach a plan and the status of the weights to an unwrapped model."""
    set_status(model, status)
    setattr(model, ATTRIBUTE, plan)
    attach_shapes(model)
    attach_hooks(model)
    setattr(model, _COPIES_SHAPES, CopiesShapes(model))


def check_no_plan(model: nn.Module, rescales: bool = False) -> None:
    """Raise MupError if the model or a submodule has a plan or an infshape or, if ``rescales``, had a plan before."""
    has_plan = any(hasattr(part, ATTRIBUTE) or (rescales and status_of(part) is not None) for part in model.modules())
    if has_plan or any(hasattr(p, "infshape") for p in model.parameters()):
        raise MupError(
            f"This {type(model).__name__} or one of its submodules is already parametrized by this package or by mup, or "
            "was parametrized before unparametrize was called. Rescaling its weights twice would be incorrect. Build a new "
            "model, or call neuralop_mup.unparametrize on the parametrized module and pass init=False."
        )


def unparametrize(model: Model) -> Model:
    """Remove the plan from a model without changing its weights.

    The weights remain scaled, so use ``init=False`` to attach another plan.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model. It may be wrapped. A model without a plan is also accepted if its parameters have mup's
        ``infshape``. Such models come from mup itself, or from a checkpoint of UQNO, which stores the parameters of its base
        model as objects.

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
        set_status(bare, None)  # if the weights were scaled, they keep their status
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
        Any model. It may be wrapped.

    Returns
    -------
    bool
        Whether the model has a plan. This is also true for copies of a parametrized model and after
        :func:`~neuralop_mup.load_plan`.

    Raises
    ------
    MupError
        If the model is wrapped in FSDP1, or if only a submodule is wrapped.

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
            f"model must be a parametrized torch.nn.Module, got {type(model).__name__}. Pass the model itself, not its "
            "parameters."
        )
    bare = unwrap(model)
    if not is_parametrized(bare):
        if parts := [name for name, module in bare.named_modules() if name and hasattr(module, ATTRIBUTE)]:
            raise MupError(
                f"Only the submodule {parts[0]!r} of this {type(bare).__name__} is parametrized. Pass model.{parts[0]} and "
                "train the rest with a second optimizer, or call neuralop_mup.parametrize on a new, complete model."
            )
        raise MupError(
            f"This {type(bare).__name__} is not parametrized. Call neuralop_mup.parametrize(model) first, "
            "then build the optimizer."
        )
    attach_shapes(bare)
    return getattr(bare, ATTRIBUTE)


def kernels_and_axes(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the kinds of axes of each kernel in an unwrapped model, read from its plan if it has one."""
    if (plan := vars(model).get(ATTRIBUTE)) is not None:
        return {row.name: row.axes for row in plan.rows if row.role == "spectral"}
    return {name: info.param.axes for name, info in describe_model(model).items() if info.param.role == "spectral"}


def save_base_shapes(model: nn.Module, path: str | os.PathLike) -> None:
    """Save base shapes in mup's file format, for use as the ``base`` of :func:`parametrize`.

    Parameters
    ----------
    model : torch.nn.Module
        A model. If it is parametrized, its base is saved. Otherwise, the model itself is saved as a base.
    path : path
        File to write. It contains the base sizes of each parameter, with ``null`` for fixed dimensions. For kernels, these
        include the numbers of stored modes: n_modes, or n_modes // 2 + 1 on the last axis.

    Raises
    ------
    MupError
        If the role of a parameter is unknown, or if the file cannot be written.

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
