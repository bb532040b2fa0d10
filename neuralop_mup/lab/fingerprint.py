"""One fingerprint for whatever a user gives: equal for what trains alike, in every process, another where it may not.

Arrays and tensors count by content, containers whole, functions by their code, constants, defaults and closures and, in
turn, by the globals, own functions and classes that they use. What an installed package has counts by its name and the
package's version. An object may say itself what it stands for: ``fingerprint_content()`` returns anything that has a
fingerprint.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import site
import sys
import sysconfig
import types
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neuralop_mup.errors import MupError

# Of a class what Python itself writes there, which says nothing of what the class does.
_NOT_OF_A_CLASS = {"__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__firstlineno__", "_abc_impl"}
_PACKAGES = (*{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, site.getusersitepackages())
_OURS = str(Path(__file__).parents[1])
_ATOMS = (str, bytes, float, complex, torch.dtype, torch.device, type(None), type(...))
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
        64 hex digits. Numbers that are equal have one fingerprint (1 and 1.0), and so have lists and tuples.

    Raises
    ------
    MupError
        If something in it cannot be looked into, such as an open file; the message names it.

    Examples
    --------
    >>> from neuralop_mup.lab.fingerprint import fingerprint
    >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 1), fingerprint([1]) == fingerprint((1.0,))
    (True, True)
    >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 2)
    False
    """
    return _digest(value, {})


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
    if isinstance(value, (np.ndarray, np.generic)):
        is_tensor = value.ndim and value.dtype.kind in "biufc"
        value = torch.from_numpy(np.ascontiguousarray(value)) if is_tensor else value.tolist()
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        values = torch.atleast_1d(value.detach().cpu().resolve_conj().resolve_neg()).contiguous()
        content = values.view(torch.uint8).numpy().data if values.numel() else b""
        return f"tensor {values.dtype} {tuple(value.shape)}", content, []
    if isinstance(value, (bool, int)) or (isinstance(value, float) and value.is_integer()):
        return "number", str(int(value)).encode(), []
    if isinstance(value, _ATOMS):
        return kind, repr(value).encode(), []
    if type(value) in (list, tuple):
        return "list", b"", value
    if type(value) in (dict, types.MappingProxyType):
        return "dict", b"", sorted(value.items(), key=lambda item: str(item[0]))
    if isinstance(value, Set):
        return "set", b"", sorted(map(fingerprint, value))
    if isinstance(value, torch.Generator):
        return kind, b"", [value.get_state()]
    if isinstance(value, _NAMED) and _is_installed(value):
        owner = getattr(value, "__self__", None)  # of what it is a method
        module, name = _module(value), getattr(value, "__qualname__", "")
        version = getattr(sys.modules.get(module.partition(".")[0]), "__version__", "")
        return f"{module}.{name} {version}", b"", [] if isinstance(owner, types.ModuleType) else [owner]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return kind, b"", [value.__code__, value.__defaults__, value.__kwdefaults__, cells, dict(_globals(value))]
    if isinstance(value, types.CodeType):
        arguments = value.co_varnames[: value.co_argcount + value.co_kwonlyargcount]
        return kind, value.co_code, [value.co_names, arguments, value.co_freevars, value.co_consts]
    if isinstance(value, type):
        members = {name: member for name, member in vars(value).items() if name not in _NOT_OF_A_CLASS}
        return f"class {value.__qualname__}", b"", [value.__bases__, members]
    if isinstance(value, _WRAPPERS):
        of = next(getattr(value, name) for name in ("__wrapped__", "__func__", "func", "fget") if hasattr(value, name))
        return kind, b"", [of, getattr(value, "__self__", None)]
    try:  # as it would be pickled: its class, and what it holds
        reduced = value.__reduce_ex__(4)
    except Exception as error:  # whatever an object raises that cannot be taken apart
        raise MupError(f"A {kind} holds what cannot be read, so that nothing tells it from others: {error}.") from error
    return "object", b"", [list(part) if isinstance(part, Iterator) else part for part in reduced]


def _module(value: Any) -> str:
    return (value.__name__ if isinstance(value, types.ModuleType) else value.__module__) or "builtins"


def _is_installed(value: Any) -> bool:
    """Whether something is of an installed package, or of Python, and not the user's own, which may be of a notebook."""
    module = sys.modules.get(_module(value))
    file = getattr(module, "__file__", None)
    if module is None or module.__name__ in ("__main__", "__mp_main__"):
        return False
    return file is None or file.startswith((*_PACKAGES, _OURS))


def _globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function, with those that it defines, uses of its module; of modules of the user's own what it names there."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    used = {step.argval for code in codes for step in dis.get_instructions(code) if step.opname in _LOADS}
    known, names = {**sys.modules, **function.__globals__}, {name for code in codes for name in code.co_names}
    for name in sorted(used & known.keys()):
        value = known[name]
        if isinstance(value, types.ModuleType) and not _is_installed(value):
            value = {own: getattr(value, own) for own in names if hasattr(value, own)}
        yield name, value
