"""Docstrings: each public one has an example, every example runs, and what they say of arguments and pages is so."""

import ast
import doctest
import importlib
import inspect
import re
from enum import Enum
from functools import cache, cached_property
from pathlib import Path

import pytest

import neuralop_mup as nm

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "neuralop_mup").rglob("*.py"))
# What the package's docstring calls public.
OPEN = ("neuralop_mup", "neuralop_mup.losses", "neuralop_mup.lab.problems", "neuralop_mup.lab")
# Ray's cluster, and a model that is shared between processes: the examples that cannot run here.
ELSEWHERE = (":RayEngine", ":shard")
SECTION = re.compile(r"^ *(Parameters|Attributes|Returns|Yields|Raises|Warns)\n *-+$", re.M)
PAGE = re.compile(r"\bdocs/[\w/.-]*?\.(?:md|png|svg|rst)\b")
EXAMPLES = re.compile(r"^ *Examples\n *-+\n(?=(.*\n)*? *>>> )", re.M)


# The examples run


def _docstrings():
    """Name, text and line of each docstring of the package."""
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        where = path.relative_to(ROOT / "neuralop_mup").as_posix()
        found = [("", tree)]
        for name, node in found:  # which grows
            inner = [n for n in node.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
            found += [(f"{name}.{n.name}".lstrip("."), n) for n in inner]
            if (text := ast.get_docstring(node, clean=False)) is not None:
                yield f"{where}:{name}".rstrip(":"), path, text, node.body[0].lineno - 1


EXAMPLED = [(name, path, text, line) for name, path, text, line in _docstrings() if ">>>" in text]


TEXTS = {name: text for name, _, text, _ in EXAMPLED}


@pytest.mark.parametrize(("name", "path", "text", "line"), EXAMPLED, ids=[name for name, *_ in EXAMPLED])
def test_an_example_runs(name, path, text, line, tmp_path, monkeypatch):
    """In an empty folder, with nothing but what it imports; a method's goes on from where its class's ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEURALOP_MUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    test = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, name, str(path), line)
    for example in doctest.DocTestParser().get_examples(TEXTS.get(name.rpartition(".")[0], "")):
        exec(compile(example.source, name, "exec"), test.globs)
    said = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert not result.failed, "".join(said)


def test_what_is_skipped_needs_what_is_not_here():
    skipped = [name for name, _, text, _ in EXAMPLED if "doctest: +SKIP" in text]
    assert [name for name in skipped if not name.endswith(ELSEWHERE)] == []


# Each public docstring has one


@cache
def _on_pages():
    """What the pages of the API show: modules, names and methods, dotted."""
    shown = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for kind, name, options in re.findall(r"^\.\. auto(\w+):: *(\S+)\n((?: +:.*\n)*)", text, re.M):
            members = re.search(r":members:(.*)", options)
            listed = [m.strip() for m in members[1].split(",") if m.strip()] if members else []
            if kind == "module" and members and not listed:
                listed = importlib.import_module(name).__all__
            shown += [f"{name}.{member}" for member in listed] if kind == "module" else [name]
            shown += [f"{name}.{member}" for member in listed] if kind == "class" else []
    assert shown, "no page shows the API"
    return shown


def _found(dotted):
    """The object of a dotted name; a property or a class method as what it is."""
    parts = dotted.split(".")
    for n in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:n]))
        except ImportError:
            continue
        for part in parts[n:]:
            value = inspect.getattr_static(value, part) if inspect.isclass(value) else getattr(value, part)
        return value
    raise ImportError(dotted)


def _methods(cls):
    """Public methods and properties of a class whose docstring has sections: those with arguments, results or errors."""
    kinds = (property, cached_property, classmethod, staticmethod)
    home = {name: base for base in reversed(cls.__mro__) for name in vars(base) if not name.startswith("_")}
    for name, base in home.items():
        value = vars(base)[name]
        described = inspect.isroutine(value) or isinstance(value, kinds)
        if described and base.__module__.startswith("neuralop_mup") and SECTION.search(_text(value)):
            yield f"{base.__module__}.{base.__qualname__}.{name}"


def _text(value):
    return inspect.cleandoc(getattr(value, "__doc__", None) or "")


@cache
def _public():
    """Functions, classes and modules that are public, and the methods of these classes: dotted name → object."""
    names = [f"{module}.{name}" for module in OPEN for name in importlib.import_module(module).__all__]
    public, ids = {}, set()
    for name in [*names, *_on_pages()]:
        value = _found(name)
        described = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)
        wanted = [name] if described or isinstance(value, (property, classmethod, staticmethod)) else []
        wanted += _methods(value) if inspect.isclass(value) else []
        for each in wanted:
            value = _found(each)
            if id(value) not in ids:
                ids.add(id(value))
                public[each] = value
    return public


def test_every_public_name_is_on_a_page_of_the_api():
    shown = {id(_found(name)) for name in _on_pages()}
    # Its own docstring stands at the top of the page of its members.
    assert [name for name in nm.__all__ if id(getattr(nm, name)) not in shown and name != "rules"] == []


def test_every_public_docstring_has_an_example():
    assert len(_public()) > 100
    assert [name for name, value in _public().items() if not EXAMPLES.search(_text(value) + "\n")] == []


# What they say is so

HEADS = ("Parameters", "Attributes", "Returns", "Raises", "Warns", "Notes", "References", "Examples")
ARGUMENT = re.compile(r"^(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: : (?P<type>.+))?$")


def _described(text):
    """Name → what stands behind it in Parameters and Attributes."""
    _, *sections = re.split(rf"^({'|'.join(HEADS)})\n-+\n", text, flags=re.M)
    bodies = zip(sections[::2], sections[1::2], strict=True)
    inside = "\n".join(body for head, body in bodies if head in ("Parameters", "Attributes"))
    found = filter(None, map(ARGUMENT.match, inside.splitlines()))
    return {name.lstrip("*"): match["type"] or "" for match in found for name in match["names"].split(", ")}


def _arguments():
    """Each argument of each public function, class and method."""
    for name, value in _public().items():
        value = getattr(value, "__func__", value)
        by_itself = inspect.isclass(value) and (
            issubclass(value, (Exception, Enum)) or getattr(value, "_is_protocol", False)
        )
        if not callable(value) or by_itself:
            continue
        described = _described(_text(value))
        for argument in inspect.signature(value).parameters.values():
            if argument.name not in ("self", "cls") and not argument.name.startswith("_"):
                yield name, argument, described.get(argument.name)


def test_every_argument_is_described():
    assert [f"{name}({argument.name})" for name, argument, said in _arguments() if said is None] == []


def test_defaults_are_told_as_they_are():
    """``default …`` with the value, or one for each name of a line; of None and what a factory makes, ``optional``."""
    wrong = []
    for name, argument, said in _arguments():
        if told := re.search(r"(?:^|, )default (.+)$", said or ""):
            names = {repr(argument.default), str(argument.default), getattr(argument.default, "__name__", None)}
            text = re.sub(r"\d+e-\d+", lambda number: str(float(number[0])), told[1])
            meant = {text, text.replace('"', "'"), text.rpartition(".")[2], *text.strip("()").split(", ")}
            if names.isdisjoint(meant):
                wrong.append(f"{name}({argument.name} : {said}), which is {argument.default!r}")
    assert wrong == []


def test_pages_that_are_named_exist():
    """In docstrings, comments and messages: ``docs/….md``, from the root of the repository."""
    named = {(page, path) for path in FILES for page in PAGE.findall(path.read_text(encoding="utf-8"))}
    assert sorted(f"{path.name}: {page}" for page, path in named if not (ROOT / page).is_file()) == []
