"""The studies of benchmarks/faults.py: what is run, what a trial marks, and what the journal holds."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys
import time
import types
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The package's own __init__ brings torch, which takes each worker process seconds and does nothing here.
_package = types.ModuleType("neuralop_mup")
_package.__path__ = [str(Path(__file__).resolve().parents[1] / "neuralop_mup")]
sys.modules.setdefault("neuralop_mup", _package)

from neuralop_mup.tuning import sweep, transfer  # noqa: E402


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """A deterministic loss; one point diverges and one raises. Marks its start and its end in a file of its own."""
    if multiprocessing.parent_process() is not None:
        limit_files(None)  # the full disk is the study's, not that of the marks
    key = trial_key(config.get("model"), config.get("rule"), config, config["seed"])
    seen = key in journaled(Path(config["folder"]))
    _mark(config, "again" if seen else "start", key)
    time.sleep(0.002 + 0.001 * (zlib.crc32(key.encode()) % 11))
    lr, width = config["lr"], (config.get("model") or {}).get("width", 0)
    loss = abs(lr - 0.2) + 0.01 * config["seed"] + 0.001 * width * (config.get("rule") == "standard")
    _mark(config, "end", key)
    if lr > 0.9:
        loss = float("nan")
    elif lr > 0.6 and config["seed"] == 1:
        raise ValueError("out of luck")
    return {"loss": loss, "curve": [loss] * 8}


def trial_key(model: Any, rule: Any, params: Mapping[str, Any], seed: int) -> str:
    """The same for a trial's config and for its record."""
    width = model if isinstance(model, int) else (model or {}).get("width", 0)
    return json.dumps([width, rule, params["lr"], params.get("kind"), seed])


def _mark(config: Mapping[str, Any], what: str, key: str) -> None:
    descriptor = os.open(config["marks"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, (json.dumps([what, key, os.getpid()]) + "\n").encode())
    os.close(descriptor)


class Study:
    """One study folder and what happened in it.

    Parameters
    ----------
    kind : {"grid", "transfer", "search"}
        What the command is.
    root : Path
        Holds the folder, the file of marks and the log of commands that broke.
    """

    KINDS = ("grid", "transfer", "search")

    def __init__(self, kind: str, root: Path) -> None:
        root.mkdir(parents=True)
        self.kind, self.folder, self.marks, self.log = kind, root / "study", root / "marks", root / "log"
        self._kept = root / "records.json"

    def command(self) -> list[dict]:
        """What the user runs, again and again; returns the records."""
        fixed = {"folder": str(self.folder), "marks": str(self.marks)}
        common = {"folder": self.folder, "seeds": (0, 1), "fixed": fixed, "progress": False}
        lrs = [0.0625, 0.125, 0.25, 0.5, 0.75, 1.0]
        if self.kind == "grid":
            return sweep(train, {"lr": lrs, "kind": ["a", "b"]}, n_workers=2, **common).records
        if self.kind == "transfer":
            return transfer(
                train, proxy={"width": 8}, target={"width": 64}, space={"lr": lrs}, verify=True, n_workers=2, **common
            ).records
        from optuna.distributions import FloatDistribution

        space = {"lr": FloatDistribution(0.01, 1.0), "kind": ["a", "b"]}
        return sweep(train, space, n_trials=10, n_workers=1, **common).records

    def keep(self, records: list[dict]) -> None:
        """What the last command that ended well returned."""
        self._kept.write_text(json.dumps(records))

    def records(self) -> list[dict]:
        return json.loads(self._kept.read_text())

    def written(self) -> list[dict]:
        """What ``results.jsonl`` holds."""
        path = self.folder / "results.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def marked(self) -> list[list]:
        """[what, key, pid] for each start and end of a trial so far."""
        text = self.marks.read_text() if self.marks.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def journal_size(self) -> int:
        path = self.folder / "journal.log"
        return path.stat().st_size if path.exists() else 0


def journaled(folder: Path) -> dict[str, dict]:
    """Records in the journal, by trial: read off its whole lines, not by the package's or Optuna's reader.

    Not those of trials that raised or were lost, which are to run again.
    """
    try:
        data = (folder / "journal.log").read_bytes()
    except FileNotFoundError:
        return {}
    found = {}
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        if b'"seed:' not in line:
            continue
        try:
            entry = json.loads(line)
        except ValueError:  # a line that was cut and then written on; its record is lost
            continue
        for name, record in {**entry.get("user_attrs", {}), **entry.get("user_attr", {})}.items():
            if name.startswith("seed:") and record["outcome"] not in ("raised", "lost"):
                width = {"proxy": 8, "target": 64}.get(record["size"], 0)
                found[trial_key(width, record["rule"], record["params"], record["seed"])] = record
    return found


def table(records: list[dict]) -> list[dict]:
    """Records without what differs from run to run."""
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def limit_files(size: int | None) -> None:
    """Let this process write no file beyond ``size`` bytes; None lifts the limit."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))
