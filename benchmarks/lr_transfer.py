"""Learning-rate transfer: drift of the best learning rate and regret of carrying it over, for every rule.

    python benchmarks/lr_transfer.py burgers-width burgers-modes burgers-joint darcy-width

For each move, a factor-2 grid of learning rates is trained at the proxy and at the target under the standard
parametrization (SP) and under each mode rule, 3 seeds. Errors are relative L2 on the validation set, by which the best
learning rate is chosen; the test error of the transferred run is given besides. Interrupted, the same command resumes.
Writes benchmarks/results/lr_transfer_MOVE.{md,png,jsonl}.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import neuralop_mup as nm
from neuralop_mup.problems import get_problem
from neuralop_mup.tuning import report
from neuralop_mup.tuning.fno import FNOs
from neuralop_mup.tuning.pipeline import Tuning, tuning

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SPACE = {"lr": nm.log2_grid(1e-3, 1.28e-1)}
WIDTH_RULES = ("none", "operator-norm")  # beside SP; without a change of K, log-modes is none
ALL_RULES = ("none", "log-modes", "operator-norm")
BURGERS, DARCY = ("burgers", {"n_train": 400}), ("darcy", {"n_train": 200})
Size = tuple[int, tuple[int, ...]]  # hidden_channels, n_modes

MOVES: dict[str, tuple[tuple[str, dict], Size, Size, tuple[str, ...]]] = {
    "burgers-width": (BURGERS, (16, (16,)), (128, (16,)), WIDTH_RULES),
    "burgers-modes": (BURGERS, (32, (8,)), (32, (128,)), ALL_RULES),
    "burgers-joint": (BURGERS, (16, (8,)), (128, (128,)), ALL_RULES),
    "darcy-width": (DARCY, (16, (8, 8)), (128, (8, 8)), WIDTH_RULES),
    "darcy-modes": (DARCY, (32, (4, 4)), (32, (32, 32)), ALL_RULES),
}


def size_of(size: Size) -> dict[str, Any]:
    """Arguments of FNO."""
    return {"hidden_channels": size[0], "n_modes": size[1]}


def plan(
    move: str, proxy: Size, target: Size, rules: Sequence[str], seeds: int, folder: Path, verify: bool = True
) -> Tuning:
    """A move's runs, from any proxy to any target."""
    (name, arguments), *_ = MOVES[move]
    problem = get_problem(name, **arguments)
    return tuning(
        FNOs(problem.in_channels, problem.out_channels, problem.n_dim),
        problem,
        base=size_of(proxy),
        target=size_of(target),
        folder=folder,
        space=SPACE,
        fixed={"epochs": 8, "batch_size": 20, "device": "cpu", "optimizer": "adam"},
        whole=True,
        title=move,
        rule=rules[0],
        rules=(*rules, "standard"),
        verify=verify,
        seeds=range(seeds),
    )


def run(move: str, seeds: int, workers: int | None) -> str:
    """Run one move, or what is left of it, and return its table."""
    _, proxy, target, rules = MOVES[move]
    folder = HERE / "runs" / move
    asked = plan(move, proxy, target, rules, seeds, folder)
    result, _ = asked.run(n_workers=workers, devices=(), command=f"lr_transfer.py {move}", progress=True)
    title = f"{move}: width {proxy[0]} → {target[0]}, K {proxy[1][0] // 2} → {target[1][0] // 2}"
    header, *rows = report.table(result)
    lines = [f"## {title}", "", f"{seeds} seeds, 8 epochs, batch 20.", ""]
    lines += [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
    RESULTS.mkdir(exist_ok=True)
    for name in ("lr.png", "results.jsonl"):
        shutil.copy(folder / name, RESULTS / f"lr_transfer_{move}{Path(name).suffix}")
    text = "\n".join(lines) + "\n"
    (RESULTS / f"lr_transfer_{move}.md").write_text(text)
    return text


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
