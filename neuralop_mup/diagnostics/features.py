"""Compute the outputs of a model's blocks and their root mean square."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.arguments import keeps_arguments


def inputs_of(batch: Mapping[str, torch.Tensor]) -> torch.Tensor | dict[str, torch.Tensor]:
    inputs = {key: value for key, value in batch.items() if key != "y"}
    return inputs["x"] if inputs.keys() == {"x"} else inputs


def call(model: nn.Module, inputs: torch.Tensor | Mapping[str, torch.Tensor]) -> torch.Tensor:
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def call_with_hooks(model: nn.Module, inputs: Any, hooks: Mapping[str, Callable]) -> Any:
    """Call the model in evaluation mode with temporary forward hooks on the named modules, then restore all modes."""
    with ExitStack() as afterwards:
        for module in model.modules():  # submodules may be in different modes
            afterwards.callback(setattr, module, "training", module.training)
        for name, hook in hooks.items():
            afterwards.enter_context(model.get_submodule(name).register_forward_hook(hook))
        model.eval()
        return call(model, inputs)


def features(model: nn.Module, x: torch.Tensor | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the output of every block of ``model`` on ``x``, ordered from input to output.

    ``x`` is a tensor, or a dict of inputs by name. A block is a child module that has parameters. Each member of a
    ModuleList or ModuleDict is a block. If a class only wraps another model, the blocks are those of the wrapped model. A
    child that is called once per layer, such as neuralop's FNOBlocks, has one entry per call: ``fno_blocks.0``,
    ``fno_blocks.1``, … If a block returns several tensors, each has an entry with its index or key: ``encoder[0]``,
    ``encoder[out]``, … Only non-empty tensors with a real or complex floating-point dtype are included.
    """
    seen: list[tuple[str, torch.Tensor]] = []

    def look(block: str, _module: nn.Module, _args: tuple, output: Any) -> None:
        found = list(_leaves(block, output))
        if not found:
            warnings.warn(
                f"The block {block} returns a {type(output).__name__} without floating-point tensors, so it is not "
                "measured. Return a tensor, or a tuple, list or dict of tensors.",
                stacklevel=1,
            )
        seen.extend((name if len(found) > 1 else block, value) for name, value in found)

    with torch.no_grad():
        call_with_hooks(model, x, {block: partial(look, block) for block in _blocks(model)})
    names = [name for name, _ in seen]
    return {
        f"{name}.{names[:i].count(name)}" if names.count(name) > 1 else name: value for i, (name, value) in enumerate(seen)
    }


def _leaves(key: str, output: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each floating-point tensor in a block's output together with its path."""
    if isinstance(output, (tuple, list)):
        output = dict(enumerate(output))
    if isinstance(output, Mapping):
        for k, value in output.items():
            yield from _leaves(f"{key}[{k}]", value)
    elif isinstance(output, torch.Tensor) and output.numel() and (output.is_floating_point() or output.is_complex()):
        yield key, output.detach()


def _blocks(model: nn.Module, prefix: str = "") -> Iterator[str]:
    for name, child in model.named_children():
        # If a class only wraps another model, use the blocks of that model.
        wraps = not keeps_arguments(model) and keeps_arguments(child) and any(_blocks(child))
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) or wraps:
            yield from _blocks(child, f"{prefix}{name}.")
        elif any(True for _ in child.parameters()):
            yield prefix + name


def rms(x: torch.Tensor) -> float:
    """Return the root mean square of |x|, computed in float64."""
    x = torch.view_as_real(x).double().square().sum(-1) if x.is_complex() else x.double().square()
    return x.mean().sqrt().item()
