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
from torch import nn

from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.diagnostics.features import features, rms
from neuralop_mup.diagnostics.kernel_norms import kernel_norm, kernels_of
from neuralop_mup.errors import MupError
from neuralop_mup.optim.follow import effective_lrs

__all__ = ["Inputs", "Record", "Step", "by_name", "check_inputs", "update_stats"]

Inputs = torch.Tensor | Mapping[str, Any]
Record = dict[str, Any]


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
        - ``feature`` and ``feature_update``, a block: RMS of its output before the step, and of the change. A block that
          returns no tensor of numbers has none.
        - ``lr``, a param group: the learning rate that the step was made with.
        - ``mode_mult``, or another of a group's ``step_mults``: a factor that is in that learning rate.

    Raises
    ------
    MupError
        If the model holds a parameter that no adapter claims, or is sharded; or ``inputs`` is no batch.

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
        return records + [
            {"kind": mult, "name": group.get("name", str(i)), "value": group[mult]}
            for i, group in enumerate(optimizer.param_groups)
            for mult in group.get("step_mults", ())
        ]


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
