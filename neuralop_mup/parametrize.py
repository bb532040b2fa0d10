"""A plan applied to a model in place, once; undone; saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from neuralop_mup.errors import MupError
from neuralop_mup.infshape import save_shapes
from neuralop_mup.plan import Plan, make_plan

__all__ = ["get_plan", "is_parametrized", "parametrize", "save_base_shapes", "summary", "unparametrize"]

_ATTRIBUTE = "_neuralop_mup_plan"
_SCALED = "_neuralop_mup_scaled"
# The RMS of this many numbers scatters by about 3 % or less; weights this far off were not drawn as neuralop draws them.
_ENOUGH = 1024
_STOCK_TOLERANCE = 1.25
Model = TypeVar("Model", bound=nn.Module)


def parametrize(
    model: Model,
    base: Mapping | nn.Module | Callable[[], nn.Module] | str | os.PathLike,
    rule: str = "log-modes",
    *,
    init: bool = True,
    init_mult: Mapping[str, float] | None = None,
    correct_tt: bool = False,
) -> Model:
    """Put a freshly constructed model into maximal update parametrization, in place.

    Weights are rescaled from the stock initialisation; forward, class and ``state_dict`` keys stay as they are. At base
    shapes nothing changes, bit for bit. Build the optimizer afterwards (:func:`neuralop_mup.MuAdam`, …).

    Parameters
    ----------
    model : torch.nn.Module
        A model of ``neuralop.models``, or of layers known through :func:`neuralop_mup.register_layer`, not yet trained
        (see ``init``).
    base : mapping, torch.nn.Module, callable or path
        The size at which hyperparameters were (or will be) tuned: constructor overrides such as
        ``{"hidden_channels": 32, "n_modes": (12, 12)}``, a model, a function that returns one, or a file from
        :func:`save_base_shapes` or from mup. UNO and CODANO keep no constructor arguments, so they take no overrides.
    rule : {"log-modes", "operator-norm", "none", "standard"}
        How kernels scale with Fourier modes on top of the width rule. ``log-modes`` is Theorem 3.5 of the paper below;
        ``operator-norm`` its finite-size form; ``none`` scales with width alone; ``standard`` is no μP at all, for
        comparison.
    init : bool
        False attaches the plan (and so the learning rates) without rescaling: for weights that are already trained.
    init_mult : mapping, optional
        Master multipliers of init by role, e.g. ``{"readout": 0.5}``, on top of the rule: tuned on the proxy, carried
        to the target. Roles: input, hidden, readout, vector, spectral.
    correct_tt : bool
        neuralop draws a tensor-train kernel √(∏ ranks) times smaller than it means to. By default that stays as it is
        at base; True brings such kernels to the std that a dense one has, at base too. Hyperparameters tuned with one
        setting are not those of the other.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    MupError
        If the model was parametrized before, or its weights are not as neuralop draws them (and ``init`` is True); a
        parameter is of unknown role, frozen or shared; base differs in more than sizes, or its file is unreadable; modes
        are odd; or every axis has K = 1 under ``log-modes``. The model is then as it was.

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
    """
    plan = replace(make_plan(model, base, rule, init_mult, correct_tt), init_applied=init)
    parameters = dict(model.named_parameters())
    _check_untouched(model, parameters, init)
    if init:
        _check_stock_init(plan, parameters)
    with torch.no_grad():
        for row in plan.rows:
            if init and row.init_mult != 1:
                parameters[row.name].mul_(row.init_mult)
    setattr(model, _ATTRIBUTE, plan)
    _attach_shapes(model, plan)
    if init:
        setattr(model, _SCALED, True)
    return model


def _check_untouched(model: nn.Module, parameters: Mapping[str, nn.Parameter], init: bool) -> None:
    """Rescaling twice would ruin the weights, so whatever carries a trace of a first time is refused."""
    if any(is_parametrized(module) for module in model.modules()) or any(
        hasattr(p, "infshape") for p in parameters.values()
    ):
        raise MupError(
            f"This {type(model).__name__} is parametrized already, by this package or by mup, and rescaling twice would "
            "ruin its weights: build a new model, or neuralop_mup.unparametrize it and pass init=False."
        )
    if init and any(hasattr(module, _SCALED) for module in model.modules()):
        raise MupError(
            f"The weights of this {type(model).__name__} were rescaled by an earlier parametrize: build a new model, or "
            "pass init=False to attach a plan and leave the weights as they are."
        )


def _check_stock_init(plan: Plan, parameters: Mapping[str, nn.Parameter]) -> None:
    """The rule corrects neuralop's own initialisation, so that has to be what the weights are."""
    for row in plan.rows:
        p = parameters[row.name].detach()
        if p.is_meta:
            raise MupError(
                f"Parameter {row.name!r} is on the meta device, where there is nothing to rescale: materialise and "
                "initialise the model first, or pass init=False to attach the plan alone."
            )
        if row.stock_std is None or p.numel() < _ENOUGH:
            continue
        sample = p.flatten()[:: max(1, p.numel() // 65536)]  # a sample: a kernel may hold a billion numbers
        ratio = sample.abs().square().mean().sqrt().item() / row.stock_std
        if not 1 / _STOCK_TOLERANCE < ratio < _STOCK_TOLERANCE:
            raise MupError(
                f"Parameter {row.name!r} has a root mean square of {ratio:.3g} times its stock initialisation, which the "
                "rule would correct: it was trained, rescaled or initialised in another way. Parametrize a freshly built "
                "model, or pass init=False to leave the weights as they are."
            )


def _attach_shapes(model: nn.Module, plan: Plan) -> None:
    """Give each parameter the ``infshape`` that mup reads, unless it has it."""
    parameters = dict(model.named_parameters())
    for row in plan.rows:
        if row.name in parameters and not hasattr(parameters[row.name], "infshape"):
            parameters[row.name].infshape = row.mup_shape()


def unparametrize(model: Model) -> Model:
    """Take the plan off a model; its weights stay as they are.

    To attach another plan afterwards pass ``init=False`` to :func:`parametrize`: the weights are scaled already.

    Raises
    ------
    MupError
        If the model is not parametrized.
    """
    get_plan(model)
    delattr(model, _ATTRIBUTE)
    for parameter in model.parameters():
        if hasattr(parameter, "infshape"):
            del parameter.infshape
    return model


def is_parametrized(model: nn.Module) -> bool:
    """Whether :func:`parametrize` was applied to ``model``."""
    return hasattr(model, _ATTRIBUTE)


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
    if not is_parametrized(model):
        raise MupError(
            f"This {type(model).__name__} is not parametrized: call neuralop_mup.parametrize(model, base=…) first, "
            "then build the optimizer."
        )
    plan = getattr(model, _ATTRIBUTE)
    _attach_shapes(model, plan)  # a deep copy (UQNO's residual model) keeps the plan, but its parameters lose theirs
    return plan


def summary(model: nn.Module) -> Plan:
    """What was made of each parameter: print it, or take ``.to_markdown()`` or ``.to_json()``.

    Raises
    ------
    MupError
        If the model is not parametrized.
    """
    return get_plan(model)


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
    """
    if isinstance(model, nn.Module) and is_parametrized(model):
        shapes = {row.name: row.mup_shape() for row in get_plan(model).rows}
    else:
        shapes = {row.name: row.mup_shape() for row in make_plan(model, model, "standard").rows}
    save_shapes(shapes, path)
