"""How long a plan would take here: a few training steps of each size on random input, timed and scaled up."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch

from neuralop_mup.cli.plan import Stage, stages
from neuralop_mup.cli.study import Study
from neuralop_mup.training import build_model, build_optimizer

#: Operations of the largest step that is timed: a few seconds on one core.
_MOST = 5e10
#: Steps are repeated for so many seconds; the median drops the first ones, which warm up.
_SECONDS = 0.5


def timing_text(study: Study, workers: int | None, parts: Sequence[Stage] | None = None) -> str:
    """A sentence on the time of the whole plan.

    Parameters
    ----------
    study : Study
        What would run.
    workers : int, optional
        Trials at once; one per core by default.
    parts : sequence of Stage, optional
        What is run; by default the stages of the transfer.
    """
    parts = [stage for stage in (stages(study) if parts is None else parts) if stage.new]
    cores = os.cpu_count() or 1
    workers = min(workers or cores, sum(stage.trials for stage in parts))
    threads = torch.get_num_threads() if workers == 1 else max(1, cores // workers)
    rates: dict[str, float] = {}  # size → seconds an operation
    total = 0.0
    with _threads(threads):
        for stage in parts:
            operations = _step_operations(study, stage)
            if operations > _MOST:
                name = f"the {stage.size}" if stage.size in ("proxy", "target") else stage.size
                return f"One step of {name} is too large to be timed here in passing."
            if stage.size not in rates:
                rates[stage.size] = step_seconds(study, stage) / operations
            # Trials run in rounds, so a stage of three takes as long on two workers as one of four.
            mean = sum(stage.flops) / len(stage.flops)
            total += math.ceil(len(stage.flops) / workers) * mean * rates[stage.size]
    at_once = f"{workers} {'worker' if workers == 1 else 'workers'}"
    return (
        f"Very roughly {_duration(total)} here with {at_once}: a few steps on random input, timed and scaled up. "
        "Making the data is not in it."
    )


def step_seconds(study: Study, stage: Stage) -> float:
    """Seconds of one training step of the stage's first trial: forward, backward, optimizer; the median of a few."""
    config, problem = stage.new[0].config, study.problem
    model = build_model(problem, config["model"], config["base"], config["rule"])
    optimizer = build_optimizer(model, config)
    x = torch.randn(config["batch_size"], problem.in_channels, *problem.grid_shape)
    times: list[float] = []
    while sum(times) < _SECONDS:
        start = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return median(times)


def _step_operations(study: Study, stage: Stage) -> float:
    """Operations of one step of the stage's first trial."""
    config = stage.new[0].config
    return stage.flops[0] / (study.problem.n_train * config["epochs"]) * config["batch_size"]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Torch with as many threads as a worker has."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _duration(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.2g} {name}"
    return f"{seconds:.2g} seconds"
