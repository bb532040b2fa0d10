"""Pages are right: their Python runs, their commands parse, and the reference has every public name once."""

import re
import shlex
from argparse import ArgumentError
from collections import Counter
from contextlib import suppress
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

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# --- the Python of a page


@pytest.fixture
def _folder_with_data(tmp_path, monkeypatch):
    """Work in a folder with the data that pages read. Where a page keeps the defaults, train and measure for less time."""
    rng = np.random.default_rng(0)
    waves = np.exp(2j * np.pi * np.outer(np.arange(1, 5), np.linspace(0, 1, 32, endpoint=False)))
    amplitudes = rng.normal(size=(60, 4)) + 1j * rng.normal(size=(60, 4))
    decay = np.exp(-0.1 * np.arange(1, 5) ** 2)
    x, y = ((values @ waves).real[:, None].astype(np.float32) for values in (amplitudes, amplitudes * decay))
    np.savez(tmp_path / "heat.npz", x=x, y=y)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setitem(nm.train.__kwdefaults__, "epochs", 2)
    monkeypatch.setitem(nm.coord_check.__kwdefaults__, "seeds", 2)
    # With one core, runs stay in this process. Another process could not import what a page defines.
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with mock.patch.dict(layers._DESCRIBED), mock.patch.dict(nm.rules.RULES):  # undo what a page registers
        yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def run(page: Path) -> None:
    """Run the Python of a page, in order and in one namespace, like a script.

    Sybil reads the comments of MyST pages: ``<!--- invisible-code-block: python`` and ``<!--- skip: next -->``.
    """
    sybil = pytest.importorskip("sybil", reason='sybil reads the pages: pip install ".[ci]"')
    from sybil.parsers import myst

    document = sybil.Sybil([myst.PythonCodeBlockParser(), myst.SkipParser()]).parse(page)
    document.namespace["__name__"] = "__main__"
    for example in document.examples():
        with suppress(SkipTest):  # raised by a skip with a reason
            example.evaluate()


@pytest.mark.usefixtures("_folder_with_data")
@each_page
def test_python_runs(page):
    run(page)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nx = 1\n```\n\nWords.\n\n```python\nassert x == 2\n```\n", AssertionError),
        ("<!--- invisible-code-block: python\nx = 1\n-->\n\n```python\ny\n```\n", NameError),
        ("* A list:\n\n  ```python\n  import no_such_module\n  ```\n", ModuleNotFoundError),
    ],
)
def test_wrong_python_is_found(tmp_path, text, error):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(error):
        run(page)


# --- the commands of a page


_FENCE = re.compile(r"^[ *>-]*(`{3,}|~{3,})([^\n]*)\n(.*?)^[ >]*\1 *$", re.MULTILINE | re.DOTALL)
_BEFORE = re.compile(r"\w+=.*|&&|;|srun|time|nohup")  # what may stand before a command


def commands(text: str) -> list[list[str]]:
    """Return the words of each call of ``neuralop-mup`` in code blocks of a shell or without a language."""
    fences = [code for _, language, code in _FENCE.findall(text) if language.strip() in ("", "bash", "sh")]
    return [words for code in fences for line in code.replace("\\\n", " ").splitlines() for words in calls(line)]


def calls(line: str) -> list[list[str]]:
    """Return the words of each call in a line. A call ends at a pipe or a redirection."""
    if "neuralop-mup" not in line:
        return []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words, found = list(lexer), []
    for i, word in enumerate(words):
        if word.startswith("neuralop-mup "):  # in quotes, as an argument of sbatch
            found += calls(word)
        elif word == "neuralop-mup" and all(map(_BEFORE.fullmatch, words[max(0, i - 1) : i])):
            ends = [j for j, end in enumerate(words) if j > i and set(end) <= set("|&;<>()")]
            found.append(words[i + 1 : ends[0] if ends else None])
    return found


def read(words: list[str]) -> None:
    """Parse a command without running it, and check its names. Raise an error for what does not exist."""
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


@each_page
def test_commands_parse(page):
    for words in commands(page.read_text(encoding="utf-8")):
        read(words)


@each_page
def test_experiments_exist(page):
    """Names in ``python benchmarks/run.py law``, in code blocks and in sentences. Capitals stand for any name."""
    names = re.findall(r"python\s+benchmarks/run\.py\s+([\w-]+)", page.read_text(encoding="utf-8"))
    assert {name for name in names if not name.isupper()} <= {*EXPERIMENTS, "list", "pages"}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("neuralop-mup tune --no-such-option 3", "no-such-option"),
        ("OMP_NUM_THREADS=1 neuralop-mup compare --seeds x", "seeds"),
        ("pip install . && neuralop-mup summary --format no-such", "format"),
        ("neuralop-mup tune --target.no_such 3", "target"),
        ("neuralop-mup coord-check burgers \\\n    --sizes 8,x  # two sizes", "sizes"),
        ("neuralop-mup tune --rule no-such", "no-such"),
        ("neuralop-mup tune --optimizer no-such", "no-such"),
        ("neuralop-mup coord-check no-such", "no-such"),
    ],
)
def test_a_wrong_command_is_found(line, name):
    (words,) = commands(f"```bash\n{line}\n```\n")
    with pytest.raises((nm.MupError, ArgumentError, AssertionError), match=name):
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


def test_every_command_is_on_the_page_of_commands():
    text = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^```\{options\} (\S+)$", text, re.MULTILINE) == list(cli.COMMANDS)


# --- the reference


def test_each_public_name_is_on_one_page_of_the_reference():
    entries = Counter()
    for page in DOCS.joinpath("reference").glob("*.md"):
        entries.update(re.findall(r"^\.\. auto\w+:: neuralop_mup\.([\w.]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    entries["rules"] = entries["core.rules"]
    assert {name: entries[name] for name in nm.__all__ if entries[name] != 1} == {}
