"""What every command that runs a study shares: where it runs and is kept, and its end."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuralop_mup import tuning
from neuralop_mup.cli.options import Parser, count, device, made, not_negative, one_of
from neuralop_mup.cli.plan import is_timed, opening_text, plan_text, problem_in, relative_costs, timing_text
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.experiments import findings, report, wording
from neuralop_mup.experiments.kept import KeptTarget, read_kept
from neuralop_mup.experiments.settings import Settings
from neuralop_mup.experiments.together import ProblemRuns
from neuralop_mup.experiments.training import train_run
from neuralop_mup.experiments.tuned import best_run, lines_of_use, write_made
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
    # A study of transfer has one target, which is worth keeping; an experiment of the paper has runs to compare.
    kept = (
        KeptTarget((folder / "weights").resolve(), study.sizes[study.target], study.rules[0]) if verb == "transfer" else None
    )
    timed = options.engine != "ray" and is_timed(study)
    costs = relative_costs(study, timed=timed)
    try:
        results = tuning.run(
            study,
            ProblemRuns((folder / "checkpoints").resolve(), kept),
            identity=train_run,
            folder=folder,
            engine=engine,
            n_workers=workers,
            devices=devices,
            storage=options.storage,
            sampler=sampler,
            pruner=pruner,
            rungs=tuple(rungs),
            costs=costs,
            prepare=problem.load,
            opening=opening_text(study, costs, timed),
        )
    except MupError as error:  # the library speaks of arguments
        raise MupError(str(error).replace("choose another folder", "choose another folder (--output FOLDER)")) from error
    use = [] if kept is None else _use(results, kept, problem)
    command = shlex.join(["neuralop-mup", verb, *argv])
    report.write_report(results, settings=settings, command=command, title=title, use=use)
    print("", *findings.verdict(results), "", wording.aligned(report.table(results)), sep="\n")
    print(f"\nReport (report.html), figures and every run: {folder}")
    if use:
        print("The trained target, in Python:", *(f"    {line}" for line in use), sep="\n")
    elif kept is not None and best_run(results, study.rules[0]) is not None:
        print(
            "The target's weights are not here: it was trained on a machine that does not see this folder, or by an earlier "
            "version. In a new folder (--output) they are kept."
        )
    return results


def _use(results: tuning.Results, kept: KeptTarget, problem: Any) -> list[str]:
    """Write down the trained target; the lines of Python that load it, none where its weights are not here."""
    study = results.study
    found = best_run(results, study.rules[0])
    if found is None or read_kept(kept.path(found[0])) is None:
        return []
    config, record = found
    kept.drop_others(study.config(study.point(study.target, study.rules[0], record["params"]), seed) for seed in study.seeds)
    arguments = {"in_channels": problem.in_channels, "out_channels": problem.out_channels, **config["model"]}
    x_shape = (problem.in_channels, *problem.grid_shape)
    settings = Settings.of(config)
    made = write_made(results, kept, config, record, build=None, arguments=arguments, x_shape=x_shape, settings=settings)
    return lines_of_use(results.folder, made)
