"""Fingerprints: different wherever training may give other numbers, and the same in every process."""

import contextlib
import copy
import dataclasses
import enum
import functools
import os
import pickle
import random
import runpy
import site
import subprocess
import sys
import sysconfig
import threading
import types
from pathlib import Path

import neuralop
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from neuralop.models import FNO
from neuralop.utils import count_model_params
from torch import nn

import neuralop_mup
from neuralop_mup.lab import fingerprint as fingerprints
from neuralop_mup.lab.fingerprint import fingerprint, fingerprint_or_new
from support.errors import refused
from support.processes import environment

WEIGHT = 1.5


def uses(x):
    return x * WEIGHT


def calls(x):
    return uses(x) + 1


def recursive(n):
    return recursive(n - 1) * WEIGHT if n else 0


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


class Described:
    """An object with a fingerprint of its own."""

    def __init__(self, content, hidden):
        self.content, self.hidden = content, hidden

    def fingerprint_content(self):
        return self.content


class Holder:
    def __init__(self, **held):
        self.__dict__.update(held)

    def __call__(self, x):
        return x


USERS = (
    *(uses, calls, recursive, cached, lambda x: calls(x), lambda: [uses(i) for i in range(3)]),
    *(Uses(), Uses, Uses().method, Uses.static, Inherits(), Module, Module()),
    *(functools.partial(calls, 2), (1, {"b": [uses]}), torch.utils.data.DataLoader([1], collate_fn=uses)),
)


@pytest.mark.parametrize("value", USERS, ids=lambda value: getattr(value, "__qualname__", type(value).__name__))
def test_a_global_counts_wherever_it_is_used(value, monkeypatch):
    before = fingerprint(value)
    assert fingerprint(value) == before
    monkeypatch.setattr(sys.modules[__name__], "WEIGHT", 2.5)
    assert fingerprint(value) != before


@pytest.mark.parametrize("value", [nn.functional.gelu, nn.Linear, Data, Data(), Kind, Kind.ONE, default, np.sin, "x"])
def test_a_global_does_not_count_where_it_is_not_used(value, monkeypatch):
    before = fingerprint(value)
    monkeypatch.setattr(sys.modules[__name__], "WEIGHT", 2.5)
    assert fingerprint(value) == before


def closure(held):
    def inner(x):
        return x, held

    return inner


def with_defaults(held, key):
    def inner(x, at=held, *, key=key):
        return x

    return inner


def of_module(held):
    module = types.ModuleType("one_name")
    exec(f"def train(config): return config['lr'] - {held!r}", module.__dict__)
    return module.train


def of_class(held):
    return type("Made", (), {"held": held, "method": lambda self: self.held})


HOLDERS = (
    *(closure, lambda held: with_defaults(held, 0), lambda held: with_defaults(0, held), of_module),
    *(of_class, lambda held: of_class(held)(), lambda held: closure(closure([held]))),
    *(lambda held: nn.Parameter(torch.tensor([1.0]), requires_grad=held == 1), torch.Generator().manual_seed),
    *(Data, random.Random, lambda held: Described(held, 0), lambda held: Holder(a={"b": [held]})),
    *(lambda held: Holder(a=held).__call__, lambda held: functools.partial(uses, held)),
    lambda held: np.where(np.arange(3000) == 1000, held, 0),  # repr shows only a part
    *(lambda held: torch.tensor([1.0, held * 1e-6]), lambda held: [1, {"a": (held,)}], lambda held: {"a": {held}}),
    *(lambda held: np.ma.masked_array([1, 2], [0, held - 1]), lambda held: np.array([str(held)], dtype=object)),
)


@pytest.mark.parametrize("make", HOLDERS)
def test_everything_that_a_value_holds_counts(make):
    assert fingerprint(make(1)) == fingerprint(make(1)) != fingerprint(make(2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2.0], (1, 2.0)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1, "b": 1}, {"b": 1, "a": 1}),
        (2 * [[1, 2]], [[1, 2], [1, 2]]),
        (np.arange(3), torch.arange(3)),
        (np.float32(1.5), 1.5),
        (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T.copy()),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
        (lambda x: x + 1, lambda x: x + 1),
        (Described(1, hidden=2), Described(1, hidden=threading.Lock())),
        ({3, "a", None}, {None, "a", 3}),
    ],
)
def test_values_that_train_in_the_same_way_have_one_fingerprint(one, other):
    assert fingerprint(one) == fingerprint(other)


DIFFERENT = (
    *(
        0,
        1,
        0.0,
        1.0,
        True,
        False,
        [1.0, 2],
        "1",
        b"1",
        None,
        ...,
        1.5,
        1 + 2j,
        [],
        [[]],
        {},
        {1},
        [1, 2],
        [2, 1],
        [12],
        ["1", "2"],
        {"a": 1},
        {"a": [1]},
    ),
    *(torch.zeros(0), torch.zeros(0, 1), torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(3, 2).long(), torch.float32),
    *("cpu", torch.device("cpu"), Kind.ONE, Kind.TWO, nn.Linear, nn.Conv1d, nn.ReLU(), nn.GELU(), np.sin, np.cos, len, max),
    *(lambda x: x + 1, lambda x: x + 2, lambda x: -x, lambda *, a: 1, lambda *, b: 1, default, "a".join, "b".join),
    *(functools.partial(max, 1), functools.partial(min, 1), lambda: 7, lambda: 7.0, lambda x=1: x, lambda x=True: x),
)


