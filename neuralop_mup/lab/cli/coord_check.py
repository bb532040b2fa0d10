"""``neuralop-mup coord-check``: the coordinate check of neuralop's FNO on a problem or on the user's own data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt

from neuralop_mup.core.parametrize import parametrize
from neuralop_mup.core.reading import check_grid
from neuralop_mup.core.rules import DEFAULT_RULE, RULE_VERSION, check_rule
from neuralop_mup.diagnostics.coord_check import SEEDS, TOLERANCE, CoordCheck, coord_check, judged
from neuralop_mup.errors import MupError
from neuralop_mup.lab import report, wording
from neuralop_mup.lab.cli.data import chosen, data_groups, problem_lines
from neuralop_mup.lab.cli.options import Verb, fno_arguments, on_axes
from neuralop_mup.lab.engines import make_engine
from neuralop_mup.lab.files import write_atomically
from neuralop_mup.lab.fno import FNOs
from neuralop_mup.lab.plan import data_notes, modes_of
from neuralop_mup.lab.problems import Problem
from neuralop_mup.lab.runner import run as run_study
from neuralop_mup.lab.settings import OPTIMIZERS, build_optimizer, optimizer_of
from neuralop_mup.lab.study import Study
from neuralop_mup.lab.training import losses_of, n_params, quiet

_NOTES = (
    "",
    "Without options: hidden_channels 32, n_modes 16; the base is the smallest size.",
    "Exit code: 0 passed, or one seed; 1 did not pass, or undecided (the seeds are too few to tell).",
)

_NAMED = 3  # slopes that a verdict names; the others are counted


def run(argv: list[str]) -> int:
    """Read the options and do it."""
    fno = fno_arguments()
    groups = {"model": (fno, "argument of FNO"), "base": (fno, "argument of FNO at the base size"), **data_groups(argv)}
    return Verb("coord-check", check, groups, notes=[*problem_lines(), *_NOTES]).call(argv)


@dataclass
class _Seeds:
    """The check as a train function: one seed of it, at all sizes, is a run."""

    source: Any

    def content(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Everything that what is measured depends on."""
        source = self.source
        data = source.content() if isinstance(source, Problem) else {"digest": source.load().digest()}
        return {"train": "coordinate check", "rules": RULE_VERSION, "data": data, **config}

    def __call__(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The records of one seed; as the loss, the steepest slope."""
        source, c = self.source, config
        data = source.load()
        processor = source.processor(data) if isinstance(source, Problem) else data.processor()
        processor.train()
        train, _ = data.loaders(batch_size=c["batch_size"], seed=0)
        samples = [processor.preprocess(batch) for batch, _ in zip(train, range(max(c["steps"])), strict=False)]
        whole = {id(sample["y"]): sample for sample in samples}
        terms = losses_of("l2", source.n_dim, getattr(source, "losses", dict)()).values()

        def loss(prediction: torch.Tensor, y: torch.Tensor, **_: Any) -> torch.Tensor:
            # An equation needs x in physical units besides, which the model is not given.
            prediction, sample = processor.postprocess(prediction, whole[id(y)])
            with quiet():
                return sum(weight * term(prediction, **sample) for weight, term in terms) / len(y)

        found = coord_check(
            _builder(source, c),
            c["sizes"],
            [{"x": sample["x"], "y": sample["y"]} for sample in samples],
            size_name=c["varied"],
            seeds=[c["seed"]],
            lr=c["lr"],
            steps=c["steps"],
            optimizer=lambda built, lr: build_optimizer(built, {"optimizer": c["optimizer"], "lr": lr}),
            loss=loss,
        )
        steepest = max((abs(row["slope"]) for row in found.slopes if row["kind"] == "update"), default=0.0)
        return {"loss": steepest, "records": found.records}


def _builder(source: Any, config: Mapping[str, Any]) -> Callable[[int], Any]:
    """``build(size)`` of a parametrized model."""
    fnos, varied = FNOs(source.in_channels, source.out_channels, source.n_dim), config["varied"]

    def build(size: int) -> Any:
        value = (size,) * source.n_dim if varied == "n_modes" else size
        model = fnos(**{**config["model"], varied: value})
        on_meta = next(model.parameters()).is_meta
        return parametrize(model, base=lambda: fnos(**config["base"]), rule=config["rule"], init=not on_meta)

    return build


def check(
    problem: str | None = None,
    *,
    data: str = "",
    widths: tuple[PositiveInt, ...] = (),
    modes: tuple[PositiveInt, ...] = (),
    rule: str = DEFAULT_RULE,
    optimizer: str = "adam",
    steps: tuple[PositiveInt, ...] = (1, 5, 10),
    lr: PositiveFloat | None = None,
    seeds: PositiveInt = SEEDS,
    batch_size: PositiveInt = 20,
    tolerance: NonNegativeFloat = TOLERANCE,
    workers: PositiveInt | None = None,
    output: str = "",
    dry_run: bool = False,
    model: Mapping[str, Any],
    base: Mapping[str, Any],
    problem_: Mapping[str, Any],
    data_: Mapping[str, Any],
    command: str,
) -> int:
    """Train a few steps at several sizes; RMS features and updates should not depend on size.

    Parameters
    ----------
    problem
        burgers, burgers-pino, darcy, darcy-pino, navier-stokes, …
    data
        your own fields instead: .npz, .pt or .h5; a folder, a pattern, or several with commas
    widths
        values of hidden_channels to compare, a comma list [16,32,64,128]
    modes
        values of n_modes to compare, a comma list, instead of --widths
    rule
        operator-norm, log-modes, none or standard
    optimizer
        adam, adamw, neuralop-adamw, sgd, soap
    steps
        measure after these training steps
    lr
        learning rate at base [0.001 adam, 0.03 soap]
    seeds
        number of seeds; few leave the check undecided
    batch_size
        samples a batch
    tolerance
        largest size of an update's slope that passes
    workers
        seeds at once, each in its own process [one per core]
    output
        folder for the results; the same command resumes there [runs/NAME-coord-check]
    dry_run
        print what would be trained, and stop
    """
    if widths and modes:
        raise MupError("--widths and --modes cannot both vary; give one of them.")
    varied, flag = ("n_modes", "--modes") if modes else ("hidden_channels", "--widths")
    sizes = sorted(set(modes or widths or (16, 32, 64, 128)))
    if len(sizes) < 2:
        raise MupError(f"{flag} {sizes[0]} is one size; a slope needs at least two sizes.")
    if varied in model:
        raise MupError(f"--model.{varied} is what {flag} varies; leave it out.")
    check_rule(rule)
    source = chosen(problem, data, problem_, data_)
    n_dim, optimizer = source.n_dim, optimizer_of(optimizer)[0]
    # A coarse grid of the user's own has fewer; a generated one is refused below, as what its options say.
    start = tuple(min(16, n) for n in source.grid_shape) if data else (16,) * n_dim
    model = {"hidden_channels": 32, "n_modes": start, **on_axes(model, n_dim)}
    first = {**model, varied: (sizes[0],) * n_dim if varied == "n_modes" else sizes[0]}
    fixed = {"model": model, "base": {**first, **on_axes(base, n_dim)}, "varied": varied, "sizes": sizes, "rule": rule}
    fixed |= {"optimizer": optimizer, "lr": lr or OPTIMIZERS[optimizer].lr, "batch_size": batch_size, "steps": list(steps)}
    folder = Path(output or f"runs/{source.title}-coord-check")
    build, rows = _builder(source, fixed), [["size", "parameters"]]
    with torch.device("meta"):  # refuse before any data is made
        for size in sizes:
            made = build(size)
            check_grid(made, source.grid_shape)
            rows.append([f"{varied} {size}", f"{n_params(made):,}"])
    print(f"coord-check on {source.title}, rule {rule}, {optimizer} at lr {fixed['lr']:g}")
    print(*[f"  read as {source.description}"] if data else [], sep="\n", end="\n" if data else "")
    print(f"  {len(sizes)} sizes × {seeds} {'seed' if seeds == 1 else 'seeds'}, {max(steps)} steps each")
    print(f"  output  {folder}\n\n{wording.aligned(rows)}")
    if varied == "n_modes" or base:
        sample = source.load().sample()
        for note in data_notes(sample, None, modes_of(fixed["base"]), modes_of({**model, varied: (sizes[-1],) * n_dim})):
            print(f"\nnote    {note}")
    if dry_run:
        return 0
    study = Study(name=f"{source.title}-coord-check", space={"over": [varied]}, seeds=tuple(range(seeds)), fixed=fixed)
    train = _Seeds(source)
    source.load()
    results = run_study(study, train, folder=folder, engine=make_engine(None, None, train, seeds, workers))
    found = [record for r in results.records for record in r["metrics"].get("records", ())]
    return _tell(CoordCheck(found, varied), fixed, folder, source.title, tolerance, seeds, command)


def _tell(
    check: CoordCheck, settings: Mapping[str, Any], folder: Path, title: str, tolerance: float, seeds: int, command: str
) -> int:
    """Print and write what was found; the exit code."""
    rule, varied, slopes = settings["rule"], settings["varied"], check.slopes
    what = f"{rule} over {varied} {', '.join(map(str, settings['sizes']))}"
    if seeds > 1:
        outcome, verdict = _verdict(judged(slopes, tolerance), seeds)
        said = f"Coordinate check of {what} {'is ' if outcome == 'undecided' else ''}{verdict}"
    else:
        outcome, steepest = None, max((abs(row["slope"]) for row in slopes if row["kind"] == "update"), default=0.0)
        said = (
            f"One seed is too few to judge the coordinate check of {what}: its slopes scatter by ±0.5 (the steepest update "
            f"here is ±{steepest:.2f}). Take --seeds {SEEDS} or more; this one is kept."
        )
    record = {"command": command, "passed": {"passed": True, "did not pass": False}.get(outcome), **settings}
    record |= {"seeds": seeds, "tolerance": tolerance, "versions": report.versions()}
    record |= {"slopes": slopes, "records": check.records}
    write_atomically(folder / "coord_check.json", json.dumps(record, indent=1) + "\n")
    table = _table(slopes)
    parts = [
        f"# Coordinate check on {title}",
        f"**{said}**",
        f"Log-log slopes against {varied} of the root mean square over seeds, ± half a 95 % interval over seeds:",
        table,
        "![RMS features and updates against size](coord_check.png)",
        f"```\n{command}\n```",
    ]
    write_atomically(folder / "coord_check.md", "\n\n".join(parts) + "\n")
    check.plot(folder / "coord_check.png", tolerance, title=f"{title}, rule {rule}")
    print(f"\n{table}\n\n{said}")
    if outcome == "undecided":
        print(f"The same command with --seeds {max(SEEDS, 2 * seeds)} goes on from these.")
    print(f"Table, records and figure: {folder}")
    return 0 if outcome in (None, "passed") else 1


def _verdict(rows: Sequence[Mapping[str, Any]], seeds: int) -> tuple[str, str]:
    """The outcome of all slopes, and a sentence with those that decide it, the furthest beyond their limits first."""
    found = {row["outcome"] for row in rows}
    outcome = next(one for one in ("did not pass", "undecided", "passed") if one in found)
    if outcome == "passed":
        steepest = max((row for row in rows if row["kind"] == "update"), key=lambda row: abs(row["slope"]))
        return outcome, f"passed: the steepest is {_described(steepest)}."
    named = sorted((row for row in rows if row["outcome"] == outcome), key=_excess, reverse=True)
    said = "; ".join(map(_described, named[:_NAMED]))
    if len(named) > _NAMED:
        said += f"; and {len(named) - _NAMED} more"
    if outcome == "did not pass":
        return outcome, f"did not pass: {said}."
    more = max(SEEDS, 2 * seeds)
    return outcome, f"undecided: take more seeds ({more}, say); these {seeds} show neither a pass nor a fail: {said}."


def _excess(row: Mapping[str, Any]) -> float:
    """How far slope and interval reach beyond the limits, as a multiple of their distance; not finite before all."""
    (low, high), slope = row["limits"], row["slope"]
    if math.isnan(slope):
        return math.inf
    reach = row["reach"] or 0.0
    return max(slope + reach - high, low - slope + reach) / max(high - low, 1e-12)


def _described(row: Mapping[str, Any]) -> str:
    """``the update of fno_blocks.2 at t = 1, slope +0.10 ± 0.05 (−0.25 to +0.25 passes)``."""
    update, (low, high) = row["kind"] == "update", row["limits"]
    what = f"the update of {row['block']} at t = {row['step']}" if update else f"{row['block']} at init"
    if math.isnan(row["slope"]):
        return f"{what} is zero or not finite for some seed"
    return f"{what}, slope {_number(row)} ({low:+.2f} to {high:+.2f} passes)"


def _table(slopes: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a row a block, a column for init and each step."""
    columns = list(dict.fromkeys((row["kind"], row["step"]) for row in slopes))
    rows = [["block", *("init" if kind == "init" else f"update, t = {step}" for kind, step in columns)]]
    rows.append(["---"] * len(rows[0]))
    for block in dict.fromkeys(row["block"] for row in slopes):
        own = {(row["kind"], row["step"]): _number(row) for row in slopes if row["block"] == block}
        rows.append([block, *(own[column] for column in columns)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _number(row: Mapping[str, Any]) -> str:
    """``+0.10 ± 0.05``."""
    reach = row["reach"]
    return f"{row['slope']:+.2f}" + ("" if reach is None else f" ± {reach:.{2 if reach < 10 else 0}f}")
