"""What a transfer will run and what it costs, told before anything is spent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from neuralop_mup.cli.options import phrase
from neuralop_mup.cli.study import Study
from neuralop_mup.report import aligned
from neuralop_mup.training import build_model, estimate_flops
from neuralop_mup.tuning import Planned, plan_transfer


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of a transfer: ``trials`` that it asks for, of which ``new`` are not yet trained for an earlier one."""

    name: str
    size: str
    trials: int
    new: list[Planned]
    flops: list[float]  # of each of the new ones


def stages(study: Study) -> list[Stage]:
    """The stages of a transfer with the cost of each trial, from shapes."""
    first = {name: values[0] for name, values in study.arguments["space"].items()}
    plan = plan_transfer(**study.arguments, best=first)  # any point of the grid stands for the best one
    costs: dict[tuple, float] = {}

    def flops(trial: Planned) -> float:
        key = trial.size, trial.config["epochs"]
        if key not in costs:
            costs[key] = estimate_flops(trial.config)
        return costs[key]

    found, done = [], set()
    for name in dict.fromkeys(trial.stage for trial in plan):
        trials = [trial for trial in plan if trial.stage == name]
        new = [trial for trial in trials if trial.run_key not in done]
        done |= {trial.run_key for trial in new}
        found.append(Stage(name, trials[0].size, len(trials), new, [flops(trial) for trial in new]))
    return found


def plan_text(study: Study, folder: Path) -> str:
    """Sizes, stages, trials, and their cost in trainings of the target."""
    arguments, problem = study.arguments, study.problem
    lines = [f"transfer on {problem.name}: " + phrase(dataclasses.asdict(problem))]
    lines += [f"  note    {study.note}"] if study.note else []
    for which in ("proxy", "target"):
        with torch.device("meta"):
            model = build_model(problem, arguments[which], arguments[which], "standard")
        parameters = sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters())
        lines.append(f"  {which:<7} {phrase(arguments[which])}: {parameters:,} parameters")
    run = {name: value for name, value in arguments["fixed"].items() if name not in ("problem", "problem_args")}
    lines.append(f"  rules   {', '.join(dict.fromkeys([*arguments['rules'], 'standard']))}")
    lines += [f"  search  {name}: {' '.join(f'{v:g}' for v in values)}" for name, values in arguments["space"].items()]
    lines += [f"  seeds   {len(arguments['seeds'])}", f"  run     {phrase(run)}", f"  output  {folder}", ""]

    parts = stages(study)
    once = next(stage.flops[0] for stage in parts if stage.size == "target")
    rows = [["stage", "trials", "cost (1 = one training of the target)"]]
    for stage in parts:
        shared = stage.trials - len(stage.new)
        note = f" ({shared} shared with target)" if shared else ""
        rows.append([stage.name, f"{stage.trials}{note}", f"{sum(stage.flops) / once:.2f}"])
    total = sum(sum(stage.flops) for stage in parts)
    rows.append(["all", str(sum(stage.trials for stage in parts)), f"{total / once:.2f}"])
    lines += [aligned(rows), ""]
    lines.append(f"One training of the target is about {once:.1e} floating-point operations, from its shapes.")
    return "\n".join(lines)
