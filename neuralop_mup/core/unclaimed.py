"""What to do about a parameter that no adapter claims: the class to describe, and the line for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from torch import nn

from neuralop_mup.core.registry import (
    FIXED,
    Place,
    by_user,
    claims_of,
    is_registered,
    registered_for,
    registrations,
)
from neuralop_mup.errors import nearest

__all__ = ["how_to_claim"]

_SHOWN = 8  # entries of a registration in a message
_PLACE = "Place(channels in, channels out) is True where they grow with width, False where they are fixed"
_PARAM = "Param says what a parameter of its own is"


def how_to_claim(model: nn.Module, name: str, claimed: Mapping[str, object]) -> str:
    """What to do about the parameter ``name``.

    Parameters
    ----------
    model : torch.nn.Module
        The model that was walked.
    name : str
        Qualified name of the parameter.
    claimed : mapping
        All names that the walk has met, with what is said of them: a Place of each module that was reached.
    """
    holders = (key for key, what in claimed.items() if isinstance(what, Place) and name.startswith(f"{key}."))
    reached = max(holders, key=len, default="")
    path, unregistered = name, None
    while path != reached:
        path = path.rpartition(".")[0]
        if is_registered(model.get_submodule(path)):
            unregistered = None  # what is in a known layer is that layer's business
        elif not registrations(model.get_submodule(path)) and unregistered is None:  # and no container
            unregistered = path
    if unregistered is None:
        return _left_out(model.get_submodule(reached), name.removeprefix(f"{reached}."))
    module = model.get_submodule(unregistered)
    where = repr(unregistered) if unregistered else "the model"
    return f"nobody registered {type(module).__name__} ({where}). {_line(unregistered, module, claimed)}"


def _left_out(module: nn.Module, rest: str) -> str:
    """What to do about a parameter of a known class whose adapters say nothing of it."""
    cls, first = type(module).__name__, rest.partition(".")[0]
    for key in registrations(module)[0].adapter(module, FIXED) if by_user(module) else ():
        if not hasattr(module, key.partition(".")[0]):
            known = [*dict(module.named_children()), *dict(module.named_parameters(recurse=False))]
            return (
                f"the registration of {cls} names {key!r}, and {cls} has no such child or parameter: {nearest(key, known)}"
            )
    known_itself = bool(registered_for(type(module)))
    if known_itself and not by_user(module):
        return (
            f"the adapter of {cls} says nothing of {first!r} in this configuration. Derive a class from {cls} and describe "
            f"it with neuralop_mup.register_layer, {first!r} included (docs/howto/layer.md)."
        )
    claims = claims_of(module, FIXED)
    places = {key for key, claim in claims.items() if isinstance(claim.what, Place)}
    named = [name for name, _ in module.named_parameters() if name not in claims.keys() - places]
    left = [name for name in named if not any(name.startswith(f"{place}.") for place in places)]
    entries, meaning = _entries(left)
    if known_itself:
        return f"the adapter of {cls} says nothing of {first!r}. Add {entries} to its registration, where {meaning}."
    line = f"nm.register_layer({cls}, {{{entries}}})"
    return f"{cls} has {first!r} besides what it inherits, which is known. Write {line}, where {meaning}."


def _line(path: str, module: nn.Module, claimed: Collection[str]) -> str:
    """The line that registers a class, for the user to complete; a child whose parameters are all claimed stands alone."""
    inside = f"{path}." if path else ""
    names = [name for name, _ in module.named_parameters()]
    unclaimed = {name.partition(".")[0] for name in names if inside + name not in claimed}
    entries, meaning = _entries(names, {name.partition(".")[0] for name in names} - unclaimed)
    return f"Write nm.register_layer({type(module).__name__}, {{{entries}}}), where {meaning}."


def _entries(names: Iterable[str], alone: Collection[str] = ()) -> tuple[str, str]:
    """Entries of a registration that speak of these parameters, each once, and what they mean."""
    is_child = {name.partition(".")[0]: "." in name for name in names}
    places = {key: "False, False" if key in alone else "?, ?" for key in is_child}
    parts = [f"{key!r}: " + (f"nm.Place({places[key]})" if child else "nm.Param(…)") for key, child in is_child.items()]
    meanings = ([_PLACE] if any(is_child.values()) else []) + ([_PARAM] if not all(is_child.values()) else [])
    return ", ".join(parts[:_SHOWN]) + (", …" if len(parts) > _SHOWN else ""), "; ".join(meanings)
