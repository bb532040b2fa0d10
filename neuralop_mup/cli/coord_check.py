"""``neuralop-mup coord-check``: the coordinate check of neuralop's FNO on a problem or on the user's own data."""

from __future__ import annotations

import dataclasses
import json
import shlex
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import neuralop_mup as nm
from neuralop_mup.cli.arguments import chosen_problem, fno_arguments, fno_help, own_data_help, problem_help
from neuralop_mup.cli.options import Parser, count, listed, made, not_negative, one_of, positive
from neuralop_mup.core.classify import check_grid
from neuralop_mup.core.rules import DEFAULT_RULE, check_rule
from neuralop_mup.counting import Counting
from neuralop_mup.errors import MupError
from neuralop_mup.experiments import report, wording
from neuralop_mup.experiments.proxy import is_coarser, modes_of, resolution_notes, sample_of
from neuralop_mup.experiments.settings import OPTIMIZERS, build_optimizer, default_lr
from neuralop_mup.experiments.training import build_model, n_params, training_loss
from neuralop_mup.files import write_atomically
from neuralop_mup.plots import plot_coord_check
from neuralop_mup.problems import PROBLEMS, Problem
from neuralop_mup.tuning.study import describe, differences


def run(argv: list[str]) -> int:
    """Measure, write table, records and figure. 1 if the check did not pass or is undecided; one seed is not judged."""
    options, dotted = _parser().read(argv)
    if options.widths and options.modes:
        raise MupError("--widths and --modes cannot both vary; give one of them.")
    varied, flag = ("n_modes", "--modes") if options.modes else ("hidden_channels", "--widths")
    sizes = sorted(set(options.modes or options.widths or (16, 32, 64, 128)))
    if len(sizes) < 2:
        raise MupError(f"{flag} {sizes[0]} is one size; a slope needs at least two sizes.")
    if varied in dotted["model"]:
        raise MupError(f"--model.{varied} is what {flag} varies; leave it out.")
    problem = chosen_problem(options, dotted)
    title, n_dim = getattr(problem, "title", problem.name), problem.n_dim
    # A coarse grid of the user's own has fewer; a generated one is refused below, as what its options say.
    modes = tuple(min(16, n) for n in problem.grid_shape) if options.data else (16,) * n_dim
    model = {"hidden_channels": 32, "n_modes": modes, **fno_arguments("model", dotted["model"], n_dim)}

    def sized(size: int) -> dict[str, Any]:
        return {**model, varied: (size,) * n_dim if varied == "n_modes" else size}

    base = {**sized(sizes[0]), **fno_arguments("base", dotted["base"], n_dim)}

    def build(size: int) -> Any:
        return build_model(problem, sized(size), base, options.rule)

    with torch.device("meta"):  # refuse before any data is made
        for size in sizes:
            check_grid(build(size), problem.grid_shape)
    folder = Path(options.output or f"runs/{title}-coord-check")
    lr = options.lr or default_lr(options.optimizer)
    settings = {
        "problem": problem.name,
        "problem_args": dataclasses.asdict(problem),
        "model": model,
        "base": base,
        "rule": options.rule,
        "optimizer": options.optimizer,
        "lr": lr,
        "batch_size": options.batch_size,
        "varied": varied,
        "sizes": sizes,
        "steps": options.steps,
    }
    print(_plan(settings, title, getattr(problem, "description", ""), options.seeds, folder, build))
    records, path = ([], None) if options.dry_run else _kept(made(folder), settings)
    for note in _notes(problem, base, sized(sizes[-1])):
        print(f"\nnote    {note}")
    if path is None:
        return 0
    missing = [seed for seed in range(options.seeds) if seed not in {r["seed"] for r in records}]
    if missing:
        batches, loss = _batches(problem, options.batch_size, max(options.steps))

        def optimizer(built: Any, lr: float) -> torch.optim.Optimizer:
            return build_optimizer(built, {"optimizer": options.optimizer, "lr": lr})

        measured = {"lr": lr, "steps": options.steps, "optimizer": optimizer, "loss": loss}
        with Counting("coord-check, models trained", len(missing) * len(sizes)) as counting:

            def counted(size: int) -> Any:
                counting.update()
                return build(size)

            for seed in missing:
                found = nm.coord_check(counted, sizes, batches, size_name=varied, seeds=[seed], **measured).records
                with open(path, "a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
                records += found
    check = nm.CoordCheck([r for r in records if r["seed"] < options.seeds], varied)
    settings |= {"seeds": options.seeds, "tolerance": options.tolerance}
    what = f"{options.rule} over {varied} {', '.join(map(str, sizes))}"
    outcome = check.outcome(options.tolerance) if options.seeds > 1 else None
    said = f"Coordinate check of {what} {'is ' if outcome == 'undecided' else ''}{check.verdict(options.tolerance)}"
    if outcome is None:
        steepest = max((abs(row["slope"]) for row in check.slopes if row["kind"] == "update"), default=0.0)
        said = (
            f"One seed is too few to judge the coordinate check of {what}: its slopes scatter by ±0.5 (the steepest update "
            f"here is ±{steepest:.2f}). Take --seeds 5 or more; this one is kept."
        )
    _write(folder, title, check, said, settings, shlex.join(["neuralop-mup", "coord-check", *argv]))
    print(f"\n{check.to_markdown()}\n\n{said}")
    if outcome == "undecided":
        print(f"The same command with --seeds {max(10, 2 * options.seeds)} goes on from these.")
    print(f"Table, records and figure: {folder}")
    return 0 if outcome in (None, "passed") else 1


def _notes(problem: Problem, base: Mapping[str, Any], largest: Mapping[str, Any]) -> tuple[str, ...]:
    """What the training data says of the base's modes; it is read only where the sizes differ in them."""
    modes = modes_of(base), modes_of(largest)
    return resolution_notes(dict(zip("xy", sample_of(problem), strict=True)), *modes) if is_coarser(*modes) else ()


def _plan(
    settings: Mapping[str, Any], title: str, read_as: str, seeds: int, folder: Path, build: Callable[[int], Any]
) -> str:
    """What will be trained."""
    sizes, steps = settings["sizes"], settings["steps"]
    rows = [["size", "parameters"]]
    for size in sizes:
        with torch.device("meta"):
            rows.append([f"{settings['varied']} {size}", f"{n_params(build(size)):,}"])
    lines = [
        f"coord-check on {title}, rule {settings['rule']}, {settings['optimizer']} at lr {settings['lr']:g}",
        *([f"  read as {read_as}"] if read_as else []),
        f"  {len(sizes)} sizes × {seeds} {'seed' if seeds == 1 else 'seeds'}, {max(steps)} steps each",
        f"  output  {folder}",
        "",
        wording.aligned(rows),
    ]
    return "\n".join(lines)


def _kept(folder: Path, settings: Mapping[str, Any]) -> tuple[list[dict[str, Any]], Path]:
    """Records of the seeds that an earlier command measured, and the file that holds them: settings, then a line a seed."""
    path, described = folder / "records.jsonl", describe(settings)
    if not path.exists():
        write_atomically(path, json.dumps(described) + "\n")
        return [], path
    # A last line without its end was cut off by a kill.
    lines = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    write_atomically(path, "".join(lines))
    if differ := differences(json.loads(lines[0]) if lines else {}, described):
        raise MupError(
            f"{folder} holds a coordinate check with other settings: {'; '.join(differ)}. Choose another --output."
        )
    return [record for line in lines[1:] for record in json.loads(line)], path


def _parser() -> Parser:
    parser = Parser(
        "neuralop-mup coord-check",
        "Train a few steps at several sizes; RMS features and updates should not depend on size.",
        {
            "model": "argument of FNO",
            "base": "argument of FNO at the base size",
            "problem": "argument of the problem",
            "data": own_data_help(),
        },
        [
            *fno_help(),
            *problem_help(),
            "",
            "Without options: hidden_channels 32, n_modes 16; the base is the smallest size.",
            "Exit code: 0 passed, or one seed; 1 did not pass, or undecided (the seeds are too few to tell).",
        ],
        usage="neuralop-mup coord-check [PROBLEM | --data FILE] [options]",
    )
    parser.option("problem", f"{', '.join(PROBLEMS)} [burgers]", nargs="?", metavar="PROBLEM")
    parser.option("--data", "your own fields instead: .npz, .pt or .h5; several with commas")
    parser.option("--widths", "values of hidden_channels to compare, a comma list [16,32,64,128]", listed(count))
    parser.option("--modes", "values of n_modes to compare, a comma list, instead of --widths", listed(count))
    parser.option("--rule", "operator-norm, log-modes, none or standard", check_rule, default=DEFAULT_RULE)
    parser.option("--optimizer", ", ".join(OPTIMIZERS), one_of(OPTIMIZERS), default="adam")
    parser.option("--steps", "measure after these training steps", listed(count), default="1,5,10")
    usual = ", ".join(f"{default_lr(name):g} {name}" for name in ("adam", "muon", "soap"))
    parser.option("--lr", f"learning rate at base [{usual}]", positive)
    parser.option("--seeds", "number of seeds; few leave the check undecided", count, default="10")
    parser.option("--batch_size", "samples a batch", count, default="20")
    parser.option("--tolerance", "largest |slope| of an update that passes", not_negative, default="0.25")
    parser.option("--output", "folder for the results; the same command resumes there [runs/NAME-coord-check]")
    parser.flag("--dry-run", "print what would be trained, and stop")
    return parser


def _batches(
    problem: Problem, batch_size: int, at_most: int
) -> tuple[list[dict[str, torch.Tensor]], Callable[..., torch.Tensor]]:
    """What the model and the losses see of the first training batches, and the mean loss of one."""
    data = problem.load()
    processor = problem.processor(data)
    processor.train()
    train, _ = data.loaders(batch_size=batch_size, seed=0)
    samples = [processor.preprocess(batch) for batch, _ in zip(train, range(at_most), strict=False)]
    whole = {id(sample["y"]): sample for sample in samples}
    total = training_loss(problem.losses())

    def loss(prediction: torch.Tensor, y: torch.Tensor, **_: Any) -> torch.Tensor:
        # An equation needs x in physical units besides, which the model is not given.
        prediction, sample = processor.postprocess(prediction, whole[id(y)])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")
            return total(prediction, **sample) / len(y)

    return [{"x": sample["x"], "y": sample["y"]} for sample in samples], loss


def _write(folder: Path, title: str, check: nm.CoordCheck, said: str, settings: dict[str, Any], command: str) -> None:
    varied, tolerance = settings["varied"], settings["tolerance"]
    record = {
        "command": command,
        "passed": None if settings["seeds"] == 1 else {"passed": True, "did not pass": False}.get(check.outcome(tolerance)),
        **settings,
        "versions": report.versions(),
        "slopes": check.slopes,
        "records": check.records,
    }
    write_atomically(folder / "coord_check.json", json.dumps(record, indent=1) + "\n")
    parts = [
        f"# Coordinate check on {title}",
        f"**{said}**",
        f"Log-log slopes against {varied}, [range over seeds]:",
        check.to_markdown(),
        "![RMS features and updates against size](coord_check.png)",
        f"```\n{command}\n```",
    ]
    write_atomically(folder / "coord_check.md", "\n\n".join(parts) + "\n")
    above = f"{title}, rule {settings['rule']}"
    plot_coord_check(check, folder / "coord_check.png", tolerance=tolerance, title=above)