def test_different_values_have_different_fingerprints():
    assert len({fingerprint(value) for value in DIFFERENT}) == len(DIFFERENT)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=6,
)


def typed(value):
    """A value whose numbers are equal only if their types are."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    return list(map(typed, value)) if isinstance(value, list) else (type(value), repr(value))


@settings(max_examples=50)
@given(JSON, JSON)
def test_plain_values_have_one_fingerprint_only_if_they_are_equal(one, other):
    assert (fingerprint(one) == fingerprint(other)) == (typed(one) == typed(other))


@pytest.mark.parametrize("use", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copying_and_pickling_change_no_fingerprint(use):
    """The first copy of an object adds __slotnames__ to its class."""

    class Own(Uses):
        weight = 2

    before = fingerprint(functools.partial(calls, Own))
    with contextlib.suppress(AttributeError, pickle.PicklingError):  # a local class cannot be pickled
        use(Own())
    assert "__slotnames__" in vars(Own)
    assert fingerprint(functools.partial(calls, Own)) == before


def test_a_module_that_is_imported_when_the_function_runs(tmp_path, monkeypatch):
    """Nothing has imported it yet, and the function uses a module inside it."""
    monkeypatch.syspath_prepend(tmp_path)
    package, found = tmp_path / "own_numbers", []
    package.mkdir()
    (package / "__init__.py").write_text("from own_numbers import deeper\nimport own_numbers")
    for weight in (1, 2):
        (package / "deeper.py").write_text(f"weight = {weight}" + " " * weight)
        found += [fingerprint(numbers), fingerprint(numbers)]
        for name in ("own_numbers", "own_numbers.deeper"):
            del sys.modules[name]
    assert found[0] == found[1] != found[2] == found[3]


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": [threading.Lock()]},
        lambda: (i for i in range(3)),
        lambda: functools.reduce(lambda value, _: [value], range(10**5), []),
        lambda: torch.zeros(1, device="meta"),
        lambda: open(__file__),  # noqa: SIM115
    ],
)
def test_values_that_cannot_be_read_are_refused(make):
    with refused(""):
        fingerprint(make())


def test_a_value_that_holds_itself():
    itself = {}
    itself["itself"] = [itself]
    assert fingerprint(itself) == fingerprint(itself)


def nested(depth):
    """Three lists, each inside the one before. The last one contains the one at this depth."""
    levels = [[], [], []]
    for outer, inner in zip(levels, [*levels[1:], levels[depth]], strict=True):
        outer.append(inner)
    return levels[0]


def test_values_that_hold_another_part_of_themselves_differ():
    assert len({fingerprint(nested(depth)) for depth in range(3)}) == 3


def test_objects_that_are_pickled_by_the_same_name_differ():
    one, other = (type(name, (), {"__reduce__": lambda self: "default"}) for name in ("One", "Other"))
    assert fingerprint(one()) != fingerprint(other())


def test_a_value_without_a_fingerprint_is_unique():
    assert fingerprint_or_new([1]) == fingerprint([1])
    with open(__file__) as file, pytest.warns(UserWarning, match="TextIOWrapper"):
        assert fingerprint_or_new(file) != fingerprint_or_new(file)


PRINTS = """
import test_fingerprint as t
print(list(map(t.fingerprint, t.EVERYWHERE)))
"""
EVERYWHERE = (*USERS, Data(2), Kind, {"b", "a", 3, None}, nn.Linear, {"k": {"l": 1}})


def test_every_process_computes_the_same_fingerprints():
    """The other process has other hashes of text, and so another order of sets."""
    variables = {**environment(), "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", PRINTS], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(list(map(fingerprint, EVERYWHERE)))


def test_the_version_of_an_installed_package_counts(monkeypatch):
    """The releases of torch and of this package are part of a run's key."""
    before = [fingerprint(value) for value in (FNO, count_model_params, nn.Linear)]
    monkeypatch.setattr(neuralop, "__version__", "9.9")
    monkeypatch.setattr(torch, "__version__", "9.9")
    after = [fingerprint(value) for value in (FNO, count_model_params, nn.Linear)]
    assert [one != other for one, other in zip(before, after, strict=True)] == [True, True, False]


@pytest.mark.parametrize("installed", [neuralop_mup, torch])
def test_a_folder_whose_name_begins_like_an_installed_one_is_not_installed(tmp_path, monkeypatch, installed):
    """Own code in …/neuralop_mup_mine/, or in …/site-packages_mine/."""
    module, folder = types.ModuleType("mine"), Path(installed.__file__).parents[installed is torch]
    assert os.path.join(folder, "") in fingerprints._INSTALLED
    module.__file__ = f"{folder}_mine/m.py"
    monkeypatch.setitem(sys.modules, "mine", module)
    found = []
    for weight in (1, 9):
        exec(f"def loss(config): return {weight} * config['lr']", module.__dict__)
        found.append(fingerprint(module.loss))
    assert found[0] != found[1]


def test_packages_outside_the_folders_of_the_interpreter_are_installed(monkeypatch):
    """Clusters bring theirs by PYTHONPATH."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "/elsewhere")
    monkeypatch.setattr(site, "getsitepackages", lambda: ["/elsewhere"])
    elsewhere = runpy.run_path(sys.modules[fingerprint.__module__].__file__)
    assert elsewhere["fingerprint"](nn.Linear) == fingerprint(nn.Linear)
