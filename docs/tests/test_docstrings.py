"""Docstrings: their examples run, each public one has an example and describes all arguments, defaults are right."""

import ast
import doctest
import importlib
import inspect
import re
from enum import Enum
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "neuralop_mup").rglob("*.py"))
# Modules whose names are public.
PUBLIC = ("neuralop_mup", "neuralop_mup.losses", "neuralop_mup.lab.problems", "neuralop_mup.lab", "neuralop_mup.core.rules")
SECTION = re.compile(r"^ *(Parameters|Attributes|Returns|Yields|Raises|Warns)\n *-+$", re.M)
PAGE = re.compile(r"\bdocs/[\w/.-]*?\.(?:md|png|svg|rst)\b")
EXAMPLES = re.compile(r"^ *Examples\n *-+\n(?=(.*\n)*? *>>> )", re.M)
ARGUMENTS = re.compile(r"^(?:Parameters|Attributes)\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", re.M | re.S)
ARGUMENT = re.compile(r"^(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: : (?P<type>.+))?$", re.M)


# --- examples


def docstrings():
    """Yield name, text and line of each docstring of the package that has an example."""
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        where = path.relative_to(ROOT / "neuralop_mup").as_posix()
        nodes = [("", tree)]
        for name, node in nodes:  # the list grows
            inner = [n for n in node.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
            nodes += [(f"{name}.{n.name}".lstrip("."), n) for n in inner]
            text = ast.get_docstring(node, clean=False)
            if text and ">>>" in text:
                yield f"{where}:{name}".rstrip(":"), text, node.body[0].lineno - 1


TEXTS = {name: (text, line) for name, text, line in docstrings()}
# An example of a method continues that of its class, so they run one after the other.
TOGETHER = {name: [other for other in TEXTS if other == name or other.startswith(f"{name}.")] for name in TEXTS}


@pytest.mark.parametrize("name", [name for name in TEXTS if name.rpartition(".")[0] not in TEXTS])
def test_examples_run(name, tmp_path, monkeypatch):
    """Examples run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    variables, output = {"__name__": "__main__"}, []
    for part in TOGETHER[name]:
        test = doctest.DocTestParser().get_doctest(TEXTS[part][0], {}, part, part, TEXTS[part][1])
        test.globs = variables
        doctest.DocTestRunner(verbose=False).run(test, out=output.append, clear_globs=False)
    assert not output, "".join(output)


def test_skipped_examples_need_a_cluster_or_several_processes():
    skipped = [name for name, (text, _) in TEXTS.items() if "doctest: +SKIP" in text]
    assert [name for name in skipped if not name.endswith((":RayEngine", ":shard"))] == []


# --- public names


def text_of(value):
    return inspect.cleandoc(getattr(value, "__doc__", None) or "")


@cache
def public():
    """Return dotted name → object: public functions and classes, and their methods with arguments, results or errors."""
    found = {}
    for module in PUBLIC:
        for name in importlib.import_module(module).__all__:
            value = getattr(importlib.import_module(module), name)
            if inspect.isclass(value) or inspect.isroutine(value):
                found[f"{module}.{name}"] = value
            for method, member in vars(value).items() if inspect.isclass(value) else ():
                if not method.startswith("_") and SECTION.search(text_of(member)):
                    found[f"{module}.{name}.{method}"] = member
    return found


def arguments():
    """Yield name, argument and documented type of each argument of each public function, class and method."""
    for name, value in public().items():
        value = getattr(value, "__func__", value)
        plain = inspect.isclass(value) and (issubclass(value, (Exception, Enum)) or getattr(value, "_is_protocol", False))
        if plain or not callable(value):
            continue
        lines = "\n".join(ARGUMENTS.findall(text_of(value)))
        types = {name.lstrip("*"): m["type"] or "" for m in ARGUMENT.finditer(lines) for name in m["names"].split(", ")}
        for argument in inspect.signature(value).parameters.values():
            if argument.name not in ("self", "cls") and not argument.name.startswith("_"):
                yield name, argument, types.get(argument.name)


def test_every_public_docstring_has_an_example():
    assert len(public()) > 100
    assert [name for name, value in public().items() if not EXAMPLES.search(text_of(value) + "\n")] == []


def test_every_argument_is_described():
    assert [f"{name}({argument.name})" for name, argument, documented in arguments() if documented is None] == []


def test_documented_defaults_are_right():
    """``default …`` with the value, or one value for each name of a line. None and factories are ``optional``."""
    wrong = []
    for name, argument, documented in arguments():
        if stated := re.search(r"(?:^|, )default (.+)$", documented or ""):
            names = {repr(argument.default), str(argument.default), getattr(argument.default, "__name__", None)}
            text = re.sub(r"\d+e-\d+", lambda number: str(float(number[0])), stated[1])
            if names.isdisjoint({text, text.replace('"', "'"), text.rpartition(".")[2], *text.strip("()").split(", ")}):
                wrong.append(f"{name}({argument.name} : {documented}), which is {argument.default!r}")
    assert wrong == []


def test_pages_in_docstrings_comments_and_messages_exist():
    named = {(page, path.name) for path in FILES for page in PAGE.findall(path.read_text(encoding="utf-8"))}
    assert sorted(f"{name}: {page}" for page, name in named if not (ROOT / page).is_file()) == []
