"""A plan applied to a model in place, once; undone; saved."""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from neuralop_mup.core.check_init import check_init
from neuralop_mup.core.describe_model import describe_model
from neuralop_mup.core.infshape import save_shapes
from neuralop_mup.core.make_plan import make_plan
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.plan_warnings import warnings_for
from neuralop_mup.core.rebuild import is_built_to_compare
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
WIDER = "The base is wider than the model"  # how the warning begins, for those who mean it


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

    Weights are rescaled from the default initialisation; forward, class and ``state_dict`` keys stay as they are. At base
    shapes nothing changes, bit for bit; only without a base kernels start at a tenth (see ``init_mult``). Build the
    optimizer afterwards (:func:`neuralop_mup.MuAdam`, …).

    A constructor may end with ``parametrize(self)``. What is built by it for comparison, as a base or at other sizes, is
    left as it is.

    Parameters
    ----------
    model : torch.nn.Module
        A model of ``neuralop.models``, or of layers known through :func:`neuralop_mup.register_layer`, not yet trained
        (see ``init``). Spectral layers of published FNO code are recognised, with a warning (docs/howto/layer.md). It may
        be wrapped whole by DistributedDataParallel, DataParallel or torch.compile; ``fully_shard`` and AveragedModel come
        after.
    base : mapping, torch.nn.Module, callable or path, optional
        Without it the reference size: 32 channels and n_modes 16 on each axis, at which default learning rates are meant.
        Otherwise the size at which hyperparameters were (or will be) tuned: constructor overrides such as
        ``{"hidden_channels": 32, "n_modes": (12, 12)}``, a model, a function that returns one, or a file from
        :func:`save_base_shapes` or from mup.
        ``{"n_layers": 4}`` names a base with fewer Fourier layers, all alike: ``MuSOAP`` scales what
        it trains with depth (``base_depth``); under the others nothing does, since no rule held (docs/howto/proxy.md).
    rule : {"operator-norm", "log-modes", "none", "standard"} or callable, default "operator-norm"
        How kernels scale with Fourier modes on top of the width rule. ``operator-norm`` (the default) keeps the expected
        norm of a kernel's largest block at base's value, with the channels and modes that it has; ``log-modes`` is Theorem
        3.5 of the paper below, its limit of few channels and many modes; ``none`` scales with width alone; ``standard`` is
        no μP at all, for comparison. A function of two :class:`~neuralop_mup.core.rules.Size`, a kernel's and the same at
        base, that returns the mode factor κ is a rule of one's own; ``neuralop_mup.rules.RULES`` has these.
    init : bool, default True
        True rescales the weights; on the meta device, where there are none, :func:`initialize` draws them later. False
        attaches the plan (and so the learning rates) without rescaling: for weights that are already trained.
    init_mult : mapping, optional
        Multipliers of init by role, e.g. ``{"readout": 0.5}``, on top of the rule: tuned on the proxy, carried to the
        target. Roles: input, hidden, readout, vector, spectral; ``kernel`` multiplies a Fourier kernel as a whole, where
        ``spectral`` multiplies each factor of a factorized one. The default of ``kernel`` is 0.1 without a base and with the
        default rule, because this trains to lower errors (docs/evidence/optimizers.md), and 1 otherwise. Multipliers do not
        affect what does not grow.
    **unknown
        Refused, with the name that is nearest.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    MupError
        If the model was parametrized before, or its weights are not as neuralop draws them (and ``init`` is True); a
        parameter is of unknown role, frozen (if ``init`` is True) or shared; base differs in more than sizes, or its file is
        unreadable; every axis has K = n_modes // 2 ≤ 1 under ``log-modes``; base is deeper; or the model is sharded, an
        average, or wrapped in part. The model is then as it was.

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
    plan = make_plan(bare, unwrap(base), rule, init_mult, trainable=init)
    check_no_plan(bare)
    if init and any(status_of(module) is not None for module in bare.modules()):
        raise MupError(
            f"The weights of this {type(bare).__name__} were rescaled by an earlier parametrize: build a new model, or "
            "pass init=False to attach a plan and leave the weights as they are."
        )
    if base is not None:
        _warn_of_wider_base(plan)
    for doubt in warnings_for(plan):
        warnings.warn(doubt, UserWarning, stacklevel=2)
    status = WeightsStatus.TRAINED if not init else WeightsStatus.FRESH if _on_meta(bare) else WeightsStatus.SCALED
    if status is WeightsStatus.SCALED:
        check_init(bare, plan)
        scale_weights(bare, plan)
    set_plan(bare, replace(plan, init_applied=status is WeightsStatus.SCALED), status)
    return model


def _warn_of_wider_base(plan: Plan) -> None:
    """A proxy is the smaller one: the other way round is allowed, for coordinate checks, but seldom meant."""
    wider = [
        f"{row.name!r} has {b} channels at base and {n} here"
        for row in plan.rows
        for kind, n, b in zip(row.axes, row.shape, row.base_shape, strict=True)
        if plan.rule != "standard" and kind in ("in", "out") and b > n
    ]
    if wider:
        warnings.warn(
            f"{WIDER}: {wider[0]}. The base is the size at which learning rates were tuned, usually the smaller one. Were "
            "model and base meant the other way round?",
            UserWarning,
            stacklevel=3,
        )


def _bare(model: nn.Module) -> nn.Module:
    """The model inside its wrappers, where a plan may be made for it."""
    if isinstance(model, AveragedModel):
        raise MupError(
            "An AveragedModel follows the weights of a model that trains: parametrize that model before averaging it; the "
            "average keeps the plan."
        )
    if isinstance(model, type):
        raise MupError(f"{model.__name__} is a class: give a model, {model.__name__}(…), whose weights are drawn.")
    bare = unwrap(model)
    if isinstance(bare, nn.Module):
        check_unsharded(bare, "parametrize")
    return bare


