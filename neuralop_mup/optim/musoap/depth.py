"""Depth: the largest number of Fourier layers that follow each other on one path through a model.

Updates of successive layers add up, so MuSOAP's learning rate is proportional to 1/√depth. The modules give an estimate when
the optimizer is built. In the first step, forward hooks measure depth along the autograd graph. A complete measurement
replaces the estimate: it covers branches, repeated applications, loops over time, and discarded outputs.
"""

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from neuralop_mup.core.arguments import keeps_arguments
from neuralop_mup.core.layers.registry import BESIDE, RECURRENT, is_known
from neuralop_mup.optim.resolved_model import ResolvedModel
from neuralop_mup.torch_private import is_in_backward

# Key in the metadata of an autograd node: number of kernels on the longest path to its output. It is freed with the graph.
_DEPTH = "neuralop_mup_depth"
# For neuralop's RNO, with gates that change only part of the state per time step. 0.5 was too low there, and some runs
# without a correction failed (docs/howto/limits.md).
_RECURRENT_POWER = 0.25


def estimate_depth(model: nn.Module, owners: Iterable[str]) -> tuple[int, bool]:
    """Estimate the depth from the modules.

    Layers count as successive. Whole models of neuralop or PhysicsNeMo inside a module count as parallel (ensembles,
    branches that are added), so only the deepest counts. In an ``nn.Sequential`` they add up.

    Parameters
    ----------
    model : torch.nn.Module
        The bare model.
    owners : iterable of str
        Names of modules with kernels. A layer of neuralop with the kernels of several layers counts as several, and a
        module with several names counts once per name.

    Returns
    -------
    depth : int
        At least 1.
    has_branches : bool
        Whether several whole models count as parallel. The true depth may be their sum.
    """
    holders = {id(model.get_submodule(owner)) for owner in owners}
    named = dict(model.named_modules(remove_duplicate=False))
    beside = tuple(
        f"{name}.{child}.".removeprefix(".")
        for name, module in named.items()
        for cls in type(module).__mro__
        for child in BESIDE.get(cls, ())
    )
    whole = _whole_models(named)
    # Kernels in each module: successive ones, and those of the deepest whole model.
    serial, parallel = Counter[str](), Counter[str]()
    has_branches = False
    for name, module in reversed(named.items()):  # children before their parents
        if id(module) in holders and not f"{name}.".startswith(beside):
            serial[name] += getattr(module, "n_layers", 1) if is_known(module) else 1
        if not name:
            break
        parent = name.rpartition(".")[0]
        follows, deepest = serial[name], parallel[name]
        if name in whole:
            follows, deepest = 0, follows + deepest
        serial[parent] += follows
        if isinstance(named[parent], nn.Sequential):
            parallel[parent] += deepest
        else:
            has_branches |= min(parallel[parent], deepest) > 0
            parallel[parent] = max(parallel[parent], deepest)
    return max(1, serial[""] + parallel[""]), has_branches


def _whole_models(named: Mapping[str, nn.Module]) -> set[str]:
    """Return the names of whole models, without modules inside PhysicsNeMo's models, which look like models."""
    parts = tuple(f"{name}.".removeprefix(".") for name, module in named.items() if hasattr(module, "_args"))
    kept = {name for name, module in named.items() if keeps_arguments(module)}
    return {name for name in kept if not (hasattr(named[name], "_args") and name.startswith(parts))}


