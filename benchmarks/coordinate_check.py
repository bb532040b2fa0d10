"""Coordinate check on Burgers: does every block's feature update keep its size over width, and over Fourier modes?

    python benchmarks/coordinate_check.py

Compares this package's rules with the standard parametrization and with naive mup (mup.set_base_shapes and mup.MuAdam
on an untouched neuralop FNO). Prints a table a parametrization, writes benchmarks/results/coordinate_check*.{md,png,json}.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import mup
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.problems import get_problem

RESULTS = Path(__file__).parent / "results"
BASE_WIDTH, BASE_K = 16, 8
WIDTHS = [16, 32, 64, 128]
MODES = [4, 8, 16, 32, 64]  # K, modes per sign
WORDS = {"passed": "PASS", "did not pass": "FAIL", "undecided": "UNDECIDED"}


def fno(width: int = BASE_WIDTH, k: int = BASE_K) -> FNO:
    return FNO(n_modes=(2 * k,), in_channels=1, out_channels=1, hidden_channels=width)


def build(axis: str, rule: str, modes_width: int):
    """``build(size)`` for coord_check: a parametrized FNO, base at the smallest size."""

    def at(size: int) -> FNO:
        if axis == "width":
            return nm.parametrize(fno(size), base={"hidden_channels": BASE_WIDTH}, rule=rule)
        return nm.parametrize(fno(modes_width, size), base={"n_modes": (2 * MODES[0],)}, rule=rule)

    return at


def naive_mup(size: int) -> FNO:
    """What mup's own documentation says to do, on neuralop's FNO."""
    model = fno(size)
    mup.set_base_shapes(model, fno(BASE_WIDTH), delta=fno(2 * BASE_WIDTH), do_assert=False)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, default=8e-3)
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)

    data = get_problem("burgers").load()
    loader, _ = data.loaders(batch_size=20, seed=0)
    processor = data.processor()
    batches = [{k: b[k] for k in "xy"} for b, _ in zip(map(processor.preprocess, loader), range(10), strict=False)]

    contenders = [("width", r, build("width", r, 0), {}) for r in ("none", "operator-norm", "standard")]
    contenders.append(("width", "naive mup", naive_mup, {"optimizer": lambda m, lr: mup.MuAdam(m.parameters(), lr=lr)}))
    contenders += [("modes", rule, build("modes", rule, 64), {}) for rule in ("standard", "log-modes", "operator-norm")]
    lines, numbers = [], {}
    for axis, name, make, kwargs in contenders:
        sizes = WIDTHS if axis == "width" else MODES
        check = nm.coord_check(
            make,
            sizes,
            batches,
            lr=args.lr,
            seeds=args.seeds,
            size_name="hidden_channels" if axis == "width" else "K",
            **kwargs,
        )
        worst = {
            kind: max((abs(r["slope"]) for r in check.slopes if r["kind"] == kind and r["block"] != "projection"), default=0)
            for kind in ("init", "update")
        }
        worst_output = max(abs(r["slope"]) for r in check.slopes if r["kind"] == "update" and r["block"] == "projection")
        title = f"over {axis} {sizes}, {name}" + (" (= log-modes)" if (axis, name) == ("width", "none") else "")
        lines += [
            f"## {title}",
            "",
            f"{WORDS[check.outcome(0.25, 0.1)]}: largest |slope| of a block at init {worst['init']:.2f}, "
            f"of an update {worst['update']:.2f}, of the output's update {worst_output:.2f}.",
            "",
            check.to_markdown(),
            "",
        ]
        numbers[title] = {"passed": check.passed(0.25, 0.1), "slopes": check.slopes}
        slug = f"coordinate_check_{axis}_{name.replace(' ', '-')}"
        check.plot(RESULTS / f"{slug}.png")
        print("\n".join(lines[-6:]), flush=True)
    head = [
        "# Coordinate check, Burgers",
        "",
        f"`python benchmarks/coordinate_check.py --lr {args.lr:g} --seeds {args.seeds}`: slope of log RMS against log "
        "size [smallest, largest of a single seed]. Width at K = 8, base width 16; modes at width 64, base K = 4. The "
        "output at init may fall (theory: −0.5, plus a bias of constant size).",
        "",
    ]
    (RESULTS / "coordinate_check.md").write_text("\n".join(head + lines))
    (RESULTS / "coordinate_check.json").write_text(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
