"""What the blocks of a model return, and how large it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.parts import keeps_arguments

__all__ = ["call", "evaluating", "features", "features_and_silent", "inputs_of", "rms"]


def inputs_of(batch: Mapping[str, torch.Tensor]) -> torch.Tensor | dict[str, torch.Tensor]:
    inputs = {key: value for key, value in batch.items() if key != "y"}
    return inputs["x"] if inputs.keys() == {"x"} else inputs


def call(model: nn.Module, inputs: torch.Tensor | Mapping[str, torch.Tensor]) -> torch.Tensor:
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and afterwards each of its parts as it was: a part may be in eval mode by itself."""
    training = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in training:
            module.training = mode


def features(model: nn.Module, x: torch.Tensor | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Output of every block of ``model`` at ``x`` (several inputs: by name), from input to output.

    A block is a child of the model that holds parameters (each member of a ModuleList or ModuleDict counts as one; of a
    whole model inside a class that wraps it, its own blocks); a child that is
    called once a layer, as neuralop's FNOBlocks is, gives one entry a call: ``fno_blocks.0``, ``fno_blocks.1``, … Of a
    block that returns several tensors each is an entry, by its index, key or attribute: ``encoder[0]``, ``encoder.out``, …
    Features are real or complex tensors of one number or more: indices and masks are none.
    """
    return features_and_silent(model, x)[0]


def features_and_silent(
    model: nn.Module, x: torch.Tensor | Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """:func:`features`, and the blocks that were called and returned none, with the type that they returned."""
    seen: list[tuple[str, torch.Tensor]] = []
    silent: dict[str, str] = {}

    def look(name: str, output: Any) -> None:
        found = _tensors(name, output)
        seen.extend(found)
        if not found:
            silent[name] = type(output).__name__

    hooks = [
        module.register_forward_hook(lambda _m, _in, out, name=name: look(name, out)) for name, module in _blocks(model)
    ]
    try:
        with evaluating(model), torch.no_grad():
            call(model, x)
    finally:
        for hook in hooks:
            hook.remove()
    names = [name for name, _ in seen]
    calls: dict[str, int] = {}
    result = {}
    for name, value in seen:
        index = calls[name] = calls.get(name, -1) + 1
        result[f"{name}.{index}" if names.count(name) > 1 else name] = value
    return result, silent


def _tensors(name: str, output: Any) -> list[tuple[str, torch.Tensor]]:
    """What a block returned, tensor by tensor; a single one goes by the block's own name."""
    found = list(_leaves("", output))
    return [(name if len(found) == 1 else name + key, value.detach()) for key, value in found]


def _leaves(key: str, output: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(output, torch.Tensor):
        if output.numel() and (output.is_floating_point() or output.is_complex()):
            yield key, output
    elif isinstance(output, (tuple, list, Mapping)):
        for k, value in output.items() if isinstance(output, Mapping) else enumerate(output):
            yield from _leaves(f"{key}[{k}]", value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from _leaves(f"{key}.{field.name}", getattr(output, field.name, None))


def _blocks(model: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    blocks = []
    for name, child in model.named_children():
        # A class that only wraps a model has that model's blocks.
        wraps = not keeps_arguments(model) and keeps_arguments(child) and bool(_blocks(child))
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) or wraps:
            blocks += _blocks(child, f"{prefix}{name}.")
        elif any(True for _ in child.parameters()):
            blocks.append((prefix + name, child))
    return blocks


def rms(x: torch.Tensor) -> float:
    """Root mean square of |x|, in float64; complex entries count by their modulus."""
    x = torch.view_as_real(x).double().square().sum(-1) if x.is_complex() else x.double().square()
    return x.mean().sqrt().item()
