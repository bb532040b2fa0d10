"""Determine a model's depth, which is the largest number of Fourier layers on a path through the model.

Updates of successive layers add up, so MuSOAP's learning rate is proportional to 1/√depth. When the optimizer is built, the
depth is estimated from the modules. Before the first step, forward hooks measure the depth along the autograd graph. A
complete measurement replaces the estimate, because it accounts for branches, repeated applications, loops over time, and
discarded outputs.
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

# Key in the metadata of an autograd node that stores the number of kernels on the longest path to its output. The metadata
# is freed with the graph.
_DEPTH = "neuralop_mup_depth"
# Exponent for neuralop's RNO, because its gates only change part of the state in each time step. With 0.5, the learning
# rates were too low, and without a correction, some runs failed (docs/explain/updates.md).
_RECURRENT_POWER = 0.25


def estimate_depth(model: nn.Module, owners: Iterable[str]) -> tuple[int, bool]:
    """Estimate the depth from the modules.

    Layers are assumed to be successive. Complete neuralop or PhysicsNeMo models nested in a module are assumed to be
    parallel (ensembles or branches that are added), so only the deepest of them counts. In an ``nn.Sequential``, their
    depths add up.

    Parameters
    ----------
    model : torch.nn.Module
        The unwrapped model.
    owners : iterable of str
        Names of modules with kernels. A neuralop layer that holds the kernels of several layers counts as several layers. A
        module with several names counts once per name.

    Returns
    -------
    depth : int
        Estimated depth, at least 1.
    has_branches : bool
        Whether several nested models were assumed to be parallel. The true depth may be the sum of their depths.
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
    # For each module: the number of kernels in a row, and the number of kernels in its deepest nested model.
    serial, parallel = Counter[str](), Counter[str]()
    has_branches = False
    for name, module in reversed(named.items()):  # visit children before their parents
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
    """Return the names of nested models, without submodules of PhysicsNeMo's models that look like models themselves."""
    parts = tuple(f"{name}.".removeprefix(".") for name, module in named.items() if hasattr(module, "_args"))
    kept = {name for name, module in named.items() if keeps_arguments(module)}
    return {name for name in kept if not (hasattr(named[name], "_args") and name.startswith(parts))}


class DepthMeasurement:
    """Measure a model's depth in the backward passes before the optimizer's first step.

    An application of a kernel counts if a gradient reaches its output. The measurement is incomplete, and therefore not
    used, in two cases:

    - A kernel has a gradient but its hook never ran, because torch.compile compiled it or the model calls ``layer.forward``.
    - A kernel is only applied in a backward pass, as in reentrant checkpointing.

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
        self._hidden = Counter[nn.Module]()  # how often backward passes applied it without a gradient reaching it
        handles = [owner.register_forward_hook(_Hook(weakref.ref(self))) for owner in self._parameters]
        self._removal = weakref.finalize(self, _remove, handles)

    def record(self, owner: nn.Module, output: Any) -> None:
        """Record an application of a kernel."""
        if is_in_backward():
            self._hidden[owner] += 1
            return
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                node: Any = tensor.grad_fn  # torch's stubs declare metadata as a method
                depth = node.metadata[_DEPTH] = 1 + max([_depth_of(earlier) for earlier in _earlier(node)], default=0)
                tensor.register_hook(partial(self._reach, owner, depth))

    def _reach(self, owner: nn.Module, depth: int, gradient: torch.Tensor) -> None:
        self._reached.add(owner)
        self._hidden[owner] -= 1
        self.depth = max(self.depth, depth)

    def _is_complete(self) -> bool:
        """Return whether all applications of kernels that have a gradient were recorded."""
        trained = {owner for owner, own in self._parameters.items() if any(p.grad is not None for p in own)}
        return trained <= self._reached and max(self._hidden.values(), default=0) <= 0

    def correct(self, groups: Sequence[dict[str, Any]]) -> None:
        """Store ``depth_mult`` in the groups of matrices if the measured depth differs from the estimate.

        The estimate is kept if no gradient reached a frozen layer, because the layer may be trained later.
        """
        if not self._is_complete():
            self._removal.detach()  # keep the inactive hooks, because removing them would make torch.compile recompile
            if self.has_branches or self.is_recurrent:
                warnings.warn(
                    "MuSOAP could not measure the model's depth because the forward pass is compiled or checkpointed. It "
                    f"assumes {self.estimate} successive Fourier layers. Run one forward and backward pass of the plain "
                    "model before the first step. Alternatively, if the longest path has L layers, build MuSOAP(model, "
                    f"lr={groups[0]['base_lr']:g} * ({self.estimate} / L) ** 0.5).",
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
    """Forward hook of a module with a kernel. In copies of the model, copied or unpickled hooks do nothing."""

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
    """Return the number of kernels on the longest path to a node, and store it in every visited node."""
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
