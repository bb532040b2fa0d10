"""Examples in docstrings run, public docstrings have an example, and the pages that docstrings name exist."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "neuralop_mup").rglob("*.py"))
# Modules whose names are public.
PUBLIC = ("neuralop_mup", "neuralop_mup.losses", "neuralop_mup.lab.problems", "neuralop_mup.lab", "neuralop_mup.core.rules")
SECTION = re.compile(r"^(Parameters|Attributes|Returns|Yields|Raises|Warns)\n-+$", re.MULTILINE)
EXAMPLE = re.compile(r"^Examples\n-+\n(?=(.*\n)*?>>> )", re.MULTILINE)
PAGE = re.compile(r"\bdocs/[\w/.-]*?\.(?:md|png|svg|rst)\b")


def docstrings():
    """Yield a name and the text for each module, each function, and each class with its methods."""
    for path in FILES:
        name = path.relative_to(ROOT / "neuralop_mup").as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield name, ast.get_docstring(tree) or ""
        for node in tree.body:
            parts = [part for part in ast.walk(node) if isinstance(part, (ast.ClassDef, ast.FunctionDef))]
            texts = [ast.get_docstring(part) or "" for part in parts]
            yield f"{name}:{parts[0].name if parts else ''}", "\n\n".join(texts)


EXAMPLES = {name: text for name, text in docstrings() if ">>>" in text}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name, tmp_path, monkeypatch):
    """Examples run in an empty folder. The example of a method continues that of its class."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    output = []
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], {"__name__": "__main__"}, name, name, 0)
    doctest.DocTestRunner(verbose=False).run(test, out=output.append)
    assert not output, "".join(output)


def test_skipped_examples_need_a_cluster_or_several_processes():
    skipped = [name for name, text in EXAMPLES.items() if "doctest: +SKIP" in text]
    assert [name for name in skipped if not name.endswith((":RayEngine", ":shard"))] == []


def public_docstrings():
    """Return the docstrings of public functions, classes, and methods with arguments, results or errors."""
    found = {}
    for module in map(importlib.import_module, PUBLIC):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value):
                found[f"{module.__name__}.{name}"] = inspect.cleandoc(value.__doc__ or "")
            for method, member in vars(value).items() if inspect.isclass(value) else ():
                text = inspect.cleandoc(getattr(member, "__doc__", None) or "")
                if not method.startswith("_") and SECTION.search(text):
                    found[f"{module.__name__}.{name}.{method}"] = text
    return found


def test_every_public_docstring_has_an_example():
    public = public_docstrings()
    assert len(public) > 100
    assert [name for name, text in public.items() if not EXAMPLE.search(text)] == []


def test_pages_that_the_package_names_exist():
    named = {(page, path.name) for path in FILES for page in PAGE.findall(path.read_text(encoding="utf-8"))}
    assert sorted(f"{name}: {page}" for page, name in named if not (ROOT / page).is_file()) == []
