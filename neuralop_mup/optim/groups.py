"""Build param groups from a plan, and Adam, AdamW and SGD from these groups."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.rules import ROLES, check_multipliers
from neuralop_mup.errors import MupError
from neuralop_mup.optim.checks import family_of
from neuralop_mup.optim.lr_hooks import follow_plan
from neuralop_mup.optim.resolved_model import needs_model, resolve, rule_mult
from neuralop_mup.validation import check_names, check_number

Builder = Callable[..., torch.optim.Optimizer]

# torch optimizers that add weight decay to the gradient before normalizing it.
_COUPLED = (
    torch.optim.Adam,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
)


def param_groups(
    model: nn.Module,
    lr: float,
    optimizer: str = "adam",
    *,
    weight_decay: float | None = None,
    lr_mult: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Return param groups with μP learning rates for any optimizer of the given family.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    lr : float
        Learning rate of the base model, tuned on a small proxy model.
    optimizer : {"adam", "sgd"}, default "adam"
        Family of the optimizer. Use ``adam`` if updates do not scale with the gradient (Adam, AdamW, RMSprop, Adagrad, Lion,
        …), and ``sgd`` if they do (SGD with or without momentum). SGD only uses the width rule, because the paper derives
        the mode rule for Adam.
    weight_decay : float, optional
        Weight decay of the base model. Decay is independent: the weight decay of each group is divided by the rule's factor,
        so that lr · weight_decay is the same in all groups. By default, the groups do not set a weight decay, so the
        optimizer's own default applies.
    lr_mult : mapping, optional
        Additional learning-rate multipliers by role, e.g. ``{"spectral": 2.0}``. They do not affect layers that do not grow
        with the model.

    Returns
    -------
    list of dict
        One group per distinct setting, in a fixed order. The keys are ``params``, ``name`` (roles), ``lr``, ``lr_mult``
        (ratio of lr to the base lr), ``rule_mult`` (the rule's contribution to this ratio) and, if you pass it,
        ``weight_decay``. With ``max_n_modes``, each kernel has a separate group with ``mode_mult`` (see
        :func:`follow_plan`). Do not pass these groups to mup's optimizers, which scale ``model.parameters()`` themselves.

    Raises
    ------
    MupError
        If the model is not parametrized, or if a number or a role is invalid.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 16})
    >>> groups = nm.param_groups(model, lr=8e-3, lr_mult={"spectral": 2.0})
    >>> {group["name"]: round(group["lr"], 5) for group in groups}
    {'input+vector': 0.008, 'spectral': 0.00789, 'hidden+readout': 0.004}
    >>> optimizer = torch.optim.RMSprop(groups)
    >>> nm.follow_plan(model, optimizer)
    """
    resolved = resolve(model)
    check_number("lr", lr, tensor=True)
    if weight_decay is not None:
        check_number("weight_decay", weight_decay, tensor=True)
    # Convert NumPy scalars, because torch.load rejects states that contain them.
    lr, weight_decay = _plain(lr), _plain(weight_decay)
    multipliers = check_multipliers(lr_mult, "lr_mult")
    growing = resolved.growing if optimizer == "adam" else {}

    groups: dict[tuple, dict[str, Any]] = {}
    for row in resolved.plan.rows:
        # Divide by the inverse, as mup does, so that the results are bitwise equal.
        divisor = 1 / rule_mult(row, optimizer)
        multiplier, convolution = multipliers.get(row.tuned_as, 1.0), growing.get(row.name)
        settings: dict[str, Any] = {
            "lr": lr / divisor * multiplier,
            "lr_mult": 1 / divisor * multiplier,
            "rule_mult": 1 / divisor,
        }
        if weight_decay is not None:
            settings["weight_decay"] = weight_decay * divisor
        key = (convolution, *map(float, settings.values()))
        if convolution is not None:
            settings["mode_mult"] = 1.0
        group = groups.setdefault(key, {"params": [], "name": [], **settings})
        group["params"].append(resolved.parameters[row.name])
        if row.role not in group["name"]:
            group["name"].append(row.role)
    for (convolution, *_), group in groups.items():
        roles = "+".join(sorted(group["name"], key=ROLES.index))
        group["name"] = f"{roles} {convolution}" if convolution else roles
    return number_equal_names(list(groups.values()))


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar to a float."""
    return value if value is None or isinstance(value, torch.Tensor) else float(value)


def number_equal_names(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Append a number to names that several groups share."""
    names = [group["name"] for group in groups]
    for i, (group, name) in enumerate(zip(groups, names, strict=True)):
        if names.count(name) > 1:
            group["name"] = f"{name} {names[: i + 1].count(name)}"
    return groups


