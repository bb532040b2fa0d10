"""The trials of an experiment: planned, run in one session, resumed by the same call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.reproduce.experiment import Experiment
from neuralop_mup.reproduce.results import Reproduction
from neuralop_mup.tuning.engine import Planned, open_session
from neuralop_mup.tuning.records import Record, first_failure
from neuralop_mup.tuning.settings import describe

__all__ = ["plan_experiment", "run_experiment"]

Centres = Mapping[str, Mapping[str, Any]]  # rule → the base's best point


def plan_experiment(experiment: Experiment, centres: Centres | None = None) -> list[Planned]:
    """The trials of an experiment, each training once, without running or writing anything.

    Parameters
    ----------
    experiment : Experiment
    centres : mapping, optional
        The base's best point for each rule, around which the larger sizes are walked. Without, the first learning rate
        stands for the best: as many trials, at the same cost.

    Returns
    -------
    list of Planned
        The base's learning rates first (on which the others depend), then seed by seed.
    """
    e = experiment
    trials: dict[tuple, Planned] = {}

    def add(index: int, rule: str, point: Mapping[str, Any], seed: int) -> None:
        label, rule = e.label(index), e.trained_as(index, rule)
        planned = Planned(f"{label}/{rule}", label, label, rule, dict(point), seed, e.config(index, rule, point, seed))
        trials.setdefault(planned.run_key, planned)

    for seed in e.seeds:
        for rule in e.rules:
            for lr in e.grids["lr"]:
                add(0, rule, {**e.defaults, "lr": lr}, seed)
    stand_in = {**e.defaults, "lr": e.grids["lr"][0]}
    for seed in e.seeds:
        for index in range(len(e.models)):
            for rule in e.rules:
                centre = centres[rule] if centres else stand_in
                if index > 0:
                    add(index, rule, centre, seed)
                if index == 0 or rule in e.searched:
                    for name in e.swept:
                        for value in e.grids[name]:
                            add(index, rule, {**centre, name: value}, seed)
    return list(trials.values())


def run_experiment(
    train: Callable[[dict], float | Mapping[str, Any]],
    experiment: Experiment,
    folder: str | Path,
    *,
    n_workers: int | None = None,
    checkpoints: bool = False,
    prepare: Callable[[], Any] | None = None,
    progress: bool = True,
) -> Reproduction:
    """Train what is not finished yet of an experiment.

    Parameters
    ----------
    train : callable
        ``train(config)`` as :func:`neuralop_mup.training.train_run`, at module level.
    experiment : Experiment
    folder : str or Path
        Holds the study and is needed for itself; the same call resumes there.
    checkpoints : bool
        Whether ``train`` takes ``checkpoints=FOLDER`` and resumes a killed run from there, as train_run does.
    prepare : callable, optional
        Called here once the folder is known to fit, before any run: to make data that every worker reads.
    n_workers, progress
        As for :func:`neuralop_mup.sweep`.

    Returns
    -------
    Reproduction

    Raises
    ------
    MupError
        If the folder holds another study, cannot be written or is in use; if every learning rate failed at the base.
    """
    e, folder = experiment, Path(folder)
    first = plan_experiment(e)
    tuning = [p for p in first if p.size == e.label(0) and all(p.params[n] == v for n, v in e.defaults.items() if n != "lr")]
    with open_session(
        partial(train, checkpoints=folder / "checkpoints") if checkpoints else train,
        name="reproduce",
        folder=folder,
        settings=describe({"train": describe(train), **e.settings}),
        studies={p.study: (dict(e.grids), False) for p in first},
        seeds=e.seeds,
        expected=Counter(p.size for p in first),
        fixed=e.fixed,
        n_workers=n_workers,
        progress=progress,
        rules=e.rules,
    ) as session:
        if prepare is not None:
            prepare()
        records = session.run_grid(tuning)
        centres = Reproduction(e, records, folder).centres()
        if None in centres.values():
            session.write_results(records)
            raise MupError(_all_failed(e, records))
        rest = plan_experiment(e, centres)
        records = session.run_grid(rest)
        session.write_results(records)
    return Reproduction(e, records, folder)


def _all_failed(experiment: Experiment, records: list[Record]) -> str:
    return (
        f"No learning rate at the base ({experiment.label(0)}) completed with every seed, so nothing can be carried."
        f"{first_failure(records)}"
    )
