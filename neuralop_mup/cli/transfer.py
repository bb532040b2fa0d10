"""``neuralop-mup transfer``: Algorithm 1 from the command line."""

from __future__ import annotations

import shlex
from pathlib import Path

import torch

from neuralop_mup import report, tuning
from neuralop_mup.cli.arguments import fno_help, problem_help
from neuralop_mup.cli.options import (
    Parser,
    below_one,
    count,
    device,
    filled,
    grid,
    listed,
    made,
    not_negative,
    one_of,
    positive,
    workers_on,
)
from neuralop_mup.cli.plan import plan_text
from neuralop_mup.cli.study import MUON_LRS, PRESETS, SEARCHED, study_of
from neuralop_mup.cli.timing import timing_text
from neuralop_mup.core.rules import check_rule
from neuralop_mup.optim.kernels.optimizer import AUX_LR
from neuralop_mup.problems import PROBLEMS
from neuralop_mup.training import train_run

_CARRYING = ("log-modes", "operator-norm", "none")
_GROUPS = {
    "proxy": "argument of FNO at the proxy",
    "target": "argument of FNO at the target",
    "model": "argument of FNO at both sizes",
    "problem": "argument of the problem",
    "search": "also searched: LOW:HIGH in factors of 2, or a comma list",
}


def run(argv: list[str]) -> int:
    """Plan, train, report. 1 if the target's training failed under the rule."""
    parser = _parser()
    options, dotted = parser.read(argv)
    study = study_of(options, dotted)
    folder = Path(options.output or f"runs/{study.problem.name}-transfer")
    workers = workers_on(options.device, options.workers)
    print(plan_text(study, folder))
    if options.dry_run:
        if options.device == "cpu" or not torch.cuda.is_available():
            print(timing_text(study, workers))
        return 0
    made(folder)
    # Here and not in the workers, which would each generate the same data.
    study.problem.load()
    result = tuning.transfer(train_run, folder=folder, n_workers=workers, **study.arguments)
    report.write_report(
        result,
        folder,
        settings=study.settings,
        command=shlex.join(["neuralop-mup", "transfer", *argv]),
        title=f"μTransfer on {study.problem.name}",
    )
    print("", *report.verdict(result), "", report.aligned(report.table(result)), sep="\n")
    print(f"\nReport, figures and every trial: {folder}")
    return 1 if report.target_failures(result, result.rule) else 0


def _parser() -> Parser:
    parser = Parser(
        "neuralop-mup transfer",
        "Algorithm 1 of arXiv 2506.19396: search at a small size, carry the best values to a large one.",
        _GROUPS,
        [*fno_help(), "", "search:", filled(SEARCHED), *problem_help(), "", "by preset:", *_presets()],
    )
    parser.option("problem", f"one of {', '.join(PROBLEMS)}", nargs="?", default="burgers")
    parser.option("--preset", "sizes, data and epochs: cpu (minutes), gpu or paper (as published)", default="cpu")
    parser.option(
        "--rule", f"μP rule that carries the values: {', '.join(_CARRYING)}", one_of(_CARRYING), default="log-modes"
    )
    parser.option("--rules", "rules to compare with it, a comma list", listed(check_rule), default="standard")
    parser.option(
        "--lr", f"learning rates: LOW:HIGH in factors of 2, or a comma list [by preset; muon {MUON_LRS}]", grid(positive)
    )
    parser.option("--seeds", "number of seeds", count, default="3")
    parser.option("--epochs", "epochs of each run [by preset]", count)
    parser.option("--batch_size", "samples a batch [by preset]", count)
    parser.option("--optimizer", "adam, adamw, neuralop-adamw, sgd or muon", default="adam")
    parser.option("--aux_lr", f"muon's AdamW learning rate, for input, readout and vectors [{AUX_LR:g}]", positive)
    parser.option("--weight_decay", "weight decay", not_negative, default="0.0")
    parser.option("--beta2", "second beta of Adam", below_one, default="0.999")
    parser.option("--schedule", "of lr: cosine, constant, halve:50 (every 50 epochs), halve:100,150 [by preset]")
    parser.option("--clip_spectral", "clip each gradient entry of the spectral kernels here", positive)
    parser.flag("--verify", "search at the target too, to measure drift and regret")
    parser.option("--device", "cpu, cuda, cuda:N or auto", device, default="cpu")
    parser.option("--workers", "trials at once, each in its own process [all cores; on a GPU 1]", count)
    parser.option("--output", "folder for results; the same command resumes there [runs/PROBLEM-transfer]")
    parser.flag("--dry-run", "print the plan, time a few steps for a rough guess of its duration, and stop")
    return parser


def _presets() -> list[str]:
    lines = []
    for (problem, preset), values in PRESETS.items():
        lines.append(f"  {problem} {preset}:")
        for name, value in values.items():
            text = "hidden_channels {}, n_modes {}".format(*value) if isinstance(value, tuple) else value
            lines.append(f"    {name:<14}{text}")
    return lines
