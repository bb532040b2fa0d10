"""What one optimizer step did: to kernels, to features, and with which learning rates.

A kernel is block-diagonal over Fourier modes, so the operator norm of its update ΔR is the largest over modes k of
‖ΔR_k‖, the spectral norm of a complex in × out matrix. The mode rule keeps just that in bounds as modes are added (Li,
Yoo, Yang, arXiv:2506.19396, Theorem 3.5), and the features' change is what the coordinate check looks at.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tltorch.factorized_tensors.core import FactorizedTensor
from tltorch.factorized_tensors.factorized_tensors import TTTensor
from torch import nn

from neuralop_mup.coord_check import features, rms
from neuralop_mup.errors import MupError
from neuralop_mup.following import effective_lrs
from neuralop_mup.parametrize import kernels_and_axes
from neuralop_mup.wrapping import is_sharded, unwrap

__all__ = ["Step", "kernels_of", "largest_norm", "update_stats"]

Inputs = torch.Tensor | Mapping[str, Any]
Record = dict[str, Any]

_EXACT = 1 << 20  # numbers times the smaller side: up to here all blocks are decomposed outright
_CANDIDATES = 4
_ITERATIONS = 3


def update_stats(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Inputs | None = None, closure: Callable | None = None
) -> list[Record]:
    """Take one step of ``optimizer`` (gradients are there) and measure what it did.

    Parameters
    ----------
    model : torch.nn.Module
        A model of known layers, parametrized or not.
    optimizer : torch.optim.Optimizer
        Its optimizer.
    inputs : tensor or dict, optional
        A batch of inputs, as the model is called with them (several: by name), on which features are compared, in
        evaluation mode. Without it no features are measured.
    closure : callable, optional
        Handed to ``optimizer.step``.

    Returns
    -------
    list of dict
        ``kind``, ``name``, ``value``:

        - ``kernel_update``, a convolution: max over modes of ‖ΔR_k‖, in the kernel's own units. Of a factorized kernel,
          that of the kernel that its factors make; of a separable one, where blocks are single numbers, the largest
          change of a modulus. Where blocks are many and large, the few with the largest estimates (power iteration)
          are decomposed.
        - ``feature`` and ``feature_update``, a block: RMS of its output before the step, and of the change.
        - ``lr``, a param group: the learning rate that the step was made with (``mode_mult`` included).

    Raises
    ------
    MupError
        If the model holds a parameter that no adapter claims, or is sharded; or ``inputs`` is no batch.
    """
    step = Step(model, inputs)
    optimizer.step() if closure is None else optimizer.step(closure)
    return step.compare(optimizer)


class Step:
    """The state of a model before a step, to be compared with what it is after."""

    def __init__(self, model: nn.Module, inputs: Inputs | None = None) -> None:
        self.model = unwrap(model)
        self.inputs = check_inputs(inputs)
        self._read = kernels_of(self.model)
        self._kernels = {name: read().detach().clone() for name, (read, _) in self._read.items()}
        self._features = self._look()

    def _look(self) -> dict[str, torch.Tensor]:
        return {} if self.inputs is None else features(self.model, self.inputs)

    def compare(self, optimizer: torch.optim.Optimizer) -> list[Record]:
        """Records of :func:`update_stats`."""
        records = [
            {"kind": "kernel_update", "name": name, "value": kernel_norm(read().detach() - self._kernels[name], axes)}
            for name, (read, axes) in self._read.items()
        ]
        for name, now in self._look().items():
            before = self._features[name]
            records.append({"kind": "feature", "name": name, "value": rms(before)})
            records.append({"kind": "feature_update", "name": name, "value": rms(now - before)})
        records += [{"kind": "lr", "name": name, "value": lr} for name, lr in effective_lrs(optimizer).items()]
        return records


def check_inputs(inputs: Any) -> Inputs | None:
    """Refuse what a model cannot be called with."""
    tensors = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    if inputs is not None and not any(isinstance(value, torch.Tensor) for value in tensors):
        raise MupError(
            f"The batch to measure features on is a {type(inputs).__name__}; give the model's input as a tensor, or "
            "several by name as the model's forward calls them, e.g. {'x': x}."
        )
    return inputs


def by_name(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs:
    """The arguments of a call of ``model`` as :func:`update_stats` takes them."""
    if len(args) == 1 and not kwargs:
        return args[0]
    names = list(inspect.signature(unwrap(model).forward).parameters)
    return {**dict(zip(names, args, strict=False)), **kwargs}


# ------------------------------------------------------------------------------------------------ kernels


def kernels_of(model: nn.Module) -> dict[str, tuple[Callable[[], torch.Tensor], tuple[str, ...]]]:
    """For each kernel, by its convolution's name, a function that reads it (complex, whole) and the kinds of its axes."""
    if is_sharded(model):
        raise MupError(
            f"The parameters of this {type(model).__name__} are sharded, so that no process has a whole kernel: measure "
            "updates in a run on one device, or under DistributedDataParallel."
        )
    result: dict[str, tuple[Callable[[], torch.Tensor], tuple[str, ...]]] = {}
    factors: dict[str, list[str]] = {}
    for name, kinds in kernels_and_axes(model).items():
        holder = _holder(model, name)
        axes = tuple(kind for kind in kinds if kind != "pair")
        if holder is None:
            # A layer of somebody else's: a plain parameter with channels and modes is a kernel.
            if any(kind.startswith("modes") for kind in axes) and not any(kind.startswith("rank") for kind in axes):
                result[name] = (_plain(model.get_parameter(name), "pair" in kinds), axes)
        elif name == f"{holder}.tensor":
            result[_short(holder)] = (model.get_submodule(holder).to_tensor, axes)
        elif ".factors." in name:
            position = 1 if isinstance(model.get_submodule(holder), TTTensor) else 0
            factors.setdefault(holder, []).append(axes[position])
    for holder, kinds in factors.items():
        result[_short(holder)] = (model.get_submodule(holder).to_tensor, tuple(kinds))
    return result


