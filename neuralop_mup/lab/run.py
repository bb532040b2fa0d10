"""Train the missing runs of a study until there are none.

Each result is in the folder before the next run starts, so a kill loses at most the runs in progress.
"""

from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from pathlib import Path
from typing import Any

from tqdm import tqdm

from neuralop_mup._version import __version__
from neuralop_mup.errors import MupError
from neuralop_mup.lab.outcome import execute, failed, is_complete, is_final
from neuralop_mup.lab.progress import bar_of_runs, note, show_finished
from neuralop_mup.lab.records import Records, Run
from neuralop_mup.lab.wording import counted


def run(study: Any, *, folder: str | Path | Records, engine: Any, progress: bool = True, known: Any = None) -> Records:
    """Train the missing runs of a study until there are none.

    Parameters
    ----------
    study : object
        An object with ``missing_runs(records)``, which returns the runs that may start now, in their order. It may have
        ``name`` (shown with the progress), ``all_missing(records)`` (also the runs that may not start yet) and ``costs``
        (size → relative cost of a run), both for the time left, and ``save(records)`` (called at the end, also after an
        error).
    folder : str, Path or Records
        Folder of the runs. Runs that the folder already contains are not trained again, whichever study needed them.
    engine : object
        Where runs are executed (:mod:`neuralop_mup.lab.engines`). It is closed at the end.
    progress : bool, default True
        Whether to show progress on stderr.
    known : object, optional
        Further records, read-only: ``known.get(run)`` returns the record of a run, or None.

    Returns
    -------
    Records
        Records of the folder; ``get(run)`` returns the record of a run.

    Raises
    ------
    MupError
        If the folder is in use or cannot be written, or if no point of the base completed with every seed and the study has
        a target.

    Examples
    --------
    >>> from neuralop_mup.lab import Study
    >>> from neuralop_mup.lab.engines import InlineEngine
    >>> from neuralop_mup.lab.run import run
    >>> def train(config):
    ...     return (config["lr"] - 0.5) ** 2
    >>> study = Study(name="lr", space={"lr": [0.25, 0.5]}, seeds=(0,), train=train)
    >>> records = run(study, folder="runs", engine=InlineEngine(), progress=False)
    >>> [row["loss"] for row in study.rows(records)]
    [0.0625, 0.0]
    """
    records = folder if isinstance(folder, Records) else Records(folder, known)
    with closing(engine), records.held():
        try:
            missing = list(study.missing_runs(records))
            expected = getattr(study, "all_missing", lambda records: missing)(records)
            name = getattr(study, "name", records.folder.name)
            with bar_of_runs(name, sum(cost_of(study, one) for one in expected), progress) as display:
                note(display, f"{name}: {counted(len(expected), 'run')}; results in {records.folder}")
                others = records.of_other_releases(missing)
                for text in filter(None, [*records.notes, others, getattr(engine, "note", "")]):
                    note(display, text)
                _Loop(study, records, engine, display).run()
        finally:
            getattr(study, "save", lambda records: None)(records)
    return records


def cost_of(study: Any, run: Run) -> float:
    """Return the relative cost of a run, 1 if it is unknown."""
    return getattr(study, "costs", {}).get(run.labels.get("size"), 1.0)


class _Loop:
    """Send the missing runs of a study to an engine, and keep the results."""

    def __init__(self, study: Any, records: Records, engine: Any, display: tqdm) -> None:
        self.study, self.records, self.engine, self.display = study, records, engine, display
        self._pending: dict[Future, Run] = {}
        self._queue: list[Run] = []  # an experiment may need seconds to list its missing runs
        self._lost: set[str] = set()  # runs that did not cause their failure: they are repeated once, one at a time

    def run(self) -> None:
        """Train until no run is missing."""
        self._submit_missing()
        while self._pending:
            ended, _ = wait(self._pending, timeout=10, return_when=FIRST_COMPLETED)
            self.display.update(0)
            for future in ended:
                self._settle(self._pending.pop(future), future)
            self._submit_missing()

    def _submit_missing(self) -> None:
        """Submit as many missing runs as the engine can execute now."""
        if not self._queue:
            pending = {run.id for run in self._pending.values()}
            missing = {run.id: run for run in self.study.missing_runs(self.records) if run.id not in pending}
            self._lost &= missing.keys() | pending
            self._queue = sorted(missing.values(), key=lambda run: run.id not in self._lost)
        while self._queue and len(self._pending) < (1 if self._lost else self.engine.capacity):
            self._submit(self._queue.pop(0))

    def _submit(self, run: Run) -> None:
        place, how = self.records.place(run, make=True), {}
        if getattr(run.train, "keeps_files", False):
            how = {"place": str(place.resolve()), "keep": run.keep}
        self._pending[self.engine.submit(execute, __version__, run.train, run.config, **how)] = run

    def _settle(self, run: Run, future: Future) -> None:
        """Keep the outcome of a run. If its process ended instead, the outcome is a failure."""
        error = RuntimeError("it was cancelled") if future.cancelled() else future.exception()
        if isinstance(error, MupError):
            raise error
        if error is None:
            outcome = future.result()
        else:
            why = " ".join(str(error).split()) or type(error).__name__
            outcome = failed(f"{why.rstrip('.')}; the memory may be too small, or train may end its process")
        for text in outcome["metrics"].get("notes", ()) if getattr(run.train, "keeps_files", False) else ():
            note(self.display, text)
        self.records.write(run, outcome)
        if not is_complete(outcome):  # the study may need other runs now
            self._queue.clear()
            if hasattr(self.study, "all_missing"):
                left = sum(cost_of(self.study, one) for one in self.study.all_missing(self.records))
                self.display.total = self.display.n + cost_of(self.study, run) + left
        # A run may be lost because of other runs: their process died, or the memory is too small for several.
        if outcome["again"] and run.id not in self._lost:
            self._lost.add(run.id)
            note(self.display, f"A run was lost ({outcome['error']}). It is repeated once, without other runs beside it.")
            return
        self._lost.discard(run.id)
        if not is_final(outcome):
            self.records.give_up(run)
        show_finished(self.display, {**run.labels, **outcome}, cost_of(self.study, run))
