"""Does MuMuon's learning rate transfer without any mode rule? Drift and regret over width, modes and depth.

    python benchmarks/muon_transfer.py --problem burgers --move width

lr is walked over a factor-2 grid at the proxy and at the target, and so is aux_lr, at the proxy's best lr; 3 seeds, μP with
rule "none". Errors are relative L2; the best value is chosen on the validation set, drift is in grid steps, regret is
loss(transferred) / loss(best on the target's grid) − 1. In depth the base has the target's own depth, so that the plan
changes nothing; MuMuon's own lr goes as 1/√depth, which was chosen on the move "depth", from 4 to 16 layers, and is tried
on "depth-other". ``--optimizer adam`` trains the same move with MuAdam (rule none,
and SP where the width moves). Interrupted, the same command resumes.
Writes benchmarks/results/muon_transfer_PROBLEM_MOVE.md.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from neuralop_mup.reproduce import Experiment, Reproduction, run_experiment
from neuralop_mup.tuning.records import by_point, mean_and_std

from neuralop_mup.experiments.training import train_run
from neuralop_mup.problems import get_problem
from neuralop_mup.tuning import log2_grid

_DEPTH = {"muon": "updates of maps go as lr · √(4 / depth)", "adam": "nothing is scaled"}
HERE = Path(__file__).parent
RESULTS = HERE / "results"
PROBLEMS = {"burgers": {"n_train": 400}, "darcy": {"n_train": 200, "grid": 32}}
# (width, K, depth) of proxy and target.
MOVES = {
    ("burgers", "width"): ((16, 8, 4), (128, 8, 4)),
    ("burgers", "modes"): ((32, 4, 4), (32, 64, 4)),
    ("burgers", "depth"): ((16, 8, 4), (16, 8, 16)),
    ("burgers", "depth-other"): ((32, 16, 2), (32, 16, 8)),
    ("darcy", "width"): ((16, 4, 4), (128, 4, 4)),
    ("darcy", "modes"): ((32, 2, 4), (32, 16, 4)),
    ("darcy", "depth"): ((16, 4, 4), (16, 4, 16)),
    ("darcy", "depth-other"): ((16, 8, 2), (16, 8, 8)),
}
GRIDS = {
    "muon": {"burgers": log2_grid(5e-3, 1.6e-1), "darcy": log2_grid(2e-2, 3.2e-1)},
    "adam": {"burgers": log2_grid(2e-3, 6.4e-2), "darcy": log2_grid(4e-3, 6.4e-2)},
}
AUX = log2_grid(1e-3, 1.6e-2)


@dataclass(frozen=True, kw_only=True)
class Move(Experiment):
    """An experiment whose sizes have a depth, too."""

    models: tuple[tuple[int, int, int], ...]
    aux_lr: float | None = None

    def model(self, index: int) -> dict[str, Any]:
        width, k, depth = self.models[index]
        n_modes = (2 * k,) * self.described_problem.n_dim
        return {"hidden_channels": width, "n_modes": n_modes, "n_layers": depth}

    def label(self, index: int) -> str:
        width, k, depth = self.models[index]
        return f"width {width}, K = {k}, depth {depth}"

    def config(self, index: int, rule: str, point: dict[str, Any], seed: int) -> dict[str, Any]:
        config = super().config(index, rule, point, seed)
        # A base of the same depth: parametrize compares like with like and no rule for depth is involved.
        return {**config, "base": {**config["base"], "n_layers": config["model"]["n_layers"]}}


def make(problem: str, move: str, optimizer: str, seeds: int, walk_aux: bool, args: argparse.Namespace) -> Move:
    """The experiment of one move."""
    settings = {"optimizer": "muon", **({"muon": {"damping": args.damping}} if args.damping else {})}
    muon = optimizer == "muon"
    rules = ("standard", "none") if not muon and move == "width" else ("none",)
    grids = {"lr": tuple(GRIDS[optimizer][problem])}
    if muon and walk_aux:
        grids["aux_lr"] = tuple(AUX)
    return Move(
        name=f"{problem}-{move}",
        size=optimizer,
        shows="transfer of MuMuon's learning rates",
        problem=problem,
        problem_args=PROBLEMS[problem],
        models=MOVES[problem, move],
        aux_lr=4e-3 if muon and walk_aux else None,
        grids=grids,
        swept=tuple(grids),
        rules=rules,
        searched=rules,
        epochs=args.epochs,
        seeds=tuple(range(seeds)),
        under_mup=settings if muon else {},
    )


def report(result: Reproduction, optimizer: str, move: str) -> str:
    """The tables of one move."""
    e = result.experiment
    name = {"muon": "MuMuon", "adam": "MuAdam"}[optimizer]
    lines = [f"## {name}, {e.problem}: {e.label(0)} → {e.label(1)}", ""]
    lines += [
        f"Seeds: {len(e.seeds)}, {e.epochs} epochs, batch {e.batch_size}, {dict(e.problem_args)}. Best values by validation "
        "error; errors are relative L2, ± std over seeds."
        + (f" In depth the base has the model's own depth; {_DEPTH[optimizer]}." if "depth" in move else "")
    ]
    lines += [
        "",
        "| walked | rule | best at proxy | best at target | drift (steps) | loss at the transferred value | its test error "
        "| best loss | regret |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result.rows():
        if row["index"] == 0:
            continue
        if row["best"] is None or row["transferred"] is None or row["transferred_test"] is None:
            lines.append(f"| {row['hyperparameter']} | {_rule(row['rule'])} | failed | | | | | | |")
            continue
        lines.append(
            f"| {row['hyperparameter']} | {_rule(row['rule'])} | {row['transferred']:g} | "
            f"{row['best']:g}{' (edge of the grid)' if row['at_edge'] else ''} | {row['drift']:+d} | "
            f"{row['transferred_loss']:.4f} ± {row['transferred_std']:.4f} | {row['transferred_test']:.4f} | "
            f"{row['best_loss']:.4f} | {100 * row['regret']:.1f} % |"
        )
    lines += ["", "Mean validation error over the grids:", ""]
    for hyperparameter in e.swept:
        grid = e.grids[hyperparameter]
        lines += [f"| {hyperparameter} | " + " | ".join(f"{v:g}" for v in grid) + " |", "|" + " --- |" * (len(grid) + 1)]
        for rule in e.rules:
            for index in range(2):
                groups = by_point(result.sweep(index, rule, hyperparameter)).values()
                losses = {g[0]["params"][hyperparameter]: [r["loss"] for r in g] for g in groups}
                cells = [_mean(losses.get(v, [])) for v in grid]
                lines.append(f"| {_rule(rule)}, {e.label(index)} | " + " | ".join(cells) + " |")
        lines.append("")
    if optimizer == "muon":
        lines += beside(e.problem, move)
    return "\n".join(lines) + "\n"


def beside(problem: str, move: str) -> list[str]:
    """MuAdam's rows for the same sizes, from the file of whichever benchmark has trained them."""
    # Some of these sizes were trained with MuAdam by benchmarks/lr_transfer.py.
    paths = [RESULTS / f"{name}.md" for name in (f"lr_transfer_{problem}-{move}", f"muon_transfer_{problem}_{move}_adam")]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return [f"MuAdam at these sizes: not measured (there is no {paths[1].name})."]
    lines = path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| ") and "drift" in line)
    rows = [line for line in lines[first + 2 : first + 7] if "| none |" in line or "| SP |" in line]
    return [f"MuAdam at the same sizes ({path.name}):", "", lines[first], lines[first + 1], *rows]


