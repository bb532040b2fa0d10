"""A sweep: one train function over one space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.tuning.engine import Planned, open_session, other_records
from neuralop_mup.tuning.records import STAGES, Record, best_point, by_point, first_failure, mean_and_std, point_loss
from neuralop_mup.tuning.settings import describe, describe_space
from neuralop_mup.tuning.space import check_fixed, check_seeds, check_space, is_search, points

__all__ = ["Sweep", "check_n_trials", "sweep"]


@dataclass(frozen=True)
class Sweep:
    """What a sweep found.

    Attributes
    ----------
    records : list of dict
        One per finished trial, in order.
    space : dict
        What was tuned.
    seeds : tuple of int
        Every point was trained with each of them.
    folder : Path
        Where the journal and ``results.jsonl`` lie.
    name : str
        The sweep's name in the folder.
    """

    records: list[Record]
    space: dict[str, Any]
    seeds: tuple[int, ...]
    folder: Path
    name: str

    @property
    def best(self) -> dict[str, Any]:
        """Point of lowest mean loss over the seeds; a point with a failed seed does not compete."""
        best, _ = best_point(self.records, len(self.seeds))
        if best is None:
            raise MupError(all_failed(f"the sweep {self.name!r}", self.records))
        return best

    @property
    def best_loss(self) -> float:
        """Mean loss of the best point; infinite when every point failed."""
        return best_point(self.records, len(self.seeds))[1]

    def summary(self) -> list[dict[str, Any]]:
        """One row per point, best first: params, mean loss and std of completed seeds, failures, seconds."""
        groups = sorted(by_point(self.records).values(), key=lambda g: point_loss(g, len(self.seeds)))
        rows = []
        for group in groups:
            mean, std = mean_and_std([r["loss"] for r in group if r["state"] == "complete"])
            rows.append(
                {
                    "params": group[0]["params"],
                    "loss": mean,
                    "std": std,
                    "failed_seeds": sum(r["state"] == "failed" for r in group),
                    "seconds": sum(r["seconds"] for r in group),
                }
            )
        return rows


def all_failed(what: str, records: Iterable[Record]) -> str:
    """The sentence for a stage in which no point has all its seeds."""
    return f"No point of {what} completed with every seed, so there is no best one.{first_failure(records)}"


def check_n_trials(space: Mapping[str, Any], n_trials: int | None) -> int | None:
    """MupError unless a search says how many points it may try, and a grid does not."""
    if is_search(space):
        if not isinstance(n_trials, int) or n_trials < 1:
            raise MupError(
                f"The space has an Optuna distribution and n_trials={n_trials!r}; say how many points to try, "
                "such as n_trials=30."
            )
    elif n_trials is not None:
        raise MupError(
            f"n_trials={n_trials!r} is for spaces with Optuna distributions; a grid runs every point, so leave it out."
        )
    return n_trials


def sweep(
    train: Callable[[dict], float | Mapping[str, Any]],
    space: Mapping[str, Any],
    *,
    folder: str | Path,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    n_workers: int | None = None,
    n_trials: int | None = None,
    name: str = "sweep",
    progress: bool = True,
) -> Sweep:
    """Train over a space of hyperparameters, keeping every trial in ``folder``.

    The same call on the same folder resumes: finished trials are kept, trials that were running when the command was
    killed run again, and so do those that raised an exception (a bug since mended, memory); a loss that is not finite or
    a MupError stays failed. Values, seeds and ``n_trials`` may be added; any other change needs another folder.

    Parameters
    ----------
    train : callable
        ``train(config) -> float`` or a dict with ``"loss"``; lower is better. It is called with
        ``{**fixed, **point, "seed": seed}``. To run in several processes it must stand at module level.
    space : mapping of str to sequence or optuna distribution
        Sequences only: every combination is run with every seed, all points with the first seed first. With a
        distribution among the values: ``n_trials`` points are proposed by TPE, each judged by its mean over the seeds.
    folder : str or Path
        Holds ``journal.log`` (Optuna), ``results.jsonl`` and ``config.json``; made if new.
    fixed : mapping, optional
        Config entries that are the same in every trial.
    seeds : iterable of int
        Distinct.
    n_workers : int, optional
        Processes; default one per core, at most one per trial. With 1 the trials run in this process, whose thread
        settings stay as they are; otherwise each worker has ``cores // n_workers`` threads. A search with several
        workers depends on the order in which they finish.
    n_trials : int, optional
        Points of a search.
    name : str
        Names the sweep in a folder that holds several, and is the ``stage`` of its records.
    progress : bool
        Show progress on stderr.

    Returns
    -------
    Sweep

    Raises
    ------
    MupError
        If the folder is in use, holds other settings or cannot be written; if the space, seeds or workers cannot work.
        A trial that raises or whose loss is not finite is a failed record, not an error.

    Notes
    -----
    What train returns is kept as JSON: numbers that are not finite become null, objects their text. Tracebacks of
    failed trials are in the journal, as the user attribute ``traceback:<seed>``.
    """
    reserved = ("seed",)
    fixed = check_fixed(fixed, reserved)
    space = check_space(space, reserved, fixed)
    seeds = check_seeds(seeds)
    check_n_trials(space, n_trials)
    if not isinstance(name, str) or not name or name in ("transfer", *STAGES):
        raise MupError(f"name={name!r} cannot name a sweep; take a text other than transfer, {', '.join(STAGES)}.")
    search = is_search(space)

    def make(params: dict[str, Any], seed: int) -> Planned:
        config = {**fixed, **params, "seed": seed}
        rule = config.get("rule")
        return Planned(name, name, None, rule if isinstance(rule, str) else None, params, seed, config)

    planned = [] if search else [make(p, s) for s in seeds for p in points(space)]
    settings = {
        "train": describe(train),
        **describe_space(space, search),
        "fixed": describe(fixed),
        "seeds": list(seeds),
        "n_trials": n_trials,
    }
    with open_session(
        train,
        name=name,
        folder=folder,
        settings=settings,
        studies={name: (space, search)},
        seeds=seeds,
        expected={None: n_trials * len(seeds) if search else len(planned)},
        fixed=fixed,
        n_workers=n_workers,
        progress=progress,
    ) as session:
        records = session.run_search(name, make, seeds, n_trials) if search else session.run_grid(planned)
        session.write_results([*records, *other_records(session)])
    return Sweep(records, space, seeds, Path(folder), name)
