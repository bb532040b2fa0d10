"""What the pages say is so: their Python runs, their commands parse, and the reference has every public name once."""

import re
import shlex
import sys
from argparse import ArgumentError
from collections import Counter
from contextlib import suppress
from importlib import import_module
from inspect import signature
from pathlib import Path
from unittest import SkipTest, mock

import numpy as np
import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from experiments import EXPERIMENTS
from neuralop_mup.core import layers
from neuralop_mup.core.rules import check_rule
from neuralop_mup.lab import cli
from neuralop_mup.lab.problems import PROBLEMS, OwnData
from neuralop_mup.lab.settings import optimizer_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("howto", "explain", "evidence", "reference")
PAGES = [ROOT / "README.md", DOCS / "index.md", DOCS / "install.md"]
PAGES += sorted(page for folder in FOLDERS for page in DOCS.joinpath(folder).rglob("*.md"))
REFERENCE = [page for page in PAGES if page.is_relative_to(DOCS / "reference")]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# The Python of a page


@pytest.fixture
def heat(tmp_path, monkeypatch):
    """A folder to work in, with the data that pages read: a field and what heat makes of it."""
    rng = np.random.default_rng(0)
    waves = np.exp(2j * np.pi * np.outer(np.arange(1, 5), np.linspace(0, 1, 32, endpoint=False)))
    amplitudes = rng.normal(size=(60, 4)) + 1j * rng.normal(size=(60, 4))
    decay = np.exp(-0.1 * np.arange(1, 5) ** 2)
    x, y = ((values @ waves).real[:, None].astype(np.float32) for values in (amplitudes, amplitudes * decay))
    np.savez(tmp_path / "heat.npz", x=x, y=y)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    # As on one core, where runs stay in this process: another one could not import what a page defines.
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    torch.manual_seed(0)
    with mock.patch.dict(layers._DESCRIBED), mock.patch.dict(nm.rules.RULES):  # what a page registers is its own
        yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def run(page: Path) -> dict:
    """Run the Python of a page, in order, in one namespace as of a script, which is returned.

    Sybil reads the comments that MyST pages may have: ``<!--- invisible-code-block: python`` and ``<!--- skip: next -->``.
    """
    sybil = pytest.importorskip("sybil", reason='pip install ".[test]" brings sybil')
    from sybil.parsers import myst

    document = sybil.Sybil([myst.PythonCodeBlockParser(), myst.SkipParser()]).parse(page)
    document.namespace["__name__"] = "__main__"
    for example in document.examples():
        with suppress(SkipTest):  # what is skipped with a reason says so by raising
            example.evaluate()
    return document.namespace


@each_page
def test_python_runs(page, heat, capsys):
    run(page)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nimport neuralop_mup as nm\nnm.no_such_name\n```\n", AttributeError),
        ("```python\nx = 1\n```\n\nWords.\n\n```python\nassert x == 2\n```\n", AssertionError),
        ("<!--- invisible-code-block: python\nx = 1\n-->\n\n```python\ny\n```\n", NameError),
        ("* A list:\n\n  ```python\n  import no_such_module\n  ```\n", ModuleNotFoundError),
    ],
)
def test_wrong_python_is_seen(tmp_path, text, error):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(error):
        run(page)


# The commands of a page


_FENCE = re.compile(r"^[ *>-]*(`{3,}|~{3,})([^\n]*)\n(.*?)^[ >]*\1 *$", re.MULTILINE | re.DOTALL)
_BEFORE = re.compile(r"\w+=.*|&&|;|srun|time|nohup")  # what may stand before a command


def commands(text: str) -> list[list[str]]:
    """Words of each call of ``neuralop-mup`` in fences of a shell, or of no language."""
    fences = [code for _, language, code in _FENCE.findall(text) if language.strip() in ("", "bash", "sh")]
    return [words for code in fences for line in code.replace("\\\n", " ").splitlines() for words in calls(line)]


def calls(line: str) -> list[list[str]]:
    """The same of a line; what follows a pipe or a redirection is the shell's."""
    if "neuralop-mup" not in line:
        return []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words, found = list(lexer), []
    for i, word in enumerate(words):
        if word.startswith("neuralop-mup "):  # in quotes, as what sbatch is to run
            found += calls(word)
        elif word == "neuralop-mup" and all(map(_BEFORE.fullmatch, words[max(0, i - 1) : i])):
            ends = [j for j, end in enumerate(words) if j > i and set(end) <= set("|&;<>()")]
            found.append(words[i + 1 : ends[0] if ends else None])
    return found


