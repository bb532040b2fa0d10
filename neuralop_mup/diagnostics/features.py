"""What the blocks of a model return, and how large it is."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.parts import keeps_arguments


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


def features(
    model: nn.Module, x: torch.Tensor | Mapping[str, torch.Tensor], silent: dict[str, str] | None = None
) -> dict[str, torch.Tensor]:
    """Output of every block of ``model`` at ``x`` (several inputs: by name), from input to output.

    A block is a child of the model that holds parameters (each member of a ModuleList or ModuleDict counts as one; of a
    whole model inside a class that wraps it, its own blocks); a child that is
    called once a layer, as neuralop's FNOBlocks is, gives one entry a call: ``fno_blocks.0``, ``fno_blocks.1``, … Of a
    block that returns several tensors each is an entry, by its index, key or attribute: ``encoder[0]``, ``encoder.out``, …
    Features are real or complex tensors of one number or more: indices and masks are none.

    Blocks that were called and returned none are put into ``silent``, with the type that they returned.
    """
    seen: list[tuple[str, torch.Tensor]] = []

    def look(name: str, output: Any) -> None:
        found = list(_leaves(name, output))
        seen.extend([(name, found[0][1])] if len(found) == 1 else found)
        if not found and silent is not None:
            silent[name] = type(output).__name__

    with ExitStack() as hooks, evaluating(model), torch.no_grad():
        for name, block in _blocks(model):
            hooks.enter_context(block.register_forward_hook(lambda _m, _in, out, name=name: look(name, out)))
        call(model, x)
    counts, calls = Counter(name for name, _ in seen), Counter[str]()
    result = {}
    for name, value in seen:
        result[f"{name}.{calls[name]}" if counts[name] > 1 else name] = value
        calls[name] += 1
    return result


def _leaves(key: str, output: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of numbers in what a block returned, each by how it is reached."""
    entries: dict[str, Any] = {}
    if isinstance(output, torch.Tensor):
        if output.numel() and (output.is_floating_point() or output.is_complex()):
            yield key, output.detach()
    elif isinstance(output, Mapping):
        entries = {f"{key}[{k}]": value for k, value in output.items()}
    elif isinstance(output, (tuple, list)):
        entries = {f"{key}[{i}]": value for i, value in enumerate(output)}
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        entries = {f"{key}.{field.name}": getattr(output, field.name, None) for field in dataclasses.fields(output)}
    for name, value in entries.items():
        yield from _leaves(name, value)


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
