"""How training changes the forward kernel Φ over width and depth: μP beside the tangent-kernel ("NTK") parametrization.

    python benchmarks/kernels_over_depth.py            # all of it: some minutes on one core
    python benchmarks/kernels_over_depth.py --tiny     # a look at every table in a few seconds, nothing written

An FNO (1D, K = 4, 32 points) takes 10 steps of Adam on 8 samples of Burgers' equation. Printed is ‖Φ − Φ₀‖ / ‖Φ₀‖, the mean
over Fourier layers, as the root mean square over seeds, and its slope over size. Beside it are how far the features v
themselves moved, ‖v − v₀‖ / ‖v₀‖, and the cosine between that move and v₀. Three moves: width alone; depth alone, with
learning rates × (4/d)^a for a = 0, 1/2, 1; width and depth at one ratio. A run is a line in
benchmarks/results/kernels_over_depth.jsonl: interrupted, the same command goes on. The tables go to
benchmarks/results/kernels_over_depth.md, the figure of Φ to docs/kernels.png.
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
from neuralop_mup.plots import style
from neuralop_mup.problems import get_problem

RESULTS = Path(__file__).parent / "results"
FIGURE = Path(__file__).parents[1] / "docs" / "kernels.png"
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
    """Changes of Φ, G, Q, Θ and the features by training, layer by layer, and the losses before and after."""
    x, y = (t[:8] for t in get_problem("burgers", viscosity=0.05, grid=32, n_train=32, n_val=8, n_test=8).load().train)
    mults = multipliers(parametrization, width)
    torch.manual_seed(seed)
    model = FNO((8,), 1, 1, width, n_layers=depth)
    nm.parametrize(model, base={"hidden_channels": BASE_WIDTH}, rule="none", init_mult=mults["init"])
    optimizer = nm.MuAdam(model, lr=lr * (BASE_DEPTH / depth) ** exponent, lr_mult=mults["lr"])
    before, old, losses = nm.kernels(model, x), features(model, x), []
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
    pairs = [(v, now - v) for v, now in zip(old, features(model, x), strict=True)]
    changes["features"] = [(move.norm() / v.norm()).item() for v, move in pairs]
    changes["cosine"] = [((move * v).sum().abs() / (move.norm() * v.norm())).item() for v, move in pairs]
    rounded = {kind: [float(f"{value:.4g}") for value in values] for kind, values in changes.items()}
    return {"changes": rounded, "loss": [losses[0], losses[-1]]}


@torch.no_grad()
def features(model: FNO, x: torch.Tensor) -> list[torch.Tensor]:
    """What enters each Fourier layer."""
    found: list[torch.Tensor] = []
    hooks = [conv.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0])) for conv in model.fno_blocks.convs]
    model(x)
    for hook in hooks:
        hook.remove()
    return found


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


def mean_changes(found: dict[tuple, list[dict]], keys: list[tuple], kind: str) -> list[float]:
    """The mean over layers, as the root mean square over seeds."""
    return [math.sqrt(fmean(fmean(r["changes"][kind]) ** 2 for r in found[key])) for key in keys]


def draw(panels: list[tuple[float, str, str, list[float], dict[str, list[float]]]]) -> None:
    """The change of Φ over width, over depth, and over both at one ratio; a row for each learning rate."""
    figure, grid = style.new_figure(11.5, 6.6, 2, 3, sharey="row")
    figure.subplots_adjust(left=0.06, right=0.93, bottom=0.11, top=0.95, wspace=0.5, hspace=0.45)
    labels = []
    for axes, (lr, title, what, sizes, series_of) in zip(grid.flat, panels, strict=True):
        ends: list[tuple] = []
        labels.append((axes, ends))
        for i, (name, values) in enumerate(series_of.items()):
            axes.plot(sizes, values, color=style.PALETTE[i], marker=style.MARKERS[i], markersize=4, linewidth=1.4)
            ends.append((sizes[-1], values[-1], name, style.PALETTE[i]))
        axes.set(xscale="log", yscale="log", xlabel=what)
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.minorticks_off()
        axes.set_title(f"{title}, lr {lr:g}", fontsize=style.TEXT + 1, loc="left")
        style.value_axis(axes)
    for axes, ends in labels:  # when all panels of a row have set its limits
        style.label_lines(axes, ends)
    for row in grid:
        row[0].set_ylabel("relative change of Φ", fontsize=style.TEXT)
    style.key_line(figure, [f"after {STEPS} steps", "flat: features learn alike at every size", "d is depth"])
    style.save(figure, FIGURE)


def table(
    found: dict[tuple, list[dict]], title: str, rows: dict[str, list[tuple]], sizes: list[float], what: str
) -> list[str]:
    """A row for each series: what it is at each size, and the slope over size."""
    lines = ["", f"## {title}", ""]
    lines += [f"| {what} | " + " | ".join(f"{size:g}" for size in sizes) + " | slope |"]
    lines += ["| --- |" + " --- |" * (len(sizes) + 1)]
    kinds = {"change of Φ": "forward", "change of Θ": "tangent", "move of v": "features", "its cosine with v": "cosine"}
    for name, keys in rows.items():
        for words, kind in kinds.items():
            values = mean_changes(found, keys, kind)
            cells = " | ".join(f"{value:.4f}" for value in values)
            lines.append(f"| {name}, {words} | {cells} | {slope(sizes, values):+.2f} |")
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
    panels = []
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
        drawn = {name: mean_changes(found, keys, "forward") for name, keys in rows.items()}
        panels.append((lr, title.partition(",")[0], what, list(sizes), drawn))
    text = "\n".join(lines) + "\n"
    print(text)
    if not args.tiny:
        path.with_suffix(".md").write_text(text)
        draw(panels)


if __name__ == "__main__":
    main()
