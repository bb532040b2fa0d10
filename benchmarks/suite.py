"""Which optimizer, which learning rate, which initialization: contenders on eight problems, at three lengths.

    python benchmarks/suite.py main                # errors of tuned contenders
    python benchmarks/suite.py time                # the same at equal processor time
    python benchmarks/suite.py transfer            # learning rates carried over width, modes and depth
    python benchmarks/suite.py joint               # over width and modes at once, from a proxy with enough modes and too few
    python benchmarks/suite.py init                # how large kernels should start
    python benchmarks/suite.py layouts             # factorized kernels and other models
    python benchmarks/suite.py samples             # with four times the samples
    python benchmarks/suite.py choices             # MuSOAP and MuMuon, one choice at a time
    python benchmarks/suite.py report              # tables from what has been trained, nothing else

Defaults were chosen on Burgers, Darcy and Allen–Cahn; the other problems are reported only. Each contender is tuned at
1,000 steps with one seed and four learning rates in factors of 2, and further ones if the best lies at the edge; its best
one (by validation error) is trained with two further seeds. At 300 and 3,000 steps it is carried over, with a factor of 2
to either side (and on, if the best lies there), and the best is trained with two further seeds. Steps follow one cosine to
zero; errors are relative L2 on held-out samples. A run is a line in benchmarks/results/suite.jsonl: interrupted, the same
command goes on.
All stages together take about six hours on two cores.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from suite_figure import draw
from suite_runs import CHOSEN_ON, CONTENDERS, MAIN, PROBLEMS, REFERENCE, STEPS, Records, run
from suite_stages import (
    CHOICE_LENGTHS,
    CHOICE_LRS,
    INITS,
    JOINT,
    JOINT_SEEDS,
    LAYOUT_NAMES,
    LAYOUTS,
    LAYOUTS_ON,
    LENGTHS,
    MORE_SAMPLES,
    MOVES,
    SEEDS,
    STAGES,
    VARIANTS,
    at_proxy,
    at_target,
    final,
    in_equal_time,
    init_points,
    initialized,
    laid_out,
    moved,
    varied,
    with_samples,
)

RESULTS = Path(__file__).parent / "results"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads), *("| " + " | ".join(r) + " |" for r in rows)]


def starred(problem: str) -> str:
    return problem + ("*" if problem in CHOSEN_ON else "")


def test_error(results: Sequence[dict[str, Any]]) -> tuple[float, str]:
    """Mean test error, and how it is printed."""
    errors = [result["test"] for result in results]
    spread = f" ± {statistics.stdev(errors):.4f}" if len(errors) > 1 else ""
    seeds = "" if len(errors) == len(SEEDS) else f" ({len(errors)})"
    return statistics.fmean(errors), f"{statistics.fmean(errors):.4f}{spread}{seeds}"


def ratio_row(ratios: dict[str, list[float]]) -> list[str]:
    """Geometric mean of each contender's errors over the reference's."""
    return [
        f"{statistics.geometric_mean(own):.2f} (largest {max(own):.2f}, {len(own)} problems)" if own else "–"
        for own in ratios.values()
    ]


def main_tables(records: Records) -> Iterator[str]:
    for steps in LENGTHS:
        rows, ratios = [], {name: [] for name in MAIN}
        for problem in PROBLEMS:
            cells, means = [], {}
            for name in MAIN:
                point = final(records, problem, name, steps)
                if point is None:
                    cells.append("–")
                    continue
                means[name], text = test_error(records.results(point, SEEDS))
                cells.append(f"{text}, lr {point['lr']:g}")
            if not means:
                continue
            rows.append([starred(problem), *cells])
            if problem not in CHOSEN_ON and REFERENCE in means:
                for name, mean in means.items():
                    ratios[name].append(mean / means[REFERENCE])
        if rows:
            yield f"\n## {steps:,} steps"
            yield from table(["problem", *MAIN], [*rows, ["ratio, problems without *", *ratio_row(ratios)]])


def time_table(records: Records) -> Iterator[str]:
    names, rows = ("MuSOAP", "MuMuon"), []
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for problem in PROBLEMS:
        reference = final(records, problem, REFERENCE, STEPS)
        points = {name: in_equal_time(records, problem, name) for name in names}
        results = {name: records.results(point, SEEDS) for name, point in points.items() if point}
        if reference is None or not any(results.values()):
            continue
        mean, text = test_error(records.results(reference, SEEDS))
        cells = [text]
        for name in names:
            if not results.get(name):
                cells.append("–")
                continue
            own, text = test_error(results[name])
            cells.append(f"{text}, {points[name]['steps']} steps")
            if problem not in CHOSEN_ON:
                ratios[name].append(own / mean)
        rows.append([starred(problem), *cells])
    if rows:
        yield f"\n## As much processor time as {STEPS:,} steps of {REFERENCE}"
        yield from table(["problem", REFERENCE, *names], [*rows, ["ratio, problems without *", "1.00", *ratio_row(ratios)]])


def transfer_table(records: Records) -> Iterator[str]:
    rows = []
    for name in CONTENDERS:
        for move, (problem, *_) in MOVES.items():
            small, large = moved(records, move, name)
            carried, best = records.best(small, SEEDS), records.best(large, SEEDS) if large else None
            if carried is None or best is None:
                continue
            errors = {t["lr"]: records.loss(t, SEEDS) for t in large}
            drift = math.log2(best["lr"] / carried["lr"])
            regret = errors[carried["lr"]] / errors[best["lr"]] - 1
            rows.append(
                [
                    name,
                    f"{starred(problem)}, {move}",
                    f"{carried['lr']:g}",
                    f"{best['lr']:g}",
                    f"{drift:+.0f}",
                    f"{regret:.1%}",
                ]
                + [", ".join(f"{lr:g}: {error:.4f}" for lr, error in sorted(errors.items()))]
            )
    if rows:
        yield "\n## Learning rates carried from proxy to target"
        yield "\nValidation errors, means of three seeds; drift in factors of 2; regret is what the carried one loses."
        heads = ["optimizer", "move", "best at proxy", "best at target", "drift", "regret", "errors at the target"]
        yield from table(heads, rows)


def joint_table(records: Records) -> Iterator[str]:
    rows = []
    for problem, (enough, few, width, large) in JOINT.items():
        tuned_sp = records.best(at_target(records, problem, REFERENCE, enough), JOINT_SEEDS)
        for name in ("MuSOAP", "MuAdam", REFERENCE):
            for modes in filter(None, (enough, few)):
                small, there = at_proxy(records, problem, name, modes), at_target(records, problem, name, modes)
                carried, best = records.best(small, JOINT_SEEDS), records.best(there, JOINT_SEEDS) if there else None
                if carried is None or best is None:
                    continue
                lost, least = records.loss({**best, "lr": carried["lr"]}, JOINT_SEEDS), records.loss(best, JOINT_SEEDS)
                over = "–" if tuned_sp is None else f"{lost / records.loss(tuned_sp, JOINT_SEEDS):.2f}"
                rows.append(
                    [
                        starred(problem),
                        f"16, {'×'.join(map(str, modes))} → {width}, {'×'.join(map(str, large))}",
                        "yes" if modes == enough else "no",
                        name,
                        f"{carried['lr']:g}",
                        f"{best['lr']:g}",
                        f"{lost / least - 1:.1%}",
                        f"{lost:.4f}",
                        over,
                    ]
                )
    if rows:
        yield "\n## Width and modes at once, by the default rule"
        yield "\nValidation errors, means of two seeds. The last column is over SP tuned at the target."
        heads = ["problem", "width, K", "proxy resolves", "optimizer", "best at proxy", "at target", "regret"]
        yield from table([*heads, "carried error", "over tuned SP"], rows)


def init_table(records: Records) -> Iterator[str]:
    rows = []
    for problem, width, like in init_points(records):
        errors = [[records.get(t) for t in initialized(like, init)] for init in INITS]
        if all(result is None for own in errors[1:] for result in own) or any(result is None for result in errors[0]):
            continue
        cells = [min((r["loss"] for r in own if r is not None), default=math.nan) for own in errors]
        texts = ["–" if math.isnan(cell) else f"{cell:.4f}" for cell in cells]
        rows.append([starred(problem), str(width), like["contender"], *texts])
    if rows:
        yield "\n## How large kernels start, over neuralop's own initialization"
        yield (
            "\nValidation errors at 1,000 steps, seed 0, at the learning rate tuned with the first table's initialization;"
            " neuralop's own (× 1) is the best of this learning rate, its half and its double."
        )
        yield from table(["problem", "width", "optimizer", *(f"× {init:g}" for init in INITS)], rows)


def layout_table(records: Records) -> Iterator[str]:
    rows = []
    for problem in LAYOUTS_ON:
        for layout in LAYOUTS:
            points = {name: laid_out(records, problem, layout, name) for name in LAYOUT_NAMES}
            best = [records.best(own) for own in points.values()]
            if None in best:
                continue
            adam, soap = (records.get(t)["test"] for t in best)
            around = [records.get({**best[1], "lr": lr})["test"] / adam for lr in CHOICE_LRS]
            cells = [f"{adam:.4f}, lr {best[0]['lr']:g}", f"{soap:.4f}, lr {best[1]['lr']:g}", f"{soap / adam:.2f}"]
            rows.append([starred(problem), layout, *cells, *(f"{ratio:.2f}" for ratio in around)])
    if rows:
        yield "\n## Other kernels"
        yield "\nTest errors at 1,000 steps, seed 0. The last columns are MuSOAP's at two rates, around its default of 0.03."
        heads = ["problem", "kernels", REFERENCE, "MuSOAP", "over tuned Adam", *(f"at lr {lr:g}" for lr in CHOICE_LRS)]
        yield from table(heads, rows)


def sample_table(records: Records) -> Iterator[str]:
    problem, samples = MORE_SAMPLES
    rows = []
    for more in (False, True):
        best = [records.best(with_samples(records, name, more)) for name in LAYOUT_NAMES]
        if None in best:
            continue
        found = [records.get(t) for t in best]
        texts = [f"{r['test']:.4f} ({r['train']:.4f}), lr {t['lr']:g}" for r, t in zip(found, best, strict=True)]
        ratios = [f"{found[1][split] / found[0][split]:.2f}" for split in ("test", "train")]
        rows.append([f"{samples if more else PROBLEMS[problem][0]['n_train']:,}", *texts, *ratios])
    if rows:
        yield f"\n## {problem} with more samples"
        yield "\nTest error after 1,000 steps, in brackets training error; one seed."
        yield from table(["samples", *LAYOUT_NAMES, "test, over Adam", "training, over Adam"], rows)


def choice_table(records: Records) -> Iterator[str]:
    rows = []
    for variant in VARIANTS:
        cells = []
        for problem in CHOSEN_ON:
            best = {steps: records.best(varied(problem, variant, steps)) for steps in CHOICE_LENGTHS}
            texts = ("–" if point is None else f"{records.loss(point, (0,)):.4f}" for point in best.values())
            cells.append(" / ".join(texts))
        rows.append([variant, *cells])
    if any("–" not in "".join(row) for row in rows):
        yield "\n## Choices, one at a time"
        lengths = " / ".join(map(str, CHOICE_LENGTHS))
        yield f"\nValidation errors at {lengths} steps, the better of two learning rates, one seed."
        yield from table(["variant", *map(starred, CHOSEN_ON)], rows)


def report(records: Records) -> str:
    """All tables that can be made from what is done."""
    lines = [
        "# Contenders on eight problems",
        "",
        "`python benchmarks/suite.py main`, `time`, `transfer`, `joint`, `init`, `layouts`, `samples` and `choices`. Unless "
        "a table says otherwise: test error (relative L2; mean ± standard deviation of three seeds, their number where it "
        "is not 3), and the learning rate. * marks problems that defaults were chosen on; ratios to tuned Adam are "
        "geometric means over the others.",
    ]
    for part in (main_tables, time_table, transfer_table, joint_table, init_table, layout_table, sample_table, choice_table):
        lines += part(records)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "stages", nargs="+", choices=(*STAGES, "report"), metavar="stage", help=", ".join((*STAGES, "report"))
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes, one thread each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = Records(RESULTS / "suite.jsonl")
    for stage in args.stages:
        if stage != "report":
            run(records, STAGES[stage], args.workers)
    text = report(records)
    (RESULTS / "suite.md").write_text(text)
    draw(records, RESULTS / "suite.png")
    print(text, flush=True)


if __name__ == "__main__":
    main()
