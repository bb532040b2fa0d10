"""Initialise models that were parametrized on the meta device.

Weights get their default initialisation times the rule's multipliers. They are drawn layer by layer, using each layer's
``reset_parameters`` and the ``draw`` functions in its description. Modules are visited in the order of construction, so most
models get the random numbers that their constructor would draw.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.layers.registry import Alias, Copy, Describe, Description, Param, describe, described_as
from neuralop_mup.core.parametrize import Model, get_plan, scale_weights, set_plan
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.core.weights_status import WeightsStatus, status_of
from neuralop_mup.errors import MupError
from neuralop_mup.torch_private import RUNNING_NORMS, own_parameters


def initialize(model: Model) -> Model:
    """Draw, in place, the weights of a model that was parametrized on the meta device.

    The result is the same as that of :func:`~neuralop_mup.parametrize` on this device, but no second copy of the weights is
    needed. Buffers (running statistics of norms) get their initial values.

    Parameters
    ----------
    model : torch.nn.Module
        A model that was parametrized on the meta device, after ``model.to_empty(device=…)``. If it is sharded
        (:func:`shard`), every process draws each layer in full, and the values of rank 0 are distributed.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    MupError
        If the model is not parametrized, already initialised or still on the meta device, or if the default initialisation
        of a layer is unknown. In these cases, no weights are drawn.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> with torch.device("meta"):
    ...     model = FNO(n_modes=(8, 8), in_channels=1, out_channels=1, hidden_channels=16)
    >>> model = nm.parametrize(model, base={"hidden_channels": 8})
    >>> model = nm.initialize(model.to_empty(device="cpu"))
    """
    bare = unwrap(model)
    plan = get_plan(bare)
    if status_of(bare) is not WeightsStatus.FRESH:
        raise MupError(
            f"The weights of this {type(bare).__name__} are already initialised. initialize is only for models that were "
            "parametrized on the meta device."
        )
    for name, tensor in (*bare.named_parameters(), *bare.named_buffers()):
        if tensor.is_meta:
            raise MupError(f"{name!r} is still on the meta device. Call model.to_empty(device=…) before initialize.")
    _draw(bare, plan)
    scale_weights(bare, plan)
    set_plan(bare, replace(plan, init_applied=True), WeightsStatus.SCALED)
    return model


@dataclass(frozen=True)
class _Layer:
    """A module, and how to draw its tensors after those of its children.

    Attributes
    ----------
    module, prefix : torch.nn.Module, str
        The module, and the prefix of its parameter names in the model.
    reset : tuple of str or None
        Tensors that ``reset_parameters`` draws, or None if it must not be called.
    described : mapping
        Descriptions of the tensors to draw, tie or copy, by name in the module.
    """

    module: nn.Module
    prefix: str
    reset: tuple[str, ...] | None
    described: Description

    def drawn(self) -> set[str]:
        """Return the qualified names of the tensors that are drawn."""
        described = (what.of if isinstance(what, Alias) and what.of else name for name, what in self.described.items())
        return {self.prefix + name for name in (*described, *(self.reset or ()))}

    def tensors(self) -> list[str]:
        loose = {name: v for name, v in vars(self.module).items() if isinstance(v, torch.Tensor) and v.is_meta}
        return [self.prefix + name for name, tensor in {**loose, **_own(self.module)}.items() if tensor.numel()]

    def draw(self, stds: Mapping[str, float]) -> None:
        module: Any = self.module
        if self.reset is not None:
            module.reset_parameters()
        for name, what in self.described.items():
            if isinstance(what, Copy):
                getattr(module, name).load_state_dict(getattr(module, what.of).state_dict())
            elif isinstance(what, Alias) and what.of:  # to_empty splits a tensor with two names into two tensors
                owner, _, leaf = what.of.rpartition(".")
                own_parameters(module.get_submodule(owner))[leaf] = _parameter(module, name)
            elif isinstance(what, Param) and what.draw and (parameter := _parameter(module, name)) is not None:
                what.draw(parameter, stds.get(self.prefix + name, 1.0))


def _draw(model: nn.Module, plan: Plan) -> None:
    """Draw all parameters and buffers of ``model`` as its constructors do, or raise MupError before drawing any."""
    stds = {row.name: row.default_std for row in plan.rows if row.default_std is not None}
    layers = list(_layers(model, ""))
    drawn = set().union(*(layer.drawn() for layer in layers))
    for layer in layers:
        if unknown := [name for name in layer.tensors() if name not in drawn]:
            raise MupError(
                f"The default initialisation of {unknown[0]} ({type(layer.module).__name__}) is unknown, so it cannot be "
                "initialised after to_empty. Build the model on a real device, add a reset_parameters method to this "
                "layer, or register the layer with a Param that has draw=… (docs/reference/parametrize.md)."
            )
    with torch.no_grad():
        for layer in layers:
            if layer.reset is not None or layer.described:
                with _gather(layer.module):
                    layer.draw(stds)


def _layers(module: nn.Module, prefix: str) -> Iterator[_Layer]:
    """Yield all modules of a model, children first, except submodules that are copies of other submodules."""
    pairs = {name: pair for name, pair in describe(module).items() if _can_draw(module, name, pair[0])}
    classes = list(_trusted(module, {function for _, function in pairs.values()}))
    trusted = {function for cls in classes for function in described_as(cls)}
    described = {name: what for name, (what, function) in pairs.items() if function in trusted}
    for name, child in module.named_children():
        if not isinstance(described.get(name), Copy):
            yield from _layers(child, f"{prefix}{name}.")
    # If all tensors are described, skip reset_parameters, which may move tensors to another device (PhysicsNeMo's kernels).
    whole = described and _own(module).keys() <= described.keys()
    resets = not whole and any("reset_parameters" in vars(cls) for cls in classes)
    own = _own(module) if isinstance(module, RUNNING_NORMS) else dict(module.named_parameters(recurse=False))
    yield _Layer(module, prefix, tuple(own) if resets else None, described)


def _can_draw(module: nn.Module, name: str, what: object) -> bool:
    """Return whether a description can draw a tensor. A Copy requires children with equal shapes."""
    if isinstance(what, Copy):
        of, own = (getattr(module, child).named_parameters() for child in (what.of, name))
        return {child: p.shape for child, p in of} == {child: p.shape for child, p in own}
    return isinstance(what, Alias) or (isinstance(what, Param) and what.draw is not None)


def _trusted(module: nn.Module, describing: set[Describe]) -> Iterator[type]:
    """Yield a module's classes, up to the first class that may draw differently from ``describing``."""
    for cls in type(module).__mro__:
        yield cls
        # The constructors of torch's classes, including FSDP2's, draw no further tensors.
        own_constructor = "__init__" in vars(cls) and not cls.__module__.startswith("torch.")
        if own_constructor and describing.isdisjoint(described_as(cls)) and any(t.numel() for t in _own(module).values()):
            return


