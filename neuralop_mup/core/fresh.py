"""Freshly drawn weights are told from trained, loaded or rescaled ones: the rules correct neuralop's own initialisation."""

import math

import torch
from torch import nn

from neuralop_mup.core.plan import Plan, Row
from neuralop_mup.errors import MupError

# Weights whose RMS is further off were not drawn as neuralop draws them; that of few numbers scatters, by 1/√(2n).
_ENOUGH = 64
_TOLERANCE, _DEVIATIONS = 1.25, 5
_SAMPLE = 65536  # a kernel may hold a billion numbers
_SURE = 100.0  # fresh weights look like rescaled ones in one of 10¹² models


def check_fresh(model: nn.Module, plan: Plan) -> None:
    """Refuse weights that were trained, loaded or rescaled: the rule corrects neuralop's own initialisation alone.

    Weights of zero are taken as they are, since every multiplier leaves them so. Four things give the others away: a root
    mean square that is not the default one; all of them together closer to this very
    plan's multipliers than to 1 (weights that were scaled by it, then loaded into a new model); torch's uniform draw
    left its bounds, and gates and norms are no longer ones and zeros, as happens in the first step of training.

    Raises
    ------
    MupError
        If the weights are not fresh.
    """
    parameters = dict(model.named_parameters())
    to_fresh = to_scaled = apart = 0.0
    for row in plan.rows:
        p = parameters[row.name].detach()
        if row.fixed:
            continue  # it is left as it is, whatever it is
        if row.init == "constant" and not (p == p.round().clamp(0, 1)).all():
            raise _not_fresh(row, "is not constant, as its default initialisation is")
        if row.default_std is None:
            continue
        # torch draws real and imaginary part each as it draws a real number.
        std = row.default_std * (2**0.5 if row.init == "fan_in" and p.is_complex() else 1)
        sample = p.flatten()[:: max(1, p.numel() // _SAMPLE)]
        ratio = sample.abs().square().mean().sqrt().item() / std
        if ratio == 0:
            continue
        parts = torch.view_as_real(sample) if sample.is_complex() else sample
        is_of_one_sign = sample.numel() >= _ENOUGH and bool((parts >= 0).all() or (parts <= 0).all())
        if is_of_one_sign and row.init == "own" and row.size is not None and row.size.modes and not row.size.one_sign:
            raise MupError(
                f"All numbers of the kernel {row.name!r} have one sign, which the registration of {row.layer} does not say. "
                "Their mean grows differently with the width: write nm.Param(…, one_sign=True)."
            )
        scatter = _DEVIATIONS / (2 * sample.numel()) ** 0.5
        least, most = min(1 / _TOLERANCE, 1 - scatter), max(_TOLERANCE, 1 + scatter)
        if p.numel() >= _ENOUGH and not least < ratio < most:
            raise _not_fresh(row, f"has a root mean square of {ratio:.3g} times its default initialisation")
        bound = 3**0.5 * std * (1 + 4 * torch.finfo(p.dtype).eps)
        if row.init == "fan_in" and (largest := p.abs().max().item()) > bound:
            raise _not_fresh(row, f"reaches {largest:.4g}, beyond the {bound:.4g} of its default initialisation")
        apart += min(p.numel(), _SAMPLE) * math.log(row.init_mult) ** 2
        to_fresh += sample.numel() * math.log(ratio) ** 2
        to_scaled += sample.numel() * math.log(ratio / row.init_mult) ** 2
    if apart > _SURE and to_scaled < to_fresh:
        raise MupError(
            f"The weights of this {type(model).__name__} are scaled by this very plan already, and rescaling twice would "
            "ruin them (were they loaded from a checkpoint?): neuralop_mup.load_plan attaches the plan that they were "
            "saved with, parametrize(…, init=False) a plan of your own."
        )


def _not_fresh(row: Row, what: str) -> MupError:
    doubt = (
        f" If it is fresh, the registration of {row.layer} is wrong: Param's init says how the constructor draws it "
        "('fan_in', 'mean_fan', …, or a function of its shape that returns its root mean square)."
    )
    return MupError(
        f"Parameter {row.name!r} {what}, which the rule would correct: it was trained, rescaled or initialised in another "
        "way. Parametrize a freshly built model, or pass init=False to leave the weights as they are (MuSOAP takes the "
        "lower rate of trained weights then; lr gives another)."
        f"{doubt if row.init == 'own' else ''}"
    )