def _short(holder: str) -> str:
    return holder.removesuffix(".weight")


def _plain(parameter: nn.Parameter, pairs: bool) -> Callable[[], torch.Tensor]:
    return (lambda: torch.view_as_complex(parameter)) if pairs else (lambda: parameter)


def _holder(model: nn.Module, parameter: str) -> str | None:
    """The (factorized) tensor that a parameter belongs to."""
    path = parameter.split(".")[:-1]
    while path:
        if isinstance(model.get_submodule(".".join(path)), FactorizedTensor):
            return ".".join(path)
        path.pop()
    return None


def kernel_norm(kernel: torch.Tensor, axes: Sequence[str]) -> float:
    """Largest operator norm over a kernel's modes.

    Parameters
    ----------
    kernel : torch.Tensor
        Complex, one axis for each of ``axes``.
    axes : sequence of str
        Kinds of axis; channels are ``in…`` and ``out…``, all others number the blocks.
    """
    if torch.finfo(kernel.dtype).bits < 32:
        kernel = kernel.to(torch.complex64 if kernel.is_complex() else torch.float32)
    ins = [i for i, kind in enumerate(axes) if kind.startswith("in")]
    outs = [i for i, kind in enumerate(axes) if kind.startswith("out")]
    if not ins or not outs:
        return kernel.abs().max().item()
    rest = [i for i in range(len(axes)) if i not in (*ins, *outs)]
    return largest_norm(kernel.permute(*rest, *ins, *outs).flatten(0, len(rest) - 1))


def largest_norm(blocks: torch.Tensor) -> float:
    """Largest spectral norm of a stack of matrices ``(n, a, b)``; NaN if a number is not finite.

    Exact for small stacks. In others a few steps of power iteration estimate every norm, the better quarter goes on, and
    so forth; the last few blocks are decomposed. The result is the norm of one of the blocks, and within some 4 % of the
    largest where they are all alike (Gaussian noise); where some stand out, as in training, it is the largest.
    """
    if not torch.isfinite(torch.view_as_real(blocks) if blocks.is_complex() else blocks).all():
        return float("nan")
    if blocks.numel() * min(blocks.shape[-2:]) > _EXACT and len(blocks) > _CANDIDATES:
        generator = torch.Generator(blocks.device).manual_seed(0)  # the training's random state is left alone
        v = torch.randn(len(blocks), blocks.shape[-1], 1, dtype=blocks.dtype, device=blocks.device, generator=generator)
        while len(blocks) > _CANDIDATES:
            for _ in range(_ITERATIONS):
                v = v / v.norm(dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
                u = blocks @ v
                v = blocks.mH @ u
            best = u.norm(dim=(1, 2)).topk(max(_CANDIDATES, len(blocks) // 4)).indices
            blocks, v = blocks[best], v[best]
    return torch.linalg.svdvals(blocks).max().item()
