"""The loop that trains what a study wants: asks it for the runs that are missing until there are none. Only it writes.

What a run gave is in the folder before the next one is planned, so a kill at any time loses at most the runs that were under
way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuralop_mup._version import __version__
from neuralop_mup.errors import MupError
from neuralop_mup.lab.engines import Engine
from neuralop_mup.lab.outcome import begins_alike, execute, failed, is_complete, is_final
from neuralop_mup.lab.progress import Progress
from neuralop_mup.lab.records import WEIGHTS, Records, Run, described, put
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.space import edge_of
from neuralop_mup.lab.study import Study, the
from neuralop_mup.lab.with_optuna import Dashboard

__all__ = ["run"]

_TRIES = 2  # of a run that its surroundings ended, in one command


def run(
    study: Study,
    train: Callable[..., Any],
    *,
    folder: str | Path,
    engine: Engine,
    storage: Any = None,
    costs: Mapping[Any, float] | None = None,
    progress: bool = True,
) -> Results:
    """Train what is missing of a study.

    Parameters
    ----------
    study : Study
        What is asked; its own ``content`` is replaced by that of ``train``.
    train : callable
        ``train(config) -> float`` or a dict with ``"loss"``. It may have ``content(config)``, everything that the result
        depends on (else that is its name and all of ``config``); ``keeps_files``, if it takes a folder for checkpoint and
        weights; and ``prepare(study, records, engine)``, called before anything is trained.
    folder : str or Path
        Keeps the runs; what is there already is not trained again, whichever study asked for it.
    engine : Engine
        Where runs are executed; it is closed at the end.
    storage : str or Optuna storage, optional
        Where finished points are shown besides.
    costs : mapping, optional
        Relative cost of a run of each size, for the time left.
    progress : bool, default True
        Show progress on stderr.

    Returns
    -------
    Results
        Of all runs of the study that ended, written into the folder, too.

    Raises
    ------
    MupError
        If the folder is in use, holds a study of an earlier version or cannot be written; if no point of the base
        completed with every seed while a larger size waits for it.

    Examples
    --------
    >>> from neuralop_mup.lab import Study, run
    >>> from neuralop_mup.lab.engines import InlineEngine
    >>> def train(config):
    ...     return (config["lr"] - 0.5) ** 2
    >>> study = Study(name="lr", space={"lr": [0.25, 0.5]}, seeds=(0,))
    >>> run(study, train, folder="runs", engine=InlineEngine(), progress=False).best
    {'lr': 0.5}
    """
    named = described(train)  # once: what it holds may change while runs are trained
    content = getattr(train, "content", lambda config: {"train": named, **config})
    study, folder = replace(study, content=content), Path(folder)
    with closing(engine), closing(Progress(study.name, costs or {}, progress)) as display:
        records, board = Records(folder), None
        if storage is not None:
            board = Dashboard(storage, study.name, Run(study.at_base, {}).id[:8])
        with records.held():
            if hasattr(train, "prepare"):
                train.prepare(study, records, engine)
            loop = _Loop(study, train, records, engine, display, board)
            try:
                loop.run()
            except KeyboardInterrupt:
                engine.close()
                display.close()
                text = f"Stopped. Finished runs are in {folder}; the same command resumes there."
                display.note(text)
                raise KeyboardInterrupt(text) from None
            finally:
                results = Results(study.extended(records), study.rows(records), folder)
                results.save()
                getattr(train, "close", lambda: None)()
            return results


class _Loop:
    """Hands the runs that a study wants to an engine, and takes in what comes back."""

    def __init__(
        self, study: Study, train: Any, records: Records, engine: Engine, display: Progress, board: Dashboard | None
    ) -> None:
        self.study, self.train, self.records, self.engine = study, train, records, engine
        self.display, self.board = display, board
        self._pending: dict[Future, Run] = {}
        self._tries: Counter = Counter()
        self._suspects: set[str] = set()  # of having broken an executor: they run one by one

    def run(self) -> None:
        """Until nothing is wanted any more."""
        before = self.study.rows(self.records)
        done = [r for r in before if is_final(r)]
        self.display.start(self.records.folder, done, self.study.left(self.records), self.engine.capacity)
        for note in self.records.notes:
            self.display.note(note)
        if len(done) < len(before):
            self.display.note(f"runs that failed last time, and run again: {len(before) - len(done)}")
        self._show()
        while True:
            while self._has_room() and (run := self._next()) is not None:
                self._submit(run)
            if not self._pending:
                break
            ended, _ = wait(self._pending, timeout=10, return_when=FIRST_COMPLETED)
            if not ended:
                self.display.tick()
            lost = sum(future.cancelled() or future.exception() is not None for future in ended)
            alone = lost + len(self._pending) - len(ended) < 2
            for future in ended:
                self._settle(self._pending.pop(future), future, alone)
        self._tell_edges()

    def _has_room(self) -> bool:
        return not self._pending if self._suspects else len(self._pending) < self.engine.capacity

    def _next(self) -> Run | None:
        """A run that is wanted and not under way; a point is proposed where there is none."""
        under_way = {run.id for run in self._pending.values()}
        while True:
            wanted = [run for run in self.study.wanted(self.records) if run.id not in under_way]
            if wanted or not self.study.propose(self.records):
                return min(wanted, key=lambda run: run.id not in self._suspects, default=None)

    def _submit(self, run: Run) -> None:
        place, how = self.records.place(run, make=True), {}
        if getattr(self.train, "keeps_files", False):
            how = {"place": str(place.resolve()), "keep": run.keep}
        if (before := self.records.read(run)) is not None and is_complete(before):
            self.display.note(
                f"the weights of {the(run.labels['size'])} are not in the folder, or damaged: it is trained once more"
            )
        self._pending[self.engine.submit(execute, __version__, self.train, run.config, **how)] = run

    def _settle(self, run: Run, future: Future, alone: bool) -> None:
        """Take in what a run gave, or what became of its process."""
        error = RuntimeError("it was cancelled") if future.cancelled() else future.exception()
        if isinstance(error, MupError):
            raise error
        if error is None:
            outcome = future.result()
        else:
            why = " ".join(str(error).split()) or type(error).__name__
            # Where one death takes others along, only a run that was by itself can be blamed for it.
            if self.engine.loses_together and not alone and run.id not in self._suspects:
                self._suspects.add(run.id)
                self.display.note(f"a run was lost with others ({why}); it runs once more, by itself")
                return
            outcome = failed(f"{why}; it may need more memory than there is, or train may end its process")
        self._suspects.discard(run.id)
        self._tries[run.id] += 1
        self._keep(run, outcome)
        if outcome["again"] and self._tries[run.id] < _TRIES:
            self.display.note(f"a run was lost ({outcome['error']}); it runs once more")
            return
        if not is_final(outcome):
            self.records.give_up(run)
        self.display.finished({**run.labels, **outcome}, self.study.left(self.records))
        self._show()

    def _keep(self, run: Run, outcome: dict[str, Any]) -> None:
        before = (self.records.read(run) or {"metrics": {}})["metrics"].get("first_loss")
        now = outcome["metrics"].get("first_loss")
        if before is not None and now is not None and not begins_alike(before, now):
            self.display.note(
                f"a run that is repeated began with the loss {now:.6g}, and before with {before:.6g}: code or surroundings "
                "have changed since; only the new one counts"
            )
        if (weights := outcome.pop("weights")) is not None:  # from a machine that does not see the folder
            put(self.records.folder, self.records.place(run) / WEIGHTS, weights)
        for note in outcome["metrics"].get("notes", ()) if getattr(self.train, "keeps_files", False) else ():
            self.display.note(note)
        self.records.write(run, outcome)

    def _show(self) -> None:
        """Every point that is done, where a storage is to show it."""
        if self.board is None:
            return
        study = self.study.extended(self.records)
        for point in study.points(self.records):
            if (ends := study.ends(point, self.records)) is not None:
                named = [{"seed": run.labels["seed"], **end} for run, end in zip(study.runs(point), ends, strict=False)]
                self.board.show(point.size, point.rule, point.params, study.space, named)

    def _tell_edges(self) -> None:
        """Where the best values lie at an edge of what was searched."""
        study = self.study.extended(self.records)
        for name in study.extends:
            if more := [f"{v:g}" for v in study.space[name] if v not in self.study.space[name]]:
                self.display.note(f"the best {name} was at the edge of its grid, so {', '.join(more)} was tried, too")
        best = study.centres(self.records)[study.rules[0]] if len(study.sizes) > 1 else {}
        for name, value in best.items():
            if edge_of(value, study.space[name]):
                self.display.note(
                    f"the best {name} at {the(study.base)}, {value:g}, is at the edge of its grid; a better one may lie "
                    "outside: extend the grid and run again in the same folder"
                )
