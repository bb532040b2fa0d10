"""The three usual optimizers with μP learning rates: Adam, AdamW and SGD, or what is like one of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from neuralop_mup.errors import MupError
from neuralop_mup.optim.binding import bind
from neuralop_mup.optim.groups import groups_of
from neuralop_mup.optim.on_plan import check_optimizer_state, family_of, follow

# torch's optimizers that add weight decay to the gradient before they divide it by its size.
_COUPLED = (
    torch.optim.Adam,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
)


def MuAdam(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    impl: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    weight_decay: float = 0.0,
    lr_mult: Mapping[str, float] | None = None,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """Adam, or any Adam-like ``impl``, with μP learning rates.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    lr : float, default 1e-3
        Learning rate at base. torch's Adam moves the real and the imaginary part of a kernel by lr each, neuralop's
        AdamW its modulus: a learning rate tuned with one does not carry over to the other.
    impl : callable, default torch.optim.Adam
        ``impl(groups, lr=…, **kwargs)`` builds the optimizer, e.g. ``neuralop.training.AdamW``. A ``functools.partial`` may
        set all but lr and weight_decay, which belong to the groups.
    weight_decay : float, default 0.0
        At base (see :func:`param_groups`). It is independent of width only where ``impl`` decouples it: torch's Adam
        adds it to the gradient and then normalises both, so that its effect grows with width. A warning says so; use
        :func:`MuAdamW`.
    lr_mult : mapping, optional
        Multipliers of the learning rate by role.
    **kwargs
        Passed on: ``betas``, ``eps``, … (torch's ``fused=True`` takes no complex kernels.)

    Returns
    -------
    torch.optim.Optimizer
        What ``impl`` returns.

    Raises
    ------
    MupError
        If the model is not parametrized, a number is not usable, or ``impl`` is of the other family, or a partial that sets
        lr or weight_decay.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 16})
    >>> optimizer = nm.MuAdam(model, lr=8e-3, betas=(0.9, 0.98))
    >>> {group["name"]: round(group["lr"], 5) for group in optimizer.param_groups}
    {'input+vector': 0.008, 'spectral': 0.00394, 'hidden+readout': 0.004}

    With neuralop's own AdamW:

    >>> from neuralop.training import AdamW
    >>> optimizer = nm.MuAdam(model, lr=8e-3, impl=AdamW, weight_decay=1e-4)
    """
    built = _built(model, impl, lr, "adam", weight_decay, lr_mult, kwargs)
    # Newer AdamWs are Adams, too, and say that they decouple.
    coupled = isinstance(built, _COUPLED) and not isinstance(built, torch.optim.AdamW)
    if weight_decay and coupled and not any(group.get("decoupled_weight_decay") for group in built.param_groups):
        warnings.warn(
            f"torch.optim.{type(built).__name__} adds weight decay to the gradient and normalises both, so its effect "
            "changes with width: use MuAdamW for decay that transfers.",
            stacklevel=2,
        )
    return built


def MuAdamW(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    impl: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    weight_decay: float = 1e-2,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """AdamW, or any ``impl`` like it, with μP learning rates and independent weight decay.

    Parameters
    ----------
    model, lr
        As for :func:`MuAdam`.
    impl : callable, default torch.optim.AdamW
        ``impl(groups, lr=…, **kwargs)`` builds the optimizer, e.g. ``neuralop.training.AdamW``.
    weight_decay : float, default 0.01
        At base (see :func:`param_groups`).
    **kwargs
        As for :func:`MuAdam`, ``lr_mult`` included.

    Returns
    -------
    torch.optim.Optimizer
        What ``impl`` returns.

    Raises
    ------
    MupError
        If the model is not parametrized, a number is not usable, or ``impl`` is of the other family, or a partial that sets
        lr or weight_decay.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 16})
    >>> optimizer = nm.MuAdamW(model, lr=8e-3, weight_decay=0.1)
    >>> {group["lr"] * group["weight_decay"] for group in optimizer.param_groups}
    {0.0008}
    """
    return MuAdam(model, lr, impl=impl, weight_decay=weight_decay, **kwargs)


def MuSGD(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    impl: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    weight_decay: float = 0.0,
    lr_mult: Mapping[str, float] | None = None,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """SGD, or any SGD-like ``impl``, with μP learning rates.

    They follow the width rule alone, since the mode rules are for Adam: parametrize with ``rule="none"`` for SGD, or
    the kernels' initialisation alone follows the modes.

    Parameters
    ----------
    model, lr, weight_decay, lr_mult
        As for :func:`MuAdam`.
    impl : callable, default torch.optim.SGD
        ``impl(groups, lr=…, **kwargs)`` builds the optimizer.
    **kwargs
        Passed on: ``momentum``, ``nesterov``, …

    Returns
    -------
    torch.optim.Optimizer
        What ``impl`` returns.

    Raises
    ------
    MupError
        If the model is not parametrized, a number is not usable, or ``impl`` is of the other family, or a partial that sets
        lr or weight_decay.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 16}, rule="none")
    >>> optimizer = nm.MuSGD(model, lr=0.1, momentum=0.9)
    """
    return _built(model, impl, lr, "sgd", weight_decay, lr_mult, kwargs)


def _built(
    model: nn.Module,
    impl: Callable[..., torch.optim.Optimizer],
    lr: float,
    family: str,
    weight_decay: float,
    lr_mult: Mapping[str, float] | None,
    kwargs: Mapping[str, Any],
) -> torch.optim.Optimizer:
    """What ``impl`` makes of the plan's groups, held to the plan."""
    for key in ("lr", "weight_decay"):
        if isinstance(impl, partial) and key in impl.keywords:
            raise MupError(
                f"impl is a partial with {key}={impl.keywords[key]!r}, which every group's own {key}, scaled by the plan, "
                f"would replace: leave it out of the partial and give {key}={impl.keywords[key]!r} beside impl."
            )
    binding = bind(model)
    if kwargs.get("fused") and any(p.is_complex() for p in binding.parameters.values()):
        raise MupError(
            "fused=True takes no complex parameters, and Fourier kernels are complex: leave it out (on a GPU torch then "
            "moves all parameters of one type by one operator, foreach)."
        )
    optimizer = impl(groups_of(binding, lr, family, weight_decay=weight_decay, lr_mult=lr_mult), lr=lr, **kwargs)
    if family_of(optimizer) not in (None, family):
        ours, theirs = ("MuAdam", "MuSGD") if family == "adam" else ("MuSGD", "MuAdam")
        raise MupError(
            f"{ours}'s learning rates are not for torch's {type(optimizer).__name__}, whose updates "
            f"{'scale' if family == 'adam' else 'do not scale'} with the gradient: use neuralop_mup.{theirs}(model, lr=…, "
            "impl=…), with a learning rate that was tuned for it."
        )
    if hasattr(optimizer, "register_step_pre_hook"):  # what ``impl`` returns may be a wrapper of its own kind
        follow(binding, optimizer, family)
    if hasattr(optimizer, "register_load_state_dict_pre_hook"):
        optimizer.register_load_state_dict_pre_hook(_take_state)
    return optimizer


def _take_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state to load, checked. How its steps were computed is not taken over: 0.2.0 had ``fused`` for complex kernels."""
    check_optimizer_state(optimizer, state)
    pairs = zip(state["param_groups"], optimizer.param_groups, strict=True)
    groups = [{**saved, "fused": ours["fused"]} if "fused" in ours else saved for saved, ours in pairs]
    return {**state, "param_groups": groups}
