"""Measure the learning rates of an optimizer step and its effect on kernels and features.

The operator norm of a kernel's update ΔR is the maximum over modes k of ‖ΔR_k‖, where ΔR_k is an in × out block and ‖·‖ is
the spectral norm. The mode rule keeps this norm bounded as the number of modes grows (Li, Yoo, Yang, arXiv:2506.19396,
Theorem 3.5).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tltorch.factorized_tensors.core import FactorizedTensor
from tltorch.factorized_tensors.factorized_tensors import DenseTensor, TTTensor
from torch import nn

from neuralop_mup.core.parametrize import kernels_and_axes
from neuralop_mup.core.unwrap import is_sharded, unwrap
from neuralop_mup.diagnostics.features import features, rms
from neuralop_mup.errors import MupError
from neuralop_mup.optim.learning_rate import effective_lrs, factors

Inputs = torch.Tensor | Mapping[str, Any]
Record = dict[str, Any]

_EXACT = 1 << 20  # decompose all blocks if (number of entries) × (shorter side of a block) is at most this
_CANDIDATES = 4
_ITERATIONS = 3


def update_stats(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Inputs | None = None, closure: Callable | None = None
) -> list[Record]:
    """Take one step of ``optimizer`` with the current gradients, and measure its effect.

    Parameters
    ----------
    model : torch.nn.Module
        A model of described layers, parametrized or not.
    optimizer : torch.optim.Optimizer
        Optimizer of the model.
    inputs : tensor or dict, optional
        Input batch for comparing features in evaluation mode, or a dict of several inputs by name. By default, features are
        not measured.
    closure : callable, optional
        Passed to ``optimizer.step``.

    Returns
    -------
    list of dict
        Records with ``kind``, ``name`` and ``value``:

        - ``kernel_update``, per convolution: maximum over modes of ‖ΔR_k‖, in the kernel's units. Factorized kernels are
          reconstructed first. For separable kernels, it is the largest change of an entry. If there are many large blocks,
          power iteration selects the candidates for the maximum.
        - ``feature`` and ``feature_update``, per block: RMS of the block's output before the step, and RMS of its change.
          Blocks that do not return a floating-point tensor have no such records.
        - ``lr``, per param group: the learning rate of the step.
        - ``mode_mult``, ``learned_mult``, ``depth_mult``, ``schedule_factor``: factors of that learning rate.

    Raises
    ------
    MupError
        If the model has an undescribed parameter or is sharded, or if ``inputs`` is not a batch.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model, x = nm.parametrize(FNO((8,), 1, 1, 16)), torch.randn(4, 1, 16)
    >>> optimizer = nm.MuAdam(model)
    >>> model(x).square().mean().backward()
    >>> records = nm.update_stats(model, optimizer, x)
    >>> sorted({record["kind"] for record in records})
    ['feature', 'feature_update', 'kernel_update', 'lr']
    """
    step = Step(model, inputs)
    optimizer.step() if closure is None else optimizer.step(closure)
    return step.compare(optimizer)


class Step:
    """State of a model before a step, to be compared with its state after the step."""

    def __init__(self, model: nn.Module, inputs: Inputs | None = None) -> None:
        self.model = unwrap(model)
        self.inputs = check_inputs(inputs)
        self._read = kernels_of(self.model)
        self._kernels = {name: read().detach().clone() for name, (read, _) in self._read.items()}
        self._features = self._look()

    def _look(self) -> dict[str, torch.Tensor]:
        return {} if self.inputs is None else features(self.model, self.inputs)

    def compare(self, optimizer: torch.optim.Optimizer) -> list[Record]:
        """Return the records of :func:`update_stats`."""
        records = [
            {"kind": "kernel_update", "name": name, "value": kernel_norm(read().detach() - self._kernels[name], axes)}
            for name, (read, axes) in self._read.items()
        ]
        for name, now in self._look().items():
            records += [
                {"kind": "feature", "name": name, "value": rms(self._features[name])},
                {"kind": "feature_update", "name": name, "value": rms(now - self._features[name])},
            ]
        records += [{"kind": "lr", "name": name, "value": lr} for name, lr in effective_lrs(optimizer).items()]
        return records + [
            {"kind": kind, "name": group.get("name", str(i)), "value": mult}
            for i, group in enumerate(optimizer.param_groups)
            for kind, mult in factors(group).items()
        ]


def check_inputs(inputs: Any) -> Inputs | None:
    """Return ``inputs``; raise MupError if they contain no tensor."""
    tensors = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    if inputs is not None and not any(isinstance(value, torch.Tensor) for value in tensors):
        raise MupError(
            f"The batch for measuring features must be a tensor or a dict of tensors, got {type(inputs).__name__}. Pass the "
            "model's input as a tensor, or several inputs in a dict with their names in the model's forward, e.g. {'x': x}."
        )
    return inputs


def kernels_of(model: nn.Module) -> dict[str, tuple[Callable[[], torch.Tensor], tuple[str, ...]]]:
    """Return, for each convolution, a function that returns its full complex kernel, and the kinds of the kernel's axes."""
    if is_sharded(model):
        raise MupError(
            f"The parameters of this {type(model).__name__} are sharded, so no process holds a complete kernel. Measure "
            "updates on one device, or under DistributedDataParallel."
        )
    axes_of, result = kernels_and_axes(model), {}
    tensors: dict[str, Any] = {name: m for name, m in model.named_modules() if isinstance(m, FactorizedTensor)}
    for name, tensor in tensors.items():
        if isinstance(tensor, DenseTensor):
            axes = _without_pairs(axes_of[f"{name}.tensor"])
        else:
            # TT factors have shape (rank, size, rank), others have (size, rank)
            size = 1 if isinstance(tensor, TTTensor) else 0
            axes = tuple(axes_of[f"{name}.factors.{key}"][size] for key in tensor.factors.keys)
        result[name.removesuffix(".weight")] = (tensor.to_tensor, axes)
    for name, kinds in axes_of.items():
        # In layers of other packages, a plain parameter with channel and mode axes is a kernel.
        if not any(name.startswith(f"{tensor}.") for tensor in tensors) and any(kind.startswith("modes") for kind in kinds):
            result[name] = (partial(_as_complex, model.get_parameter(name), kinds), _without_pairs(kinds))
    return result