def _mean(losses: list[float | None]) -> str:
    return "failed" if not losses or None in losses else f"{mean_and_std(losses)[0]:.4f}"


def _rule(rule: str) -> str:
    return "SP" if rule == "standard" else rule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=tuple(PROBLEMS), required=True)
    parser.add_argument("--move", choices=("width", "modes", "depth", "depth-other"), required=True)
    parser.add_argument("--optimizer", choices=("muon", "adam"), default="muon")
    parser.add_argument(
        "--aux",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="walk aux_lr, too (default: all moves but depth-other, without damping)",
    )
    parser.add_argument("--damping", type=float, default=0.0, help="of MuMuon; its tables go to ..._damped.md")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--output", type=Path, help="markdown file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    walk_aux = args.move != "depth-other" and not args.damping if args.aux is None else args.aux
    experiment = make(args.problem, args.move, args.optimizer, args.seeds, walk_aux, args)
    suffix = ("_damped" if args.damping else "") if args.optimizer == "muon" else "_adam"
    name = f"muon_transfer_{args.problem}_{args.move}{suffix}"
    changed = ("" if args.epochs == 8 else f"_{args.epochs}") + ("_aux" if "aux_lr" in experiment.grids else "")
    result = run_experiment(
        train_run,
        experiment,
        HERE / "runs" / (name + changed),
        n_workers=args.workers,
        prepare=get_problem(args.problem, **PROBLEMS[args.problem]).load,
    )
    text = report(result, args.optimizer, args.move)
    output = args.output or RESULTS / f"{name}.md"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
    print(text, flush=True)


if __name__ == "__main__":
    main()
