"""The loop that trains the missing runs of a study until there are none.

Each result is in the folder before the next run is chosen, so a kill at any time loses at most the runs in progress.
"""

import pickle
from collections import Counter, deque
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from neuralop_mup._version import __version__
from neuralop_mup.errors import MupError
from neuralop_mup.files import whole_file
from neuralop_mup.lab.engines import InlineEngine
from neuralop_mup.lab.files import save_torch, writing
from neuralop_mup.lab.outcome import Sent, execute, failed, is_complete, is_final, pickle_digest
from neuralop_mup.lab.progress import Progress
from neuralop_mup.lab.records import Records, Run
from neuralop_mup.lab.wording import counted

_LARGE = 1 << 20  # bytes: a larger train function is not sent with each run


def run(study: Any, *, folder: str | Path | Records, engine: Any, progress: bool = True, known: Any = None) -> Records:
    """Train the missing runs of a study until there are none.

    Parameters
    ----------
    study : object
        ``wanted(records)`` gives the runs (``Run`` of ``neuralop_mup.lab.records``) that may start now and are not done, in
        the order in which they should. It may have ``name``; ``costs``, the relative cost of a run of each size, and
        ``left(records)``, how many of each size are left, for the time left; and ``save(records)``, called at the end,
        however it ends.
    folder : str, Path or Records
        Keeps the runs; what is there already is not trained again, whichever study asked for it.
    engine : object
        Where runs are executed; it is closed at the end.
    progress : bool, default True
        Show progress on stderr.
    known : object, optional
        Further records, which are only read: ``known.get(run)`` gives what a run gave, or None.

    Returns
    -------
    Records
        Of the folder; ``get(run)`` gives what a run gave.

    Raises
    ------
    MupError
        If the folder is in use, holds a study of an earlier version or cannot be written; if no point of the base
        completed with every seed while a larger size waits for it.

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
    display = Progress(getattr(study, "name", records.folder.name), getattr(study, "costs", {}), progress)
    with closing(engine), closing(display), records.held():
        loop = _Loop(study, records, engine, display)
        try:
            loop.run()
        finally:
            for path in records.folder.glob("train-*.pt"):  # from which workers read train functions
                with suppress(OSError):  # Windows keeps what is mapped
                    path.unlink()
            getattr(study, "save", lambda records: None)(records)
        return records


class _Loop:
    """Sends the missing runs of a study to an engine, and keeps the results."""

    def __init__(self, study: Any, records: Records, engine: Any, display: Progress) -> None:
        self.study, self.records, self.engine, self.display = study, records, engine, display
        self._queue: deque[Run] = deque()
        self._pending: dict[Future, Run] = {}
        self._lost: set[str] = set()  # runs that did not cause their failure: they are repeated once, one at a time
        self._sent: dict[int, tuple[Any, Any]] = {}

    def run(self) -> None:
        """Train until no run is missing."""
        left = self._ask()
        self.display.note(f"{self.display.name}: {counted(left.total(), 'run')}; results in {self.records.folder}")
        others = self.records.of_other_releases(self._queue)
        for note in filter(None, [*self.records.notes, others, getattr(self.engine, "note", "")]):
            self.display.note(note)
        while True:
            while len(self._pending) < (1 if self._lost else self.engine.capacity) and (run := self._next()) is not None:
                self._submit(run)
            if not self._pending:
                break
            ended, _ = wait(self._pending, timeout=10, return_when=FIRST_COMPLETED)
            self.display.tick()
            for future in ended:
                self._settle(self._pending.pop(future), future)

    def _next(self) -> Run | None:
        """Return a missing run that is not in progress, if there is one."""
        if not self._queue:
            self._ask()
        return self._queue.popleft() if self._queue else None

    def _ask(self) -> Counter:
        """Queue the missing runs, and return the number of runs of each size that are left."""
        under_way = {run.id for run in self._pending.values()}
        wanted = {run.id: run for run in self.study.wanted(self.records) if run.id not in under_way}
        self._queue.extend(wanted.values())
        missing = Counter(run.labels.get("size") for run in [*wanted.values(), *self._pending.values()])
        left = Counter(getattr(self.study, "left", lambda records: missing)(self.records))
        self.display.left(left)
        return left

    def _submit(self, run: Run) -> None:
        place, how = self.records.place(run, make=True), {}
        if getattr(run.train, "keeps_files", False):
            how = {"place": str(place.resolve()), "keep": run.keep}
        self._pending[self.engine.submit(execute, __version__, self._travelling(run.train), run.config, **how)] = run

    def _travelling(self, train: Any) -> Any:
        """Return a train function, or for a large one a reference to a file of the folder."""
        if isinstance(self.engine, InlineEngine):
            return train
        if id(train) not in self._sent:
            path, sent = self.records.folder.resolve() / f"train-{len(self._sent)}.pt", train
            # Executors have their own ways to send what pickle cannot.
            with suppress(pickle.PicklingError, AttributeError, TypeError):
                with writing(self.records.folder), whole_file(path) as part:
                    save_torch(train, part)
                sent = Sent(path, pickle_digest(path)) if path.stat().st_size > _LARGE else train
            self._sent[id(train)] = train, sent
        return self._sent[id(train)][1]

    def _settle(self, run: Run, future: Future) -> None:
        """Keep the outcome of a run, or of its process."""
        error = RuntimeError("it was cancelled") if future.cancelled() else future.exception()
        if isinstance(error, MupError):
            raise error
        if error is None:
            outcome = future.result()
        else:
            why = " ".join(str(error).split()) or type(error).__name__
            outcome = failed(f"{why.rstrip('.')}; it may need more memory than there is, or train may end its process")
        for note in outcome["metrics"].get("notes", ()) if getattr(run.train, "keeps_files", False) else ():
            self.display.note(note)
        self.records.write(run, outcome)
        # A run may be lost because of others: their death, or memory that is too small for several. Repeat it alone.
        if outcome["again"] and run.id not in self._lost:
            self._lost.add(run.id)
            self._queue.appendleft(run)
            self.display.note(f"a run was lost ({outcome['error']}); it runs once more, by itself")
            return
        if not is_final(outcome):
            self.records.give_up(run)
        if not is_complete(outcome):  # its study may not want the other seeds of this point any more: ask it again
            point = {**run.labels, "seed": None}
            self._queue = deque(other for other in self._queue if {**other.labels, "seed": None} != point)
        self._lost &= {other.id for other in self._queue}
        self.display.finished({**run.labels, **outcome})
