"""Fingerprints of arbitrary values: identical in every process for equal values, different whenever the result might differ.

Arrays and tensors are identified by their content, and functions by their code, constants, defaults and closures. The
globals, functions and classes that a function uses are included in the same way. Objects from installed packages are
identified by their name and the version of the package. An object can define ``fingerprint_content()``, which returns a
substitute value for the fingerprint.
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

# Class attributes that Python itself sets. Copying or pickling an object adds __slotnames__.
_WRITTEN_BY_PYTHON = (
    "__dict__",
    "__weakref__",
    "__module__",
    "__doc__",
    "__annotations__",
    "__static_attributes__",
    "__firstlineno__",
    "__slotnames__",
    "__annotations_cache__",
    "_abc_impl",
)
# Folders of installed packages. The trailing separator distinguishes the user's package `torch_mine` from `torch`.
_INSTALLED = tuple(
    os.path.join(folder, "")
    for folder in (
        *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
        Path(__file__).parents[1],
        Path(torch.__file__).parents[1],  # on clusters, PYTHONPATH or a .pth file may add a folder of packages
    )
)
#: A run's key already contains the releases of these packages, so the fingerprint does not need to.
_IN_KEYS = ("torch", "neuralop_mup")
_ATOMS = (str, bytes, int, float, complex, torch.dtype, torch.device, type(None), type(...))
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_WRAPPERS = (staticmethod, classmethod, property, types.MethodType, functools.cached_property, functools._lru_cache_wrapper)
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME")


def fingerprint(value: Any) -> str:
    """Return the sha256 of a value and of everything that it contains and uses.

    Parameters
    ----------
    value : object
        Numbers, strings, arrays, tensors, containers, functions (including lambdas and functions defined in a notebook),
        classes and objects.

    Returns
    -------
    str
        64 hexadecimal digits. Equal lists and tuples have the same fingerprint, and so do equal NumPy arrays and torch
        tensors. 1 and 1.0 have different fingerprints. The fingerprint does not include files and environment variables that
        a function reads, or names that it constructs at run time (``getattr``, ``eval``, ``importlib``). It also does not
        include the versions of torch and of this package, since the key of a run already contains their releases.

    Raises
    ------
    MupError
        If the value contains something that cannot be inspected, such as an open file.

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
    except Exception as error:  # objects that cannot be pickled may raise any exception
        raise MupError(
            f"A value of type {type(value).__name__} has no fingerprint, because its contents cannot be read: {error}."
        ) from error


def fingerprint_or_new(value: Any) -> str:
    """Return the fingerprint of a value. If it has none, warn and return a unique string."""
    try:
        return fingerprint(value)
    except MupError as error:
        warnings.warn(f"{error} Runs that depend on it are therefore retrained in each call.", stacklevel=2)
        return f"unknown {uuid.uuid4().hex}"


def _digest(value: Any, met: dict[int, tuple[int, Any]]) -> str:
    """Return the fingerprint of a value, given the values visited so far.

    ``met`` maps the identity of each value that contains this one, and of all functions and classes visited so far, to a
    number. Therefore a value can contain itself, and a function that is used many times is inspected only once.
    """
    if id(value) in met:
        return f"number {met[id(value)][0]}"
    met[id(value)] = 1 + max((number for number, _ in met.values()), default=0), value
    kind, content, parts = _parts_of(value)
    whole = hashlib.sha256(kind.encode() + b"\0")
    whole.update(content)
    for part in parts:
        whole.update(b"\0" + _digest(part, met).encode())
    if not isinstance(value, _NAMED):
        del met[id(value)]
    return whole.hexdigest()


def _parts_of(value: Any) -> tuple[str, Any, Any]:
    """Return the kind of a value, its own content as bytes, and the values that it contains."""
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
        # For a method, __self__ is its owner.
        owner, name = getattr(value, "__self__", None), getattr(value, "__qualname__", "")
        package = module.partition(".")[0]
        version = "" if package in _IN_KEYS else getattr(sys.modules.get(package), "__version__", "")
        return f"{module}.{name} {version}", b"", [] if isinstance(owner, types.ModuleType) else [owner]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = [value.__code__, value.__defaults__, value.__kwdefaults__, vars(value), cells, _globals(value)]
        return kind, b"", parts
    if isinstance(value, types.CodeType):
        arguments = value.co_varnames[: value.co_argcount + value.co_kwonlyargcount]
        return kind, value.co_code, [value.co_names, arguments, value.co_freevars, value.co_consts]
    if isinstance(value, type):
        members = {name: member for name, member in vars(value).items() if name not in _WRITTEN_BY_PYTHON}
        return f"class {value.__qualname__}", b"", [value.__bases__, members]
    if isinstance(value, _WRAPPERS):
        wrapped = next(getattr(value, name) for name in ("__wrapped__", "__func__", "func", "fget") if hasattr(value, name))
        return kind, b"", [wrapped, getattr(value, "__self__", None)]
    # Represent any other object as pickle does, by its class and its state.
    reduced = copyreg.dispatch_table.get(type(value), lambda value: value.__reduce_ex__(4))(value)
    reduced = (type(value), reduced) if isinstance(reduced, str) else reduced
    return "object", b"", [list(part) if isinstance(part, Iterator) else part for part in reduced]


def _installed_as(value: Any) -> str | None:
    """Return the module of an object if it belongs to an installed package or to Python, otherwise None."""
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    if name is None and not isinstance(value, types.FunctionType):  # functions created by exec have no module either
        name = "builtins"
    module = sys.modules.get(name)
    if module is None or name in ("__main__", "__mp_main__"):
        return None
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return name if file is None or file.startswith(_INSTALLED) else None


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """Return the globals that a function and its inner functions use, by name."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    steps = [step for code in codes for step in dis.get_instructions(code) if step.opname in _LOADS]
    for name in {step.argval for step in steps if step.opname == "IMPORT_NAME"} - sys.modules.keys():
        with suppress(ImportError):  # the function would also import it
            importlib.import_module(name)
    known = {**sys.modules, **function.__globals__}
    names = {name for code in codes for name in code.co_names}
    used = sorted({step.argval for step in steps} & known.keys())
    return {name: _referenced(known[name], names, ()) for name in used}


def _referenced(value: Any, names: set[str], around: tuple[Any, ...]) -> Any:
    """Return the value itself or, for one of the user's modules, a dict of its attributes with these names."""
    if not isinstance(value, types.ModuleType) or _installed_as(value):
        return value
    found = {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}
    return {name: _referenced(own, names, (*around, value)) for name, own in found.items() if own not in around}
