"""Build models without memory and side effects, in order to compare their sizes."""

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from contextvars import ContextVar
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from neuralop_mup.errors import MupError, error_text

_COMPARING: ContextVar[bool] = ContextVar("comparing", default=False)


def is_built_to_compare() -> bool:
    """Return whether the package is currently constructing a base or a probe only to read its sizes."""
    return _COMPARING.get()


def new(cls: type[nn.Module], arguments: Mapping[str, Any]) -> nn.Module:
    """Call a constructor with copies of the arguments."""
    return cls(**{key: _copied(value) for key, value in arguments.items()})


def _copied(given: Any) -> Any:
    """Return a copy of a list, module or tensor, because constructors may modify their arguments.

    For example, GINO appends to its lists, which its checkpoints contain, and a constructor may redraw the weights of
    modules that are passed to it. On the meta device, copies of modules use no memory.
    """
    if not isinstance(given, (list, nn.Module, torch.Tensor)):
        return given
    kept = given.parameters() if isinstance(given, nn.Module) and torch.empty(0).is_meta else ()
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in kept if not is_lazy(p)}
    try:
        return deepcopy(given, memo)
    except Exception:  # for example, if it contains a lock
        return given


def construct(build: Callable[[], nn.Module], what: str) -> nn.Module:
    """Call ``build`` on the meta device, so that the model uses no memory.

    If the constructor reads values of tensors, build on the CPU with weights on the meta device. If it reads weights, build
    everything on the CPU. The random state does not change, even if ``build`` sets a seed.

    Raises
    ------
    MupError
        If the constructor raises an error.
    """
    # Try each device in turn, because some constructors read values of tensors.
    for without_memory in (torch.device("meta"), _weights_on_meta(), nullcontext()):
        try:
            with build_to_compare(), without_memory:
                return build()
        except Exception as raised:  # a constructor may raise any exception
            error = raised
    raise MupError(f"Cannot build {what}: {error_text(error)}.") from error


@contextmanager
def _weights_on_meta() -> Iterator[None]:
    """Move each parameter to the meta device when a module registers it."""

    def without_memory(module: nn.Module, name: str, p: nn.Parameter) -> nn.Parameter | None:
        # The hook is global, and another thread may be building a model for training.
        if not is_built_to_compare() or p.is_meta or is_lazy(p):
            return None
        return nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad)

    handle = register_module_parameter_registration_hook(without_memory)  # type: ignore[arg-type]  # may return a parameter
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def build_to_compare() -> Iterator[None]:
    """Construct models without side effects on the random state, and without printed text, warnings and plans."""
    comparing = _COMPARING.set(True)
    try:
        # UNO's constructor prints, and layers with unusual sizes emit warnings.
        with torch.random.fork_rng(devices=[]), redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _COMPARING.reset(comparing)


def build_or_none(cls: type[nn.Module], arguments: Mapping[str, Any], device: str = "meta") -> nn.Module | None:
    """Return a module built with a fixed random seed, or None if its constructor raises an error."""
    with build_to_compare(), suppress(Exception), torch.device(device):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would also seed GPUs
        return new(cls, arguments)
    return None


def sizes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters and the active modes of all convolutions, by name."""
    named = model.named_parameters(remove_duplicate=False)
    shapes = {name: () if is_lazy(p) else tuple(p.shape) for name, p in named}
    convs = {f"{name}.n_modes": m for name, m in model.named_modules() if hasattr(m, "weight") and hasattr(m, "n_modes")}
    return {**shapes, **{name: active_modes(conv) for name, conv in convs.items()}}


def changed_dims(own: Mapping[str, tuple[int, ...]], other: Mapping[str, tuple[int, ...]]) -> dict[str, set[int]]:
    """Return the dimensions that differ, by name. The set is empty if the shapes cannot be compared."""
    changed: dict[str, set[int]] = {}
    for name in {**own, **other}:
        before, after = own.get(name), other.get(name)
        if before != after:
            pairs = enumerate(zip(before or (), after or (), strict=False))
            are_comparable = before and after and len(before) == len(after)
            changed[name] = {a for a, (n, m) in pairs if n != m} if are_comparable else set()
    return changed


def active_modes(conv: Any) -> tuple[int, ...]:
    """Return the active modes of a convolution, which is cheap enough to do at every step."""
    return (*as_tuple(conv.n_modes), *getattr(conv, "half_n_modes", ()))


def as_tuple(modes: Any) -> tuple:
    """Return the modes of a layer as a tuple, because layers outside neuralop may store one number for all axes."""
    return tuple(modes) if isinstance(modes, Iterable) else (modes,)
