"""Train the missing runs of a study until there are none.

Each result is in the folder before the next run starts, so a kill loses at most the runs in progress.
"""

from collections.abc import Iterable
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
            with bar_of_runs(name, cost_of(study, expected), progress) as display:
                note(display, f"{name}: {counted(len(expected), 'run')}; results in {records.folder}")
                others = records.of_other_releases(missing)
                for text in filter(None, [*records.notes, others, getattr(engine, "note", "")]):
                    note(display, text)
                _train(study, records, engine, display)
        finally:
            getattr(study, "save", lambda records: None)(records)
    return records


def cost_of(study: Any, runs: Iterable[Run]) -> float:
    """Return the relative cost of runs; that of a run is 1 if it is unknown."""
    costs = getattr(study, "costs", {})
    return sum(costs.get(run.labels.get("size"), 1.0) for run in runs)


def _train(study: Any, records: Records, engine: Any, display: tqdm) -> None:
    """Train until no run is missing.

    A run may be lost because of other runs: their process died, or the memory is too small for several. Such a run is
    repeated once, when no other run can start, and without others beside it.
    """
    pending: dict[Future, Run] = {}
    queue: list[Run] = []  # an experiment may need seconds to list its missing runs
    lost: list[Run] = []
    repeated: set[str] = set()
    while True:
        if not queue:
            known = {run.id for run in (*pending.values(), *lost)}
            missing = {run.id: run for run in study.missing_runs(records)}
            queue = [run for run in missing.values() if run.id not in known]
        if not pending and not queue:
            queue, lost = lost[:1], lost[1:]
        while queue and len(pending) < engine.capacity:
            run = queue.pop(0)
            place = str(records.place(run, make=True).resolve())
            pending[engine.submit(execute, __version__, run.train, run.config, place, run.keep)] = run
        if not pending:
            return
        ended: set[Future] = set()
        while not ended:
            ended = wait(pending, timeout=10, return_when=FIRST_COMPLETED).done
            display.update(0)  # shows the time left
        for future in ended:
            run, outcome = pending.pop(future), _outcome(future)
            notes = outcome["metrics"].get("notes")
            for text in notes if isinstance(notes, list) else []:
                note(display, str(text))
            records.write(run, outcome)
            if not is_complete(outcome):  # the study may need other runs now
                queue.clear()
                if hasattr(study, "all_missing"):
                    display.total = display.n + cost_of(study, [run, *study.all_missing(records)])
            if outcome["again"] and run.id not in repeated:
                repeated.add(run.id)
                lost.append(run)
                note(display, f"A run was lost ({outcome['error']}). It is repeated once, without other runs beside it.")
                continue
            if not is_final(outcome):
                records.give_up(run)
            show_finished(display, {**run.labels, **outcome}, cost_of(study, [run]))


def _outcome(future: Future) -> dict[str, Any]:
    """Return the outcome of a run that ended. If its process ended instead, the outcome is a failure."""
    error = RuntimeError("it was cancelled") if future.cancelled() else future.exception()
    if isinstance(error, MupError):
        raise error
    if error is None:
        return future.result()
    why = " ".join(str(error).split()) or type(error).__name__
    return failed(f"{why.rstrip('.')}; the memory may be too small, or train may end its process")