def _without_pairs(kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(kind for kind in kinds if kind != "pair")


def _as_complex(parameter: nn.Parameter, kinds: Sequence[str]) -> torch.Tensor:
    if "pair" not in kinds:
        return parameter
    return torch.view_as_complex(parameter.movedim(kinds.index("pair"), -1).contiguous())


def kernel_norm(kernel: torch.Tensor, axes: Sequence[str]) -> float:
    """Return the maximum of the operator norms of a kernel's modes.

    Parameters
    ----------
    kernel : torch.Tensor
        Complex kernel with one axis per entry of ``axes``.
    axes : sequence of str
        Kinds of the axes. Kinds of channel axes start with ``in`` or ``out``. The other axes index the blocks.
    """
    ins = [i for i, kind in enumerate(axes) if kind.startswith("in")]
    outs = [i for i, kind in enumerate(axes) if kind.startswith("out")]
    if not ins or not outs:
        return kernel.abs().max().item()
    rest = [i for i in range(len(axes)) if i not in (*ins, *outs)]
    return largest_norm(kernel.permute(*rest, *ins, *outs).flatten(0, len(rest) - 1))


def largest_norm(blocks: torch.Tensor) -> float:
    """Return the largest spectral norm of a stack of matrices ``(n, a, b)``; NaN if an entry is not finite.

    Small stacks are decomposed. In larger stacks, power iteration selects candidates, so the result is the norm of one of
    the blocks. For Gaussian noise, it is within about 4 % of the largest norm. If some blocks are much larger than the
    others, as during training, it is the largest norm.
    """
    if not torch.isfinite(torch.view_as_real(blocks) if blocks.is_complex() else blocks).all():
        return float("nan")
    if blocks.numel() * min(blocks.shape[-2:]) > _EXACT and len(blocks) > _CANDIDATES:
        # a separate generator leaves the global random state unchanged
        generator = torch.Generator(blocks.device).manual_seed(0)
        v = torch.randn(len(blocks), blocks.shape[-1], 1, dtype=blocks.dtype, device=blocks.device, generator=generator)
        while len(blocks) > _CANDIDATES:
            for _ in range(_ITERATIONS):
                v = v / v.norm(dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
                u = blocks @ v
                v = blocks.mH @ u
            best = u.norm(dim=(1, 2)).topk(max(_CANDIDATES, len(blocks) // 4)).indices
            blocks, v = blocks[best], v[best]
    return torch.linalg.svdvals(blocks).max().item()
