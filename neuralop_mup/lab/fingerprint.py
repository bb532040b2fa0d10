"""Fingerprints of any values: equal in every process for values that train in the same way, different whenever the
result might differ.

Arrays and tensors count by content, and functions by their code, constants, defaults and closures. The globals, functions
and classes that a function uses count in the same way. Objects of an installed package count by their name and the package's
version. An object may define what it stands for: ``fingerprint_content()`` returns anything that has a fingerprint.
"""

import copyreg
import dis
import functools
import hashlib
import importlib
import os
import site
import sys
import sysconfig
import types
import uuid
import warnings
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neuralop_mup.errors import MupError

# Attributes of a class that Python itself writes, some of them later: copying or pickling an object adds __slotnames__.
_NOT_OF_A_CLASS = (
    *("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__static_attributes__", "__firstlineno__"),
    *("__slotnames__", "__annotations_cache__", "_abc_impl"),
)
# Folders of installed packages, each with a separator at its end: the user's package `torch_mine` is not `torch`.
_INSTALLED = tuple(
    os.path.join(folder, "")
    for folder in (
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
        *(*site.getsitepackages(), site.getusersitepackages(), Path(__file__).parents[1]),
        Path(torch.__file__).parents[1],  # packages that PYTHONPATH or a .pth file adds, as on clusters
    )
)
#: The key of a run contains their releases, so a fingerprint does not.
_IN_KEYS = ("torch", "neuralop_mup")
_ATOMS = (str, bytes, bool, int, float, complex, torch.dtype, torch.device, type(None), type(...))
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_WRAPPERS = (staticmethod, classmethod, property, types.MethodType, functools.cached_property, functools._lru_cache_wrapper)
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME")


def fingerprint(value: Any) -> str:
    """sha256, in hex, of a value with all that it holds and uses.

    Parameters
    ----------
    value : object
        Anything: numbers, text, arrays and tensors, containers, functions (lambdas and those of notebooks, too), classes and
        objects.

    Returns
    -------
    str
        64 hex digits. Lists and tuples have the same fingerprint, and so have arrays of NumPy and torch; 1 and 1.0 differ.
        Not seen are files and environment variables that a function reads, and names that it makes up itself (``getattr``,
        ``eval``, ``importlib``). Versions of torch and of this package do not count: a run's key contains their releases.

    Raises
    ------
    MupError
        If something in it cannot be looked into, such as an open file; the message says what.

    Examples
    --------
    >>> from neuralop_mup.lab.fingerprint import fingerprint
    >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 1), fingerprint([1]) == fingerprint((1,))
    (True, True)
    >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 2), fingerprint(1) == fingerprint(1.0)
    (False, False)
    """
    try:
        return _digest(value, {})
    except Exception as error:  # whatever an object raises that cannot be taken apart
        raise MupError(
            f"Something of the type {type(value).__name__} holds what cannot be read, which tells it from others: {error}."
        ) from error


def fingerprint_or_new(value: Any) -> str:
    """The fingerprint of a value; of what has none one that nothing else has, and a warning says why."""
    try:
        return fingerprint(value)
    except MupError as error:
        warnings.warn(f"{error} So its runs are trained anew by each call, and not used again.", stacklevel=2)
        return f"unknown {uuid.uuid4().hex}"


def _digest(value: Any, met: dict[int, tuple[int, Any]]) -> str:
    """``met``: by identity the values around this one, and functions and classes so far, with their number.

    What holds itself is met there again, and what many use is looked into once.
    """
    if id(value) in met:
        return f"number {met[id(value)][0]}"
    met[id(value)] = 1 + max((number for number, _ in met.values()), default=0), value
    kind, content, parts = _taken_apart(value)
    whole = hashlib.sha256(kind.encode() + b"\0")
    whole.update(content)
    for part in parts:
        whole.update(b"\0" + _digest(part, met).encode())
    if not isinstance(value, _NAMED):
        del met[id(value)]
    return whole.hexdigest()


