"""What became of one training run: a kind, which is a value, and what was measured. Nothing is scheduled here."""

from __future__ import annotations

import copy
import math
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any, TypedDict

from neuralop_mup.errors import Diverged, MupError
from neuralop_mup.tuning.space import params_key

__all__ = ["Kind", "Outcome", "Record", "execute", "first_failure", "mean_and_std", "plain"]


class Kind(str, Enum):
    """How a run ended. ``raised`` and ``lost`` may be mended and run again; the others would end the same way again."""

    COMPLETE = "complete"
    DIVERGED = "diverged"  # the loss is no finite number
    REFUSED = "refused"  # a MupError: the configuration cannot work
    PRUNED = "pruned"  # stopped on the way, because others were better
    RAISED = "raised"  # any other exception
    LOST = "lost"  # the process ended under it, twice

    @property
    def final(self) -> bool:
        """Whether the same run would end like this again."""
        return self not in (Kind.RAISED, Kind.LOST)


class Outcome(TypedDict):
    """The end of one run, as JSON holds it."""

    outcome: str  # a value of Kind
    error: str | None
    loss: float | None
    metrics: dict[str, Any]
    seconds: float


class Record(Outcome):
    """An outcome with the run that it belongs to; one line of ``results.jsonl``."""

    size: str | None
    rule: str | None
    params: dict[str, Any]
    seed: int


def make_outcome(kind: Kind, error: str | None = None, seconds: float = 0.0) -> Outcome:
    """An outcome without a loss."""
    return {"outcome": kind.value, "error": error, "loss": None, "metrics": {}, "seconds": seconds}


def execute(train: Callable[[dict], Any], config: Mapping[str, Any]) -> tuple[Outcome, str | None]:
    """Run once; whatever ``train`` raises becomes part of the outcome.

    Returns
    -------
    outcome : Outcome
    traceback : str or None
        Of the exception, if there was one.
    """
    start = time.perf_counter()
    outcome, trace = make_outcome(Kind.COMPLETE), None
    try:
        value = train(copy.deepcopy(dict(config)))
        if isinstance(value, Mapping) and "loss" not in value:
            raise TypeError(f"train returned the keys {', '.join(map(str, value))}, but no 'loss'; add it.")
        metrics = value if isinstance(value, Mapping) else {"loss": value}
        try:
            loss = float(metrics["loss"])
        except (TypeError, ValueError):
            raise TypeError(
                f"train returned {metrics['loss']!r} as the loss; return a number, or a dict with one under 'loss'."
            ) from None
        outcome["metrics"] = plain(metrics)
        if math.isfinite(loss):
            outcome["loss"] = loss
        else:
            outcome.update(outcome=Kind.DIVERGED.value, error=f"the loss is {loss}")
    except (Exception, SystemExit) as error:
        kind = Kind.DIVERGED if isinstance(error, Diverged) else Kind.REFUSED if isinstance(error, MupError) else Kind.RAISED
        text = " ".join(str(error).split())
        name = "" if isinstance(error, MupError) else type(error).__name__
        outcome.update(outcome=kind.value, error=": ".join(filter(None, (name, text))) or type(error).__name__)
        trace = None if kind.final else traceback.format_exc()
    outcome["seconds"] = time.perf_counter() - start
    return outcome, trace


def execute_elsewhere(version: str, train: Callable[[dict], Any], config: Mapping[str, Any]) -> tuple[Outcome, str | None]:
    """The same on another machine, whose package must be the driver's.

    Raises
    ------
    MupError
        If it is another version.
    """
    from neuralop_mup._version import __version__

    if __version__ != version:
        raise MupError(
            f"A worker has neuralop_mup {__version__}, and the command that sends it runs has {version}: their numbers "
            "would differ. Install the same version everywhere."
        )
    return execute(train, config)


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
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if hasattr(value, "tolist"):  # numpy and torch
        return plain(value.tolist())
    return str(value)


def is_final(record: Mapping[str, Any]) -> bool:
    """Whether a recorded run would end the same way again."""
    return Kind(record["outcome"]).final


def is_complete(record: Mapping[str, Any]) -> bool:
    """Whether a recorded run ended with a finite loss."""
    return record["outcome"] == Kind.COMPLETE.value


def first_failure(records: Iterable[Record]) -> str:
    """Two sentences, after a space: the first error, and how to go on; empty without errors."""
    failed = [r for r in records if r["error"]]
    if not failed:
        return ""
    if is_final(failed[0]):
        go_on = "Such a run is not repeated: try other values or, once its cause is mended, another folder."
    else:
        go_on = "Once its cause is mended, the same call on the same folder runs it again."
    return f" The first failure: {failed[0]['error'].rstrip('.')}. {go_on}"


def mean_and_std(losses: Sequence[float]) -> tuple[float, float]:
    """Mean and population standard deviation; (inf, nan) of nothing."""
    if not losses:
        return math.inf, math.nan
    mean = math.fsum(losses) / len(losses)
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in losses) / len(losses))


def point_loss(records: Sequence[Record], n_seeds: int) -> float:
    """Loss by which a point is ranked: its mean over seeds, infinite unless every seed completed."""
    losses = [r["loss"] for r in records if is_complete(r)]
    return mean_and_std(losses)[0] if len(losses) == len(records) == n_seeds else math.inf


def by_point(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records grouped by point, in the order in which the points first appear."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(params_key(record["params"]), []).append(record)
    return groups


def best_point(records: Iterable[Record], n_seeds: int) -> tuple[dict[str, Any] | None, float]:
    """Point of lowest mean loss, and that loss; (None, inf) when no point completed with every seed."""
    best, best_loss = None, math.inf
    for group in by_point(records).values():
        loss = point_loss(group, n_seeds)
        if loss < best_loss:
            best, best_loss = dict(group[0]["params"]), loss
    return best, best_loss
