"""``sweep`` and ``transfer``: two questions asked of a study, for a train function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import MupError
from neuralop_mup.tuning.driver import run
from neuralop_mup.tuning.space import check_fixed, check_seeds, check_space, is_search
from neuralop_mup.tuning.study import Study
from neuralop_mup.tuning.summary import Results

__all__ = ["sweep", "sweep_study", "transfer", "transfer_study"]

RESERVED = ("model", "base", "rule", "seed", "until")


def _check_n_trials(space: Mapping[str, Any], n_trials: int | None) -> None:
    """MupError unless a search says how many points it may try, and a grid does not."""
    if is_search(space):
        if not isinstance(n_trials, int) or isinstance(n_trials, bool) or n_trials < 1:
            raise MupError(
                f"The space has an Optuna distribution and n_trials={n_trials!r}; say how many points to try, "
                "such as n_trials=30."
            )
    elif n_trials is not None:
        raise MupError(
            f"n_trials={n_trials!r} is for spaces with Optuna distributions; a grid runs every point, so leave it out."
        )


def sweep_study(
    space: Mapping[str, Any],
    *,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    n_trials: int | None = None,
    name: str = "sweep",
) -> Study:
    """One train function over one space; see :func:`sweep`."""
    reserved = ("seed", "until")
    fixed = check_fixed(fixed, reserved)
    space, seeds = check_space(space, reserved, fixed), check_seeds(seeds)
    _check_n_trials(space, n_trials)
    if not isinstance(name, str) or not name or "/" in name:
        raise MupError(f"name={name!r} cannot name a study; take a text without a slash.")
    return Study(name=name, space=space, seeds=seeds, fixed=fixed, n_trials=n_trials)


def transfer_study(
    *,
    proxy: Mapping[str, Any],
    target: Mapping[str, Any],
    space: Mapping[str, Any],
    rule: str = DEFAULT_RULE,
    rules: Sequence[str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    verify: bool = False,
    n_trials: int | None = None,
    name: str = "transfer",
    naive: bool = True,
    extends: Mapping[str, int] | None = None,
) -> Study:
    """A space tuned at the proxy and carried to the target; see :func:`transfer`. Not ``naive``: without "standard" beside.

    ``extends``: by how many values a grid may grow where its best one lies at an edge.
    """
    fixed = check_fixed(fixed, RESERVED)
    space, seeds = check_space(space, RESERVED, fixed), check_seeds(seeds)
    _check_n_trials(space, n_trials)
    for what, size in (("proxy", proxy), ("target", target)):
        if not isinstance(size, Mapping):
            raise MupError(f"{what}={size!r} must be a dict of sizes, such as {{'n_modes': (12, 12)}}.")
    if not isinstance(rule, str) or isinstance(rules, str) or not all(isinstance(r, str) for r in rules or ()):
        raise MupError(f"rule={rule!r} must be a name and rules={rules!r} a sequence of names.")
    if verify and is_search(space):
        raise MupError(
            "verify=True walks the whole space at the target, which needs a grid; give lists of values in space, "
            "or verify=False."
        )
    compared = tuple(dict.fromkeys([rule, *(rules or ()), *(["standard"] if naive else [])]))
    return Study(
        name=name,
        space=space,
        seeds=seeds,
        n_trials=n_trials,
        sizes={"proxy": dict(proxy), "target": dict(target)},
        rules=compared,
        searched=tuple(r for r in compared if r in (rules or compared)) if verify else (),
        base_rules=dict.fromkeys(compared, rule),
        fixed=fixed,
        extends=dict(extends or {}),
    )


def sweep(
    train: Callable[[dict], float | Mapping[str, Any]],
    space: Mapping[str, Any],
    *,
    folder: str | Path,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    n_workers: int | None = None,
    n_trials: int | None = None,
    name: str = "sweep",
    storage: Any = None,
    sampler: Any = None,
    pruner: Any = None,
    rungs: Sequence[int] = (),
    engine: Any = None,
    executor: Any = None,
    progress: bool = True,
) -> Results:
    """Train over a space of hyperparameters, keeping every run in Optuna's storage.

    The same call on the same folder resumes: finished runs are kept, runs that were under way when the command was
    killed run again, and so do those that raised an exception (a bug since mended, memory); a loss that is not finite or
    a MupError stays failed. Values, seeds and ``n_trials`` may be added; any other change needs another folder.

    Parameters
    ----------
    train : callable
        ``train(config) -> float`` or a dict with ``"loss"``; lower is better. It is called with
        ``{**fixed, **point, "seed": seed}``. To run in several processes it must stand at module level.
    space : mapping of str to sequence or optuna distribution
        Sequences only: every combination is a point, all points with the first seed first. With a distribution among the
        values: ``n_trials`` points are proposed by the sampler, each judged by its mean over the seeds.
    folder : str or Path
        Holds ``journal.log`` (Optuna's, unless ``storage`` is given), ``results.jsonl`` and ``config.json``; made if new.
    fixed : mapping, optional
        Config entries that are the same in every run.
    seeds : iterable of int
        Distinct. A point is one Optuna trial and its seeds are reports within it. The others start once the first completed;
        a point whose seed did not complete stops.
    n_workers : int, optional
        Runs at once; default one per core, at most one per run. With 1 the runs are executed in this process, whose thread
        settings stay as they are; otherwise each worker has ``cores // n_workers`` threads. A search with several
        workers depends on the order in which they finish.
    n_trials : int, optional
        Points of a search.
    name : str
        Names the study in its storage.
    storage : str or optuna storage, optional
        A database URL such as ``"postgresql://user@host/optuna"``, or a storage of Optuna's. Default: a journal file in
        the folder.
    sampler : optuna.samplers.BaseSampler, optional
        Proposes the points of a search; default TPE.
    pruner : optuna.pruners.BasePruner, optional
        Ends points whose reports are worse than others': between seeds, which are then trained one after the other, and at
        ``rungs``.
    rungs : sequence of int
        Numbers of epochs after which a run is judged by the pruner, in ascending order. ``train`` is called with
        ``config["until"]``, returns its loss so far and goes on from its own checkpoint when it is called again.
    engine : {"local", "ray"} or Engine, optional
        Where runs are executed; see :mod:`neuralop_mup.tuning.engines`.
    executor : concurrent.futures.Executor or callable, optional
        In the place of an engine: any executor, or a function that makes one (so that it can be replaced when it breaks);
        give ``n_workers``, as many as it has.
    progress : bool
        Show progress on stderr.

    Returns
    -------
    Results
        With ``.best``, ``.best_loss``, ``.points()``, ``.summary()`` and ``.records``.

    Raises
    ------
    MupError
        If the folder or the storage is in use, holds other settings or cannot be reached; if the space, seeds or workers
        cannot work. A run that raises or whose loss is not finite is a record, not an error.

    Notes
    -----
    What train returns is kept as JSON: numbers that are not finite become null, objects their text. Tracebacks are in the
    storage, as the user attribute ``traceback:<seed>`` of the trial.
    """
    study = sweep_study(space, fixed=fixed, seeds=seeds, n_trials=n_trials, name=name)
    where = {"n_workers": n_workers, "engine": engine, "executor": executor, "storage": storage}
    return run(study, train, folder=folder, progress=progress, sampler=sampler, pruner=pruner, rungs=rungs, **where)


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
    verify: bool = False,
    n_trials: int | None = None,
    name: str | None = None,
    storage: Any = None,
    sampler: Any = None,
    pruner: Any = None,
    rungs: Sequence[int] = (),
    engine: Any = None,
    executor: Any = None,
    progress: bool = True,
) -> Results:
    """Tune at a small proxy, train the large target with what was found, beside the naive way (Algorithm 1).

    The target is trained at the proxy's best point under ``rule``, under the other ``rules`` and as neuralop builds it
    ("standard"). With ``verify`` the space is walked at the target size under the rules too, which measures drift and
    regret.

    Parameters
    ----------
    train : callable
        ``train(config) -> float`` or a dict with ``"loss"``; lower is better. The config is
        ``{**fixed, "model": size, "base": proxy, "rule": rule, **point, "seed": seed}``.
    proxy, target : mapping
        Model keyword arguments of the two sizes.
    space : mapping of str to sequence or optuna distribution
        As for :func:`sweep`; ``verify`` needs sequences.
    folder : str or Path
        Holds the study and is needed for itself. The same call resumes; a grid, seeds and rules may grow, and
        ``verify`` may be added.
    rule : str
        The rule that carries the hyperparameters.
    rules : sequence of str, optional
        The rules to compare; default ``(rule, "standard")``.
    verify : bool
        Also tune at the target size, to see what transfer missed.
    name : str, optional
        Names the study in a storage that others share; default the folder's name.
    fixed, seeds, n_workers, n_trials, storage, sampler, pruner, rungs, engine, executor, progress
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
    """
    asked = {"proxy": proxy, "target": target, "space": space, "rule": rule, "rules": rules, "fixed": fixed}
    study = transfer_study(
        **asked, seeds=seeds, verify=verify, n_trials=n_trials, name=name or Path(folder).resolve().name or "transfer"
    )
    where = {"n_workers": n_workers, "engine": engine, "executor": executor, "storage": storage}
    return run(study, train, folder=folder, progress=progress, sampler=sampler, pruner=pruner, rungs=rungs, **where)
