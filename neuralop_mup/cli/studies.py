"""What every command that runs a study shares: where it runs and is kept, its plan and cost beforehand, and its end."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from neuralop_mup import tuning
from neuralop_mup.cli.options import Parser, count, device, made, not_negative, one_of, phrase
from neuralop_mup.counting import format_seconds
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.experiments import report
from neuralop_mup.experiments.settings import build_optimizer
from neuralop_mup.experiments.together import ProblemRuns
from neuralop_mup.experiments.training import build_model, n_params, train_run
from neuralop_mup.problems import Problem, get_problem
from neuralop_mup.tuning import Study
from neuralop_mup.tuning.engines import RayEngine
from neuralop_mup.tuning.engines.local import cuda_devices

_SAMPLERS = {"tpe": "TPESampler", "random": "RandomSampler", "qmc": "QMCSampler", "gp": "GPSampler", "cmaes": "CmaEsSampler"}
_PRUNERS = {
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "wilcoxon": "WilcoxonPruner",
}
#: Operations of the largest step that is timed: a few seconds on one core.
_MOST = 5e10
#: Steps are repeated for so many seconds; the median drops the first ones, which warm up.
_SECONDS = 0.5


def add_options(parser: Parser, device_default: str | None, output: str) -> None:
    """Options on where runs are executed and kept."""
    parser.section("where it runs and is kept")
    shown = "" if device_default else " [cpu at size cpu, else auto]"
    parser.option("--device", f"cpu, cuda, cuda:N or auto{shown}", device, default=device_default)
    parser.option("--workers", "runs at once, each in its own process [one per core; on GPUs one each]", count)
    parser.option("--workers-per-device", "runs at once on each GPU, for small proxies", count, rare=True, default="1")
    engines = ("local", "ray", "batched", "auto")
    parser.option(
        "--engine",
        "local: runs one by one; batched: those of one size as one program; auto: so where that is timed to be faster; "
        "ray: a cluster [auto; local with --workers, --pruner, a search or a GPU]",
        one_of(engines),
    )
    parser.option("--address", "of the Ray cluster, such as auto or ray://HOST:10001 [one is started here]", rare=True)
    parser.option("--cpus", "CPUs that a run asks Ray for", not_negative, rare=True, default="1")
    parser.option(
        "--gpus", "GPUs that a run asks Ray for; 0.5 puts two runs on one [1 unless on the cpu]", not_negative, rare=True
    )
    parser.option("--storage", "Optuna storage: postgresql://…, mysql://…, sqlite:///… [a journal file in the folder]")
    parser.option("--output", f"folder for results; the same command resumes there [{output}]")
    parser.flag("--dry-run", "print the plan, time a few steps for a rough guess of its duration, and stop")


def _of_optuna(what: str, name: str | None, short: Mapping[str, str]) -> Any:
    """One of Optuna's samplers or pruners by a short name, or by that of its class."""
    import optuna

    if name is None:
        return None
    found = getattr(getattr(optuna, f"{what}s"), short.get(name, name), None)
    if found is None or not (name in short or name.endswith(what.title())):
        raise MupError(f"--{what}: there is no {name!r}; {nearest(name, short)}")
    return found(percentile=50.0) if name == "percentile" else found()