def _on_meta(model: nn.Module) -> bool:
    meta = [name for name, p in model.named_parameters() if p.is_meta]
    if 0 < len(meta) < len(list(model.parameters())):
        raise MupError(
            f"Parameter {meta[0]!r} of this {type(model).__name__} is on the meta device and others are not: build all of "
            "it there (with torch.device('meta'): …), or none, or pass init=False to attach the plan alone."
        )
    return bool(meta)


def scale_weights(model: nn.Module, plan: Plan) -> None:
    """Multiply freshly drawn weights by what the rule makes of them."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for row in plan.rows:
            if row.init_mult != 1:
                parameters[row.name].mul_(row.init_mult)


def set_plan(model: nn.Module, plan: Plan, status: WeightsStatus) -> None:
    """Make ``plan`` the plan of a bare model whose weights have this status."""
    set_status(model, status)
    setattr(model, ATTRIBUTE, plan)
    attach_shapes(model)
    attach_hooks(model)
    setattr(model, _COPIES_SHAPES, CopiesShapes(model))


def check_no_plan(model: nn.Module) -> None:
    """Refuse a model that has a plan, in whole or in part, or infshapes of mup's."""
    if any(hasattr(module, ATTRIBUTE) for module in model.modules()) or any(
        hasattr(p, "infshape") for p in model.parameters()
    ):
        raise MupError(
            f"This {type(model).__name__}, or a part of it, is parametrized already, by this package or by mup, and "
            "rescaling twice would ruin its weights: build a new model, or neuralop_mup.unparametrize what is and "
            "pass init=False."
        )


def unparametrize(model: Model) -> Model:
    """Take the plan off a model; its weights stay as they are.

    To attach another plan afterwards pass ``init=False`` to :func:`parametrize`: the weights are scaled already.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model, wrapped or not, or one whose parameters have mup's ``infshape`` alone: of mup itself, or
        read from a checkpoint of UQNO, which holds its base model's parameters whole.

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
    is_of_mup = isinstance(bare, nn.Module) and any(hasattr(p, "infshape") for p in bare.parameters())
    if not is_of_mup or any(hasattr(module, ATTRIBUTE) for module in bare.modules()):
        get_plan(model)
    if not getattr(bare, ATTRIBUTE, None) or not getattr(bare, ATTRIBUTE).init_applied:
        set_status(bare, None)  # weights that were scaled stay so
    for attribute in (ATTRIBUTE, _COPIES_SHAPES):
        vars(bare).pop(attribute, None)
    detach_hooks(bare)
    for parameter in bare.parameters():
        if hasattr(parameter, "infshape"):
            del parameter.infshape
    return model


def is_parametrized(model: nn.Module) -> bool:
    """Whether :func:`parametrize` was applied to ``model``.

    Parameters
    ----------
    model : torch.nn.Module
        Any model, wrapped or not.

    Returns
    -------
    bool
        True also for copies, and where :func:`~neuralop_mup.load_plan` attached the plan.

    Raises
    ------
    MupError
        If the model is wrapped by FSDP1, or in part.

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
    """The plan of a parametrized model.

    Raises
    ------
    MupError
        If the model is not parametrized.
    """
    if not isinstance(model, nn.Module):
        raise MupError(
            f"Expected a parametrized model, got {type(model).__name__}: pass the model itself, not its parameters."
        )
    bare = unwrap(model)
    if not is_parametrized(bare):
        if parts := [name for name, module in bare.named_modules() if name and hasattr(module, ATTRIBUTE)]:
            raise MupError(
                f"This {type(bare).__name__} is not parametrized as a whole, but its part {parts[0]!r} is: pass "
                f"model.{parts[0]} (and train what lies outside it by an optimizer of its own), or build it anew and call "
                "neuralop_mup.parametrize on all of it."
            )
        raise MupError(
            f"This {type(bare).__name__} is not parametrized: call neuralop_mup.parametrize(model) first, "
            "then build the optimizer."
        )
    attach_shapes(bare)
    return getattr(bare, ATTRIBUTE)


def kernels_and_axes(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Kinds of axis of each parameter of a bare model's Fourier kernels: from its plan, quickly; without one it is read."""
    if (plan := vars(model).get(ATTRIBUTE)) is not None:
        return {row.name: row.axes for row in plan.rows if row.role == "spectral"}
    return {name: info.param.axes for name, info in describe_model(model).items() if info.param.role == "spectral"}


def save_base_shapes(model: nn.Module, path: str | os.PathLike) -> None:
    """Save base shapes in mup's file format; :func:`parametrize` takes the path as ``base``.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model, whose base is saved, or a plain one, which is saved as a base itself.
    path : path
        The file to write: for each parameter its base sizes, ``null`` for a fixed dimension. Kernels carry their mode
        dimensions besides (stored modes: n_modes, on the last axis n_modes // 2 + 1).

    Raises
    ------
    MupError
        If a parameter is of unknown role or the file cannot be written.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> nm.save_base_shapes(FNO((8,), 1, 1, 16), "base.yaml")
    >>> model = nm.parametrize(FNO((16,), 1, 1, 32), base="base.yaml")
    """
    model = unwrap(model)
    plan = get_plan(model) if is_parametrized(model) else make_plan(model, model, "standard")
    save_shapes({row.name: row.mup_shape() for row in plan.rows if not row.lacking}, path)
