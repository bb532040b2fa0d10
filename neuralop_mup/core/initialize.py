"""Weights for a model that was parametrized on the meta device: default initialisation times the rule's multipliers.

Constructors draw weights as they run. A model built on the meta device, where it costs nothing, lost what they drew, so
it is drawn again, layer by layer: by the layer's ``reset_parameters``, and as its description says where that says how
(``draw`` of a :class:`~neuralop_mup.Param`). A tensor that neither of them draws is an error. Modules are visited as they
were constructed, so that in most models the random numbers fall as they do in the constructor.
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
    """Draw the weights of a model that was parametrized on the meta device and then given memory, in place.

    Every parameter gets neuralop's own initialisation, on the device where it is and from that device's random numbers,
    times its multiplier; buffers (running statistics of norms) get their first values. It is what
    :func:`~neuralop_mup.parametrize` makes of a model that was constructed on that device, without a second copy of the
    weights.

    Parameters
    ----------
    model : torch.nn.Module
        Parametrized on the meta device, then ``model.to_empty(device=…)``. It may be sharded (:func:`shard`) in between:
        each layer is then drawn whole on each process, and rank 0's numbers are distributed.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    MupError
        If the model is not parametrized, is initialised already or is on the meta device still, or a layer's default
        initialisation is not known. Nothing is drawn then.

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
            f"The weights of this {type(bare).__name__} are drawn already: initialize is for a model that was parametrized "
            "on the meta device."
        )
    for name, tensor in (*bare.named_parameters(), *bare.named_buffers()):
        if tensor.is_meta:
            raise MupError(f"{name!r} is on the meta device still: call model.to_empty(device=…) first, then initialize.")
    _draw(bare, plan)
    scale_weights(bare, plan)
    set_plan(bare, replace(plan, init_applied=True), WeightsStatus.SCALED)
    return model


@dataclass(frozen=True)
class _Layer:
    """One module, and how what it holds is drawn after its children were.

    Attributes
    ----------
    module, prefix : torch.nn.Module, str
        The module, and what the names in it begin with in the model.
    reset : tuple of str or None
        The tensors that its ``reset_parameters`` draws; None if that is not to be called.
    described : mapping
        What descriptions say is drawn, tied or copied, by name in the module.
    """

    module: nn.Module
    prefix: str
    reset: tuple[str, ...] | None
    described: Description

    def drawn(self) -> set[str]:
        """Names in the model of the tensors that are drawn."""
        described = (what.of if isinstance(what, Alias) and what.of else name for name, what in self.described.items())
        return {self.prefix + name for name in (*described, *(self.reset or ()))}

    def tensors(self) -> list[str]:
        """Names in the model of the module's own tensors that hold numbers."""
        loose = {name: v for name, v in vars(self.module).items() if isinstance(v, torch.Tensor) and v.is_meta}
        return [self.prefix + name for name, tensor in {**loose, **_own(self.module)}.items() if tensor.numel()]

    def draw(self, stds: Mapping[str, float]) -> None:
        module: Any = self.module
        if self.reset is not None:
            module.reset_parameters()
        for name, what in self.described.items():
            if isinstance(what, Copy):
                tensors = dict(getattr(module, what.of).state_dict(keep_vars=True))
                for own, tensor in getattr(module, name).state_dict(keep_vars=True).items():
                    if isinstance(tensor, torch.Tensor):  # neuralop's models keep arguments there, too
                        tensor.copy_(tensors[own])
            elif isinstance(what, Alias) and what.of:  # one tensor under two names, which to_empty makes two
                owner, _, leaf = what.of.rpartition(".")
                own_parameters(module.get_submodule(owner))[leaf] = _parameter(module, name)
            elif isinstance(what, Param) and what.draw and (parameter := _parameter(module, name)) is not None:
                what.draw(parameter, stds.get(self.prefix + name, 1.0))


def _draw(model: nn.Module, plan: Plan) -> None:
    """Draw every parameter and buffer of ``model`` as its constructors would have, or nothing."""
    stds = {row.name: row.default_std for row in plan.rows if row.default_std is not None}
    layers = list(_layers(model, ""))
    drawn = set().union(*(layer.drawn() for layer in layers))
    for layer in layers:
        if unknown := [name for name in layer.tensors() if name not in drawn]:
            raise MupError(
                f"The default initialisation of {unknown[0]} ({type(layer.module).__name__}) is not known, so it cannot be "
                "drawn after the meta device: build the model on a real device, give that layer a reset_parameters method, "
                "or register the layer with a Param whose draw says how (docs/reference/extending.md)."
            )
    with torch.no_grad():
        for layer in layers:
            if layer.reset is not None or layer.described:
                with _gather(layer.module):
                    layer.draw(stds)


def _layers(module: nn.Module, prefix: str) -> Iterator[_Layer]:
    """All modules of a model, each after its children; a child that is a copy of another is not gone into."""
    said = {name: pair for name, pair in describe(module).items() if _says_how(module, name, pair[0])}
    classes = list(_trusted(module, {function for _, function in said.values()}))
    trusted = {function for cls in classes for function in described_as(cls)}
    described = {name: what for name, (what, function) in said.items() if function in trusted}
    for name, child in module.named_children():
        if not isinstance(described.get(name), Copy):
            yield from _layers(child, f"{prefix}{name}.")
    # What is described whole is not reset besides, which may leave the tensors' device, as PhysicsNeMo's kernels do.
    whole = described and _own(module).keys() <= described.keys()
    resets = not whole and any("reset_parameters" in vars(cls) for cls in classes)
    own = _own(module) if isinstance(module, RUNNING_NORMS) else dict(module.named_parameters(recurse=False))
    yield _Layer(module, prefix, tuple(own) if resets else None, described)


def _says_how(module: nn.Module, name: str, what: object) -> bool:
    """Whether a description says how something is drawn; a child unlike the one it may be a copy of is drawn itself."""
    if isinstance(what, Copy):
        of, own = (getattr(module, child).named_parameters() for child in (what.of, name))
        return {child: p.shape for child, p in of} == {child: p.shape for child, p in own}
    return isinstance(what, Alias) or (isinstance(what, Param) and what.draw is not None)


def _trusted(module: nn.Module, saying: set[Describe]) -> Iterator[type]:
    """A module's classes, up to one whose own constructor may draw in a way that no description of ``saying`` tells."""
    for cls in type(module).__mro__:
        yield cls
        # torch, and FSDP2's change of class, write constructors that draw nothing else.
        own_constructor = "__init__" in vars(cls) and not cls.__module__.startswith("torch.")
        if own_constructor and saying.isdisjoint(described_as(cls)) and any(t.numel() for t in _own(module).values()):
            return


def _own(module: nn.Module) -> dict[str, torch.Tensor]:
    """A module's own parameters, those with a second name too, and buffers; PhysicsNeMo's have some without numbers."""
    return {
        **dict(module.named_parameters(recurse=False, remove_duplicate=False)),
        **dict(module.named_buffers(recurse=False)),
    }


def _parameter(module: nn.Module, name: str) -> nn.Parameter | None:
    """Not get_parameter: complex factors are stored as pairs, and their attributes are views."""
    owner, _, leaf = name.rpartition(".")
    return own_parameters(module.get_submodule(owner)).get(leaf)


@contextmanager
def _gather(module: nn.Module) -> Iterator[None]:
    """Sharded parameters of ``module`` as whole tensors, of which rank 0's are distributed in the end."""
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
