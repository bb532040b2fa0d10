"""Learning-rate transfer: drift of the best learning rate and regret of carrying it over, for every rule.

    python benchmarks/lr_transfer.py burgers-width burgers-modes burgers-joint darcy-width

For each move, a factor-2 grid of learning rates is trained at the proxy and at the target under the standard
parametrization (SP) and under each mode rule, 3 seeds. Errors are relative L2 on the validation set, by which the best
learning rate is chosen; the test error of the transferred run is given besides. Regret is
loss(transferred) / loss(best on the target's grid) − 1, drift is in grid steps. Interrupted, the same command resumes.
Writes benchmarks/results/lr_transfer_MOVE.{md,png,jsonl}.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import neuralop_mup as nm
from neuralop_mup.experiments.training import train_run
from neuralop_mup.plots import plot_study

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SPACE = {"lr": nm.log2_grid(1e-3, 1.28e-1)}
WIDTH_RULES = ("standard", "none", "operator-norm")  # without a change of K, log-modes is none
ALL_RULES = ("standard", "none", "log-modes", "operator-norm")
BURGERS = {"problem": "burgers", "problem_args": {"n_train": 400}, "epochs": 8, "batch_size": 20}
DARCY = {"problem": "darcy", "problem_args": {"n_train": 200}, "epochs": 8, "batch_size": 20}

MOVES = {
    "burgers-width": (BURGERS, (16, (16,)), (128, (16,)), WIDTH_RULES),
    "burgers-modes": (BURGERS, (32, (8,)), (32, (128,)), ALL_RULES),
    "burgers-joint": (BURGERS, (16, (8,)), (128, (128,)), ALL_RULES),
    "darcy-width": (DARCY, (16, (8, 8)), (128, (8, 8)), WIDTH_RULES),
    "darcy-modes": (DARCY, (32, (4, 4)), (32, (32, 32)), ALL_RULES),
}


def run(move: str, seeds: int, workers: int | None) -> str:
    """Run one move, or what is left of it, and return its table."""
    fixed, proxy, target, rules = MOVES[move]
    sizes = [{"hidden_channels": width, "n_modes": modes} for width, modes in (proxy, target)]
    result = nm.transfer(
        train_run,
        proxy=sizes[0],
        target=sizes[1],
        space=SPACE,
        fixed=fixed,
        rule=rules[1],
        rules=rules,
        seeds=range(seeds),
        verify=True,
        n_workers=workers,
        folder=HERE / "runs" / move,
    )
    lines = [
        f"## {move}: width {proxy[0]} → {target[0]}, K {_k(proxy[1])} → {_k(target[1])}",
        "",
        f"Best lr at the proxy: {result.best['lr']:g}. {seeds} seeds, grid {SPACE['lr'][0]:g} … "
        f"{SPACE['lr'][-1]:g}, {fixed}.",
        "",
        "| rule | loss at the transferred lr (± std over seeds) | its test error | best lr at target | best loss | "
        "drift (steps) | regret |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for rule in rules:
        row = result.row(rule)
        lines.append(
            f"| {'SP' if rule == 'standard' else rule} | {row['transferred_loss']:.4f} ± {row['transferred_std']:.4f} | "
            f"{row['transferred_test']:.4f} | {row['best']['lr']:g} | {row['best_loss']:.4f} | {row['drift']:+d} | "
            f"{100 * row['regret']:.1f} % |"
        )
    lines += ["", "Mean validation loss over the target's grid:", ""]
    lines += ["| rule | " + " | ".join(f"{lr:g}" for lr in SPACE["lr"]) + " |", "|" + " --- |" * (len(SPACE["lr"]) + 1)]
    for rule in rules:
        cells = []
        for lr in SPACE["lr"]:
            losses = [r["loss"] for r in result.walk("target", rule) if r["params"]["lr"] == lr]
            cells.append("failed" if None in losses or not losses else f"{sum(losses) / len(losses):.4f}")
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    RESULTS.mkdir(exist_ok=True)
    plot_study(result, RESULTS / f"lr_transfer_{move}.png", title=lines[0].removeprefix("## "))
    shutil.copy(HERE / "runs" / move / "results.jsonl", RESULTS / f"lr_transfer_{move}.jsonl")
    text = "\n".join(lines) + "\n"
    (RESULTS / f"lr_transfer_{move}.md").write_text(text)
    return text


def _k(n_modes: tuple[int, ...]) -> int:
    return n_modes[0] // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("moves", nargs="*", choices=[*MOVES, []], default=list(MOVES), help="which moves (default: all)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=None)
    args = parser.parse_args()
    for move in args.moves or list(MOVES):
        print(run(move, args.seeds, args.workers), flush=True)


if __name__ == "__main__":
    main()
