"""What a user gives besides sizes: multipliers by role and of kernels as wholes, and how the training differs at base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from neuralop_mup.core.rules import ROLES, Size
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.validation import check_count, is_multiplier

__all__ = ["KERNEL_INITS", "check_multipliers", "check_training", "init_multipliers", "with_steps"]

# Names of kernel initialisations, and what they make of neuralop's own. Its blocks have operator norm 2, as against about
# 1 of the skip beside them; a tenth of that lets each layer begin as its skip (benchmarks/suite.py init of commit b7062af).
KERNEL_INITS = {"default": 1.0, "small": 0.1}


def init_multipliers(values: Mapping[str, float] | None, kernel_init: str = "default") -> dict[str, float]:
    """Validate multipliers of init by role, and ``kernel``, which ``kernel_init`` names a value of."""
    if kernel_init not in KERNEL_INITS:
        raise MupError(f"kernel_init is {kernel_init!r}; {nearest(str(kernel_init), KERNEL_INITS)}")
    mults = check_multipliers(values, "init_mult", (*ROLES, "kernel"))
    if kernel_init != "default":
        if "kernel" in mults:
            raise MupError(
                f"kernel_init = {kernel_init!r} and init_mult['kernel'] = {mults['kernel']} both say how large kernels "
                "start; give one of them."
            )
        mults["kernel"] = KERNEL_INITS[kernel_init]
    return mults


def check_multipliers(values: Mapping[str, float] | None, what: str, known: Sequence[str] = ROLES) -> dict[str, float]:
    """Validate multipliers by role: known roles, positive finite numbers."""
    if not isinstance(values, (Mapping, type(None))):
        raise MupError(f"{what} is {values!r}; give a dict by role, such as {{'readout': 0.5}}.")
    values = dict(values or {})
    for role, value in values.items():
        if role not in known:
            raise MupError(f"{what} has no role {role!r}: {nearest(str(role), known)}")
        if not is_multiplier(value):
            raise MupError(f"{what}[{role!r}] is {value!r}; give a number between 1e-12 and 1e12.")
    return {role: float(value) for role, value in values.items()}


def check_training(values: Mapping[str, Any] | None) -> dict[str, tuple[int, int]]:
    """Validate how the training differs from base's: ``{"steps": (base's, the run's)}``, base's being no more."""
    if values is None or values == {}:
        return {}
    if not isinstance(values, Mapping) or values.keys() != {"steps"}:
        raise MupError(
            f"training is {values!r}; give a dict such as {{'steps': (300, 3000)}}: at base, and here. Learning rates are "
            "carried over steps alone: samples and resolution need no rule, and for batch size none was found to hold "
            "(docs/howto/proxy.md)."
        )
    pair = values["steps"]
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise MupError(f"training['steps'] is {pair!r}; give two numbers, such as (300, 3000): at base, and here.")
    for number in pair:
        check_count("training['steps']", number, "steps")
    if pair[0] > pair[1]:
        raise MupError(
            f"training['steps'] is {pair!r}: base trains longer than this run, so tuning it saves nothing, and the rule "
            "was measured for runs that get longer. Give base no more steps than the run, in this order."
        )
    return {"steps": (int(pair[0]), int(pair[1]))}


def with_steps(training: Mapping[str, tuple[int, int]], size: Size, base: Size) -> tuple[Size, Size]:
    """Both sizes with the numbers of steps that the training has here and at base, where those differ."""
    at_base, here = training.get("steps", (1, 1))
    return (size, base) if at_base == here else (replace(size, steps=here), replace(base, steps=at_base))
