"""neuralop's own initialisation, which is what the rules correct: drawn for a model without weights, recognised in others.

Constructors draw weights as they run. A model built on the meta device, where it costs nothing, lost what they drew, so
it is drawn again, layer by layer: by the layer's ``reset_parameters``, and as its description says where that says how
(``draw`` of a :class:`~neuralop_mup.Param`). A tensor that neither of them draws is an error. Modules are visited as they
were constructed, so that in most models the random numbers fall as they do in the constructor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.infshape import GROWS
from neuralop_mup.core.layers import Alias, Copy, Describe, Description, Param, describe, described_as, is_users
from neuralop_mup.core.plan import Plan
from neuralop_mup.errors import MupError
from neuralop_mup.torch_private import RUNNING_NORMS, own_parameters

# The RMS of this many numbers scatters by about 3 % or less; weights this far off were not drawn as neuralop draws them.
_ENOUGH = 1024
_TOLERANCE = 1.25
_SAMPLE = 65536  # a kernel may hold a billion numbers
_SURE = 100.0  # fresh weights look like rescaled ones in one of 10¹² models


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
        names = [what.of if isinstance(what, Alias) else name for name, what in self.described.items()]
        return {self.prefix + name for name in (*names, *(self.reset or ()))}

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
            elif isinstance(what, Alias):  # one tensor under two names, which to_empty makes two
                owner, _, leaf = what.of.rpartition(".")
                own_parameters(module.get_submodule(owner))[leaf] = _parameter(module, name)
            elif isinstance(what, Param) and what.draw and (parameter := _parameter(module, name)) is not None:
                what.draw(parameter, stds.get(self.prefix + name, 1.0))


def check_drawable(model: nn.Module) -> list[_Layer]:
    """The layers of ``model``, in the order in which they are drawn.

    Raises
    ------
    MupError
        If the default initialisation of some parameter or buffer is not known.
    """
    layers = list(_layers(model, ""))
    drawn = set().union(*(layer.drawn() for layer in layers))
    for layer in layers:
        if unknown := [name for name in layer.tensors() if name not in drawn]:
            raise MupError(
                f"The default initialisation of {unknown[0]} ({type(layer.module).__name__}) is not known, so it cannot be "
                "drawn after the meta device: build the model on a real device, give that layer a reset_parameters method, "
                "or register the layer with a Param whose draw says how (docs/reference/extending.md)."
            )
    return layers


def draw(model: nn.Module, plan: Plan) -> None:
    """Draw every parameter and buffer of ``model`` as its constructors would have, or nothing (:func:`check_drawable`)."""
    stds = {row.name: row.default_std for row in plan.rows if row.default_std is not None}
    layers = check_drawable(model)
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


def check_fresh(model: nn.Module, plan: Plan) -> None:
    """Refuse weights that were trained, loaded or rescaled: the rule corrects neuralop's own initialisation alone.

    Four things give them away: a root mean square that is not the default one; all of them together closer to this very
    plan's multipliers than to 1 (weights that were scaled by it, then loaded into a new model); torch's uniform draw
    left its bounds, and gates and norms are no longer ones and zeros, as happens in the first step of training.

    Raises
    ------
    MupError
        If the weights are not fresh.
    """
    parameters, modules = dict(model.named_parameters()), dict(model.named_modules())
    to_fresh = to_scaled = 0.0
    for row in plan.rows:
        p = parameters[row.name].detach()
        if GROWS.isdisjoint(row.axes) and row.init_mult == 1:
            continue  # it is left as it is, whatever it is
        claimed_by = row.layer if any(is_users(said) for _, said in describe(modules[row.owner]).values()) else None
        if row.init == "constant" and not claimed_by and not (p == p.round().clamp(0, 1)).all():
            raise _not_fresh(row.name, "is not constant, as its default initialisation is", claimed_by)
        if row.default_std is None:
            continue
        sample = p.flatten()[:: max(1, p.numel() // _SAMPLE)]
        ratio = sample.abs().square().mean().sqrt().item() / row.default_std
        if p.numel() >= _ENOUGH and not 1 / _TOLERANCE < ratio < _TOLERANCE:
            raise _not_fresh(row.name, f"has a root mean square of {ratio:.3g} times its default initialisation", claimed_by)
        bound = 3**0.5 * row.default_std * (1 + 4 * torch.finfo(p.dtype).eps)
        if row.init == "fan_in" and (largest := p.abs().max().item()) > bound:
            raise _not_fresh(
                row.name, f"reaches {largest:.4g}, beyond the {bound:.4g} of its default initialisation", claimed_by
            )
        if ratio > 0:
            to_fresh += sample.numel() * math.log(ratio) ** 2
            to_scaled += sample.numel() * math.log(ratio / row.init_mult) ** 2
    apart = sum(min(parameters[r.name].numel(), _SAMPLE) * math.log(r.init_mult) ** 2 for r in plan.rows if r.default_std)
    if apart > _SURE and to_scaled < to_fresh:
        raise MupError(
            f"The weights of this {type(model).__name__} are scaled by this very plan already, and rescaling twice would "
            "ruin them (were they loaded from a checkpoint?): neuralop_mup.load_plan attaches the plan that they were "
            "saved with, parametrize(…, init=False) a plan of your own."
        )


def _not_fresh(name: str, what: str, claimed_by: str | None) -> MupError:
    """``claimed_by`` is the class whose registration, not ours, says how the parameter is drawn."""
    doubt = (
        f" If it is fresh, the registration of {claimed_by} is wrong: Param's init says how the constructor draws it "
        "('fan_in', 'mean_fan', …, or a function of its shape that returns its root mean square)."
        if claimed_by
        else ""
    )
    return MupError(
        f"Parameter {name!r} {what}, which the rule would correct: it was trained, rescaled or initialised in another way. "
        f"Parametrize a freshly built model, or pass init=False to leave the weights as they are.{doubt}"
    )