@needs_model
def MuAdam(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    impl: Builder = torch.optim.Adam,
    weight_decay: float = 0.0,
    lr_mult: Mapping[str, float] | None = None,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """Adam, or any Adam-like optimizer ``impl``, with μP learning rates.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    lr : float, default 1e-3
        Learning rate of the base model. It does not transfer between torch's Adam and neuralop's AdamW. For complex weights,
        torch normalizes the real and imaginary parts separately, whereas neuralop normalizes the modulus.
    impl : callable, default torch.optim.Adam
        ``impl(groups, lr=…, **kwargs)`` builds the optimizer, e.g. ``neuralop.training.AdamW``. A ``functools.partial`` may
        set any argument except ``lr`` and ``weight_decay``.
    weight_decay : float, default 0.0
        Weight decay of the base model (see :func:`param_groups`). If ``impl`` does not decouple weight decay, as in torch's
        Adam, its effect grows with width and a warning is raised. Prefer :func:`MuAdamW`.
    lr_mult : mapping, optional
        Additional learning-rate multipliers by role.
    **kwargs
        Arguments of ``impl``, such as ``betas`` and ``eps``. torch does not support ``fused=True`` for complex kernels.

    Returns
    -------
    torch.optim.Optimizer
        The optimizer that ``impl`` builds.

    Raises
    ------
    MupError
        If the model is not parametrized, if an argument is invalid, if ``impl`` belongs to the other family, or if ``impl``
        is a partial that sets ``lr`` or ``weight_decay``.

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
    built = _build(model, impl, lr, "adam", weight_decay, lr_mult, kwargs)
    # In recent versions of torch, AdamW is a subclass of Adam.
    coupled = isinstance(built, _COUPLED) and not isinstance(built, torch.optim.AdamW)
    if weight_decay and coupled and not any(group.get("decoupled_weight_decay") for group in built.param_groups):
        warnings.warn(
            f"torch.optim.{type(built).__name__} adds weight decay to the gradient before normalizing it, so the effect of "
            f"weight decay changes with width. Use neuralop_mup.MuAdamW(model, lr=…, weight_decay={weight_decay:g}).",
            stacklevel=3,
        )
    return built


@needs_model
def MuAdamW(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    impl: Builder = torch.optim.AdamW,
    weight_decay: float = 1e-2,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """AdamW, or a similar optimizer ``impl``, with μP learning rates and independent weight decay.

    Parameters
    ----------
    model, lr
        See :func:`MuAdam`.
    impl : callable, default torch.optim.AdamW
        ``impl(groups, lr=…, **kwargs)`` builds the optimizer, e.g. ``neuralop.training.AdamW``.
    weight_decay : float, default 0.01
        Weight decay of the base model (see :func:`param_groups`).
    **kwargs
        Further arguments of :func:`MuAdam`, including ``lr_mult``.

    Returns
    -------
    torch.optim.Optimizer
        The optimizer that ``impl`` builds.

    Raises
    ------
    MupError
        See :func:`MuAdam`.

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


@needs_model
def MuSGD(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    impl: Builder = torch.optim.SGD,
    weight_decay: float = 0.0,
    lr_mult: Mapping[str, float] | None = None,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """SGD, or any SGD-like optimizer ``impl``, with μP learning rates.

    SGD only uses the width rule, because the mode rules are derived for Adam. Parametrize the model with ``rule="none"`` for
    SGD. With other rules, the initialization of kernels depends on the modes but their learning rates do not.

    Parameters
    ----------
    model, lr, weight_decay, lr_mult
        See :func:`MuAdam`.
    impl : callable, default torch.optim.SGD
        ``impl(groups, lr=…, **kwargs)`` builds the optimizer.
    **kwargs
        Arguments of ``impl``, such as ``momentum`` and ``nesterov``.

    Returns
    -------
    torch.optim.Optimizer
        The optimizer that ``impl`` builds.

    Raises
    ------
    MupError
        See :func:`MuAdam`.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 16}, rule="none")
    >>> optimizer = nm.MuSGD(model, lr=0.1, momentum=0.9)
    """
    return _build(model, impl, lr, "sgd", weight_decay, lr_mult, kwargs)


def _build(
    model: nn.Module,
    impl: Builder,
    lr: float,
    family: str,
    weight_decay: float,
    lr_mult: Mapping[str, float] | None,
    kwargs: Mapping[str, Any],
) -> torch.optim.Optimizer:
    """Build the optimizer from the plan's groups, and attach the hooks of :func:`follow_plan`."""
    for key in ("lr", "weight_decay"):
        if isinstance(impl, partial) and key in impl.keywords:
            raise MupError(
                f"impl is a partial with {key}={impl.keywords[key]!r}, but the {key} of each param group would override "
                f"it. Pass {key}={impl.keywords[key]!r} as a separate argument instead."
            )
    groups = param_groups(model, lr, family, weight_decay=weight_decay, lr_mult=lr_mult)
    try:
        optimizer = impl(groups, lr=_plain(lr), **kwargs)
    except (TypeError, ValueError) as error:  # invalid argument, or no support for groups, as in LBFGS
        check_names([name for name in kwargs if repr(name) in str(error)], MuAdam, impl)
        raise MupError(
            f"{getattr(impl, '__name__', 'impl')} does not accept param groups or one of the arguments: {error}. Pass an "
            "optimizer that supports several groups, such as impl=torch.optim.AdamW, and only arguments that it accepts."
        ) from error
    theirs = family_of(optimizer)
    if theirs not in (None, family):
        raise MupError(
            f"{type(optimizer).__name__} belongs to the family {theirs!r}, but these groups are for the family {family!r}. "
            f"Use neuralop_mup.{'MuSGD' if theirs == 'sgd' else 'MuAdam'}(model, lr=…, impl=…) with a learning rate tuned "
            "for this optimizer."
        )
    if hasattr(optimizer, "register_step_pre_hook"):  # impl may return a wrapper without hooks
        follow_plan(model, optimizer, family)
    return optimizer
