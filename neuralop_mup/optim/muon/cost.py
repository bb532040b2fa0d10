"""What a step costs, from shapes alone: operations and optimizer memory, beside Adam's."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.optim.kernels.layouts import block_shape, matrix_layouts, turn
from neuralop_mup.optim.muon.newton_schulz import STEPS

__all__ = ["StepCost", "step_cost"]

# Adam on one real number: two averages (3 each), a root, a division, eps, and the update (3).
_ADAM = 12


@dataclass(frozen=True)
class StepCost:
    """Predicted costs of one optimizer step.

    Attributes
    ----------
    orthogonalize : float
        Floating-point operations of MuMuon's matrix products, mean over a period.
    adam : float
        Floating-point operations of Adam on the whole model. They wait for memory, those of products do not: compare
        times by measuring (benchmarks/muon_step.py).
    state_bytes, adam_state_bytes : int
        Optimizer memory in buffers of the parameters' size: one for kernels and hidden layers,
        two for the rest; Adam has two for all.
    """

    orthogonalize: float
    adam: float
    state_bytes: int
    adam_state_bytes: int


def block_flops(m: int, n: int, is_complex: bool) -> int:
    """Operations in the products that orthogonalize one m×n block.

    A real product of m×m by m×n takes 2 m² n. With m ≤ n, each polynomial takes one for the Gram matrix, one for each of
    its squares, and one to apply them; complex blocks take two, two and three real products for each.
    """
    m, n = sorted((m, n))
    if m == 1:
        return 0
    gram, power, apply = (2, 2, 3) if is_complex else (1, 1, 1)
    squares = sum(1 + len(step.shifts) for step in STEPS)
    return 2 * m * m * (len(STEPS) * (gram + apply) * n + squares * power * m)


def step_cost(model: nn.Module, period: int = 1) -> StepCost:
    """Predict what a step of :class:`~neuralop_mup.MuMuon` costs.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model, on any device (also ``meta``).
    period : int
        As given to MuMuon.
    """
    model = unwrap(model)
    parameters = dict(model.named_parameters())
    layouts = matrix_layouts(model, {row.name: row for row in get_plan(model).rows})
    flops, saved = 0.0, 0
    for name, layout in layouts.items():
        p = parameters[name]
        paired = p.ndim > len(layout)
        blocks = p.numel() // (2 if paired else 1)
        n_in, n_out = block_shape(p, layout)
        blocks //= n_in * n_out
        flops += blocks * block_flops(n_in, n_out, paired or p.is_complex()) / turn(p, layout, "lcb", period, 0)[1]
        saved += p.numel() * p.element_size()
    numbers = sum(p.numel() * (2 if p.is_complex() else 1) for p in parameters.values())
    adam_state = 2 * sum(p.numel() * p.element_size() for p in parameters.values())
    return StepCost(flops, float(_ADAM * numbers), adam_state - saved, adam_state)
