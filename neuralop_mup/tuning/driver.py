"""One command on one study: plans points, hands their runs to an engine, writes what comes back. Only this process writes.

A point is trained seed by seed: its first seed must complete before another starts, and a point whose seed did not complete
stops there. What a run gave is in the storage before the next one is planned, so a kill at any time loses at most the runs
that were under way.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.tuning.engines import Engine, LostTogether, make_engine
from neuralop_mup.tuning.outcome import (
    Kind,
    Outcome,
    Record,
    first_failure,
    is_complete,
    is_final,
    make_outcome,
    plain,
)
from neuralop_mup.tuning.progress import Progress
from neuralop_mup.tuning.space import edge_of, params_key, points
from neuralop_mup.tuning.storage import Cell, Store, open_store
from neuralop_mup.tuning.study import Point, Study, describe, the
from neuralop_mup.tuning.summary import Results

__all__ = ["run"]


@dataclass
class _Open:
    """A point that is being trained."""

    point: Point
    cell: Cell
    seeds: list[int]  # still to be trained, in order
    rank: tuple
    trial: Any = None
    running: int = 0
    stopped: bool = False
    records: dict[int, Record] = field(default_factory=dict)


@dataclass
class _Job:
    """One run, or the part of it up to a rung."""

    open: _Open
    seed: int
    rung: int = 0
    deaths: int = 0
    alone: bool = False  # suspected of having broken an executor: runs by itself
    seconds: float = 0.0  # of the parts before


class _Driver:
    def __init__(
        self,
        study: Study,
        store: Store,
        engine: Engine,
        progress: Progress,
        train: Callable,
        pruner: Any,
        rungs: Sequence[int],
    ) -> None:
        self.study, self.store, self.engine, self.progress, self.train = study, store, engine, progress, train
        self.pruning, self.rungs = pruner is not None, tuple(rungs)
        self._jobs: list[tuple[tuple, int, _Job]] = []
        self._count = itertools.count()
        self._pending: dict[Future, _Job] = {}
        self._tried: set[tuple] = set()  # points that raised run again once in a command, not each time they are asked for

    def run(self, wanted: Iterable[Point], more: Callable[[], _Open | None] = lambda: None) -> None:
        """Train what is not settled yet of these points, and then what ``more`` proposes."""
        for order, point in enumerate(wanted):
            cell = self.store.cells[point.cell]
            if not cell.is_settled(point.params) and point.key not in self._tried:
                self._tried.add(point.key)
                # Seed by seed over all points, so that a study that is stopped early has covered its grid once.
                # A pruner compares with points that are complete, so with one it is point by point.
                self._open(_Open(point, cell, [], (int(self.pruning), order)))
        while True:
            while len(self._pending) < self.engine.capacity and (job := self._next(more)) is not None:
                self._submit(job)
            if not self._pending:
                return
            if hasattr(self.engine, "flush"):  # engines that collect runs before they start them
                self.engine.flush(self._pending)
            done, _ = wait(self._pending, timeout=10, return_when=FIRST_COMPLETED)
            if not done:
                self.engine.check()
            broke = [f for f in done if f.cancelled() or f.exception() is not None]
            for future in done:
                self._settle(self._pending.pop(future), future, len(broke) > 1)

    def _open(self, opened: _Open) -> None:
        params = opened.point.params
        kept = {s: r for s, r in opened.cell.point_records(params).items() if is_complete(r)}
        opened.records = dict(kept)
        opened.seeds = [s for s in opened.cell.seeds if s not in kept]
        if not opened.seeds:  # proposed again, and known: nothing to train
            opened.cell.close(opened.trial, params)
            return
        self._plan_seeds(opened)

    def _plan_seeds(self, opened: _Open) -> None:
        """Put the next seed, or after the first one all that are left, into the queue."""
        count = len(opened.seeds) if opened.records and not self.pruning else 1
        for seed in opened.seeds[:count]:
            self._push(_Job(opened, seed))
        opened.running += min(count, len(opened.seeds))
        opened.seeds = opened.seeds[count:]

    def _push(self, job: _Job) -> None:
        index, order = job.open.cell.seeds.index(job.seed), job.open.rank
        rank = (not job.deaths, *((order[0], index, order[1]) if order[0] == 0 else (order[0], order[1], index)))
        heapq.heappush(self._jobs, (rank, next(self._count), job))

    def _next(self, more: Callable[[], _Open | None]) -> _Job | None:
        if any(job.alone for job in self._pending.values()):
            return None
        while True:
            while self._jobs:
                if self._jobs[0][2].alone and self._pending:
                    return None
                job = heapq.heappop(self._jobs)[2]
                if not job.open.stopped:
                    return job
                job.open.running -= 1
                self._close_if_done(job.open)
            opened = more()
            if opened is None:
                return None
            self._open(opened)

    def _submit(self, job: _Job) -> None:
        opened = job.open
        if opened.trial is None:
            opened.trial = opened.cell.start(opened.point.params)
        config = self.study.config(opened.point, job.seed)
        if job.rung < len(self.rungs):
            config["until"] = self.rungs[job.rung]
        self._pending[self.engine.submit(self.train, config)] = job

    def _settle(self, job: _Job, future: Future, together: bool) -> None:
        """Take in what a run gave, or what became of its process."""
        error = None if not future.cancelled() and future.exception() is None else _error(future)
        if error is None:
            outcome, traceback = future.result()
            self._finish(job, outcome, traceback)
            return
        if isinstance(error, MupError):
            raise error
        # Where one death takes others along, only a run that was by itself can be blamed for it.
        blamed = not self.engine.loses_together or job.alone or not together and not self._pending
        job.deaths += blamed and not isinstance(error, LostTogether)
        job.alone = self.engine.loses_together
        why = " ".join(f"{error}".split()) or type(error).__name__
        if job.deaths < 2:
            self.progress.note(f"a run was lost ({why}); it runs once more")
            self._push(job)
            return
        text = f"{why}, twice; it may need more memory than there is, or train may end its process"
        self._finish(job, make_outcome(Kind.LOST, text, job.seconds), None)

    def _finish(self, job: _Job, outcome: Outcome, traceback: str | None) -> None:
        opened = job.open
        outcome = {**outcome, "seconds": outcome["seconds"] + job.seconds}
        if job.rung < len(self.rungs) and is_complete(outcome):
            if self._goes_on(job, outcome):
                return
            outcome = {
                **outcome,
                "outcome": Kind.PRUNED.value,
                "error": f"others were better after {self.rungs[job.rung]} epochs",
            }
        point = opened.point
        record: Record = {
            "size": point.size,
            "rule": point.rule,
            "params": plain(point.params),
            "seed": job.seed,
            **{k: outcome[k] for k in ("outcome", "error", "loss", "metrics", "seconds")},
        }
        opened.records[job.seed] = record
        opened.running -= 1
        opened.cell.report(opened.trial, record, traceback)
        self.store.append_result(record)
        self.progress.finished(record)
        if not is_complete(record):
            self._stop(opened)
        elif self.pruning and opened.seeds and opened.trial.should_prune():
            self._stop(opened)
            opened.cell.prune(opened.trial, point.params)
            opened.trial = None
            return
        elif not opened.running:
            self._plan_seeds(opened)
        self._close_if_done(opened)

    def _goes_on(self, job: _Job, outcome: Outcome) -> bool:
        """Report a run's loss at a rung and, unless it is to be pruned, send the rest of it."""
        job.open.trial.report(outcome["loss"], job.open.cell.step(job.seed, job.rung))
        if job.open.trial.should_prune():
            return False
        job.rung, job.seconds = job.rung + 1, outcome["seconds"]
        self._push(job)
        return True

    def _stop(self, opened: _Open) -> None:
        if hasattr(self.engine, "withdraw"):  # seeds that it collected and did not start yet
            for future in [f for f, job in self._pending.items() if job.open is opened and self.engine.withdraw(f)]:
                opened.seeds.append(self._pending.pop(future).seed)
                opened.running -= 1
        self.progress.skip(opened.point.size, len(opened.seeds))
        opened.stopped, opened.seeds = True, []

    def _close_if_done(self, opened: _Open) -> None:
        if opened.trial is not None and not opened.running and not opened.seeds:
            opened.cell.close(opened.trial, opened.point.params)
            opened.trial = None


