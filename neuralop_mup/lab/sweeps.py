"""``sweep`` and ``transfer``: two questions asked of a study, for a train function of the user's own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import MupError
from neuralop_mup.lab import wording as say
from neuralop_mup.lab.engines import make_engine
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.run import run
from neuralop_mup.lab.search import checked
from neuralop_mup.lab.study import Study


def results_of(
    study: Study, *, folder: str | Path, n_workers: int | None, engine: Any = None, executor: Any = None,
    progress: bool = True, devices: Sequence[str] = (),
) -> Results:  # fmt: skip
    """Train what is missing of a study, as :func:`sweep` says."""
    made = make_engine(engine, executor, study.train, len(study.seeds) * len(study.tuning), n_workers, devices)
    records = run(study, folder=folder, engine=made, progress=progress)
    return Results(study.extended(records), study.rows(records), Path(folder))


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
    naive: bool = True,
    **more: Any,
) -> Study:
    """The study of :func:`transfer`: a space tuned at the proxy and carried to the target. Nothing is trained.

    Parameters
    ----------
    proxy, target, space, rule, rules, fixed, seeds
        As for :func:`transfer`.
    name : str, default "transfer"
        Names the study.
    naive : bool, default True
        Whether "standard" is one of the rules in any case.
    **more
        Further fields of the study.

    Returns
    -------
    Study
        With the sizes "proxy" and "target".

    Raises
    ------
    MupError
        For a space, seeds, sizes or rules that cannot work.

    Examples
    --------
    >>> from neuralop_mup.lab import transfer_study
    >>> sizes = {"proxy": {"hidden_channels": 8}, "target": {"hidden_channels": 32}}
    >>> study = transfer_study(**sizes, space={"lr": [0.25, 0.5, 1.0]})
    >>> study.rules, len(study.tuning)
    (('operator-norm', 'standard'), 3)
    """
    asked = checked(space, fixed, seeds, ("model", "base", "rule", "seed"))
    for what, size in (("proxy", proxy), ("target", target)):
        if not isinstance(size, Mapping):
            raise MupError(f"{what}={size!r} must be a dict of sizes, such as {{'n_modes': (12, 12)}}.")
    if not isinstance(rule, str) or isinstance(rules, str) or not all(isinstance(r, str) for r in rules or ()):
        raise MupError(f"rule={rule!r} must be a name and rules={rules!r} a sequence of names.")
    compared = tuple(dict.fromkeys([rule, *(rules or ()), *(["standard"] if naive else [])]))
    return Study(
        name=name,
        sizes={"proxy": dict(proxy), "target": dict(target)},
        rules=compared,
        **asked,
        **more,
    )


def sweep(
    train: Callable[[dict], float | Mapping[str, Any]],
    space: Mapping[str, Any],
    *,
    folder: str | Path,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    n_workers: int | None = None,
    name: str = "sweep",
    engine: Any = None,
    executor: Any = None,
    progress: bool = True,
) -> Results:
    """Train over a space of hyperparameters, keeping every run in a folder.

    A run is kept by its configuration and what ``train`` is: its code, with all that it uses and holds
    (:func:`~neuralop_mup.lab.fingerprint.fingerprint`). So the same call on the same folder resumes: what is finished is not
    trained again, what was under way when the command was killed is, and so is what failed by its surroundings or by an
    exception. A loss that is not finite, or a MupError, is a result. A folder may hold any number of studies, and values
    and seeds may be added to one.

    Parameters
    ----------
    train : callable
        ``train(config) -> float`` or a dict with ``"loss"``; lower is better. It is called with
        ``{**fixed, **point, "seed": seed}``, a copy of it for each run. To run in several processes it must stand at module
        level of a file.
    space : mapping of str to sequence
        Every combination is a point, judged by its mean over the seeds; all points with the first seed come first.
    folder : str or Path
        A signac project, made if new: a job a run. ``results.jsonl`` is a table of the study that ran last.
    fixed : mapping, optional
        Config entries that are the same in every run.
    seeds : iterable of int, default (0,)
        Distinct. The others start once the first of a point completed; a point whose seed did not complete stops.
    n_workers : int, optional
        Runs at once; default one per core, at most one per run, and 1 for a function that other processes cannot import
        (a lambda, or one of a notebook). With 1 the runs are executed in this process, whose thread
        settings stay as they are; otherwise each has a process of its own with ``cores // n_workers`` threads.
    name : str, default "sweep"
        What the study is called in progress and reports.
    engine : {"local", "ray"} or object, optional
        Where runs are executed; see :mod:`neuralop_mup.lab.engines`.
    executor : concurrent.futures.Executor or callable, optional
        In the place of an engine: any executor of processes, or a function that makes one (so that it can be replaced when
        it breaks); give ``n_workers``, as many as it has.
    progress : bool, default True
        Show progress on stderr.

    Returns
    -------
    Results
        With ``.best``, ``.best_loss``, ``.points()``, ``.summary()`` and ``.records``.

    Raises
    ------
    MupError
        If the folder is in use, cannot be written or holds a study of an earlier version; if the space, seeds or workers
        cannot work. A run that raises or whose loss is not finite is a record, not an error.

    Notes
    -----
    What train returns is kept as JSON: numbers that are not finite become null, objects their text. Tracebacks are in the
    records, too, and versions, host and date. A train function that holds what cannot be looked into, such as an open
    file, is trained anew by each call, and a warning says so.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> def train(config):
    ...     return 1 + (config["lr"] - 0.5) ** 2
    >>> results = nm.sweep(train, {"lr": [0.25, 0.5, 1.0]}, folder="runs", n_workers=1, progress=False)
    >>> results.best, results.best_loss
    ({'lr': 0.5}, 1.0)
    """
    if not isinstance(name, str) or not name or "/" in name:
        raise MupError(f"name={name!r} cannot name a study; take a text without a slash.")
    study = Study(name=name, train=train, **checked(space, fixed, seeds, ("seed",)))
    return results_of(study, folder=folder, n_workers=n_workers, engine=engine, executor=executor, progress=progress)


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
    name: str | None = None,
    engine: Any = None,
    executor: Any = None,
    progress: bool = True,
) -> Results:
    """Tune at a small proxy, train the large target with what was found, beside the naive way (Algorithm 1).

    The target is trained at the proxy's best point under ``rule``, under the other ``rules`` and as neuralop builds it
    ("standard").

    Parameters
    ----------
    train : callable
        ``train(config) -> float`` or a dict with ``"loss"``; lower is better. The config is
        ``{**fixed, "model": size, "base": proxy, "rule": rule, **point, "seed": seed}``.
    proxy, target : mapping
        Model keyword arguments of the two sizes.
    space : mapping of str to sequence
        As for :func:`sweep`.
    folder : str or Path
        Keeps the runs, as for :func:`sweep`. A grid, seeds and rules may grow.
    rule : str, default "operator-norm"
        The rule that carries the hyperparameters.
    rules : sequence of str, optional
        Further rules to compare; "standard" is always one of them, as the naive way.
    name : str, optional
        Names the study; default the folder's name.
    fixed, seeds, n_workers, engine, executor, progress
        As for :func:`sweep`.

    Returns
    -------
    Results
        With ``.best``, ``.summary()`` and ``.records``.

    Raises
    ------
    MupError
        As for :func:`sweep`; also if no point of the proxy completed with every seed.

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
    asked = {"proxy": proxy, "target": target, "space": space, "rule": rule, "rules": rules, "fixed": fixed}
    study = transfer_study(**asked, seeds=seeds, train=train, name=name or Path(folder).resolve().name or "transfer")
    if progress:
        print(
            f"Tuned at the proxy, {say.size_text(proxy)}: {say.cell(study.space)}. Carried to the target, "
            f"{say.size_text(target)}, under {say.cell(study.rules)}. In every run: {say.cell(study.fixed)}."
        )
    return results_of(study, folder=folder, n_workers=n_workers, engine=engine, executor=executor, progress=progress)
