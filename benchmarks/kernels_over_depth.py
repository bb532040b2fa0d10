"""How training changes the forward kernel Φ over width and depth: μP beside the tangent-kernel ("NTK") parametrization.

    python benchmarks/kernels_over_depth.py            # all of it: some minutes on one core
    python benchmarks/kernels_over_depth.py --tiny     # a look at every table in a few seconds, nothing written

An FNO (1D, K = 4, 32 points) takes 10 steps of Adam on 8 samples of Burgers' equation. Printed is ‖Φ − Φ₀‖ / ‖Φ₀‖, the mean
over Fourier layers, as the root mean square over seeds, and its slope over size. Three moves: width alone; depth alone,
with learning rates × (4/d)^a for a = 0, 1/2, 1; width and depth at one ratio. A run is a line in
benchmarks/results/kernels_over_depth.jsonl: interrupted, the same command goes on. The tables go to
benchmarks/results/kernels_over_depth.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.problems import get_problem

RESULTS = Path(__file__).parent / "results"
BASE_WIDTH, BASE_DEPTH, STEPS, LRS = 16, 4, 10, (1e-3, 4e-3)
WIDTHS, DEPTHS, EXPONENTS = (16, 32, 64, 128), (2, 4, 8, 16, 32), (0.0, 0.5, 1.0)
WIDTH_OF_DEPTHS, RATIO = 32, ((2, 16), (4, 32), (8, 64), (16, 128))


def multipliers(parametrization: str, width: int) -> dict[str, dict[str, float]]:
    """What makes another parametrization of μP's (examples/plot_kernels_over_depth.py derives it)."""
    if parametrization == "mup":
        return {"init": {}, "lr": {}}
    r = width / BASE_WIDTH
    return {"init": {"readout": r**0.5}, "lr": dict.fromkeys(("input", "hidden", "vector", "spectral"), r**-0.5)}


def measure(parametrization: str, width: int, depth: int, exponent: float, lr: float, seed: int) -> dict[str, Any]:
    """Changes of Φ, G, Q and Θ by training, layer by layer, and the losses before and after."""
    x, y = (t[:8] for t in get_problem("burgers", viscosity=0.05, grid=32, n_train=32, n_val=8, n_test=8).load().train)
    mults = multipliers(parametrization, width)
    torch.manual_seed(seed)
    model = FNO((8,), 1, 1, width, n_layers=depth)
    nm.parametrize(model, base={"hidden_channels": BASE_WIDTH}, rule="none", init_mult=mults["init"])
    optimizer = nm.MuAdam(model, lr=lr * (BASE_DEPTH / depth) ** exponent, lr_mult=mults["lr"])
    before, losses = nm.kernels(model, x), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean() / y.square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    after = nm.kernels(model, x)
    changes: dict[str, list[float]] = {}
    for record in after.change(before):
        changes.setdefault(record["kernel"], []).append(record["value"])
    theta = [sum(kernels.tangent.values()) for kernels in (before, after)]
    changes["tangent"] = [((theta[1] - theta[0]).norm() / theta[0].norm()).item()]
    return {"changes": changes, "loss": [losses[0], losses[-1]]}


def series(tiny: bool) -> list[tuple[str, str, tuple[int, ...], dict[str, list[tuple]]]]:
    """For each table its title, what its sizes are, the sizes, and rows of (parametrization, width, depth, exponent)."""
    widths, depths, ratio = (WIDTHS[:2], DEPTHS[:2], RATIO[:2]) if tiny else (WIDTHS, DEPTHS, RATIO)
    names = {"mup": "μP", "ntk": "NTK"}
    by_width = {name: [(rule, w, BASE_DEPTH, 0.0) for w in widths] for rule, name in names.items()}
    by_depth = {f"lr × (4/d)^{a:g}": [("mup", WIDTH_OF_DEPTHS, d, a) for d in depths] for a in EXPONENTS}
    by_both = {
        f"{names[rule]}, lr × (4/d)^{a:g}": [(rule, w, d, a) for d, w in ratio]
        for rule, a in (("mup", 0.5), ("mup", 1.0), ("ntk", 0.5))
    }
    return [
        (f"Width, depth {BASE_DEPTH}", "width", widths, by_width),
        (f"Depth, width {WIDTH_OF_DEPTHS}, μP in width", "depth", depths, by_depth),
        ("Width = 8 × depth", "width", tuple(w for _, w in ratio), by_both),
    ]


def slope(xs: list[float], ys: list[float]) -> float:
    xs, ys = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mx, my = fmean(xs), fmean(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum((x - mx) ** 2 for x in xs)


def table(
    found: dict[tuple, list[dict]], title: str, rows: dict[str, list[tuple]], sizes: list[float], what: str
) -> list[str]:
    """A row for each series: what it is at each size, and the slope over size."""
    lines = ["", f"## {title}", ""]
    lines += [f"| {what} | " + " | ".join(f"{size:g}" for size in sizes) + " | slope |"]
    lines += ["| --- |" + " --- |" * (len(sizes) + 1)]
    kinds = {"Φ": "forward", "Θ": "tangent"}
    for name, keys in rows.items():
        for sign, kind in kinds.items():
            values = [math.sqrt(fmean(fmean(r["changes"][kind]) ** 2 for r in found[key])) for key in keys]
            cells = " | ".join(f"{value:.4f}" for value in values)
            lines.append(f"| {name}, change of {sign} | {cells} | {slope(sizes, values):+.2f} |")
        cells = " | ".join(f"{fmean(r['loss'][1] / r['loss'][0] for r in found[key]):.3f}" for key in keys)
        lines.append(f"| {name}, loss after / before | {cells} | |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="two sizes a move, one seed, nothing written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = 1 if args.tiny else args.seeds
    path = RESULTS / "kernels_over_depth.jsonl"
    done: dict[tuple, dict] = {}
    if path.exists() and not args.tiny:
        records = map(json.loads, path.read_text().splitlines())
        done = {tuple(record.pop("task")): record for record in records}
    lines = [
        "# Kernels over width and depth",
        "",
        f"`python benchmarks/kernels_over_depth.py`: {STEPS} steps of Adam, {seeds} seeds; lr is that at width {BASE_WIDTH} "
        f"and depth {BASE_DEPTH}. Relative changes: of Φ the mean over layers, of Θ that of the sum over layers.",
    ]
    for lr, (title, what, sizes, rows) in itertools.product(LRS[:1] if args.tiny else LRS, series(args.tiny)):
        found: dict[tuple, list[dict]] = {}
        for task, seed in itertools.product(dict.fromkeys(itertools.chain(*rows.values())), range(seeds)):
            key = (*task, lr, seed)
            if key not in done:
                done[key] = measure(*key)
                if not args.tiny:
                    with path.open("a") as file:
                        file.write(json.dumps({"task": key, **done[key]}) + "\n")
            found.setdefault(task, []).append(done[key])
        lines += table(found, f"{title}, lr {lr:g}", rows, list(sizes), what)
    text = "\n".join(lines) + "\n"
    print(text)
    if not args.tiny:
        path.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
