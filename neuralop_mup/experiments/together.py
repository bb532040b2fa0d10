"""Train functions whose runs can be trained together, and how a list of runs is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from neuralop_mup.experiments.at_once import fastest, most
from neuralop_mup.experiments.kept import KeptTarget
from neuralop_mup.experiments.program import End, make_runs, train_as_one
from neuralop_mup.experiments.training import Job, Runs, problem_job, quiet
from neuralop_mup.tuning.outcome import execute
from neuralop_mup.tuning.space import params_key

__all__ = ["GroupedRuns", "ProblemRuns", "train_all", "train_some"]


class GroupedRuns(Runs):
    """A train function for :class:`~neuralop_mup.tuning.engines.BatchedEngine`: one run, or a group of runs at once."""

    #: What runs of one group have in common; in everything else they may differ.
    alike = ("problem", "problem_args", "model", "batch_size", "loss", "device")
    #: Where the target's runs leave their weights; None: nowhere.
    kept: KeptTarget | None = None

    def keep(self, config: Mapping[str, Any], job: Job) -> None:
        """Leave the weights of a run of the target's."""
        if self.kept is not None:
            self.kept.keep(config, job)

    def group(self, config: Mapping[str, Any]) -> str:
        """Equal for runs that may be trained as one."""
        return params_key({name: config.get(name) for name in self.alike})

    def many(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Train the first of ``config["configs"]`` as one program; what is asked and returned, the engine says."""
        notes: list[str] = []
        how = {"at_once": config["at_once"], "measure": config["measure"], "share": 0.5 / config["workers"]}
        ends, at_once = train_some(self, config["configs"], **how, note=notes.append)
        found = [ends.get(number) for number in range(len(config["configs"]))]
        return {"loss": 0.0, "ends": found, "at_once": at_once, "notes": notes}


class ProblemRuns(GroupedRuns):
    """:func:`~neuralop_mup.experiments.training.train_run` with checkpoints in one folder."""

    def __init__(self, checkpoints: str | os.PathLike | None = None, kept: KeptTarget | None = None) -> None:
        self.checkpoints, self.kept = checkpoints, kept

    def job(self, config: Mapping[str, Any], shared: dict) -> Job:
        return problem_job(config, self.checkpoints, shared)


def train_some(
    trains: Runs,
    configs: Sequence[Mapping[str, Any]],
    *,
    at_once: int | None,
    measure: bool = True,
    memory: float | None = None,
    share: float = 0.5,
    shared: dict[str, Any] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[dict[int, End], int | None]:
    """Train the first of these runs as one program, or the first one by itself; at least one ends.

    Parameters
    ----------
    trains : Runs
    configs : sequence of mapping
        They may differ in everything but the architecture, the batch size, the data and the loss.
    at_once : int, optional
        Runs in a program, as an earlier call found it; None: it is found now.
    measure : bool
        Time a few steps of one run and of 2, 4, 8, … at once, and take what is fastest; else as many as memory allows.
    memory : float, optional
        Bytes that the runs may take at once; default ``share`` of what is free.
    share : float
    shared : dict, optional
        What runs share, kept for the next call.
    note : callable
        Told in a sentence why runs are trained one by one, or how many at once.

    Returns
    -------
    ends : dict of int to (Outcome, str or None)
        By place in ``configs``, as :func:`neuralop_mup.tuning.outcome.execute` gives for each.
    at_once : int or None
        For the next call.
    """
    ends: dict[int, End] = {}
    shared = {} if shared is None else shared
    with torch.random.fork_rng(devices=[]), quiet():
        new = at_once is None and len(configs) > 1
        if new:
            first = next((made[0] for item in enumerate(configs) if (made := make_runs(trains, [item], shared, ends))), None)
            at_once = 1 if first is None else most(first, share, memory, note)
        left = [item for item in enumerate(configs) if item[0] not in ends]
        runs = make_runs(trains, left[:at_once], shared, ends) if len(left) > 1 and at_once and at_once > 1 else []
        if new and measure and len(runs) > 1:
            best = fastest(runs, note)
            at_once, runs = (at_once, runs) if best == len(runs) else (best, runs[:best] if best > 1 else [])
        try:
            train_as_one(trains, runs, ends)
        except Exception as error:  # whichever run brought it, each says by itself how it ends
            note(f"Trained one by one, since together they failed ({type(error).__name__}: {error}).")
            at_once = 1
        if not ends:
            number, config = left[0]
            ends[number] = execute(trains, config)
    return ends, at_once


def train_all(trains: Runs, configs: Sequence[Mapping[str, Any]], **how: Any) -> list[End]:
    """Train all of these runs, program by program; arguments as for :func:`train_some`."""
    ends: dict[int, End] = {}
    at_once, shared = None, {}
    while left := [number for number in range(len(configs)) if number not in ends]:
        some, at_once = train_some(trains, [configs[n] for n in left], at_once=at_once, shared=shared, **how)
        ends.update((left[i], end) for i, end in some.items())
    return [ends[number] for number in range(len(configs))]
