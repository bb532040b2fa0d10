"""Write numbers and tables from records of experiments into pages.

On a page, ``<!-- = law.others.median -->1.3 %<!-- / -->`` is a number: that which ``numbers(records)`` of the experiment
``law`` returns as ``others.median``. Tables have the same markers. The spaces in markers are optional.
``python benchmarks/run.py pages`` updates the pages, and ``--check`` lists those that it would change. README.md is written
from ``benchmarks/readme_template.md``, without markers.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from experiments.records import RecordsFile
from neuralop_mup.lab.statistics import student

#: Problem → its name on pages.
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


class NoSuchNumber(SystemExit):
    """A page contains a number that no experiment has. A command ends with this message."""


def rendered(text: str, numbers: Callable[[str], Mapping[str, str]]) -> str:
    """Return a page with current numbers. ``numbers(experiment)`` returns the numbers of an experiment by name."""

    def updated(mark: re.Match[str]) -> str:
        experiment, _, name = mark[2].partition(".")
        known = numbers(experiment)
        if name not in known:
            raise NoSuchNumber(
                f"A page contains the number {mark[2]!r}, but the experiment {experiment!r} only has "
                f"{', '.join(get_close_matches(name, known, n=8, cutoff=0)) or 'none'}."
            )
        value = known[name]
        if "\n" in value:
            value = f"\n\n{value.strip()}\n\n"
        elif not text[text.rfind("\n", 0, mark.start()) + 1 : mark.start()].strip():
            raise NoSuchNumber(
                f"A line begins with the number {mark[2]!r}, and Markdown would read it as HTML. Put a word before it."
            )
        return f"{mark[1]}{value}{mark[4]}"

    return _MARK.sub(updated, text)


def stale(experiments: Mapping[str, Any]) -> dict[Path, str]:
    """Return the pages and reports that disagree with the records, and their new text.

    Raises
    ------
    NoSuchNumber
        If a page contains a number that no experiment has, or a file of records has no experiment.
    """

    @cache
    def numbers(name: str) -> Mapping[str, str]:
        path = RESULTS / f"{name}.jsonl"
        return experiments[name].numbers(RecordsFile(path)) if path.exists() else {}

    expected = {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        if path.stem not in experiments:
            raise NoSuchNumber(f"{path.name} belongs to no experiment. Delete it, or add the experiment {path.stem!r}.")
        expected[path.with_suffix(".md")] = report(experiments[path.stem], path)
    for path in [README, *sorted((ROOT / "docs").rglob("*.md"))]:
        expected[path] = rendered(path.read_text(encoding="utf-8"), numbers)
    expected[ROOT / "README.md"] = _MARK.sub(r"\3", expected[README])  # markers would disturb readers in a terminal
    return {path: text for path, text in expected.items() if not path.exists() or path.read_text(encoding="utf-8") != text}


def report(experiment: Any, path: Path) -> str:
    """Return the report of the records in a file."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    records = RecordsFile(path)
    table = experiment.table(records).rstrip()
    return f"{table}\n\nRecords: {path.name}, trained by release {records.releases}, sha256 {digest}…\n"


# Formats of numbers


def named(name: str) -> str:
    """Return the name of a problem on pages. A suffix after a comma is kept, and unknown names become code."""
    problem, comma, suffix = name.partition(",")
    return NAMES.get(name) or (f"{NAMES[problem]}{comma}{suffix}" if problem in NAMES else f"`{name}`")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"\n| {' | '.join(line)} |" for line in lines)


def dotted(words: str) -> str:
    """Return a name without characters that markers cannot contain."""
    return re.sub(r"[^\w.-]+", ".", words)


def mean_and_range(errors: Sequence[float]) -> str:
    """Return the mean of the seeds and their range."""
    return f"{fmean(errors):.3g} ({min(errors):.3g} to {max(errors):.3g})"


def percents(values: Sequence[float]) -> str:
    """Return the median and the range as percentages."""
    return f"{percent(median(values))} ({percent(min(values))} to {percent(max(values))})"


def percent(share: float) -> str:
    """Return a percentage, with one decimal below 10."""
    value = round(100 * share, 1)
    return f"{value:.{0 if abs(value) >= 10 else 1}f} %".replace("-", "−")


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean."""
    reach = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - reach, fmean(values) + reach