def run(
    study: Study,
    options: argparse.Namespace,
    argv: Sequence[str],
    verb: str,
    *,
    title: str,
    settings: Mapping[str, Any] | None = None,
) -> tuning.Results | None:
    """Tell the plan, then train and report; None after a dry run."""
    asked = vars(options)  # not every verb searches
    sampler = _of_optuna("sampler", asked.get("sampler"), _SAMPLERS)
    pruner = _of_optuna("pruner", asked.get("pruner"), _PRUNERS)
    rungs, epochs = asked.get("rungs"), study.fixed.get("epochs", 0)
    if rungs is None:
        rungs = (epochs // 4, epochs // 2) if pruner is not None and epochs >= 8 else ()
    folder, problem = Path(options.output), problem_in(study)
    chosen = study.fixed.get("device", "cpu")
    devices = cuda_devices() if chosen in ("auto", "cuda") else []
    workers = options.workers or (len(devices) * options.workers_per_device or None)
    print(plan_text(study, folder, title))
    if options.dry_run:
        if not devices and options.engine != "ray":
            print(timing_text(study, workers))
        return None
    made(folder)
    # The data is made here and not in the workers, which would each generate the same.
    engine = options.engine
    if engine == "ray":
        gpus = options.gpus if options.gpus is not None else float(chosen != "cpu" and bool(cuda_devices()))
        engine = RayEngine(options.address, options.workers, options.cpus, gpus)
    results = tuning.run(
        study,
        ProblemRuns((folder / "checkpoints").resolve()),
        identity=train_run,
        folder=folder,
        engine=engine,
        n_workers=workers,
        devices=devices,
        storage=options.storage,
        sampler=sampler,
        pruner=pruner,
        rungs=tuple(rungs),
        costs=_costs(study) if options.engine == "ray" else _seconds(study),
        prepare=problem.load,
    )
    report.write_report(results, settings=settings, command=shlex.join(["neuralop-mup", verb, *argv]), title=title)
    print("", *report.verdict(results), "", report.aligned(report.table(results)), sep="\n")
    print(f"\nReport (report.html), figures and every run: {folder}")
    return results


def problem_in(study: Study) -> Problem:
    """The problem that a study trains on."""
    return get_problem(study.fixed["problem"], **study.fixed["problem_args"])


# The plan


def _costs(study: Study) -> dict[Any, float]:
    cost = report.run_cost(study)
    return {size: cost(size) for size in study.sizes}


def _seconds(study: Study) -> dict[Any, float]:
    """Relative cost of a run of each size: steps timed here, or operations where a step is too large for that."""
    costs = _costs(study)
    steps = {size: _steps(study, size) for size in study.sizes}
    if any(costs[size] / steps[size] > _MOST for size in study.sizes):
        return costs
    return {size: steps[size] * step_seconds(study, size) for size in study.sizes}


def _steps(study: Study, size: str) -> int:
    config = _a_config(study, size)
    return math.ceil(problem_in(study).n_train / config["batch_size"]) * config["epochs"]


def plan_text(study: Study, folder: Path, title: str) -> str:
    """Sizes, runs, and their cost in trainings of the largest size."""
    problem = problem_in(study)
    lines = [f"{title}{f': {study.about}' if study.about else ''}", *(f"  note    {note}" for note in study.notes)]
    described = getattr(problem, "description", None) or phrase(dataclasses.asdict(problem))
    lines.append(f"  data    {getattr(problem, 'title', problem.name)}: {described}")
    lines += [f"  search  {name}: {_values(values)}" for name, values in study.space.items()]
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
        rows.append([size, report.size_text(arguments), f"{parameters:,}", str(planned[size] * n), f"{cost:.2f}"])
    total = sum(planned[size] * n * costs[size] for size in study.sizes) / once
    rows.append(["all", "", "", str(sum(planned.values()) * n), f"{total:.2f}"])
    lines += [report.aligned(rows), ""]
    lines.append(f"One training of the {study.target} is about {once:.1e} floating-point operations, from its shapes.")
    return "\n".join(lines)


def _values(values: Any) -> str:
    return " ".join(f"{v:g}" for v in values) if isinstance(values, (list, tuple)) else str(values)


def timing_text(study: Study, workers: int | None) -> str:
    """A sentence on the time of the whole plan: a few training steps of each size on random input, timed and scaled up."""
    planned, costs = Counter(point.size for point in study.planned()), _costs(study)
    n_runs = sum(planned.values()) * len(study.seeds)
    cores = os.cpu_count() or 1
    workers = min(workers or cores, n_runs)
    total = 0.0
    with _threads(torch.get_num_threads() if workers == 1 else max(1, cores // workers)):
        for size in study.sizes:
            steps = _steps(study, size)
            if costs[size] / steps > _MOST:
                return f"One step of the {size} is too large to be timed here in passing."
            # Runs go in rounds, so three of them take as long on two workers as four.
            total += math.ceil(planned[size] * len(study.seeds) / workers) * steps * step_seconds(study, size)
    at_once = f"{workers} {'worker' if workers == 1 else 'workers'}"
    return (
        f"Very roughly {format_seconds(total)} here with {at_once}: a few steps on random input, timed and scaled up. "
        "Making the data is not in it."
    )


def _a_config(study: Study, size: str) -> dict[str, Any]:
    params = next(iter(study.stand_in().values()))
    return {"batch_size": 20, "epochs": 8, **study.config(study.point(size, study.rules[0], params), study.seeds[0])}


def step_seconds(study: Study, size: str) -> float:
    """Seconds of one training step at a size: forward, backward, optimizer; the median of a few."""
    config, problem = {**_a_config(study, size), "device": "cpu"}, problem_in(study)
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


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Torch with as many threads as a worker has."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