def read(words: list[str]) -> None:
    """Let the real parser read a command, which is not run. It raises what its main tells the user."""
    command, *options = words
    if command.startswith("-") or "--help" in options:
        return
    given = cli.parser().parse_args(cli.in_full(words))[command]
    if "data" in given:
        assert not re.fullmatch(r"[\w-]+", given.data) or given.data in PROBLEMS, f"there is no problem {given.data}"
        known = {"read": OwnData, "problem": PROBLEMS.get(given.data, OwnData)} | dict.fromkeys(
            ("target", "base", "model"), FNO
        )
        for group, taken in known.items():
            assert {*(given.get(group) or ())} <= {*signature(taken).parameters}, f"{group} has no such argument"
    for rule in filter(None, [given.get("rule"), *given.get("compare", ())]):
        check_rule(rule)
    optimizer_of(given.get("optimizer", "adam"))


def names_of_experiments(text: str) -> list[str]:
    """What pages have trained: ``python benchmarks/run.py law``, in fences and in sentences; capitals stand for any name."""
    return [name for name in re.findall(r"python\s+benchmarks/run\.py\s+([\w-]+)", text) if not name.isupper()]


@each_page
def test_commands_parse(page, capsys):
    for words in commands(page.read_text(encoding="utf-8")):
        read(words)


@each_page
def test_experiments_exist(page):
    wanted = names_of_experiments(page.read_text(encoding="utf-8"))
    assert [name for name in wanted if name not in (*EXPERIMENTS, "list", "pages")] == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("neuralop-mup tune --no-such-option 3", "no option"),
        ("OMP_NUM_THREADS=1 neuralop-mup compare --seeds x", "Expected a <class 'int'>"),
        ("pip install . && neuralop-mup summary --format no-such", "format"),
        ("neuralop-mup tune --target.no_such 3", "target has no such argument"),
        ("neuralop-mup coord-check burgers \\\n    --sizes 8,x  # two sizes", "sizes"),
        ("neuralop-mup tune --rule no-such", "no-such"),
        ("neuralop-mup tune --optimizer no-such", "no-such"),
        ("neuralop-mup coord-check no-such", "no problem"),
    ],
)
def test_a_wrong_command_is_seen(line, told):
    (words,) = commands(f"```bash\n{line}\n```\n")
    with pytest.raises((nm.MupError, ArgumentError, AssertionError), match=told):
        read(words)


def test_commands_are_found():
    text = (
        "In a sentence: `neuralop-mup no`.\n\n```bash\nneuralop-mup data darcy | head\nwhich neuralop-mup\n```\n"
        "* ```\n  neuralop-mup --version > out.txt\n  ```\n\n```python\nneuralop-mup no\n```\n"
        '```bash\nsbatch --wrap "neuralop-mup compare --seeds 1"\npip install neuralop-mup\n```\n'
        "```bash\nneuralop-mup tune --data 'a b.npz' --score rollout:5 --base.n_modes 8,8\n```\n"
    )
    assert commands(text) == [
        ["data", "darcy"],
        ["--version"],
        ["compare", "--seeds", "1"],
        ["tune", "--data", "a b.npz", "--score", "rollout:5", "--base.n_modes", "8,8"],
    ]


def test_a_wrong_experiment_is_seen():
    text = "`python benchmarks/run.py law --tiny` or\n`python\nbenchmarks/run.py nothing`; `python benchmarks/run.py NAME`."
    assert names_of_experiments(text) == ["law", "nothing"] and "nothing" not in EXPERIMENTS


def test_every_command_is_on_the_page_of_commands():
    text = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^```\{options\} (\S+)$", text, re.MULTILINE) == list(cli.COMMANDS)


# The reference


def documented(text: str) -> list:
    """Every object that a page has an autodoc entry for."""
    found = []
    for path in re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, re.MULTILINE):
        module, _, name = path.rpartition(".")
        try:
            found.append(import_module(path))
        except ModuleNotFoundError:
            found.append(getattr(import_module(module), name))
    return found


def test_each_public_name_is_on_one_page():
    found = Counter(id(thing) for page in REFERENCE for thing in documented(page.read_text(encoding="utf-8")))
    assert {name: found[id(getattr(nm, name))] for name in nm.__all__ if found[id(getattr(nm, name))] != 1} == {}


def test_documented_names_are_read():
    text = "```{eval-rst}\n.. autofunction:: neuralop_mup.tune\n.. automodule:: neuralop_mup.core.rules\n   :members:\n```\n"
    assert documented(text) == [nm.tune, nm.rules]
    with pytest.raises(AttributeError):
        documented(".. autofunction:: neuralop_mup.no_such_name\n")


def test_the_gallery_has_an_order():
    """Each script has its place in docs/_ext/gallery_order.py, and no place is empty."""
    with mock.patch.object(sys, "path", [str(DOCS / "_ext"), *sys.path]):
        order = import_module("gallery_order").ORDER
    assert sorted(order) == sorted(path.stem for path in ROOT.glob("examples/plot_*.py"))