def _error(future: Future) -> BaseException:
    return RuntimeError("it was cancelled") if future.cancelled() else future.exception()


def run(
    study: Study,
    train: Callable[[dict], Any],
    *,
    folder: str | Path,
    n_workers: int | None = None,
    engine: Any = None,
    executor: Any = None,
    devices: Sequence[str] = (),
    storage: Any = None,
    sampler: Any = None,
    pruner: Any = None,
    rungs: Sequence[int] = (),
    costs: Mapping[Any, float] | None = None,
    prepare: Callable[[], Any] | None = None,
    identity: Any = None,
    progress: bool = True,
) -> Results:
    """Train what is not finished yet of a study.

    Parameters
    ----------
    study : Study
    train : callable
        ``train(config) -> float`` or a dict with ``"loss"``.
    folder : str or Path
        Holds the study and is needed for itself; the same call resumes there.
    n_workers, engine, executor, storage, sampler, pruner, rungs
        See :func:`neuralop_mup.sweep`; what is the default, the page on machines says (docs/machines.md).
    devices : sequence of str
        CUDA devices, one for each worker of this machine.
    costs : mapping, optional
        Relative cost of a run of each size, for the time left.
    prepare : callable, optional
        Called once the folder is known to fit, before any run: to make data that every worker reads.
    identity : optional
        What names the train function when a resume is checked, in its own place.
    progress : bool
        Show progress on stderr.

    Returns
    -------
    Results

    Raises
    ------
    MupError
        If the folder or the storage is in use, holds another study or cannot be written; if no point of the base
        completed with every seed while a larger size waits for it.
    """
    rungs = tuple(rungs)
    if any(not isinstance(r, int) or r < 1 for r in rungs) or list(rungs) != sorted(set(rungs)):
        raise MupError(f"rungs={rungs!r} must be whole numbers of epochs in ascending order, such as (4, 8).")
    if rungs and pruner is None:
        raise MupError(
            f"rungs={rungs!r} are where a pruner judges runs, and there is none; give pruner=, or leave rungs out."
        )
    folder = Path(folder)
    runs = Counter(point.size for point in study.planned())
    engine = make_engine(engine, executor, train, study, n_workers, devices, one_by_one=pruner is not None)
    display = Progress(study.name, {s: n * len(study.seeds) for s, n in runs.items()}, costs or {}, progress)
    settings = {"train": describe(identity or train), **study.settings}
    try:
        with open_store(folder, storage, study, settings) as store:
            if prepare is not None:
                prepare()
            for cell in store.cells.values():
                cell.reports_a_seed = len(rungs) + 1
                if pruner is not None:
                    cell.study.pruner = pruner
            earlier = store.records()
            store.write_results(earlier)
            for (size, _), cell in store.cells.items():
                display.skip(size, cell.n_skipped())
            workers = getattr(engine, "workers", engine.capacity)
            if progress and hasattr(engine, "note"):
                engine.note = display.note
            display.start(folder, [r for r in earlier if is_final(r)], workers)
            if again := sum(not is_final(r) for r in earlier):
                display.note(f"runs that raised an exception last time, or were lost, and run again: {again}")
            driver = _Driver(study, store, engine, display, train, pruner, rungs)
            try:
                wanted = _run_all(driver, sampler, display)
            except KeyboardInterrupt:
                engine.close()
                display.close()
                text = f"Stopped. Finished runs are in {folder}; the same command resumes there."
                display.note(text)
                raise KeyboardInterrupt(text) from None
            finally:
                records = store.records()
                store.write_results(records)
            kept = _of(wanted, records)
            store.write_results(kept)
    finally:
        display.close()
        engine.close()
    return Results(driver.study, kept, folder)


