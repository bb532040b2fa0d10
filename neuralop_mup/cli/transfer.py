"""``neuralop-mup transfer``: Algorithm 1 from the command line, on a generated problem or on the user's own data."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from neuralop_mup import tuning
from neuralop_mup.cli import studies
from neuralop_mup.cli.arguments import chosen_problem, fno_arguments, fno_defaults, fno_help, problem_help
from neuralop_mup.cli.options import (
    Dotted,
    Parser,
    below_one,
    count,
    filled,
    given,
    grid,
    listed,
    not_negative,
    one_of,
    positive,
    searched,
)
from neuralop_mup.core.multipliers import KERNEL_INITS
from neuralop_mup.core.rules import DEFAULT_RULE, ROLES, check_rule
from neuralop_mup.errors import MupError
from neuralop_mup.experiments import findings, wording
from neuralop_mup.experiments.presets import EXTENDS, PRESETS, SIZES, Preset, odd_grid_note, preset_of
from neuralop_mup.experiments.proxy import few_samples_notes, modes_of, resolution_notes, same_targets_notes, sample_of
from neuralop_mup.experiments.settings import OPTIMIZERS, under_rules
from neuralop_mup.experiments.training import build_model, check_batch_size, estimate_flops, run_losses
from neuralop_mup.problems import PROBLEMS, OwnData, Problem
from neuralop_mup.problems.mode_energy import ModeEnergy, mode_energy
from neuralop_mup.tuning import Study
from neuralop_mup.tuning.space import is_search

_CARRYING = ("operator-norm", "log-modes", "none")
_GROUPS = {
    "proxy": "argument of FNO at the proxy, such as --proxy.hidden_channels 16 --proxy.n_modes 8",
    "target": "argument of FNO at the target",
    "model": "argument of FNO at both sizes, such as --model.n_layers 6",
    "problem": "argument of the problem, such as --problem.viscosity 0.1",
    "data": "how --data is read: x, y (keys), channels, time_step, split, shuffle, crop, in_memory",
    "search": "also searched, such as --search.lr_mult.spectral 1,2,4",
}
#: Settings of a training run that have an option of their own.
_SETTINGS = ("epochs", "batch_size", "optimizer", "aux_lr", "weight_decay", "beta2", "schedule", "clip_spectral")
#: Hyperparameters that may be searched, with how their values are read.
_SEARCHED = {
    "lr": searched(positive),
    **{f"{kind}.{role}": searched(positive) for kind in ("lr_mult", "init_mult") for role in ROLES},
    "batch_size": searched(count),
    "aux_lr": searched(positive),
    "weight_decay": searched(not_negative),
    "beta2": searched(below_one),
    "epochs": grid(count),
}
#: Arguments in which proxy and target may differ.
_SCALED = ("hidden_channels", "n_modes", "max_n_modes", "n_layers")


def run(argv: list[str]) -> int:
    """Plan, train, report. 1 if the target's training failed under the rule."""
    options, dotted = _parser().read(argv)
    problem = chosen_problem(options, dotted, options.preset)
    title = getattr(problem, "title", problem.name)
    options.output = options.output or f"runs/{title}-transfer"
    study = study_of(options, dotted, problem)
    # Data that lies in files is read for a dry run, too: what is wrong with it would stop the run.
    if not options.dry_run or problem.file_name is None:
        study = dataclasses.replace(study, notes=(*study.notes, *_resolution(problem, study)))
    settings = settings_of(study, problem)
    results = studies.run(study, options, argv, "transfer", title=f"μTransfer on {title}", settings=settings)
    return 1 if results is not None and findings.target_failures(results) else 0


def _resolution(problem: Problem, study: Study) -> tuple[str, ...]:
    """What the data says of the proxy's modes, and of there being something to learn."""
    x, y = sample_of(problem)
    modes = (modes_of(study.sizes[size]) for size in (study.base, study.target))
    return (*same_targets_notes(y), *resolution_notes({"x": x, "y": y}, *modes, flag="--proxy.n_modes"))


def _energy(problem: Problem, size: str) -> ModeEnergy | None:
    """Of data in files whose sizes no preset gives: the default sizes follow from it."""
    if problem.file_name is not None or (problem.name, size) in PRESETS:
        return None
    return mode_energy(*sample_of(problem))