def _taken_apart(value: Any) -> tuple[str, Any, Any]:
    """What kind of thing a value is, its own content as bytes, and the values that it is made of."""
    if hasattr(value, "fingerprint_content") and not isinstance(value, type):
        return "told", b"", [value.fingerprint_content()]
    if type(value) in (np.ndarray, np.memmap) and value.ndim and value.dtype.kind in "biufc":
        content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
        return f"tensor {value.dtype.name} {value.shape} False", content, []
    if isinstance(value, np.generic) or type(value) in (np.ndarray, np.memmap):
        value = value.tolist()
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        values = torch.atleast_1d(value.detach().cpu().resolve_conj().resolve_neg()).contiguous()
        content = values.view(torch.uint8).numpy().data if values.numel() else b""
        return f"tensor {str(values.dtype)[6:]} {tuple(value.shape)} {value.requires_grad}", content, []
    if isinstance(value, _ATOMS):
        return kind, repr(value).encode(), []
    if type(value) in (list, tuple):
        return "list", b"", value
    if type(value) in (dict, types.MappingProxyType):
        return "dict", b"", sorted(value.items(), key=lambda item: str(item[0]))
    if isinstance(value, Set):
        return "set", b"", sorted(map(fingerprint, value))
    if isinstance(value, _NAMED) and (module := _installed_as(value)):
        owner, name = getattr(value, "__self__", None), getattr(value, "__qualname__", "")  # of what it is a method
        package = module.partition(".")[0]
        version = "" if package in _IN_KEYS else getattr(sys.modules.get(package), "__version__", "")
        return f"{module}.{name} {version}", b"", [] if isinstance(owner, types.ModuleType) else [owner]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = [value.__code__, value.__defaults__, value.__kwdefaults__, vars(value), cells, dict(_globals(value))]
        return kind, b"", parts
    if isinstance(value, types.CodeType):
        arguments = value.co_varnames[: value.co_argcount + value.co_kwonlyargcount]
        return kind, value.co_code, [value.co_names, arguments, value.co_freevars, value.co_consts]
    if isinstance(value, type):
        members = {name: member for name, member in vars(value).items() if name not in _NOT_OF_A_CLASS}
        return f"class {value.__qualname__}", b"", [value.__bases__, members]
    if isinstance(value, _WRAPPERS):
        of = next(getattr(value, name) for name in ("__wrapped__", "__func__", "func", "fget") if hasattr(value, name))
        return kind, b"", [of, getattr(value, "__self__", None)]
    # As it would be pickled: its class, and what it holds.
    reduced = copyreg.dispatch_table.get(type(value), lambda value: value.__reduce_ex__(4))(value)
    reduced = (type(value), reduced) if isinstance(reduced, str) else reduced
    return "object", b"", [list(part) if isinstance(part, Iterator) else part for part in reduced]


def _installed_as(value: Any) -> str | None:
    """The module of an installed package, or of Python, that something is of; None for the user's own, or a notebook's."""
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    if name is None and isinstance(value, types.FunctionType):  # made by exec
        return None
    name = name or "builtins"
    module = sys.modules.get(name)
    if module is None or name in ("__main__", "__mp_main__"):
        return None
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return name if file is None or file.startswith(_INSTALLED) else None


def _globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function, with those that it defines, uses of its module, and of others of the user's own."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    steps = [step for code in codes for step in dis.get_instructions(code) if step.opname in _LOADS]
    for name in {step.argval for step in steps if step.opname == "IMPORT_NAME"} - sys.modules.keys():
        with suppress(ImportError):  # the function would also import it
            importlib.import_module(name)
    known = {**sys.modules, **function.__globals__}
    names = {name for code in codes for name in code.co_names}
    for name in sorted({step.argval for step in steps} & known.keys()):
        yield name, _used(known[name], names, ())


def _used(value: Any, names: set[str], around: tuple[Any, ...]) -> Any:
    """A value; of a module of the user's own what is named of it."""
    if not isinstance(value, types.ModuleType) or _installed_as(value):
        return value
    found = {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}
    return {name: _used(own, names, (*around, value)) for name, own in found.items() if own not in around}