def _own(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's own buffers and parameters, including second names and empty ones."""
    return {
        **dict(module.named_parameters(recurse=False, remove_duplicate=False)),
        **dict(module.named_buffers(recurse=False)),
    }


def _parameter(module: nn.Module, name: str) -> nn.Parameter | None:
    """Return the stored parameter; get_parameter would return a complex view of a factor that is stored as pairs."""
    owner, _, leaf = name.rpartition(".")
    return own_parameters(module.get_submodule(owner)).get(leaf)


@contextmanager
def _gather(module: nn.Module) -> Iterator[None]:
    """Temporarily replace sharded parameters with complete tensors, and distribute the tensors of rank 0 at the end."""
    sharded: list[tuple[nn.Module, str, Any]] = [
        (owner, name, parameter)
        for owner in module.modules()
        for name, parameter in own_parameters(owner).items()
        if parameter is not None and hasattr(parameter, "device_mesh")
    ]
    for owner, name, parameter in sharded:
        local = parameter.to_local()
        own_parameters(owner)[name] = nn.Parameter(torch.empty(parameter.shape, dtype=local.dtype, device=local.device))
    try:
        yield
    finally:
        for owner, name, parameter in sharded:
            from torch.distributed.tensor import distribute_tensor

            whole = owner.get_parameter(name).detach()
            own_parameters(owner)[name] = parameter
            parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements))