def _of(wanted: Iterable[Point], records: Iterable[Record]) -> list[Record]:
    """The records of these points."""
    keys = {point.key for point in wanted}
    return [r for r in records if (r["size"], r["rule"], params_key(r["params"])) in keys]


def _run_all(driver: _Driver, sampler: Any, display: Progress) -> list[Point]:
    """The base first, then what follows from its best points; returns every point that the study asked for."""
    study = driver.study
    base = [cell for cell in study.cells() if cell[0] == study.base]
    if study.search:
        cell, orders = driver.store.cells[base[0]], itertools.count()

        def more() -> _Open | None:
            if cell.n_points >= study.n_trials:
                return None
            params, trial = cell.propose(sampler, study.n_trials)
            return _Open(Point(*base[0], params), cell, [], (1, next(orders)), trial)

        driver.run([Point(*base[0], params) for params in cell.unsettled()], more)
        wanted = [Point(*base[0], r["params"]) for r in cell.sorted_records()]
    else:
        driver.run(study.tuning())
        study = _extend(driver, display)
        wanted = study.tuning()
    if len(study.sizes) == 1 and study.swept is None:
        return wanted
    results = Results(study, driver.store.records(), driver.store.folder)
    centres = {rule: results.centre(rule) for rule in study.rules}
    failed = next((rule for rule, centre in centres.items() if centre is None), None)
    if failed is not None or not centres:
        raise MupError(
            f"No point of {the(study.base)} completed with every seed, so nothing can be carried over."
            f"{first_failure(results.records)}"
        )
    _warn_of_edges(study, centres, display)
    rest = study.rest({rule: _as_given(study, centre) for rule, centre in centres.items()})
    driver.run(rest)
    return [*wanted, *rest]