def study_of(options: argparse.Namespace, dotted: Dotted, problem: Problem) -> Study:
    """The study that the options describe: what fails here would fail in every run.

    Raises
    ------
    MupError
        If the model cannot be built at one of the sizes, or a setting cannot work.
    """
    choice = OPTIMIZERS.get(options.optimizer, OPTIMIZERS["adam"])
    space = given("search", dotted["search"], _SEARCHED)
    batches = space["batch_size"] if isinstance(space.get("batch_size"), list) else [options.batch_size]
    energy = _energy(problem, options.preset)
    preset = preset_of(problem, options.preset, batch_size=batches[-1] and max(batches), energy=energy)
    sizes = _sizes(preset, dotted, problem, from_data=energy is not None)
    if options.no_compare and options.rules != ["standard"]:
        raise MupError("--no-compare leaves out every comparison and --rules names some; give one of the two.")
    if options.lr is not None and "lr" in space:
        raise MupError("--lr and --search.lr are the same; give one of them.")
    grid = tuning.log2_grid(*choice.lrs) if choice.lrs else preset.lrs
    space = {"lr": options.lr or grid, **space}
    run = {k: getattr(preset, k, None) if (value := getattr(options, k)) is None else value for k in _SETTINGS}
    run["aux_lr"] = choice.aux_lr if run["aux_lr"] is None else run["aux_lr"]
    if options.loss != "l2":
        run["loss"] = options.loss
    if options.device != "cpu":  # the default of a run
        run["device"] = options.device
    fixed = {"problem": problem.name, "problem_args": dataclasses.asdict(problem), **run}
    fixed = {name: value for name, value in fixed.items() if name not in space}
    run_losses(problem.n_dim, options.loss)
    sizes_of_batches = space["batch_size"] if isinstance(space.get("batch_size"), list) else [fixed.get("batch_size", 1)]
    check_batch_size(max(sizes_of_batches), problem.n_train)
    if is_search(space) != (options.trials is not None):
        raise MupError(
            f"--trials {options.trials} is for searches over a distribution, such as --search.lr log:1e-3:1e-1; a grid runs "
            "every point."
            if options.trials is not None
            else "A search over a distribution needs --trials N: how many points to try."
        )
    study = tuning.transfer_study(
        **sizes,
        space=space,
        rule=options.rule,
        rules=tuple(dict.fromkeys([options.rule, *([] if options.no_compare else options.rules)])),
        fixed=fixed,
        seeds=tuple(range(options.seeds)),
        verify=options.verify,
        n_trials=options.trials,
        name=Path(options.output).name,
        naive=not options.no_compare,
        # A grid that the user gave is walked as it is.
        extends={"lr": EXTENDS} if options.lr is None and list(space) == ["lr"] and not is_search(space) else None,
    )
    notes = [odd_grid_note(problem), *(few_samples_notes(problem.n_val) if isinstance(problem, OwnData) else ())]
    if options.rules == ["none"] and options.rule != "none":
        notes.append('The rule "none", which leaves modes alone, is compared, too; for no comparison give --no-compare.')
    kernel_init = choice.kernel_init if options.kernel_init is None else options.kernel_init
    under = under_rules(study.rules, preset.under_mup if options.clip_spectral is None else {}, kernel_init)
    study = dataclasses.replace(study, under=under, notes=tuple(filter(None, notes)))
    costs = [estimate_flops({**fixed, "model": size, "base": sizes["proxy"]}) for size in sizes.values()]
    with torch.device("meta"):
        build_model(problem, sizes["proxy"], sizes["proxy"], options.rule)
        for rule in study.rules:
            build_model(problem, sizes["target"], sizes["proxy"], rule)
    if costs[0] >= costs[1] and not options.allow_large_proxy:
        raise MupError(
            f"The proxy ({wording.size_text(sizes['proxy'])}) costs {costs[0] / costs[1]:.3g} times the target "
            f"({wording.size_text(sizes['target'])}): tuning it saves nothing. Make it smaller, or insist with "
            "--allow-large-proxy."
        )
    return study


def _sizes(preset: Preset, dotted: Dotted, problem: Problem, from_data: bool = False) -> dict[str, dict[str, Any]]:
    shared = fno_arguments("model", dotted["model"], problem.n_dim)
    sizes: dict[str, dict[str, Any]] = {}
    own: dict[str, dict[str, Any]] = {}
    for which in ("proxy", "target"):
        width, modes = getattr(preset, which)
        defaults = {"hidden_channels": width, "n_modes": (modes,) * problem.n_dim if isinstance(modes, int) else modes}
        own[which] = {**shared, **fno_arguments(which, dotted[which], problem.n_dim)}
        sizes[which] = {**defaults, **own[which]}
    if from_data:  # what was given bounds what follows from the data
        ends = list(zip(sizes["proxy"]["n_modes"], sizes["target"]["n_modes"], strict=True))
        if "n_modes" not in own["proxy"]:
            sizes["proxy"]["n_modes"] = tuple(map(min, ends))
        if "n_modes" not in own["target"]:
            sizes["target"]["n_modes"] = tuple(map(max, ends))
    if any("n_layers" in size for size in sizes.values()):  # else the base would have the target's
        sizes = {which: {"n_layers": fno_defaults()["n_layers"], **size} for which, size in sizes.items()}
    _same_otherwise(sizes["proxy"], sizes["target"])
    return sizes


def _same_otherwise(proxy: Mapping[str, Any], target: Mapping[str, Any]) -> None:
    """Refuse sizes that differ in what no rule scales: the base would not be the model that was tuned."""
    defaults = fno_defaults()
    for name in dict.fromkeys([*proxy, *target]):
        ends = [size.get(name, defaults[name]) for size in (proxy, target)]
        if name not in _SCALED and ends[0] != ends[1]:
            raise MupError(
                f"{name} is {ends[0]} at the proxy and {ends[1]} at the target, but no rule carries hyperparameters "
                f"over that: let only {', '.join(_SCALED)} differ, and set --model.{name} for both."
            )


