"""``neuralop-mup reproduce``: the source paper's experiments from the command line."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import torch

from neuralop_mup import reproduce
from neuralop_mup.cli.options import Parser, count, device, made, one_of, phrase, workers_on
from neuralop_mup.cli.plan import Stage
from neuralop_mup.cli.study import Study
from neuralop_mup.cli.timing import timing_text
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.report import aligned
from neuralop_mup.reproduce import Experiment
from neuralop_mup.training import build_model, estimate_flops, train_run


def run(argv: list[str]) -> int:
    """Plan, train, report."""
    parser = _parser()
    options, _ = parser.read(argv)
    if options.experiment is None:
        raise MupError(f"Name an experiment: {', '.join(reproduce.NAMES)}.")
    experiment = reproduce.get_experiment(options.experiment, options.size)
    if options.seeds:
        experiment = dataclasses.replace(experiment, seeds=tuple(range(options.seeds)))
    if options.device:
        experiment = dataclasses.replace(experiment, device=options.device)
    experiment.check()
    folder = Path(options.output or f"runs/{experiment.name}-{experiment.size}")
    workers = workers_on(experiment.device, options.workers)
    stages = stages_of(experiment)
    print(plan_text(experiment, stages, folder))
    if options.dry_run:
        if experiment.device == "cpu" or not torch.cuda.is_available():
            print(timing_text(Study(experiment.described_problem, {}), workers, stages))
        return 0
    made(folder)
    # The data is made here and not in the workers, which would each generate the same.
    load = experiment.described_problem.load
    result = reproduce.run_experiment(train_run, experiment, folder, n_workers=workers, checkpoints=True, prepare=load)
    reproduce.write_report(result, command=shlex.join(["neuralop-mup", "reproduce", *argv]))
    print("", *reproduce.verdict(result), "", aligned(reproduce.table(result)), sep="\n")
    if len(costs := reproduce.table_of_costs(result)) > 1:
        print("", aligned(costs), sep="\n")
    print(f"\nReport, figures and every run: {folder}")
    return 0


def stages_of(experiment: Experiment) -> list[Stage]:
    """The runs of each size with their cost."""
    plan = reproduce.plan_experiment(experiment)
    stages = []
    for size in dict.fromkeys(trial.size for trial in plan):
        new = [trial for trial in plan if trial.size == size]
        stages.append(Stage(size, size, len(new), new, [estimate_flops(new[0].config)] * len(new)))
    return stages


def plan_text(experiment: Experiment, stages: list[Stage], folder: Path) -> str:
    """What is trained, how many runs, and their cost in floating-point operations."""
    e, problem = experiment, experiment.described_problem
    lines = [f"{e.name}, size {e.size}: {e.shows}", *(f"  note     {note}" for note in e.notes)]
    lines.append(f"  problem  {problem.name}: {phrase(dataclasses.asdict(problem))}")
    lines += [f"  {name:<8} {' '.join(f'{v:g}' for v in values)}" for name, values in e.grids.items()]
    run = {**e.fixed, **{name: value for name, value in e.defaults.items() if value is not None}}
    lines.append(f"  run      {phrase({k: v for k, v in run.items() if not k.startswith('problem')})}")
    lines += [f"  under μP {phrase(e.under_mup)}"] if e.under_mup else []
    lines += [f"  rules    {', '.join(e.rules)}", f"  seeds    {len(e.seeds)}", f"  output   {folder}", ""]
    rows = [["size", "parameters", "runs", "operations of a run", "of all"]]
    for index, stage in enumerate(stages):
        with torch.device("meta"):
            model = build_model(problem, e.model(index), e.model(0), "standard")
        parameters = sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters())
        flops = sum(stage.flops)
        rows.append([stage.size, f"{parameters:,}", str(stage.trials), f"{stage.flops[0]:.1e}", f"{flops:.1e}"])
    total = sum(sum(stage.flops) for stage in stages)
    rows.append(["all", "", str(sum(stage.trials for stage in stages)), "", f"{total:.1e}"])
    return "\n".join([*lines, aligned(rows), ""])


def _parser() -> Parser:
    width = max(map(len, reproduce.NAMES))
    notes = ["experiments:", *(f"  {name:<{width}}  {reproduce.SHOWS[name]}" for name in reproduce.NAMES)]
    parser = Parser(
        "neuralop-mup reproduce",
        "The experiments of arXiv 2506.19396, and joint moves of width and modes: SP and μP side by side.",
        notes=notes,
    )
    parser.option("experiment", "one of those below", _known, nargs="?")
    parser.option("--size", "cpu (minutes), gpu (hours) or paper (as published)", one_of(reproduce.SIZES), default="cpu")
    parser.option("--seeds", "number of seeds [3]", count)
    parser.option("--device", "cpu, cuda, cuda:N or auto [cpu at size cpu, else auto]", device)
    parser.option("--workers", "runs at once, each in its own process [all cores; on a GPU 1]", count)
    parser.option("--output", "folder for results; the same command resumes there [runs/EXPERIMENT-SIZE]")
    parser.flag("--dry-run", "print the plan and its cost, time a few steps for a rough guess of its duration, and stop")
    return parser


def _known(text: str) -> str:
    if text not in reproduce.NAMES:
        raise MupError(f"there is no {text!r}: {nearest(text, reproduce.NAMES)}")
    return text
