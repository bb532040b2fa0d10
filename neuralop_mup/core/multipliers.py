"""Multipliers by role, which a user gives on top of the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neuralop_mup.core.rules import ROLES
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.validation import is_multiplier

# Roles, and Fourier kernels as wholes, where "spectral" is each factor of a factorized one.
OF_INIT = (*ROLES, "kernel")
# neuralop's kernels have blocks of operator norm 2, as against about 1 of the skip beside them; a tenth of that lets each
# layer begin as its skip (benchmarks/suite.py init of commit b7062af, docs/evidence/optimizers.md).
SMALL_KERNELS = {"kernel": 0.1}


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
