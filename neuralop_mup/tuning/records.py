"""Records: one plain dict per finished trial, and what is computed from them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from neuralop_mup.errors import MupError
from neuralop_mup.tuning.space import is_number, params_key

__all__ = ["DIVERGED", "Record", "first_failure", "mean_and_std", "point_loss", "raised", "sort_records", "write_atomically"]

DIVERGED = "the loss is "


class Record(TypedDict):
    """What is kept of a finished trial; one line of ``results.jsonl``."""

    stage: str
    size: str | None
    rule: str | None
    params: dict[str, Any]
    seed: int
    state: str  # "complete" or "failed"
    error: str | None
    loss: float | None
    metrics: dict[str, Any]
    seconds: float


STAGES = ("proxy", "target", "verify")


def plain(value: Any) -> Any:
    """``value`` as strict JSON: numbers that are not finite become None, unknown objects their text."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # numpy and torch
        return plain(value.tolist())
    return str(value)


def _order(value: Any) -> tuple:
    return (0, value, "") if is_number(value) else (1, 0, params_key({"": value}))


def sort_records(records: Iterable[Record], rules: Sequence[str] = ()) -> list[Record]:
    """Records by stage, rule, point and seed: the same order whatever order they finished in."""

    def key(r: Record) -> tuple:
        stage = STAGES.index(r["stage"]) if r["stage"] in STAGES else len(STAGES)
        rule = rules.index(r["rule"]) if r["rule"] in rules else len(rules)
        point = tuple((k, _order(v)) for k, v in sorted(r["params"].items()))
        return stage, r["stage"], rule, r["rule"] or "", point, r["seed"]

    return sorted(records, key=key)


def raised(record: Mapping[str, Any]) -> bool:
    """Whether a trial failed for what may be mended: an exception, memory, a worker's death. A resume runs it again.

    A loss that is not finite and a MupError are the configuration's own; they would come again.
    """
    return record["state"] == "failed" and not (record["error"] or "").startswith((DIVERGED, MupError.__name__))


def first_failure(records: Iterable[Record]) -> str:
    """Two sentences, after a space: the first error, and how to go on; empty without errors."""
    failed = [r for r in records if r["error"]]
    if not failed:
        return ""
    if raised(failed[0]):
        go_on = "Once its cause is mended, the same call on the same folder runs what raised again."
    else:
        go_on = "Such a trial is not repeated: try other values or, once its cause is mended, another folder."
    return f" The first failure: {failed[0]['error'].rstrip('.')}. {go_on}"


def mean_and_std(losses: Sequence[float]) -> tuple[float, float]:
    """Mean and population standard deviation; (inf, nan) of nothing."""
    if not losses:
        return math.inf, math.nan
    mean = math.fsum(losses) / len(losses)
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in losses) / len(losses))


def point_loss(records: Sequence[Record], n_seeds: int) -> float:
    """Loss by which a point is ranked: its mean over seeds, infinite unless every seed completed."""
    losses = [r["loss"] for r in records if r["state"] == "complete"]
    return mean_and_std(losses)[0] if len(losses) == len(records) == n_seeds else math.inf


def by_point(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records grouped by point, in the order in which the points first appear."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(params_key(record["params"]), []).append(record)
    return groups


def best_point(records: Iterable[Record], n_seeds: int) -> tuple[dict[str, Any] | None, float]:
    """Point of lowest mean loss, and that loss; (None, inf) when every point failed."""
    best, best_loss = None, math.inf
    for group in by_point(records).values():
        loss = point_loss(group, n_seeds)
        if loss < best_loss:
            best, best_loss = dict(group[0]["params"]), loss
    return best, best_loss


def format_params(params: Mapping[str, Any]) -> str:
    """``lr=0.004, batch_size=20``."""
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items())


def write_atomically(path: Path, text: str) -> None:
    """Replace the file as a whole, so that a reader never sees half of it."""
    part = path.with_name(path.name + ".part")
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def to_jsonl(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(r, allow_nan=False) + "\n" for r in records)
