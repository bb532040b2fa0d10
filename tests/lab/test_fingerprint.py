"""One fingerprint for whatever a user gives: another where training may give other numbers, the same in every process."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import random
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import neuralop_mup
from neuralop_mup.errors import MupError
from neuralop_mup.lab.fingerprint import fingerprint
from support.processes import environment

WEIGHT = 1.5


def uses(x):
    return x * WEIGHT


def calls(x):
    return uses(x) + 1


def recursive(n):
    return recursive(n - 1) * WEIGHT if n else 0


def nested(x):
    return [uses(y) for y in x]


def default(x, weight=WEIGHT):
    return x * weight


def numbers():
    import own_numbers

    return own_numbers.deeper.weight


@functools.lru_cache
def cached(x):
    return x * WEIGHT


class Uses:
    def method(self, x):
        return uses(x)

    @property
    def prop(self):
        return WEIGHT

    @staticmethod
    def static():
        return WEIGHT


class Inherits(Uses):
    pass


class Module(nn.Module):
    def forward(self, x):
        return x * WEIGHT if self.training else x


@dataclasses.dataclass(frozen=True)
class Data:
    a: int = 1
    b: list = dataclasses.field(default_factory=list)


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


class Told:
    """An object that says itself what it stands for."""

    def __init__(self, told, hidden):
        self.told, self.hidden = told, hidden

    def fingerprint_content(self):
        return self.told


class Slots:
    __slots__ = ("a",)

    def __init__(self, a):
        self.a = a


class Weighed:
    def __init__(self, **held):
        self.__dict__.update(held)

    def __call__(self, x):
        return x


USERS = (
    *(uses, calls, recursive, nested, cached, lambda x: calls(x), lambda: [uses(i) for i in range(3)]),
    *(Uses, Uses(), Uses().method, Uses.static, Inherits, Inherits(), Module, Module()),
    *(
        functools.partial(calls, 2),
        [uses],
        {"a": uses},
        (1, {"b": [uses]}),
        torch.utils.data.DataLoader([1], collate_fn=uses),
    ),
)


@pytest.mark.parametrize("value", USERS, ids=lambda value: getattr(value, "__qualname__", type(value).__name__))
def test_whatever_uses_a_global_changes_with_it(value, monkeypatch):
    before = fingerprint(value)
    assert fingerprint(value) == before
    monkeypatch.setattr(sys.modules[__name__], "WEIGHT", 2.5)
    assert fingerprint(value) != before


@pytest.mark.parametrize("value", [nn.functional.gelu, nn.Linear, Data, Data(), Kind, Kind.ONE, default, np.sin, "x"])
def test_what_does_not_use_it_stays(value, monkeypatch):
    before = fingerprint(value)
    monkeypatch.setattr(sys.modules[__name__], "WEIGHT", 2.5)
    assert fingerprint(value) == before


def closure(held):
    def inner(x):
        return x, held

    return inner


def with_default(held):
    def inner(x, at=held, *, key=held):
        return x

    return inner


def with_attribute(held):
    def inner(x):
        return x

    inner.held = held
    return inner


def of_module(held):
    module = types.ModuleType("one_name")
    exec(f"def train(config): return config['lr'] - {held!r}", module.__dict__)
    return module.train


def of_class(held):
    return type("Made", (), {"held": held, "method": lambda self: self.held})


def parameter(held):
    return nn.Parameter(torch.tensor([1.0]), requires_grad=held == 1)


def generator(held):
    return torch.Generator().manual_seed(held)


HOLDERS = (
    *(closure, with_default, with_attribute, of_module, of_class, lambda held: of_class(held)(), parameter, generator),
    *(Slots, Data, random.Random, lambda held: Told(held, 0), lambda held: Weighed(a={"b": [held]})),
    *(
        lambda held: Weighed(a=held).__call__,
        lambda held: functools.partial(uses, held),
        lambda held: closure(closure([held])),
    ),
    lambda held: np.where(np.arange(3000) == 1000, held, 0),  # of which repr shows a part
    *(lambda held: torch.tensor([1.0, held * 1e-6]), lambda held: [1, {"a": (held,)}], lambda held: {"a": {held}}),
    *(lambda held: nn.Linear(held, 1).state_dict()["weight"].shape, lambda held: nn.Dropout(held / 10)),
    *(lambda held: np.ma.masked_array([1, 2], [0, held - 1]), lambda held: np.array([str(held)], dtype=object)),
)


@pytest.mark.parametrize("make", HOLDERS)
def test_what_is_held_counts(make):
    assert fingerprint(make(1)) == fingerprint(make(1)) != fingerprint(make(2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        ([1, 2], (1.0, 2)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.arange(3), torch.arange(3)),
        (np.float32(1.5), 1.5),
        (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T.copy()),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
        (lambda x: x + 1, lambda x: x + 1),
        (Told(1, hidden=2), Told(1, hidden=threading.Lock())),
        (Data(1), Data(1)),
        ({3, "a", None}, {None, "a", 3}),
    ],
)
def test_what_trains_alike_is_the_same(one, other):
    assert fingerprint(one) == fingerprint(other)


DIFFERENT = (
    *(0, 1, "1", b"1", None, ..., 1.5, 1 + 2j, [], [[]], {}, {1}, [1, 2], [2, 1], [12], ["1", "2"], {"a": 1}, {"a": [1]}),
    *(
        torch.zeros(0),
        torch.zeros(0, 1),
        torch.zeros(2, 3),
        torch.zeros(3, 2),
        torch.zeros(3, 2).long(),
        torch.float32,
        "cpu",
    ),
    *(
        torch.device("cpu"),
        Kind.ONE,
        Kind.TWO,
        nn.Linear,
        nn.Conv1d,
        lambda x: x + 1,
        lambda x: x + 2,
        lambda x: -x,
        len,
        max,
    ),
    *(
        nn.ReLU(),
        nn.GELU(),
        np.sin,
        np.cos,
        functools.partial(max, 1),
        functools.partial(min, 1),
        default,
        "a".join,
        "b".join,
    ),
)


def test_what_is_different_differs():
    assert len({fingerprint(value) for value in DIFFERENT}) == len(DIFFERENT)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=6,
)


@given(JSON, JSON)
def test_plain_values_are_the_same_if_and_only_if_they_are_equal(one, other):
    assert (fingerprint(one) == fingerprint(other)) == (one == other)


def test_a_module_that_is_imported_when_the_function_runs(tmp_path, monkeypatch):
    """Also one that nothing has imported yet, and what hangs on it."""
    monkeypatch.syspath_prepend(tmp_path)
    found = set()
    for weight in (1, 2):
        (tmp_path / "own_numbers").mkdir(exist_ok=True)
        (tmp_path / "own_numbers" / "__init__.py").write_text("from own_numbers import deeper\nimport own_numbers")
        (tmp_path / "own_numbers" / "deeper.py").write_text(f"weight = {weight}" + " " * weight)
        found |= {fingerprint(numbers), fingerprint(numbers)}
        for name in ("own_numbers", "own_numbers.deeper"):
            del sys.modules[name]
    assert len(found) == 2


def deep(n):
    value = []
    for _ in range(n):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), {"a": [threading.Lock()]}, (i for i in range(3)), deep(10**5), torch.zeros(1, device="meta"), open],
    ids=str.__class__,
)
def test_what_cannot_be_looked_into_is_told(value):
    value = value(__file__) if value is open else value
    with pytest.raises(MupError, match="holds what cannot be read, which tells it from others"):
        fingerprint(value)


def test_what_holds_itself_ends():
    itself = {}
    itself["itself"] = [itself]
    assert fingerprint(itself) == fingerprint(itself)


PRINTS = """
import functools, random
import torch
import test_fingerprint as t
values = [*t.USERS, t.Data(2), t.Kind, {"b", "a", 3, None}, frozenset({"x", "y"}), torch.nn.Linear, {"k": {"l": 1}}]
print([t.fingerprint(value) for value in values])
"""


def test_every_process_has_the_same():
    told = set()
    for seed in ("0", "1"):
        variables = {**environment(), "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", PRINTS], env=variables, capture_output=True, text=True, check=True)
        told.add(done.stdout)
    assert len(told) == 1


def test_packages_that_lie_elsewhere_are_installed():
    """A cluster's modules, and PYTHONPATH, bring packages from outside of the interpreter's own folders."""
    python = Path(sys.base_prefix) / "bin" / "python3"
    if sys.prefix == sys.base_prefix or not python.exists():
        pytest.skip("needs an interpreter beside that of the tests")
    told = "from neuralop_mup.lab.fingerprint import fingerprint; from torch.nn import Linear; print(fingerprint(Linear))"
    path = os.pathsep.join((str(Path(torch.__file__).parents[1]), str(Path(neuralop_mup.__file__).parents[1])))
    run = subprocess.run([python, "-c", told], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert run.stdout.strip() == fingerprint(torch.nn.Linear), run.stderr
