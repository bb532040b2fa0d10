"""Pages are right: their Python runs, their commands parse, and the reference has every public name once."""

import re
import shlex
from collections import Counter
from contextlib import suppress
from inspect import signature
from pathlib import Path
from unittest import SkipTest, mock

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from experiments import EXPERIMENTS
from neuralop_mup.core.layers import registry
from neuralop_mup.lab import cli
from neuralop_mup.lab.problems import PROBLEMS, OwnData

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("howto", "explain", "evidence", "reference")
PAGES = [ROOT / "README.md", DOCS / "index.md", DOCS / "install.md"]
PAGES += sorted(page for folder in FOLDERS for page in DOCS.joinpath(folder).rglob("*.md"))
FENCE = re.compile(r"^[ *>-]*```([^\n`]*)\n(.*?)^[ >]*```", re.MULTILINE | re.DOTALL)
# Quotes may contain what ends a command outside them.
COMMAND = re.compile(r"neuralop-mup ([a-z](?:\"[^\"\n]*\"|[^\"#|&;>\n])*)")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture
def _empty_folder(tmp_path, monkeypatch):
    """Work in an empty folder. Where a page keeps the defaults, train and measure for less time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setitem(nm.train.__kwdefaults__, "epochs", 2)
    monkeypatch.setitem(nm.coord_check.__kwdefaults__, "seeds", 2)
    # With one core, runs stay in this process. Another process could not import what a page defines.
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with mock.patch.dict(registry._DESCRIBED), mock.patch.dict(nm.rules.RULES):  # undo what a page registers
        yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_empty_folder")
@each_page
def test_python_runs(page):
    """The Python of a page runs in order and in one namespace, like a script.

    Sybil reads the comments of MyST pages: ``<!--- invisible-code-block: python`` and ``<!--- skip: next -->``.
    """
    sybil = pytest.importorskip("sybil", reason='sybil reads the pages: pip install ".[ci]"')
    from sybil.parsers import myst

    document = sybil.Sybil([myst.PythonCodeBlockParser(), myst.SkipParser()]).parse(page)
    document.namespace["__name__"] = "__main__"
    for example in document.examples():
        with suppress(SkipTest):  # raised by a skip with a reason
            example.evaluate()


@each_page
def test_pages_begin_with_code(page):
    """A reader can paste it before the first section."""
    introduction = page.read_text(encoding="utf-8").partition("\n## ")[0]
    assert page.name == "README.md" or {language for language, _ in FENCE.findall(introduction)} & {"python", "bash"}


def commands(page: Path) -> list[str]:
    """Return what follows ``neuralop-mup`` in the blocks of a shell and in those without a language."""
    blocks = FENCE.findall(page.read_text(encoding="utf-8"))
    code = "\n".join(text for language, text in blocks if language in ("", "bash", "sh"))
    return COMMAND.findall(code.replace("\\\n", " "))


@each_page
def test_commands_parse(page):
    """The problems and the arguments after a dot exist too. ``read`` has the arguments of data, other groups FNO's."""
    for command in commands(page):
        words = shlex.split(command)
        given = cli.parser().parse_args(cli.in_full(words))[words[0]]
        problem = re.fullmatch(r"[\w-]+", given.get("data", ""))
        assert not problem or given.data in PROBLEMS, command
        for group, name in re.findall(r"--(\w+)\.(\w+)", command):
            assert name in signature(OwnData if group == "read" else FNO).parameters, command


@each_page
def test_experiments_exist(page):
    """Names in ``python benchmarks/run.py law``, in code blocks and in sentences. Capitals stand for any name."""
    names = re.findall(r"python\s+benchmarks/run\.py\s+([\w-]+)", page.read_text(encoding="utf-8"))
    assert {name for name in names if not name.isupper()} <= {*EXPERIMENTS, "list", "pages"}


def test_every_command_is_on_the_page_of_commands():
    text = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^```\{options\} (\S+)$", text, re.MULTILINE) == list(cli.COMMANDS)


def test_each_public_name_is_on_one_page_of_the_reference():
    entries = Counter()
    for page in DOCS.joinpath("reference").glob("*.md"):
        entries.update(re.findall(r"^\.\. auto\w+:: neuralop_mup\.([\w.]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    entries["rules"] = entries["core.rules"]
    assert {name: entries[name] for name in nm.__all__ if entries[name] != 1} == {}
