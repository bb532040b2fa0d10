"""Check that weights have their default initialization, which the rules assume."""

import math
from collections.abc import Iterator

import torch
from torch import nn

from neuralop_mup.core.plan import ParamPlan, Plan
from neuralop_mup.errors import MupError

# With fewer numbers n, the root mean square fluctuates too much, by about 1/√(2n).
_ENOUGH = 64
_TOLERANCE, _DEVIATIONS = 1.25, 5
_SAMPLE = 65536  # largest number of entries to read, because a kernel may have a billion
_SURE = 100.0  # at this threshold, fresh weights are mistaken for rescaled weights in one of 10¹² models


def check_init(model: nn.Module, plan: Plan) -> None:
    """Raise MupError if weights were trained, loaded, rescaled or initialized differently from the default.

    Zero weights pass, because multipliers do not change them. Any of three conditions raises an error:

    1. The root mean square of a parameter differs from its default.
    2. An entry lies outside the bounds of torch's uniform distribution, or an entry of a gate or norm is neither one nor
       zero. One training step is sufficient for this.
    3. Taken together, the ratios to the default are closer to this plan's multipliers than to 1. The plan has then already
       scaled the weights.
    """
    for row, what in _differences(model, plan, scaled=False):
        registration = (
            f" If the parameter is untrained, correct the init of its Param in the registration of {row.layer} to "
            "'fan_in', 'mean_fan', …, or a function of the shape that returns the root mean square."
        )
        raise MupError(
            f"Parameter {row.name!r} {what}. It was trained, rescaled or initialized differently, so the rule would scale "
            "it incorrectly. Parametrize a new model, or pass init=False to keep the weights (MuSOAP then uses the lower "
            f"learning rate for trained weights).{registration if row.init == 'own' else ''}"
        )
    parameters, to_fresh, to_scaled, apart = dict(model.named_parameters()), 0.0, 0.0, 0.0
    for row in plan.rows:
        if (ratio := _ratio(row, parameters[row.name].detach())) is not None:
            n = min(parameters[row.name].numel(), _SAMPLE)
            apart += n * math.log(row.init_mult) ** 2
            to_fresh += n * math.log(ratio) ** 2
            to_scaled += n * math.log(ratio / row.init_mult) ** 2
    if apart > _SURE and to_scaled < to_fresh:
        raise MupError(
            f"This plan already scaled the weights of this {type(model).__name__}, perhaps before they were loaded from a "
            "checkpoint. Scaling them twice would be incorrect. Attach their saved plan with neuralop_mup.load_plan, or a "
            "new plan with parametrize(…, init=False)."
        )


def looks_drawn(model: nn.Module, plan: Plan) -> bool:
    """Return whether the weights look untrained, that is, drawn by their constructors and scaled by the plan."""
    return next(_differences(model, plan, scaled=True), None) is None


def _differences(model: nn.Module, plan: Plan, scaled: bool) -> Iterator[tuple[ParamPlan, str]]:
    """Yield each parameter that differs from its (scaled) default initialization, with a description of the difference."""
    parameters = dict(model.named_parameters())
    for row in plan.rows:
        p, mult = parameters[row.name].detach(), row.init_mult if scaled else 1.0
        p = p.to_local() if hasattr(p, "to_local") else p  # each process checks its own shard
        if row.fixed or p.numel() == 0:
            continue  # parametrize does not change fixed parameters
        if row.init == "constant" and not ((q := p / mult) == q.round().clamp(0, 1)).all():
            yield row, "is not constant, although its default initialization is"
        if (ratio := _ratio(row, p)) is None:
            continue
        parts = torch.view_as_real(p) if p.is_complex() else p
        has_one_sign = p.numel() >= _ENOUGH and bool((parts >= 0).all() or (parts <= 0).all())
        if has_one_sign and row.init == "own" and row.size is not None and row.size.modes and not row.size.one_sign:
            yield row, f"only has values of one sign, but the registration of {row.layer} does not set one_sign=True"
        scatter = _DEVIATIONS / (2 * min(p.numel(), _SAMPLE)) ** 0.5
        if p.numel() >= _ENOUGH and not min(1 / _TOLERANCE, 1 - scatter) < ratio / mult < max(_TOLERANCE, 1 + scatter):
            yield row, f"has a root mean square of {ratio / mult:.3g} times its default initialization"
        bound = 3**0.5 * _std(row, p) * mult * (1 + 4 * torch.finfo(p.dtype).eps)
        if row.init == "fan_in" and (largest := p.abs().max().item()) > bound:
            yield row, f"has a value of {largest:.4g}, above the bound {bound:.4g} of its default initialization"


def _std(row: ParamPlan, p: torch.Tensor) -> float:
    # torch draws the real and imaginary parts of a complex number separately, each like a real number.
    return (row.default_std or 0.0) * (2**0.5 if row.init == "fan_in" and p.is_complex() else 1)


def _ratio(row: ParamPlan, p: torch.Tensor) -> float | None:
    """Return the root mean square divided by its default, or None for weights that are zero or not random."""
    if row.fixed or row.default_std is None:
        return None
    sample = p.flatten()[:: max(1, p.numel() // _SAMPLE)]
    return sample.abs().square().mean().sqrt().item() / _std(row, p) or None