def settings_of(study: Study, problem: Problem) -> dict[str, Any]:
    """Everything that decides the result, flat."""
    sizes = {f"{which}.{name}": value for which, size in study.sizes.items() for name, value in size.items()}
    return {
        "data": getattr(problem, "title", problem.name),
        **({"read as": problem.description, **problem.readings} if isinstance(problem, OwnData) else {}),
        **{f"problem.{name}": value for name, value in study.fixed["problem_args"].items()},
        **sizes,
        **{f"search.{name}": values for name, values in study.space.items()},
        "rules": study.rules,
        "seeds": study.seeds,
        "verify": bool(study.searched),
        **{name: value for name, value in study.fixed.items() if name not in ("problem", "problem_args")},
        **{f"under {rule}": more for rule, more in study.under.items()},
    }


def _parser() -> Parser:
    parser = Parser(
        "neuralop-mup transfer",
        "Tune a small FNO, train a large one with the same hyperparameters, compare with the naive way (arXiv 2506.19396).",
        _GROUPS,
        [*fno_help(), "", "search:", filled(_SEARCHED), *problem_help(), "", "by preset:", *_presets()],
        usage="neuralop-mup transfer [PROBLEM | --data FILE] [options]",
    )
    parser.section("what to learn")
    parser.option("problem", f"{', '.join(PROBLEMS)} [burgers]", nargs="?", metavar="PROBLEM")
    parser.option("--data", "your own fields instead: .npz, .pt or .h5; several with commas")
    parser.option("--preset", "sizes, data and epochs: cpu (minutes), gpu or paper", one_of(SIZES), default="cpu")
    parser.section("what to tune")
    parser.option(
        "--lr",
        "learning rates: LOW:HIGH in factors of 2, a comma list, or log:LOW:HIGH [by preset, and beyond an edge]",
        searched(positive),
    )
    parser.option("--seeds", "number of seeds", count, default="3")
    parser.option("--trials", "points of a search over a distribution (log:LOW:HIGH)", count)
    parser.option("--sampler", "Optuna's: tpe, random, qmc, gp, cmaes [tpe]", rare=True)
    parser.option("--pruner", "Optuna's: median, percentile, halving, hyperband, wilcoxon [none]", rare=True)
    parser.option(
        "--rungs", "epochs at which the pruner judges a run [a quarter and a half of them]", listed(count), rare=True
    )
    parser.section("how to carry it over")
    parser.option("--rule", f"rule that carries the values: {', '.join(_CARRYING)}", one_of(_CARRYING), default=DEFAULT_RULE)
    parser.option(
        "--rules",
        "rules to compare it with, besides SP, a comma list; each costs as much as the target",
        listed(check_rule),
        default="standard",
    )
    parser.flag("--no-compare", "train the target under --rule only: half the cost of the target's runs, and no SP beside")
    parser.flag("--verify", "search at the target too, to measure drift and regret")
    parser.flag("--allow-large-proxy", "accept a proxy that costs as much as the target", rare=True)
    parser.section("how to train")
    parser.option("--epochs", "epochs of each run [by preset]", count)
    parser.option("--batch_size", "samples a batch [by preset]", count)
    parser.option("--optimizer", ", ".join(OPTIMIZERS), one_of(OPTIMIZERS), default="adam")
    lrs = "; ".join(f"{name} {c.aux_lr:g}" for name, c in OPTIMIZERS.items() if c.aux_lr is not None)
    parser.option(
        "--aux_lr", f"learning rate of input, readout and vectors, for optimizers that have one [{lrs}]", positive, rare=True
    )
    parser.option(
        "--kernel_init",
        f"how large Fourier kernels start: {', '.join(KERNEL_INITS)} [small with muon and soap; SP has its own]",
        one_of(KERNEL_INITS),
        rare=True,
    )
    parser.option("--loss", "l2, h1 or l2,h1; by the first one runs are compared", default="l2")
    parser.option("--weight_decay", "weight decay", not_negative, rare=True, default="0.0")
    parser.option("--beta2", "second beta of Adam", below_one, rare=True, default="0.999")
    parser.option("--schedule", "of lr: cosine, constant, halve:50 (every 50 epochs), halve:100,150 [by preset]", rare=True)
    parser.option("--clip_spectral", "clip each gradient entry of the spectral kernels here", positive, rare=True)
    studies.add_options(parser, "cpu", "runs/NAME-transfer")
    return parser


def _presets() -> list[str]:
    lines = []
    for (problem, size), preset in PRESETS.items():
        lines.append(f"  {problem} {size}:")
        for name, value in dataclasses.asdict(preset).items():
            if name in ("proxy", "target"):
                value = "hidden_channels {}, n_modes {}".format(*value)
            if value not in ({}, "cpu"):
                lines.append(f"    {name:<14}{value}")
    return lines
