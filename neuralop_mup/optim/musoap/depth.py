"""Depth: the largest number of Fourier layers that follow each other on one path through a model.

Updates of layers that follow each other add up, so MuSOAP's learning rate goes as 1/√depth. Depth is estimated from the
modules when the optimizer is built, and measured in the first step: forward hooks count kernels along the autograd graph.
The measurement decides where it is complete. It covers what no constructor shows: branches, models that are applied several
times, loops over time, outputs that are thrown away.
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

# Key in the metadata of a node of the autograd graph: how many kernels the longest path up to its output has. The metadata
# belong to the graph and are freed with it.
_DEPTH = "neuralop_mup_depth"
# For neuralop's RNO: its gates let each time step change only a part of the state. The root was too low there, and some
# trainings without a correction failed (docs/howto/limits.md).
_RECURRENT_POWER = 0.25


def estimate_depth(model: nn.Module, owners: Iterable[str]) -> tuple[int, bool]:
    """Return the depth that the modules suggest, and whether whole models were counted as parallel.

    Modules count as layers that follow each other. Whole models of neuralop or PhysicsNeMo that a module holds count as
    parallel (an ensemble, branches that are added), so only the deepest counts; in an ``nn.Sequential`` they add up.

    Parameters
    ----------
    model : torch.nn.Module
        The bare model.
    owners : iterable of str
        Names of its modules that hold kernels. A layer of neuralop that holds the kernels of several counts as several, and
        one with several names counts once for each.

    Returns
    -------
    depth : int
        At least 1.
    has_branches : bool
        Whether several whole models with kernels count as parallel. Then the depth may be their sum.
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
    # Kernels below each module: those that follow each other, and those of the deepest whole model.
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
    """Return names of whole models. PhysicsNeMo's models consist of modules that look like them: these are parts."""
    parts = tuple(f"{name}.".removeprefix(".") for name, module in named.items() if hasattr(module, "_args"))
    kept = {name for name, module in named.items() if keeps_arguments(module)}
    return {name for name in kept if not (hasattr(named[name], "_args") and name.startswith(parts))}


class DepthMeasurement:
    """The depth of a model in the backward passes before its optimizer's first step.

    An application of a kernel counts if a gradient reaches its output. The measurement is incomplete, and not used, if

    - a kernel has a gradient, but the hooks saw no application of it: torch.compile compiled it, or the model calls the
      layer's ``forward`` instead of the layer;
    - a kernel is applied in a backward pass only: reentrant checkpointing.

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
        self._hidden = Counter[nn.Module]()  # applications in backward passes, less those that a gradient reached
        handles = [owner.register_forward_hook(_Hook(weakref.ref(self))) for owner in self._parameters]
        self._removal = weakref.finalize(self, _remove, handles)

    def see(self, owner: nn.Module, output: Any) -> None:
        """Note an application of a kernel."""
        if is_in_backward():
            self._hidden[owner] += 1
            return
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                node: Any = tensor.grad_fn  # torch's types have its metadata as a method
                depth = node.metadata[_DEPTH] = 1 + max([_depth_of(earlier) for earlier in _earlier(node)], default=0)
                tensor.register_hook(partial(self._reach, owner, depth))

    def _reach(self, owner: nn.Module, depth: int, gradient: torch.Tensor) -> None:
        self._reached.add(owner)
        self._hidden[owner] -= 1
        self.depth = max(self.depth, depth)

    def is_complete(self) -> bool:
        """Return whether every application of a kernel that has a gradient was seen."""
        trained = {owner for owner, own in self._parameters.items() if any(p.grad is not None for p in own)}
        return trained <= self._reached and max(self._hidden.values(), default=0) <= 0

    def correct(self, groups: Sequence[dict[str, Any]]) -> None:
        """Store ``depth_mult`` in the groups of matrices, if the measured depth is not the estimate.

        A frozen layer may be trained later, so the estimate stays if one was not reached.
        """
        if not self.is_complete():
            self._removal.detach()  # torch.compile would compile the model again without them; they do nothing now
            if self.has_branches or self.is_recurrent:
                warnings.warn(self._warning(groups), stacklevel=4)
            return
        self._removal()
        frozen = {owner for owner, own in self._parameters.items() if not any(p.requires_grad for p in own)}
        if self.depth in (0, self.estimate) or not frozen <= self._reached:
            return
        for group in groups:
            if group.get("own_rule"):
                group["depth_mult"] = (self.estimate / self.depth) ** (_RECURRENT_POWER if self.is_recurrent else 0.5)

    def _warning(self, groups: Sequence[Mapping[str, Any]]) -> str:
        return (
            f"MuSOAP could not measure the model's depth, because the forward pass is compiled or checkpointed, and assumes "
            f"{self.estimate} Fourier layers in a row. If the longest path through the model applies a different number L, "
            f"build MuSOAP(model, lr={groups[0]['base_lr']:g} * ({self.estimate} / L) ** 0.5), or run one forward and "
            "backward pass of the plain model before the first step."
        )


class _Hook:
    """Forward hook of a module that holds a kernel. A copy or an unpickled one, in a copy of the model, does nothing."""

    def __init__(self, measurement: Callable[[], DepthMeasurement | None] = lambda: None) -> None:
        self._measurement = measurement

    def __reduce__(self) -> tuple:
        return _Hook, ()

    def __call__(self, owner: nn.Module, args: tuple, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        measurement = self._measurement()
        if measurement is not None:
            measurement.see(owner, output)


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _earlier(node: Any) -> list[Any]:
    return [earlier for earlier, _ in node.next_functions if earlier is not None]


def _depth_of(node: Any) -> int:
    """Return the number of kernels on the longest path up to a node, and store it in each node on the way."""
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