class DepthMeasurement:
    """Measurement of a model's depth in the backward passes before the optimizer's first step.

    An application of a kernel counts if a gradient reaches its output. The measurement is incomplete and is not used if

    - a kernel has a gradient, but its hook never ran: torch.compile compiled it, or the model calls ``layer.forward``;
    - a kernel is applied only in a backward pass: reentrant checkpointing.

    Parameters
    ----------
    resolved : ResolvedModel
        The model.
    """

    def __init__(self, resolved: ResolvedModel) -> None:
        kernels = [row for row in resolved.plan.rows if row.tuned_as == "spectral"]
        self.estimate, self.has_branches = estimate_depth(resolved.model, {row.owner for row in kernels})
        self.is_recurrent = any(isinstance(module, tuple(RECURRENT)) for module in resolved.model.modules())
        self.depth = 0
        self._parameters: dict[nn.Module, list[nn.Parameter]] = {}
        for row in kernels:
            owner = resolved.model.get_submodule(row.owner)
            self._parameters.setdefault(owner, []).append(resolved.parameters[row.name])
        self._reached: set[nn.Module] = set()
        self._hidden = Counter[nn.Module]()  # applications in backward passes, minus those that a gradient reached
        handles = [owner.register_forward_hook(_Hook(weakref.ref(self))) for owner in self._parameters]
        self._removal = weakref.finalize(self, _remove, handles)

    def record(self, owner: nn.Module, output: Any) -> None:
        """Record an application of a kernel."""
        if is_in_backward():
            self._hidden[owner] += 1
            return
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                node: Any = tensor.grad_fn  # torch declares metadata as a method
                depth = node.metadata[_DEPTH] = 1 + max([_depth_of(earlier) for earlier in _earlier(node)], default=0)
                tensor.register_hook(partial(self._reach, owner, depth))

    def _reach(self, owner: nn.Module, depth: int, gradient: torch.Tensor) -> None:
        self._reached.add(owner)
        self._hidden[owner] -= 1
        self.depth = max(self.depth, depth)

    def _is_complete(self) -> bool:
        """Return whether all applications of kernels with a gradient were recorded."""
        trained = {owner for owner, own in self._parameters.items() if any(p.grad is not None for p in own)}
        return trained <= self._reached and max(self._hidden.values(), default=0) <= 0

    def correct(self, groups: Sequence[dict[str, Any]]) -> None:
        """Store ``depth_mult`` in the groups of matrices if the measured depth differs from the estimate.

        The estimate stays if a frozen layer was not reached, because it may be trained later.
        """
        if not self._is_complete():
            self._removal.detach()  # keep the hooks, which do nothing now: torch.compile would compile again without them
            if self.has_branches or self.is_recurrent:
                warnings.warn(
                    "MuSOAP could not measure the model's depth, because the forward pass is compiled or checkpointed, and "
                    f"assumes {self.estimate} Fourier layers in a row. Run one forward and backward pass of the plain model "
                    "before the first step. Or, if the longest path has L layers, build "
                    f"MuSOAP(model, lr={groups[0]['base_lr']:g} * ({self.estimate} / L) ** 0.5).",
                    stacklevel=4,
                )
            return
        self._removal()
        frozen = {owner for owner, own in self._parameters.items() if not any(p.requires_grad for p in own)}
        if self.depth in (0, self.estimate) or not frozen <= self._reached:
            return
        for group in groups:
            if group.get("own_rule"):
                group["depth_mult"] = (self.estimate / self.depth) ** (_RECURRENT_POWER if self.is_recurrent else 0.5)


class _Hook:
    """Forward hook of a module with a kernel. Copies and unpickled hooks, in copies of the model, do nothing."""

    def __init__(self, measurement: Callable[[], DepthMeasurement | None] = lambda: None) -> None:
        self._measurement = measurement

    def __reduce__(self) -> tuple:
        return _Hook, ()

    def __call__(self, owner: nn.Module, args: tuple, output: Any) -> None:
        if not torch.compiler.is_compiling() and (measurement := self._measurement()) is not None:
            measurement.record(owner, output)


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _earlier(node: Any) -> list[Any]:
    return [earlier for earlier, _ in node.next_functions if earlier is not None]


def _depth_of(node: Any) -> int:
    """Return the number of kernels on the longest path to a node, and store it in every node on the way."""
    waiting = [node]
    while waiting:
        last = waiting[-1]
        earlier = _earlier(last)
        if unknown := [x for x in earlier if _DEPTH not in x.metadata]:
            waiting += unknown
        else:
            last.metadata.setdefault(_DEPTH, max([x.metadata[_DEPTH] for x in earlier], default=0))
            waiting.pop()
    return node.metadata[_DEPTH]
