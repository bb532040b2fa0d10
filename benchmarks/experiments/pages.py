"""Numbers and tables of pages, written from the records of the experiments that they name.

On a page ``<!-- = law.others.median -->1.3 %<!-- / -->`` is a number, or a table if the text between has lines of its own.
The marks may have no blanks. Its name is that of an experiment and of what its ``numbers(records)`` gives.
``python benchmarks/run.py pages`` writes them anew, and with ``--check`` says what would change. README.md is written from
``benchmarks/readme_template.md``, without the marks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from experiments.kept import Lines

#: Problem → what pages call it.
NAMES = {
    "korteweg-de-vries": "Korteweg–de Vries",
    "gray-scott": "Gray–Scott",
    "burgers": "Burgers",
    "allen-cahn": "Allen–Cahn",
    "navier-stokes": "Navier–Stokes",
    "darcy": "Darcy",
    "darcy-pino": "Darcy with its equation",
    "burgers-pino": "Burgers with its equation",
    "gray-scott, 4 times the samples": "Gray–Scott, 1,600 samples",
    "gray-scott, 16 times the samples": "Gray–Scott, 6,400 samples",
    "interface": "growing interface, 3D",
    "korteweg-de-vries-in-time": "Korteweg–de Vries in time",
    "gray-scott-in-time": "Gray–Scott in time",
    "navier-stokes-in-time": "Navier–Stokes in time",
}

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "benchmarks" / "readme_template.md"
_MARK = re.compile(r"(<!-- ?= ?([\w.-]+) ?-->)(.*?)(<!-- ?/ ?-->)", re.S)


def named(name: str) -> str:
    """What pages call a problem, with what is added to its name after a comma; any other name is code."""
    problem, comma, more = name.partition(",")
    return NAMES.get(name) or (f"{NAMES[problem]}{comma}{more}" if problem in NAMES else f"`{name}`")


class NoSuchNumber(SystemExit):
    """A page names what no experiment gives: a command that meets it ends with the sentence."""


def rendered(text: str, numbers: Callable[[str], Mapping[str, str]]) -> str:
    """A page with its numbers as the records have them; ``numbers(experiment)`` gives these by name."""

    def anew(found: re.Match[str]) -> str:
        experiment, _, name = found[2].partition(".")
        known = numbers(experiment)
        if name not in known:
            raise NoSuchNumber(
                f"A page names {found[2]!r}, and the experiment {experiment!r} gives "
                f"{', '.join(get_close_matches(name, known, n=8, cutoff=0)) or 'nothing'}."
            )
        value = known[name]
        if "\n" in value:
            value = f"\n\n{value.strip()}\n\n"
        elif not text[text.rfind("\n", 0, found.start()) + 1 : found.start()].strip():
            raise NoSuchNumber(f"A line begins with {found[2]!r}; Markdown would take it for HTML, so put a word before it.")
        return f"{found[1]}{value}{found[4]}"

    return _MARK.sub(anew, text)


def stale(experiments: Mapping[str, Any]) -> dict[Path, str]:
    """Files that the records would make otherwise, and what they would be; the texts of experiments among them.

    Raises
    ------
    NoSuchNumber
        If a page names what there is not, or a file of records belongs to no experiment.
    """

    @cache
    def numbers(name: str) -> Mapping[str, str]:
        path = RESULTS / f"{name}.jsonl"
        known = path.exists() and hasattr(experiments.get(name), "numbers")
        return experiments[name].numbers(Lines(path)) if known else {}

    wanted = {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        if path.stem not in experiments:
            raise NoSuchNumber(
                f"{path.name} has records of no experiment, so that no command makes them: measure it, or go."
            )
        wanted[path.with_suffix(".md")] = page(experiments[path.stem], path)
    for path in [README, *sorted((ROOT / "docs").rglob("*.md"))]:
        wanted[path] = rendered(path.read_text(encoding="utf-8"), numbers)
    wanted[ROOT / "README.md"] = _MARK.sub(r"\3", wanted[README])  # people read it in a terminal, too
    return {path: text for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text}


def page(experiment: Any, path: Path) -> str:
    """The text of an experiment's records; its figure, if there is one, is written together with it."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    lines = Lines(path)
    return f"{experiment.table(lines).rstrip()}\n\nRecords: {path.name}, of release {lines.releases}, sha256 {digest}…\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table's lines."""
    return ["", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads), *("| " + " | ".join(r) + " |" for r in rows)]


def dotted(words: str) -> str:
    """As a page names a number."""
    return re.sub(r"[^\w.-]+", ".", words)


def mean_and_range(errors: Sequence[float]) -> str:
    """Return the mean of the seeds and their range."""
    return f"{fmean(errors):.3g} ({min(errors):.3g} to {max(errors):.3g})"


def percents(values: Sequence[float]) -> str:
    """Their median and range."""
    return f"{percent(median(values))} ({percent(min(values))} to {percent(max(values))})"


def percent(share: float) -> str:
    """Two digits at most from 10 on, else one after the point."""
    value = round(100 * share, 1)
    return f"{value:.{0 if abs(value) >= 10 else 1}f} %".replace("-", "−")
