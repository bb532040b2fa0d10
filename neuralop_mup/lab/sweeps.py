"""Run any train function over hyperparameters: ``sweep``, and ``transfer`` from a small model to a large one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import MupError
from neuralop_mup.lab.engines import make_engine
from neuralop_mup.lab.files import as_folder
from neuralop_mup.lab.records import Records
from neuralop_mup.lab.report import verdict
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.run import run
from neuralop_mup.lab.study import Study, checked_fields
from neuralop_mup.lab.wording import cell, size_text


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
    repeated, and so are runs that failed because of an exception, a full disk or too little memory. A MupError or a loss
    that is not finite counts as a result. A folder can contain any number of studies, and you can add values and seeds to a
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
    study = Study(name=as_folder(folder).resolve().name, train=train, **checked_fields(space, fixed, seeds, ("seed",)))
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
    study = transfer_study(
        proxy=proxy,
        target=target,
        space=space,
        rule=rule,
        rules=rules,
        fixed=fixed,
        seeds=seeds,
        name=as_folder(folder).resolve().name,
        train=train,
    )
    if progress:
        print(f"Tuned on the proxy ({size_text(proxy)}): {cell(study.space)}.")
        print(f"Transferred to the target ({size_text(target)}) under {' and '.join(study.rules)}.")
    results = train_missing(study, folder, n_workers=n_workers, executor=executor, progress=progress)
    if progress:
        print(*verdict(results), sep="\n")
    return results
