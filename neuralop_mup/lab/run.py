"""Train the missing runs of a study. ``sweep`` and ``transfer`` are studies of any train function.

Each result is written to the folder before the next run starts, so a killed process loses at most the runs in progress.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from pathlib import Path
from typing import Any

from tqdm import tqdm

from neuralop_mup._version import __version__
from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import MupError
from neuralop_mup.lab.engines import make_engine
from neuralop_mup.lab.outcome import execute, failed, is_complete, is_final
from neuralop_mup.lab.records import Records, Run
from neuralop_mup.lab.study import Results, Study, checked_fields
from neuralop_mup.lab.wording import cell, counted, params, size_text


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
            display.update(0)  # updates the remaining time
        for future in ended:
            run, outcome = pending.pop(future), _outcome(future)
            records.write(run, outcome)
            if not is_complete(outcome):  # the study may now need different runs
                queue.clear()
                if hasattr(study, "all_missing"):
                    display.total = display.n + cost_of(study, [run, *study.all_missing(records)])
            if outcome["again"] and run.id not in repeated:
                repeated.add(run.id)
                lost.append(run)
                note(display, f"A run was lost ({outcome['error']}). It will be repeated once, on its own.")
                continue
            if not is_final(outcome):
                records.give_up(run)
            show_finished(display, {**run.labels, **outcome}, cost_of(study, [run]))


def _outcome(future: Future) -> dict[str, Any]:
    """Return the outcome of a finished run. If the process of the run ended unexpectedly, the outcome is a failure."""
    error = RuntimeError("it was cancelled") if future.cancelled() else future.exception()
    if isinstance(error, MupError):
        raise error
    if error is None:
        return future.result()
    why = " ".join(str(error).split()) or type(error).__name__
    return failed(f"{why.rstrip('.')}; there may not be enough memory, or the train function may exit its process")


# Sweeps and transfers


def train_missing(
    study: Study, folder: str | Path | Records, *, n_workers: int | None, executor: Any = None, progress: bool = True,
    devices: Sequence[str] = (),
) -> Results:  # fmt: skip
    """Train the missing runs of a study, as described in :func:`sweep`."""
    engine = make_engine(executor, study.train, len(study.seeds) * len(study.tuning), n_workers, devices)
    records = run(study, folder=folder, engine=engine, progress=progress)
    return Results(study, study.rows(records), records.folder)


def transfer_study(
    *,
    proxy: Mapping[str, Any],
    target: Mapping[str, Any],
    space: Mapping[str, Any],
    rule: str = DEFAULT_RULE,
    rules: Sequence[str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    name: str = "transfer",
    **more: Any,
) -> Study:
    """Return the study that :func:`transfer` trains, without training it.

    Parameters
    ----------
    proxy : mapping
        Keyword arguments of the small model, on which hyperparameters are tuned.
    target : mapping
        Keyword arguments of the large model.
    space : mapping of str to sequence
        Maps each hyperparameter to the values to try.
    rule : str, default "operator-norm"
        Rule that transfers the hyperparameters.
    rules : sequence of str, optional
        Additional rules to compare. "standard" is always included.
    fixed : mapping, optional
        Config entries that are the same in every run.
    seeds : iterable of int, default (0,)
        Seeds for every point.
    name : str, default "transfer"
        Name of the study.
    **more
        Additional fields of :class:`Study`.

    Returns
    -------
    Study
        A study with the sizes "proxy" and "target".

    Raises
    ------
    MupError
        If the space, the seeds, the sizes or the rules are invalid.

    Examples
    --------
    >>> from neuralop_mup.lab import transfer_study
    >>> sizes = {"proxy": {"hidden_channels": 8}, "target": {"hidden_channels": 32}}
    >>> study = transfer_study(**sizes, space={"lr": [0.25, 0.5, 1.0]})
    >>> study.rules, len(study.tuning)
    (('operator-norm', 'standard'), 3)
    """
    fields = checked_fields(space, fixed, seeds, ("model", "base", "rule", "seed"))
    for label, size in (("proxy", proxy), ("target", target)):
        if not isinstance(size, Mapping):
            raise MupError(f"{label}={size!r} must be a dict of model arguments, such as {{'n_modes': (12, 12)}}.")
    if not isinstance(rule, str) or isinstance(rules, str) or not all(isinstance(r, str) for r in rules or ()):
        raise MupError(f"rule={rule!r} must be the name of a rule, and rules={rules!r} must be a sequence of such names.")
    compared = tuple(dict.fromkeys([rule, *(rules or ()), "standard"]))
    return Study(name=name, sizes={"proxy": dict(proxy), "target": dict(target)}, rules=compared, **fields, **more)


def sweep(
    train: Callable[[dict], float | Mapping[str, Any]],
    space: Mapping[str, Any],
    *,
    folder: str | Path,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    n_workers: int | None = None,
    executor: Any = None,
    progress: bool = True,
) -> Results:
    """Train over a space of hyperparameters and store every run in a folder.

    Repeating the call with the same folder resumes the sweep. Finished runs are not trained again. Interrupted runs are
    repeated, and so are runs that failed because of an exception, a full disk or a lack of memory. A MupError or a loss that
    is not finite counts as a result. A folder can contain any number of studies, and you can add values and seeds to a
    study.

    A run is reused if everything in its key is unchanged. The key contains the configuration, the releases (major and minor)
    of this package and of torch, and the code of ``train`` with everything that it uses
    (:func:`~neuralop_mup.lab.fingerprint.fingerprint`). **The key does not contain** the files and environment variables
    that ``train`` reads, its downloads, or modules that it imports by a name constructed at run time. If these change, use
    a different folder, or identify them in ``fixed``, for example by
    ``{"data": hashlib.sha256(path.read_bytes()).hexdigest()}``.

    Parameters
    ----------
    train : callable
        ``train(config)`` returns a number, or a dict with ``"loss"``. Lower is better. The config is
        ``{**fixed, **point, "seed": seed}``, copied for each run. To use several processes, define the function at the top
        level of a module.
    space : mapping of str to sequence
        Maps each hyperparameter to the values to try. Each combination is a point. The best point has the lowest mean loss
        over the seeds.
    folder : str or Path
        Folder for the runs, which is created if necessary. Its file ``results.jsonl`` is a table of the last study.
    fixed : mapping, optional
        Config entries that are the same in every run.
    seeds : iterable of int, default (0,)
        Distinct seeds for every point. All points are first trained with the first seed. The other seeds of a point start
        after its first seed has completed. If a seed does not complete, no further seeds of that point are trained.
    n_workers : int, optional
        Number of concurrent runs, each in its own process. Default: one per core, at most one per run, and 1 for a function
        that other processes cannot import (a lambda, or a function defined in a notebook). With 1, runs are executed in this
        process with its current thread settings. Otherwise each process uses ``cores // n_workers`` threads.
    executor : concurrent.futures.Executor, callable or str, optional
        Process-based executor, a function that returns one (and is called again if it breaks), or the import path of either
        (``"package.module.name"``). Also set ``n_workers`` to its number of workers. An engine from
        :mod:`neuralop_mup.lab.engines` is also accepted.
    progress : bool, default True
        Whether to show progress on stderr.

    Returns
    -------
    Results
        Results with ``.best``, ``.best_loss``, ``.points()``, ``.summary()`` and ``.records``.

    Raises
    ------
    MupError
        If the folder is in use or cannot be written, or if the space, the seeds or the workers are invalid. A run that
        raises an error or returns a loss that is not finite is recorded and does not raise.

    Notes
    -----
    The result of ``train`` is stored as JSON: numbers that are not finite become null, and objects become strings. Records
    also contain tracebacks, versions, host and date. If a train function contains something that cannot be inspected, such
    as an open file, a warning is issued and each call trains its runs again.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> def train(config):
    ...     return 1 + (config["lr"] - 0.5) ** 2
    >>> results = nm.sweep(train, {"lr": [0.25, 0.5, 1.0]}, folder="runs", n_workers=1, progress=False)
    >>> results.best, results.best_loss
    ({'lr': 0.5}, 1.0)
    """
    study = Study(name=Path(folder).resolve().name, train=train, **checked_fields(space, fixed, seeds, ("seed",)))
    return train_missing(study, folder, n_workers=n_workers, executor=executor, progress=progress)


def transfer(
    train: Callable[[dict], float | Mapping[str, Any]],
    *,
    proxy: Mapping[str, Any],
    target: Mapping[str, Any],
    space: Mapping[str, Any],
    folder: str | Path,
    rule: str = DEFAULT_RULE,
    rules: Sequence[str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    n_workers: int | None = None,
    executor: Any = None,
    progress: bool = True,
) -> Results:
    """Tune a small proxy and train the large target with the best hyperparameters (Algorithm 1).

    The target is trained under ``rule``, under the other ``rules``, and in the standard parametrization of neuralop
    ("standard").

    Parameters
    ----------
    train : callable
        ``train(config)`` returns a number, or a dict with ``"loss"``. Lower is better. The config is
        ``{**fixed, "model": size, "base": proxy, "rule": rule, **point, "seed": seed}``.
    proxy : mapping
        Keyword arguments of the small model.
    target : mapping
        Keyword arguments of the large model.
    space : mapping of str to sequence
        Maps each hyperparameter to the values to try on the proxy.
    folder : str or Path
        Folder for the runs. Repeating the call resumes the study, and you can add values, seeds and rules (see
        :func:`sweep`).
    rule : str, default "operator-norm"
        Rule that transfers the hyperparameters.
    rules : sequence of str, optional
        Additional rules to compare. "standard" is always included.
    fixed : mapping, optional
        Config entries that are the same in every run.
    seeds : iterable of int, default (0,)
        Distinct seeds for every point.
    n_workers : int, optional
        Number of concurrent runs, each in its own process. Default: one per core, at most one per run, and 1 for a function
        that other processes cannot import (a lambda, or a function defined in a notebook). With 1, runs are executed in this
        process with its current thread settings. Otherwise each process uses ``cores // n_workers`` threads.
    executor : concurrent.futures.Executor, callable or str, optional
        Process-based executor, a function that returns one (and is called again if it breaks), or the import path of either
        (``"package.module.name"``). Also set ``n_workers`` to its number of workers. An engine from
        :mod:`neuralop_mup.lab.engines` is also accepted.
    progress : bool, default True
        Whether to show progress on stderr.

    Returns
    -------
    Results
        Results with ``.best``, ``.summary()`` and ``.records``.

    Raises
    ------
    MupError
        If an argument is invalid (see :func:`sweep`), or if no point of the proxy completed for every seed.

    References
    ----------
    Li, Yoo, Yang, ICML 2025, https://arxiv.org/abs/2506.19396, Algorithm 1.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> def train(config):
    ...     return 1 + (config["lr"] - 0.5) ** 2
    >>> sizes = {"proxy": {"hidden_channels": 8}, "target": {"hidden_channels": 32}}
    >>> how = {"folder": "runs", "n_workers": 1, "progress": False}
    >>> results = nm.transfer(train, **sizes, space={"lr": [0.25, 0.5, 1.0]}, **how)
    >>> results.best, [row["transferred_loss"] for row in results.summary() if row["size"] == "target"]
    ({'lr': 0.5}, [1.0, 1.0])
    """
    sizes, tuned = {"proxy": proxy, "target": target}, {"space": space, "fixed": fixed, "seeds": seeds}
    name = Path(folder).resolve().name
    study = transfer_study(**sizes, **tuned, rule=rule, rules=rules, name=name, train=train)
    if progress:
        print(f"Tuned on the proxy ({size_text(proxy)}): {cell(study.space)}.")
        print(f"Transferred to the target ({size_text(target)}) under {' and '.join(study.rules)}.")
    return train_missing(study, folder, n_workers=n_workers, executor=executor, progress=progress)


# Progress on stderr: a bar in a terminal, and occasional lines elsewhere

_SILENCE = 30.0  # seconds between two lines if the bar cannot be redrawn


def bar(**options: Any) -> tqdm:
    """Return a progress bar on stderr. The ``options`` are passed to tqdm."""
    return tqdm(
        file=sys.stderr, dynamic_ncols=True, smoothing=0, mininterval=0.1 if sys.stderr.isatty() else _SILENCE, **options
    )


def bar_of_runs(name: str, total: float, enabled: bool) -> tqdm:
    """Return a progress bar with the remaining time, for runs with this total cost."""
    layout = "{l_bar}{bar}| {elapsed}, {remaining} left{postfix}"
    return bar(desc=name, total=total, disable=not enabled, bar_format=layout, miniters=0, delay=1e-9)


def note(display: tqdm, text: str) -> None:
    """Print a line above the bar, unless the bar is disabled."""
    if not display.disable:
        display.write(text, file=sys.stderr)


def show_finished(display: tqdm, record: Mapping[str, Any], cost: float = 1.0) -> None:
    """Advance the bar by the cost of a finished run, and show the loss or the error of the run."""
    labels = [record.get("size"), record.get("rule"), params(record["params"]), f"seed={record['seed']}"]
    name = " ".join(filter(None, labels))
    if is_complete(record):
        display.set_postfix_str(f"{name}: {record['loss']:.4g}", refresh=False)
    else:
        note(display, f"{name}: {record['outcome'].upper()}, {record['error']}")
    display.update(cost)
