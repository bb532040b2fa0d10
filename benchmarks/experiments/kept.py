"""Read-only records of a folder or of a file in ``benchmarks/results``, which has one line per run.

A line contains what the experiment calls the run, the hash of the run's content, and the release that trained it. So an
experiment can continue on another machine, and a run is measured again if rules or settings have changed since. Unlike the
package, the runner reuses runs of other releases: the versions in their content change whenever their results would.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from neuralop_mup.lab.outcome import is_complete, is_final
from neuralop_mup.lab.records import Run, content_hash

#: What a file keeps of a run besides its loss, unless the experiment says otherwise.
METRICS = ("test_loss", "seconds")


class Lines:
    """Records of a file: a run is found there by what it is called among an experiment's."""

    def __init__(self, path: Path) -> None:
        self.lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        self.refused: set[tuple] = set()  # asked for, and there with another content
        self._of_size: dict[str, list[dict[str, Any]]] = {}
        for line in self.lines:
            self._of_size.setdefault(line["size"], []).append(line)

    @property
    def releases(self) -> str:
        """The releases that trained the runs."""
        return ", ".join(sorted({line["release"] for line in self.lines if "release" in line}))

    def get(self, run: Run) -> dict[str, Any] | None:
        """The record of a run; None where there is none, or one of another content."""
        called = _called(run)
        for line in self._of_size.get(called["size"], ()):
            if called.items() <= line.items():
                if line.get("id") in (None, _id(run)):
                    return {"id": None, **line, "metrics": line}
                self.refused.add(tuple(called.values()))
        return None


class Folder:
    """Records of a folder of runs, whatever release trained them."""

    def __init__(self, path: Path) -> None:
        self._places: dict[str, Path] = {}
        for file in path.glob("workspace/*/signac_statepoint.json"):
            content = json.loads(file.read_text(encoding="utf-8"))
            content.pop("releases", None)
            self._places[content_hash(content)] = file.with_name("signac_job_document.json")

    def get(self, run: Run) -> dict[str, Any] | None:
        """The record of a run that would end in the same way again; else None."""
        path = self._places.get(content_hash(run.content))
        record = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else None
        return record if record is not None and is_final(record) else None


class Asked:
    """Records of several places, the first of which that has a run counts, and which of them a page was made from."""

    def __init__(self, *places: Any) -> None:
        self.places, self._found = places, {}

    def get(self, run: Run) -> Any:
        """The record of a run; None where there is none."""
        record = next((found for place in self.places if (found := place.get(run)) is not None), None)
        if record is not None:
            called = _called(run)
            known = record.get("id", _id(run))
            release = record.get("release") or ".".join(record.get("versions", {}).get("neuralop-mup", "").split(".")[:2])
            more = {"id": known, "release": release}
            self._found[tuple(called.values())] = {**called, **{name: text for name, text in more.items() if text}}, record
        return record

    def write(self, path: Path, metrics: Iterable[str]) -> None:
        """Write them as lines: how each run ended, its loss, and some of what it measured besides."""
        names = ("loss", *metrics)
        with path.open("w", encoding="utf-8") as file:
            for called, record in self._found.values():
                values = {**record["metrics"], "loss": record["loss"]}
                line = {name: _short(name, values.get(name)) for name in names}
                file.write(json.dumps({**called, "outcome": record["outcome"], **line}) + "\n")


def missing(records: Any, runs: Iterable[Run]) -> Iterator[Run]:
    """Those of the runs that have no record."""
    return (run for run in runs if records.get(run) is None)


def metrics_of(records: Any, runs: Mapping[Any, Run]) -> dict[Any, Mapping[str, Any]]:
    """What was measured by those of the runs that completed."""
    found = {name: records.get(run) for name, run in runs.items()}
    return {name: record["metrics"] for name, record in found.items() if record is not None and is_complete(record)}


def loss_of(record: Mapping[str, Any] | None) -> float | None:
    """What a run is compared by, infinite where it did not train; None where it is not done."""
    return None if record is None else record["loss"] if is_complete(record) else math.inf


def test_errors(records: Any, runs: Iterable[Run]) -> list[float]:
    """Return the test errors of the runs that ended, or their losses if these are errors of rollouts.

    The error of a run that failed is infinite.
    """
    errors = []
    for run in runs:
        if record := records.get(run):
            error = record["loss"] if "rollout" in run.config else record["metrics"]["test_loss"]
            errors.append(error if is_complete(record) else math.inf)
    return errors


def _called(run: Run) -> dict[str, Any]:
    return {"size": run.labels["size"], **run.labels["params"], "seed": run.labels["seed"]}


def _id(run: Run) -> str:
    """Return the key of a run in a file, which does not contain the release."""
    return content_hash(run.content)[:16]


def _short(name: str, value: Any) -> Any:
    """Digits that mean something."""
    if not isinstance(value, float):
        return value
    return round(value, 1) if name == "seconds" else float(f"{value:.5g}")
