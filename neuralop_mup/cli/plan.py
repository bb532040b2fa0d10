"""What a study would train, and what it would cost: told before anything is trained."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from neuralop_mup.cli.options import phrase
from neuralop_mup.counting import format_seconds
from neuralop_mup.experiments import report, wording
from neuralop_mup.experiments.settings import build_optimizer
from neuralop_mup.experiments.training import build_model, n_params
from neuralop_mup.problems import Problem, get_problem
from neuralop_mup.tuning import Study
from neuralop_mup.tuning.study import the

#: Operations of the largest step that is timed: a few seconds on one core.
_MOST = 5e10
#: Steps are repeated for so many seconds; the median drops the first ones, which warm up.
_SECONDS = 0.5


def problem_in(study: Study) -> Problem:
    """The problem that a study trains on."""
    return get_problem(study.fixed["problem"], **study.fixed["problem_args"])


def relative_costs(study: Study, timed: bool) -> dict[Any, float]:
    """Cost of a run of each size: its steps timed here, or operations where a step is too large for that."""
    costs = _costs(study)
    return _seconds(study) if timed and _too_large(study, costs) is None else costs


def _costs(study: Study) -> dict[Any, float]:
    cost = report.run_cost(study)
    return {size: cost(size) for size in study.sizes}


def _too_large(study: Study, costs: Mapping[Any, float]) -> str | None:
    """The first size a step of which takes too long to be timed in passing."""
    return next((size for size in study.sizes if costs[size] / _steps(study, size) > _MOST), None)


def _seconds(study: Study) -> dict[Any, float]:
    return {size: _steps(study, size) * step_seconds(study, size) for size in study.sizes}


def _steps(study: Study, size: str) -> int:
    config = _a_config(study, size)
    return math.ceil(problem_in(study).n_train / config["batch_size"]) * config["epochs"]


def plan_text(study: Study, folder: Path, title: str) -> str:
    """Sizes, runs, and their cost in trainings of the largest size."""
    problem = problem_in(study)
    lines = [f"{title}{f': {study.about}' if study.about else ''}", *(f"  note    {note}" for note in study.notes)]
    described = getattr(problem, "description", None) or phrase(dataclasses.asdict(problem))
    lines.append(f"  data    {getattr(problem, 'title', problem.name)}: {described}")
    lines += [f"  {what:<7} {text}" for what, text in getattr(problem, "readings", {}).items()]
    lines += [f"  search  {name}: {_values(values)}{_and_on(study, name)}" for name, values in study.space.items()]
    run = {k: v for k, v in {**study.fixed, **study.defaults}.items() if not k.startswith("problem") and v not in (None, {})}
    lines.append(f"  run     {phrase(run)}")
    lines += [f"  under   {rule}: {phrase(more)}" for rule, more in study.under.items()]
    lines += [f"  rules   {', '.join(study.rules)}", f"  seeds   {len(study.seeds)}", f"  output  {folder}", ""]
    planned, costs = Counter(point.size for point in study.planned()), _costs(study)
    once, n = costs[study.target], len(study.seeds)
    rows = [["size", "model", "parameters", "runs", f"cost (1 = one training of the {study.target})"]]
    for size, arguments in study.sizes.items():
        with torch.device("meta"):
            parameters = n_params(build_model(problem, arguments, arguments, "standard"))
        cost = planned[size] * n * costs[size] / once
        rows.append([size, wording.size_text(arguments), f"{parameters:,}", str(planned[size] * n), f"{cost:.2f}"])
    total = sum(planned[size] * n * costs[size] for size in study.sizes) / once
    rows.append(["all", "", "", str(sum(planned.values()) * n), f"{total:.2f}"])
    lines += [wording.aligned(rows), ""]
    lines.append(f"One training of the {study.target} is about {once:.1e} floating-point operations, from its shapes.")
    return "\n".join(lines)


def _and_on(study: Study, name: str) -> str:
    more = study.extends.get(name, 0)
    return f", and up to {more} more where the best lies at an edge" if more else ""


def _values(values: Any) -> str:
    return " ".join(f"{v:g}" for v in values) if isinstance(values, (list, tuple)) else str(values)


def timing_text(study: Study, workers: int | None) -> str:
    """A sentence on the time of the whole plan: a few training steps of each size on random input, timed and scaled up."""
    if (size := _too_large(study, _costs(study))) is not None:
        return f"One step of the {size} is too large to be timed here in passing."
    runs = Counter(point.size for point in study.planned() for _ in study.seeds)
    cores = os.cpu_count() or 1
    workers = min(workers or cores, runs.total())
    with _threads(torch.get_num_threads() if workers == 1 else max(1, cores // workers)):
        # Runs go in rounds, so three of them take as long on two workers as four.
        total = sum(math.ceil(runs[size] / workers) * seconds for size, seconds in _seconds(study).items())
    at_once = f"{workers} {'worker' if workers == 1 else 'workers'}"
    return (
        f"Very roughly {format_seconds(total)} here with {at_once}, runs one by one: a few steps on random input, timed "
        "and scaled up. Making the data is not in it."
    )


def opening_text(study: Study, costs: Mapping[Any, float], timed: bool) -> str:
    """What is trained first, told before anything has ended.

    Parameters
    ----------
    study : Study
    costs : mapping
        Of a run of each size: seconds, if ``timed``.
    timed : bool
    """
    size, runs = study.base, sum(point.size == study.base for point in study.planned()) * len(study.seeds)
    many = f"{runs} {'run' if runs == 1 else 'runs'} of {_steps(study, size)} steps"
    about = f", about {format_seconds(costs[size])} for one" if timed and costs[size] >= 1 else ""
    return (
        f"First {the(size)} is trained ({wording.size_text(study.sizes[size])}): {many}{about}. "
        "A line follows whenever a run has ended; runs that are trained together end together."
    )


def is_timed(study: Study) -> bool:
    """Whether :func:`relative_costs` can give seconds."""
    return _too_large(study, _costs(study)) is None


def _a_config(study: Study, size: str) -> dict[str, Any]:
    params = next(iter(study.stand_in().values()))
    return {"batch_size": 20, "epochs": 8, **study.config(study.point(size, study.rules[0], params), study.seeds[0])}


def step_seconds(study: Study, size: str) -> float:
    """Seconds of one training step at a size: forward, backward, optimizer; the median of a few after the first.

    The first sets things up, which on a busy machine takes a hundred times as long.
    """
    config, problem = {**_a_config(study, size), "device": "cpu"}, problem_in(study)
    model = build_model(problem, config["model"], config["base"], config["rule"])
    optimizer = build_optimizer(model, config)
    x = torch.randn(config["batch_size"], problem.in_channels, *problem.grid_shape)
    times: list[float] = []
    while len(times) < 4 or sum(times[1:]) < _SECONDS:
        start = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return median(times[1:])


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Torch with as many threads as a worker has."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
