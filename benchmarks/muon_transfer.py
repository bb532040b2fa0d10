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
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from neuralop_mup.experiments import experiment_study, train_run
from neuralop_mup.problems import get_problem
from neuralop_mup.tuning import Results, Study, log2_grid, run
from neuralop_mup.tuning.outcome import by_point, mean_and_std

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


def train(config: dict[str, Any]) -> dict[str, float]:
    """train_run with a base of the same depth: parametrize compares like with like and no rule for depth is involved."""
    return train_run({**config, "base": {**config["base"], "n_layers": config["model"]["n_layers"]}})


def make(problem: str, move: str, optimizer: str, seeds: int, walk_aux: bool, args: argparse.Namespace) -> Study:
    """The study of one move."""
    muon = optimizer == "muon"
    rules = ("standard", "none") if not muon and move == "width" else ("none",)
    grids = {"lr": tuple(GRIDS[optimizer][problem]), **({"aux_lr": tuple(AUX)} if muon and walk_aux else {})}
    described = get_problem(problem, **PROBLEMS[problem])
    study = experiment_study(
        f"{problem}-{move}",
        described,
        [(width, k) for width, k, _ in MOVES[problem, move]],
        {"lr": grids["lr"]},
        rules=rules,
        searched=rules,
        epochs=args.epochs,
        seeds=range(seeds),
        about="transfer of MuMuon's learning rates" if muon else "transfer of MuAdam's learning rates",
    )
    sizes = {
        f"width {width}, K = {k}, depth {depth}": {
            "hidden_channels": width,
            "n_modes": (2 * k,) * described.n_dim,
            "n_layers": depth,
        }
        for width, k, depth in MOVES[problem, move]
    }
    more = {"optimizer": "muon", **({"muon": {"damping": args.damping}} if args.damping else {})} if muon else {}
    return replace(
        study,
        sizes=sizes,
        space=grids,
        swept=tuple(grids),
        defaults={"aux_lr": 4e-3} if "aux_lr" in grids else {},
        fixed={**study.fixed, **more},
    )


def report(result: Results, optimizer: str, move: str) -> str:
    """The tables of one move."""
    study, (base, target) = result.study, result.study.sizes
    problem = study.fixed["problem"]
    name = {"muon": "MuMuon", "adam": "MuAdam"}[optimizer]
    lines = [
        f"## {name}, {problem}: {base} → {target}",
        "",
        f"Seeds: {len(study.seeds)}, {study.fixed['epochs']} epochs, batch {study.fixed['batch_size']}, "
        f"{PROBLEMS[problem]}. Best "
        "values by validation error; errors are relative L2, ± std over seeds."
        + (f" In depth the base has the model's own depth; {_DEPTH[optimizer]}." if "depth" in move else ""),
        "",
        "| walked | rule | best at proxy | best at target | drift (steps) | loss at the transferred value | its test error "
        "| best loss | regret |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for walked in study.swept:
        for rule in study.rules:
            row = result.row(rule, target, walked)
            if row["best"] is None or row["transferred"] is None or row["transferred_test"] is None:
                lines.append(f"| {walked} | {_rule(rule)} | failed | | | | | | |")
                continue
            lines.append(
                f"| {walked} | {_rule(rule)} | {row['transferred'][walked]:g} | "
                f"{row['best'][walked]:g}{' (edge of the grid)' if row['at_edge'] else ''} | {row['drift']:+d} | "
                f"{row['transferred_loss']:.4f} ± {row['transferred_std']:.4f} | {row['transferred_test']:.4f} | "
                f"{row['best_loss']:.4f} | {100 * row['regret']:.1f} % |"
            )
    lines += ["", "Mean validation error over the grids:", ""]
    for walked in study.swept:
        grid = study.space[walked]
        lines += [f"| {walked} | " + " | ".join(f"{v:g}" for v in grid) + " |", "|" + " --- |" * (len(grid) + 1)]
        for rule in study.rules:
            for size in study.sizes:
                groups = by_point(result.walk(size, rule, walked)).values()
                losses = {g[0]["params"][walked]: [r["loss"] for r in g] for g in groups}
                lines.append(f"| {_rule(rule)}, {size} | " + " | ".join(_mean(losses.get(v, [])) for v in grid) + " |")
        lines.append("")
    if optimizer == "muon":
        lines += beside(problem, move)
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
    study = make(args.problem, args.move, args.optimizer, args.seeds, walk_aux, args)
    suffix = ("_damped" if args.damping else "") if args.optimizer == "muon" else "_adam"
    name = f"muon_transfer_{args.problem}_{args.move}{suffix}"
    changed = ("" if args.epochs == 8 else f"_{args.epochs}") + ("_aux" if "aux_lr" in study.space else "")
    prepare = get_problem(args.problem, **PROBLEMS[args.problem]).load
    result = run(study, train, folder=HERE / "runs" / (name + changed), n_workers=args.workers, prepare=prepare)
    text = report(result, args.optimizer, args.move)
    output = args.output or RESULTS / f"{name}.md"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
    print(text, flush=True)


if __name__ == "__main__":
    main()
