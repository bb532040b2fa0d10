"""Records of finished runs, read from a folder or from a file in ``benchmarks/results`` with one line per run.

A line contains the label of the run in its experiment, the hash of the run's content, and the release that trained it. So an
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

#: Metrics that a file of records contains in addition to the loss, unless the experiment names others.
METRICS = ("test_loss", "seconds")
#: Error of a rollout that diverges.
LOST = 1e6


class RecordsFile:
    """Records of a file, found by the label of the run.

    Attributes
    ----------
    lines : list of dict
    refused : set of tuple
        Labels of requested runs that have a different content in the file.
    """

    def __init__(self, path: Path) -> None:
        self.lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        self.refused: set[tuple] = set()
        self._by_size: dict[str, list[dict[str, Any]]] = {}
        for line in self.lines:
            self._by_size.setdefault(line["size"], []).append(line)

    @property
    def releases(self) -> str:
        """Return the releases that trained the runs."""
        return ", ".join(sorted({line["release"] for line in self.lines if "release" in line}))

    def get(self, run: Run) -> dict[str, Any] | None:
        """Return the record of a run, or None if there is none with the same content."""
        label = _label(run)
        for line in self._by_size.get(label["size"], ()):
            if label.items() <= line.items():
                if line.get("id") in (None, _id(run)):
                    return {"id": None, **line, "metrics": line}
                self.refused.add(tuple(label.values()))
        return None


class RecordsFolder:
    """Records of a folder of runs, from any release."""

    def __init__(self, path: Path) -> None:
        self._paths: dict[str, Path] = {}
        for file in path.glob("workspace/*/signac_statepoint.json"):
            content = json.loads(file.read_text(encoding="utf-8"))
            content.pop("releases", None)
            self._paths[content_hash(content)] = file.with_name("signac_job_document.json")

    def get(self, run: Run) -> dict[str, Any] | None:
        """Return the record of a run, or None if there is no final one."""
        path = self._paths.get(content_hash(run.content))
        record = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else None
        return record if record is not None and is_final(record) else None


class UsedRecords:
    """Records from several sources, which remembers the records that were requested.

    If several sources have a run, the first one counts.
    """

    def __init__(self, *sources: Any) -> None:
        self.sources, self._used = sources, {}

    def get(self, run: Run) -> Any:
        """Return the record of a run, or None if there is none."""
        record = next((found for source in self.sources if (found := source.get(run)) is not None), None)
        if record is not None:
            label = _label(run)
            release = record.get("release") or ".".join(record.get("versions", {}).get("neuralop-mup", "").split(".")[:2])
            provenance = {"id": record.get("id", _id(run)), "release": release}
            self._used[tuple(label.values())] = {**label, **{k: v for k, v in provenance.items() if v}}, record
        return record

    def write(self, path: Path, metrics: Iterable[str]) -> None:
        """Write the requested records to a file: label, outcome, loss and some metrics of each run."""
        names = ("loss", *metrics)
        with path.open("w", encoding="utf-8") as file:
            for label, record in self._used.values():
                values = {**record["metrics"], "loss": record["loss"]}
                line = {name: _shortened(name, values.get(name)) for name in names}
                file.write(json.dumps({**label, "outcome": record["outcome"], **line}) + "\n")


def missing(records: Any, runs: Iterable[Run]) -> Iterator[Run]:
    """Return the runs that have no record."""
    return (run for run in runs if records.get(run) is None)


def metrics_of(records: Any, runs: Mapping[Any, Run]) -> dict[Any, Mapping[str, Any]]:
    """Return the metrics of the runs that are complete."""
    found = {name: records.get(run) for name, run in runs.items()}
    return {name: record["metrics"] for name, record in found.items() if record is not None and is_complete(record)}


def loss_of(record: Mapping[str, Any] | None, metric: str = "loss") -> float | None:
    """Return the loss of a run, or another error: infinite if the training or a rollout failed, None without a record."""
    if record is None:
        return None
    error = record.get(metric, record["metrics"].get(metric)) if is_complete(record) else LOST
    return error if error < LOST else math.inf


def test_errors(records: Any, runs: Iterable[Run]) -> list[float]:
    """Return the test errors of the runs that have a record, or their losses if these are rollout errors.

    The error of a failed run is infinite.
    """
    errors = (loss_of(records.get(run), "loss" if "rollout" in run.config else "test_loss") for run in runs)
    return [error for error in errors if error is not None]


def _label(run: Run) -> dict[str, Any]:
    return {"size": run.labels["size"], **run.labels["params"], "seed": run.labels["seed"]}


def _id(run: Run) -> str:
    """Return the key of a run in a file. It does not contain the release."""
    return content_hash(run.content)[:16]


def _shortened(name: str, value: Any) -> Any:
    """Return a number without meaningless digits."""
    if not isinstance(value, float):
        return value
    return round(value, 1) if name == "seconds" else float(f"{value:.5g}")
