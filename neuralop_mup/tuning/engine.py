"""One command on one study folder: plans trials, hands them to the pool, writes what comes back.

Only this process writes; workers are given a config and return an outcome. A trial is written to the journal the moment
it finishes, so a kill at any time loses at most the trials that were running.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from neuralop_mup.tuning.journal import Journal, StudyLog, TrialHandle, locked_folder, quiet_optuna, writing
from neuralop_mup.tuning.progress import Progress
from neuralop_mup.tuning.records import Record, plain, sort_records, to_jsonl, write_atomically
from neuralop_mup.tuning.settings import join_settings
from neuralop_mup.tuning.space import params_key
from neuralop_mup.tuning.workers import Here, Outcome, Workers, make_pool

__all__ = ["Planned", "Session", "open_session"]


@dataclass(frozen=True)
class Planned:
    """A trial that a command would run.

    ``params`` and ``config`` are None where they are known only later: points that a search will propose, and the best
    point of a proxy that has not been tuned yet. ``study`` is the Optuna study that keeps the trial.
    """

    study: str
    stage: str
    size: str | None
    rule: str | None
    params: dict[str, Any] | None
    seed: int
    config: dict[str, Any] | None

    @property
    def key(self) -> tuple:
        return self.study, params_key(self.params or {}), self.seed

    @property
    def run_key(self) -> tuple:
        """Equal for trials that train the same thing, whatever stage asks for it."""
        return self.size, self.rule, params_key(self.params or {}), self.seed

    def record(self, outcome: Mapping[str, Any]) -> Record:
        kept = {k: outcome[k] for k in ("state", "error", "loss", "metrics", "seconds")}
        return {
            "stage": self.stage,
            "size": self.size,
            "rule": self.rule,
            "params": plain(self.params),
            "seed": self.seed,
            **kept,
        }


@dataclass
class Job:
    planned: Planned
    handle: TrialHandle
    deaths: int = 0


class Source(Protocol):
    """Where the next trial comes from."""

    def next(self) -> Job | None: ...


class _Grid:
    def __init__(self, session: Session, planned: Iterable[Planned]) -> None:
        self._session, self._queue = session, deque(planned)

    def next(self) -> Job | None:
        if not self._queue:
            return None
        planned = self._queue.popleft()
        return Job(planned, self._session.study(planned.study).start(planned.params, [planned.seed]))


class _Search:
    def __init__(
        self,
        log: StudyLog,
        again: Iterable[TrialHandle],
        make: Callable[[dict, int], Planned],
        seeds: Sequence[int],
        n_trials: int,
    ) -> None:
        self._log, self._make, self._seeds, self._n = log, make, tuple(seeds), n_trials
        self._queue: deque[Job] = deque()
        for handle in again:
            self._open(handle)

    def _open(self, handle: TrialHandle) -> None:
        self._queue += [Job(self._make(handle.params, seed), handle) for seed in handle.seeds if seed not in handle.records]

    def next(self) -> Job | None:
        if not self._queue and self._log.n_points() < self._n:
            self._open(self._log.ask(self._seeds, self._n))
        return self._queue.popleft() if self._queue else None


class Session:
    """A locked folder, its journal, the pool and the progress display. See :func:`open_session`."""

    def __init__(self, folder: Path, journal: Journal, pool: Here | Workers, progress: Progress) -> None:
        self.folder, self.journal, self.pool, self.progress = folder, journal, pool, progress
        self._studies: dict[str, StudyLog] = {}
        self._again: dict[str, list[TrialHandle]] = {}
        self.rules: Sequence[str] = ()

    def open_study(self, name: str, space: Mapping[str, Any], search: bool, seeds: Sequence[int]) -> None:
        """Open a study and settle what an earlier command left running in it."""
        log = self.journal.study(name, space, search)
        self._studies[name] = log
        self._again[name] = log.recover(seeds)

    def study(self, name: str) -> StudyLog:
        return self._studies[name]

    def finished(self, planned: Iterable[Planned]) -> dict[tuple, Record]:
        """Records of those planned trials that are finished, by key."""
        done = {(name, *key): record for name, log in self._studies.items() for key, record in log.finished().items()}
        return {p.key: done[p.key] for p in planned if p.key in done}

    def records(self) -> list[Record]:
        """Every record of every study opened here, in order."""
        return sort_records((r for log in self._studies.values() for r in log.finished().values()), self.rules)

    def write_results(self, records: Iterable[Record]) -> None:
        """Rewrite ``results.jsonl`` as a whole."""
        with writing(self.folder):
            write_atomically(self.folder / "results.jsonl", to_jsonl(sort_records(records, self.rules)))

    def run_grid(self, planned: Sequence[Planned]) -> list[Record]:
        """Run what is not finished yet; trials that train the same thing are trained once.

        Returns
        -------
        list of dict
            One record per planned trial, in order.
        """
        finished = self.finished(planned)
        trained = {p.run_key for p in planned if p.key in finished}
        to_run: dict[tuple, Planned] = {}
        for p in planned:
            if p.run_key not in trained:
                to_run.setdefault(p.run_key, p)
        self._run(_Grid(self, to_run.values()))
        finished = self.finished(planned)
        by_run = {p.run_key: finished[p.key] for p in planned if p.key in finished}
        for p in planned:
            if p.key not in finished:
                record = p.record(by_run[p.run_key])
                self.study(p.study).start(p.params, [p.seed]).record(record)
                self._finish(record, trained=False)
        return sort_records(self.finished(planned).values(), self.rules)

    def run_search(
        self, name: str, make: Callable[[dict, int], Planned], seeds: Sequence[int], n_trials: int
    ) -> list[Record]:
        """Let TPE propose points until there are ``n_trials``; each is trained with every seed."""
        log = self.study(name)
        self._run(_Search(log, self._again.pop(name, []), make, seeds, n_trials))
        return sort_records(log.finished().values(), self.rules)

    def _finish(self, record: Record, trained: bool = True) -> None:
        with writing(self.folder), open(self.folder / "results.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
        self.progress.finished(record, trained)

    def _run(self, source: Source) -> None:
        running: dict[int, Job] = {}
        n_submitted = 0

        def submit(job: Job) -> None:
            nonlocal n_submitted
            running[n_submitted] = job
            self.pool.submit(n_submitted, job.planned.config or {})
            n_submitted += 1

        try:
            while True:
                while len(running) < self.pool.size and (job := source.next()) is not None:
                    submit(job)
                if not running:
                    return
                for number, outcome in self.pool.wait():
                    job = running.pop(number)
                    if isinstance(outcome, str) and job.deaths == 0:
                        self.progress.note(f"{outcome}; the trial counts as interrupted and runs once more")
                        job.handle.restart(outcome)
                        job.deaths += 1
                        submit(job)
                    else:
                        self._settle(job, outcome)
        except KeyboardInterrupt:
            self.pool.close()
            for handle in {id(j.handle): j.handle for j in running.values()}.values():
                # A search point goes on in a new trial, which the next command finds running.
                if not handle.log.search:
                    handle.interrupt("stopped by Ctrl-C")
            raise

    def _settle(self, job: Job, outcome: Outcome | str) -> None:
        if isinstance(outcome, str):
            outcome = {
                "state": "failed",
                "error": f"{outcome}, twice; it may need more memory than there is, or train may end its process",
                "loss": None,
                "metrics": {},
                "seconds": 0.0,
            }
        record = job.planned.record(outcome)
        job.handle.record(record, outcome.get("traceback"))
        self._finish(record)


@contextmanager
def open_session(
    train: Callable[[dict], Any],
    *,
    name: str,
    folder: str | Path,
    settings: Mapping[str, Any],
    studies: Mapping[str, tuple[Mapping[str, Any], bool]],
    seeds: Sequence[int],
    expected: Mapping[str | None, int],
    fixed: Mapping[str, Any],
    n_workers: int | None,
    progress: bool,
    rules: Sequence[str] = (),
) -> Iterator[Session]:
    """Lock the folder, check its settings, open its journal, and close all of it in the end.

    Parameters
    ----------
    train : callable
        The user's function.
    name : str
        The command's name in the folder.
    settings : mapping
        What ``config.json`` keeps and a resume is checked against.
    studies : mapping of str to (space, is_search)
        The Optuna studies that the command writes to.
    expected : mapping
        Number of trials of each size.
    rules : sequence of str
        Their order in the results.
    """
    folder = Path(folder)
    pool = make_pool(train, fixed, n_workers, sum(expected.values()))
    display = Progress(name, dict(expected), pool.size, progress)
    try:
        with locked_folder(folder), quiet_optuna():
            with writing(folder):
                join_settings(folder, name, settings)
            session = Session(folder, Journal(folder), pool, display)
            session.rules = rules
            for study, (space, search) in studies.items():
                session.open_study(study, space, search, seeds)
            earlier = session.records()
            session.write_results([*earlier, *other_records(session)])
            display.start(folder, _expected_only(earlier, expected))
            if n := sum(len(log.to_repeat) for log in session._studies.values()):
                display.note(f"trials that raised an exception last time and run again: {n}")
            try:
                yield session
            except KeyboardInterrupt:
                display.close()
                text = f"Stopped. Finished trials are in {folder}; the same command resumes there."
                display.note(text)
                raise KeyboardInterrupt(text) from None
    finally:
        display.close()
        pool.close()


def _expected_only(records: Sequence[Record], expected: Mapping[str | None, int]) -> list[Record]:
    """Records that the display may count: never more of a size than are expected."""
    room, kept = Counter(expected), []
    for record in records:
        if room[record["size"]] > 0:
            room[record["size"]] -= 1
            kept.append(record)
    return kept


def other_records(session: Session) -> list[Record]:
    """Records of the folder's other sweeps, which share its ``results.jsonl``."""
    names = set(session.journal.study_names()) - set(session._studies)
    return [r for n in sorted(names) for r in session.journal.study(n, {}).finished().values()]
