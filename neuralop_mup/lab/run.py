"""Train the missing runs of a study.

Each result is written to the folder before the next run starts, so a killed process loses at most the runs in progress.
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
        An object with ``missing_runs(records)``, which returns the runs that can start now, in order. It may also have
        ``name``, which is shown with the progress; ``all_missing(records)``, which includes the runs that cannot start yet,
        and ``costs``, a mapping from size to the relative cost of a run, which are both used to estimate the remaining time;
        and ``save(records)``, which is called at the end, even after an error.
    folder : str, Path or Records
        Folder for the runs. Runs that the folder already contains are not trained again, regardless of the study.
    engine : object
        Engine that executes the runs (:mod:`neuralop_mup.lab.engines`). It is closed at the end.
    progress : bool, default True
        Whether to show progress on stderr.
    known : object, optional
        Additional read-only records: ``known.get(run)`` returns the record of a run, or None.

    Returns
    -------
    Records
        Records of the folder; ``get(run)`` returns the record of a run.

    Raises
    ------
    MupError
        If the folder is in use or cannot be written, or if the study has a target but no point of the base completed for
        every seed.

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
                records.warn_of_other_releases(missing)
                _train(study, records, engine, display)
        finally:
            getattr(study, "save", lambda records: None)(records)
    return records


def cost_of(study: Any, runs: Iterable[Run]) -> float:
    """Return the total relative cost of runs. A run with an unknown cost counts as 1."""
    costs = getattr(study, "costs", {})
    return sum(costs.get(run.labels.get("size"), 1.0) for run in runs)


def _train(study: Any, records: Records, engine: Any, display: tqdm) -> None:
    """Train until no run is missing.

    A run may be lost because of other runs: their process died, or there is not enough memory for several runs at once. Such
    a run is repeated once, on its own, when no other run can start.
    """
    pending: dict[Future, Run] = {}
    queue: list[Run] = []  # a cache, since an experiment may need seconds to list its missing runs
    lost: set[str] = set()
    while True:
        if not queue:
            missing = {run.id: run for run in study.missing_runs(records)}
            others = {run.id for run in pending.values()} | lost
            queue = [run for run in missing.values() if run.id not in others]
            if not pending and not queue:
                queue = list(missing.values())[:1]
        while queue and len(pending) < engine.capacity:
            run = queue.pop(0)
            place = str(records.place(run, make=True).resolve())
            pending[engine.submit(execute, __version__, run.train, run.config, place, run.keep)] = run
        if not pending:
            return
        while not (ended := wait(pending, timeout=10, return_when=FIRST_COMPLETED).done):
            display.update(0)  # updates the remaining time
        for future in ended:
            run, outcome = pending.pop(future), _outcome(future)
            repeat = outcome["again"] and not is_final(outcome) and run.id not in lost
            records.write(run, outcome, repeat)
            if not is_complete(outcome):  # the study may now need different runs
                queue.clear()
                if hasattr(study, "all_missing"):
                    display.total = display.n + cost_of(study, [run, *study.all_missing(records)])
            if repeat:
                lost.add(run.id)
                note(display, f"A run was lost ({outcome['error']}). It will be repeated once, on its own.")
            else:
                show_finished(display, {**run.labels, **outcome}, cost_of(study, [run]))


def _outcome(future: Future) -> dict[str, Any]:
    """Return the outcome of a finished run. If the process of the run ended unexpectedly, the outcome is a failure."""
    error = RuntimeError("it was cancelled") if future.cancelled() else future.exception()
    if error is None or isinstance(error, MupError):
        return future.result()
    why = " ".join(str(error).split()) or type(error).__name__
    return failed(f"{why.rstrip('.')}; there may not be enough memory, or the train function may exit its process")
