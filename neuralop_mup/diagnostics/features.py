"""What the blocks of a model return, and how large it is."""

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
    """The output in evaluation mode, with a forward hook on each of these modules. Afterwards all is as it was."""
    with ExitStack() as afterwards:
        for module in model.modules():  # a part may be in eval mode by itself
            afterwards.callback(setattr, module, "training", module.training)
        for name, hook in hooks.items():
            afterwards.enter_context(model.get_submodule(name).register_forward_hook(hook))
        model.eval()
        return call(model, inputs)


def features(model: nn.Module, x: torch.Tensor | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Output of every block of ``model`` at ``x`` (several inputs: by name), from input to output.

    A block is a child of the model that holds parameters (each member of a ModuleList or ModuleDict counts as one; of a
    whole model inside a class that wraps it, its own blocks); a child that is
    called once a layer, as neuralop's FNOBlocks is, gives one entry a call: ``fno_blocks.0``, ``fno_blocks.1``, … Of a
    block that returns several tensors each is an entry, by its index or key: ``encoder[0]``, ``encoder[out]``, …
    Features are real or complex tensors of one number or more: indices and masks are none.
    """
    seen: list[tuple[str, torch.Tensor]] = []

    def look(block: str, _module: nn.Module, _args: tuple, output: Any) -> None:
        found = list(_leaves(block, output))
        if not found:
            warnings.warn(
                f"Nothing is known of the block {block}, which returns no tensor of numbers but a {type(output).__name__}: "
                "return a tensor, or a tuple, list or dict of them, to have it measured.",
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
    """Tensors of numbers in what a block returned, each by how it is reached."""
    if isinstance(output, (tuple, list)):
        output = dict(enumerate(output))
    if isinstance(output, Mapping):
        for k, value in output.items():
            yield from _leaves(f"{key}[{k}]", value)
    elif isinstance(output, torch.Tensor) and output.numel() and (output.is_floating_point() or output.is_complex()):
        yield key, output.detach()


def _blocks(model: nn.Module, prefix: str = "") -> Iterator[str]:
    for name, child in model.named_children():
        # A class that only wraps a model has that model's blocks.
        wraps = not keeps_arguments(model) and keeps_arguments(child) and any(_blocks(child))
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) or wraps:
            yield from _blocks(child, f"{prefix}{name}.")
        elif any(True for _ in child.parameters()):
            yield prefix + name


def rms(x: torch.Tensor) -> float:
    """Root mean square of |x|, in float64; complex entries count by their modulus."""
    x = torch.view_as_real(x).double().square().sum(-1) if x.is_complex() else x.double().square()
    return x.mean().sqrt().item()
