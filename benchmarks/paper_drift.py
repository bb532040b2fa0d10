"""Does SP's best learning rate fall as K grows, as the paper saw? Its own model, at a small size, and the data's energy.

    python benchmarks/paper_drift.py                # hours on one core; a run is a line, the same command goes on
    python benchmarks/paper_drift.py --minutes 20   # as far as that goes, then the tables and the figure of what is there
    python benchmarks/paper_drift.py --report       # tables and figure alone

The FNO of physics_informed (benchmarks/paper_drift_model.py; its init, no channel MLP, torch's Adam, batch 2 and 20) on
Darcy flow, 49 × 49 points, at K = 3, 6, 12, 24 modes per sign. Learning rates go in factors of 2, then of √2 around the
least error with every seed. They halve at 1/3, 1/2 and 2/3 of the steps, as in the paper's Darcy experiment. Then the
same with the paper's clip (±0.01 for each part of each entry of a kernel's gradient), and with kernels scaled by a rule
from K = 3.

Writes benchmarks/results/paper_drift.jsonl, .md and .png.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import neuralop_mup as nm
import suite_runs as suite
from neuralop_mup.plots.style import MARKERS, PALETTE, key_line, label_lines, new_figure, save, ticks_at, value_axis
from neuralop_mup.problems import Problem, ProblemData, get_problem
from neuralop_mup.problems.mode_energy import ENOUGH, mode_energy
from neuralop_mup.tuning.optimum import Interval, Optimum, find_optimum, regret_between, student
from paper_drift_model import PhysicsInformedFNO

RESULTS = Path(__file__).parent / "results"
# The paper has width 64 and a readout of 128; the grid is the smallest on which K = 24 has both of its signs.
WIDTH, READOUT, GRID, SAMPLES = 16, 32, 49, 1000
MODES, BATCHES, CLIP = (3, 6, 12, 24), (2, 20), 0.01
STEPS = {2: 240, 20: 72}
FIRST = (4, 6, 8)  # learning rates that are tried first, as powers of √2 over 0.001
REACH = 2  # and then so many factors of √2 to either side of the best, with every seed

Cell = tuple[int, int, str, bool]  # K, batch, rule, clipped
Losses = dict[int, dict[int, float]]  # validation errors by power and seed


def cell(modes: int, batch: int, rule: str = "standard", clip: bool = False) -> Cell:
    """At base every rule is SP."""
    return modes, batch, "standard" if modes == MODES[0] else rule, clip


def stages(seeds: int) -> list[tuple[list[Cell], int]]:
    """Cells and their number of seeds, in the order of what they tell."""
    ends, rules = [MODES[0], MODES[-1]], ("log-modes", "operator-norm")
    one, two, three = (min(n, seeds) for n in (1, 2, 3))
    plan = [([cell(k, 2) for k in ends], two), ([cell(k, 20) for k in ends], one), ([cell(k, 2) for k in MODES], two)]
    plan += [([cell(k, 2) for k in MODES], three), *(([cell(k, 2, clip=True)], one) for k in ends)]
    plan += [([cell(k, 2) for k in MODES[:2]], seeds), ([cell(ends[1], 2, rule) for rule in rules], one)]
    plan += [([cell(k, 20) for k in MODES], n) for n in (two, three)]
    plan += [([cell(k, 20, clip=True) for k in ends], one)]
    plan += [([cell(k, b, rule) for b in BATCHES for k in MODES for rule in rules], three)]
    plan += [([cell(k, b, clip=clip) for b in BATCHES for k in MODES for clip in (False, True)], n) for n in (three, seeds)]
    return plan


def lr_of(power: int) -> float:
    return float(f"{1e-3 * 2 ** (power / 2):.4g}")


def task(of: Cell, power: int, seed: int) -> dict[str, Any]:
    modes, batch, rule, clip = of
    own = {"modes": modes, "batch": batch, "rule": rule, "clip": clip, "lr": lr_of(power), "seed": seed}
    return {**own, "steps": STEPS[batch], "width": WIDTH}


_DATA: list[tuple[Problem, ProblemData]] = []


def data() -> tuple[Problem, ProblemData]:
    if not _DATA:
        problem = get_problem("darcy", grid=GRID, n_train=SAMPLES, n_val=100, n_test=100)
        _DATA.append((problem, problem.load()))
    return _DATA[0]


def train(t: dict[str, Any]) -> dict[str, float]:
    """Train one model: validation error, training error of the last fifth, and the share of entries beyond the clip."""
    problem, all_data = data()
    torch.manual_seed(t["seed"])
    model = PhysicsInformedFNO(t["modes"], t["width"], readout_width=READOUT)
    if t["rule"] == "standard":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=t["lr"], fused=True)
    else:
        nm.parametrize(model, lambda: PhysicsInformedFNO(MODES[0], t["width"], readout_width=READOUT), rule=t["rule"])
        optimizer = nm.MuAdam(model, lr=t["lr"], fused=True)
    halvings = [t["steps"] * share // 6 for share in (2, 3, 4)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, halvings, gamma=0.5)
    processor, loss_of = problem.processor(all_data), problem.losses()["data"][1]
    processor.train()
    errors, beyond, start = [], [], time.process_time()
    for step, (x, y) in enumerate(suite._batches(all_data, t["batch"], t["seed"], t["steps"])):
        sample = processor.preprocess({"x": x, "y": y})
        loss = loss_of(model(sample["x"]), sample["y"]) / len(x)
        optimizer.zero_grad()
        loss.backward()
        errors.append(loss.item())
        if not math.isfinite(errors[-1]):
            return {"loss": math.inf, "train": math.inf, "beyond": math.nan, "seconds": time.process_time() - start}
        if step % 12 == 0:
            grads = [kernel.weight.grad.abs() for kernel in model.kernels]
            beyond.append(sum(int((g > CLIP).sum()) for g in grads) / sum(g.numel() for g in grads))
        if t["clip"]:
            nm.clip_spectral_grad_value_(model, CLIP)
        optimizer.step()
        schedule.step()
    seconds = time.process_time() - start
    last = statistics.fmean(errors[-max(1, len(errors) // 5) :])
    return {
        "loss": suite._error(model, processor, loss_of, *all_data.val),
        "train": last,
        "beyond": statistics.fmean(beyond),
        "seconds": seconds,
    }


# ---------------------------------------------------------------------------------------------------------- what is run


def known(records: suite.Records, of: Cell) -> Losses:
    found: Losses = {}
    for power in range(-12, 24):
        own = {seed: r["loss"] for seed in range(10) if (r := records.get(task(of, power, seed))) is not None}
        if own:
            found[power] = own
    return found


def whole(losses: Losses, seeds: int) -> dict[int, list[float]]:
    """Errors at the powers that have every seed."""
    return {p: [own[s] for s in range(seeds)] for p, own in sorted(losses.items()) if set(range(seeds)) <= set(own)}


def next_powers(losses: Losses, seeds: int) -> list[tuple[int, int]]:
    """Which (power, seed) come next; empty where the optimum has its neighbourhood with every seed.

    First factors of 2 with the first seed until the least error is inside; then all seeds around it, and around where they
    see it.
    """
    first = [(power, 0) for power in FIRST if 0 not in losses.get(power, {})]
    if first:
        return first
    alone = {power: own[0] for power, own in losses.items() if 0 in own and power % 2 == 0}
    best = min(alone, key=alone.__getitem__)
    coarse = [(power, 0) for power in (best - 2, best + 2) if power not in alone]
    if coarse:
        return coarse
    means = {power: statistics.fmean(errors) for power, errors in whole(losses, seeds).items()}
    centre = min(means, key=means.__getitem__) if len(means) > 2 * REACH else best
    near = range(centre - REACH, centre + REACH + 1)
    return [(power, seed) for power in near for seed in range(seeds) if seed not in losses.get(power, {})]


def carried_power(records: suite.Records, of: Cell) -> int | None:
    """The grid value nearest to the optimum at the smallest K, which is what a proxy of that K would hand on."""
    _, batch, rule, clip = of
    found = optimum(known(records, cell(MODES[0], batch, rule, clip)))
    if found is None or found.value is None:
        return None
    return min(range(-12, 24), key=lambda power: abs(math.log(lr_of(power) / found.value)))


def next_runs(records: suite.Records, of: Cell, seeds: int) -> list[tuple[int, int]]:
    """What the optimum lacks, and then the learning rate that K = 3 hands on."""
    losses = known(records, of)
    lacking, carried = next_powers(losses, seeds), carried_power(records, of)
    if lacking or carried is None:
        return lacking
    return [(carried, seed) for seed in range(seeds) if seed not in losses.get(carried, {})]


def missing(records: suite.Records, seeds: int) -> Iterator[tuple[Cell, int, int]]:
    """Runs in order, each chosen when the one before is done; those of a stage take turns."""
    for cells, wanted in stages(seeds):
        while True:
            found = [(of, *pair) for of in dict.fromkeys(cells) for pair in next_runs(records, of, wanted)[:1]]
            if not found:
                break
            yield from found


# ------------------------------------------------------------------------------------------------------- what is shown


def seeds_of(losses: Losses) -> int:
    """The most seeds with which an optimum has its neighbourhood."""
    return next((n for n in range(10, 0, -1) if losses and not next_powers(losses, n)), 0)


def optimum(losses: Losses) -> Optimum | None:
    errors = whole(losses, seeds_of(losses))
    return find_optimum({lr_of(power): own for power, own in errors.items()}) if seeds_of(losses) else None


def paired_drift(base: Losses, target: Losses) -> Interval | None:
    """log2 of the factor from one optimum to the other, with a jackknife that leaves a seed out of both at once.

    A seed is the same samples in the same order at every K, and what that does to both optima cancels here.
    :func:`neuralop_mup.tuning.optimum.drift_between` takes the two as independent.
    """
    seeds = min(seeds_of(base), seeds_of(target))
    if not seeds:
        return None
    near = []
    for errors in (whole(base, seeds), whole(target, seeds)):
        centre = min(errors, key=lambda power: statistics.fmean(errors[power]))
        near.append({power: own for power, own in errors.items() if abs(power - centre) <= REACH})

    def drift(kept: Sequence[int]) -> float:
        places = []
        for errors in near:
            chosen = {lr_of(power): [own[s] for s in kept] for power, own in errors.items()}
            found = find_optimum(chosen)
            best = min(chosen, key=lambda lr: statistics.fmean(chosen[lr]))
            places.append(best if found is None or found.value is None else found.value)
        return math.log2(places[1] / places[0])

    value = drift(range(seeds))
    if seeds == 1:
        return Interval(value)
    without = [drift([s for s in range(seeds) if s != out]) for out in range(seeds)]
    error = math.sqrt((seeds - 1) / seeds * sum((v - statistics.fmean(without)) ** 2 for v in without))
    return Interval(value, value - student(seeds - 1) * error, value + student(seeds - 1) * error)


def regret(records: suite.Records, target: Cell) -> Interval | None:
    """What the carried learning rate costs at the target, over the best value there."""
    losses, carried = known(records, target), carried_power(records, target)
    errors = whole(losses, seeds_of(losses))
    best = min(errors, key=lambda power: statistics.fmean(errors[power]))
    return None if carried is None or carried not in errors else regret_between(errors[carried], errors[best])


def row(records: suite.Records, of: Cell) -> str | None:
    modes, batch, rule, clip = of
    base, losses = cell(MODES[0], batch, rule, clip), known(records, of)
    seeds, found = seeds_of(losses), optimum(losses)
    if found is None:
        return None
    if found.value is None:
        best = f"{found.low:.2g} to {found.high:.2g}"
    else:
        best = f"{found.value:.2g}" + ("" if found.low is None else f" ({found.low:.2g} to {found.high:.2g})")
    moved = carried = "–"
    drift = None if of == base else paired_drift(known(records, base), losses)
    if drift is not None:
        moved = f"×{2**drift.value:.2f}"
        if drift.low is not None and drift.high is not None:
            moved += f" ({2**drift.low:.2f} to {2**drift.high:.2f})" + (", level" if drift.level else "")
        cost = regret(records, of)
        if cost is not None:
            carried = f"{100 * cost.value:.1f} %"
            carried += "" if cost.low is None or cost.high is None else f" ({100 * cost.low:.1f} to {100 * cost.high:.1f})"
    errors = whole(losses, seeds)
    least = min(errors, key=lambda power: statistics.fmean(errors[power]))
    beyond = statistics.fmean(records.done[suite._key(task(of, least, seed))]["beyond"] for seed in range(seeds))
    name = ("SP" if rule == "standard" else rule) + (", clipped" if clip else "")
    cells = [name, modes, best, moved, f"{statistics.fmean(errors[least]):.4f}", carried, f"{100 * beyond:.2g} %", seeds]
    return "| " + " | ".join(map(str, cells)) + " |"


def together(records: suite.Records, batch: int) -> Losses:
    """Errors of all K but the smallest under SP as one: their geometric mean, where every one of them has the run."""
    every = [known(records, cell(modes, batch)) for modes in MODES[1:]]
    powers = set.intersection(*(set(losses) for losses in every))
    pooled: Losses = {}
    for power in sorted(powers):
        for seed in set.intersection(*(set(losses[power]) for losses in every)):
            pooled.setdefault(power, {})[seed] = statistics.geometric_mean(losses[power][seed] for losses in every)
    return pooled


def together_line(records: suite.Records, batch: int) -> str:
    """How far the larger K's common optimum is from the smallest K's; empty where there are too few runs."""
    pooled, base = together(records, batch), known(records, cell(MODES[0], batch))
    seeds, found = seeds_of(pooled), optimum(pooled)
    drift = paired_drift(base, pooled) if seeds and seeds_of(base) else None
    if found is None or found.value is None or drift is None or drift.low is None or drift.high is None:
        return ""
    sizes = ", ".join(map(str, MODES[1:]))
    return (
        f"K = {sizes} together (geometric mean of errors, {seeds} seeds): best lr {found.value:.2g}, "
        f"×{2**drift.value:.2f} ({2**drift.low:.2f} to {2**drift.high:.2f}) of K = {MODES[0]}'s."
    )


def table(records: suite.Records, batch: int) -> list[str]:
    head = [f"batch {batch}", "K", "best lr (95 %)", "over that of K = 3", "error at best", "cost of K = 3's lr"]
    head += ["gradient entries beyond 0.01", "seeds"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for rule, clip in (("standard", False), ("standard", True), ("log-modes", False), ("operator-norm", False)):
        sizes = MODES if rule == "standard" else MODES[1:]
        lines += [line for modes in sizes if (line := row(records, cell(modes, batch, rule, clip))) is not None]
    return lines


def energy_rows() -> list[str]:
    energy = mode_energy(*data()[1].train)
    lines = ["| K | " + " | ".join(map(str, MODES)) + " |", "|" + " --- |" * (len(MODES) + 1)]
    for of in ("targets", "inputs"):
        # On the last axis this layout keeps 0 … K-1, where neuralop's n_modes = 2K keeps 0 … K.
        kept = " | ".join(f"{100 * min(energy.kept((2 * k, 2 * (k - 1)), of)):.4g} %" for k in MODES)
        lines.append(f"| {of} | {kept} |")
    rows, columns = energy.enough()
    needed = max(rows // 2, columns // 2 + 1)
    return [*lines, "", f"The smallest K that keeps {100 * ENOUGH:g} % of the targets' energy is {needed}."]


def draw(records: suite.Records, path: Path) -> None:
    """Error against learning rate under SP, a panel for each batch size, a line for each K."""
    from matplotlib.ticker import FixedLocator

    figure, axes = new_figure(9.0, 3.8, 1, 2)
    figure.subplots_adjust(left=0.08, right=0.93, wspace=0.42, bottom=0.16, top=0.88)
    for ax, batch in zip(axes, BATCHES, strict=True):
        ends, every = [], set()
        for i, k in enumerate(MODES):
            losses = known(records, cell(k, batch))
            errors = whole(losses, seeds_of(losses)) if seeds_of(losses) else {}
            points = {lr_of(power): own for power, own in errors.items() if all(map(math.isfinite, own))}
            if not points:
                continue
            means = [statistics.fmean(values) for values in points.values()]
            ax.plot(list(points), means, color=PALETTE[i], marker=MARKERS[i], markersize=4, linewidth=1.4)
            for lr, values in points.items():
                ax.plot([lr, lr], [min(values), max(values)], color=PALETTE[i], linewidth=3, alpha=0.25)
            found = optimum(losses)
            if found is not None and found.value is not None:
                ax.plot([found.value], [min(means)], marker="*", markersize=11, color=PALETTE[i], markeredgecolor="white")
            ends.append((list(points)[-1], means[-1], f"K = {k}", PALETTE[i]))
            every |= set(points)
        ax.set(xscale="log", yscale="log", xlabel="learning rate", title=f"SP, batch {batch}, {STEPS[batch]} steps")
        if batch == BATCHES[0]:
            ax.set_ylabel("relative L2 error, validation")
        if every:
            ticks_at(ax, [lr_of(power) for power in range(-12, 24, 2) if lr_of(power) in every])
        value_axis(ax)
        ax.yaxis.set_major_locator(FixedLocator([0.07, 0.075, 0.08, 0.085, 0.09, 0.095, 0.1, 0.11, 0.12, 0.13, 0.14]))
        figure.canvas.draw()
        label_lines(ax, ends)
    key_line(figure, ["line: mean over seeds", "bar: range over seeds", "star: vertex of the fitted parabola"])
    save(figure, path)


def report(records: suite.Records, write: bool) -> str:
    runs = [r for r in records.done.values() if "beyond" in r]
    lines = ["# The paper's drift", "", "`python benchmarks/paper_drift.py`. " + __doc__.split("\n\n")[2].strip(), ""]
    lines += [f"{len(runs)} runs, {sum(r['seconds'] for r in runs) / 60:.0f} minutes of processor time; steps: "]
    lines[-1] += ", ".join(f"{STEPS[b]} at batch {b}" for b in BATCHES) + f"; width {WIDTH}, {SAMPLES} samples."
    for batch in BATCHES:
        lines += ["", *table(records, batch)]
        lines += ["", line] if (line := together_line(records, batch)) else []
    lines += ["", "## Energy", "", "Least share of spectral energy on an axis that K modes keep.", "", *energy_rows()]
    text = "\n".join(lines) + "\n"
    if write:
        (RESULTS / "paper_drift.md").write_text(text, encoding="utf-8")
        draw(records, RESULTS / "paper_drift.png")
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after so many minutes")
    parser.add_argument("--report", action="store_true", help="train nothing")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    records = suite.Records(RESULTS / "paper_drift.jsonl")
    start = time.monotonic()
    for of, power, seed in () if args.report else missing(records, args.seeds):
        if time.monotonic() - start > 60 * args.minutes:
            break
        result = train(task(of, power, seed))
        records.add(task(of, power, seed), result)
        print(f"{of} lr {lr_of(power):g} seed {seed}: {result}", flush=True)
    print(report(records, write=True))


if __name__ == "__main__":
    main()