def _extend(driver: _Driver, display: Progress) -> Study:
    """Walk on beyond the edge of the base's grid while the best value lies there, as far as the study allows.

    Only for one rule at the base: several would each have a grid of their own.
    """
    while True:
        study = driver.study
        # Of this grid alone: an earlier command may have walked on already, and is followed step by step.
        results = Results(study, _of(study.tuning(), driver.store.records()), driver.store.folder)
        centre = results.centre(study.rules[0]) if study.extends else None
        grown = None if centre is None else study.grown(centre)
        if grown is None:
            return study
        before, runs = Counter(p.size for p in study.planned()), Counter(p.size for p in grown.planned())
        for size, count in (runs - before).items():
            display.more(size, count * len(study.seeds))
        for name, values in grown.space.items():
            for value in [v for v in values if v not in study.space[name]]:
                display.note(f"the best {name} at {the(study.base)} is at the edge of its grid: {value:g} is tried, too")
        driver.study = grown
        driver.store.grow(grown)
        driver.run(grown.tuning())


def _as_given(study: Study, centre: Mapping[str, Any]) -> dict[str, Any]:
    """The point as the user wrote it: JSON turned tuples into lists."""
    if study.search or study.swept is not None:
        return dict(centre)
    return next(p for p in points(study.space) if params_key(p) == params_key(centre))


def _warn_of_edges(study: Study, centres: Mapping[Any, Mapping[str, Any]], display: Progress) -> None:
    for name, value in next(iter(centres.values())).items():
        if edge_of(value, study.space.get(name)):
            display.note(
                f"the best {name} at {the(study.base)}, {value:g}, is at the edge of its grid; a better one may lie "
                "outside: extend the grid and run again in the same folder"
            )
