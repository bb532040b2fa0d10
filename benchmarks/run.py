"""Experiments: train what one still wants, then write its page.

    python benchmarks/run.py list
    python benchmarks/run.py law                # train what is missing, one process; interrupted, the same command goes on
    python benchmarks/run.py law --report       # the page of what is done, while it is trained or after
    python benchmarks/run.py law --tiny         # in a minute, to see that it works
    python benchmarks/run.py law --report --export benchmarks/results/law.jsonl           # the runs of the page, to be kept
    python benchmarks/run.py law --report --write --folder benchmarks/results/law.jsonl   # page and figure from these
    python benchmarks/run.py pages [--check]    # the numbers on README's and the docs' pages from these (or: what disagrees)

A run is kept by its content, in a folder that any number of experiments may share. What benchmarks/results has is not
trained again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from experiments import EXPERIMENTS, pages
from experiments.kept import METRICS, Asked, Folder, Lines
from neuralop_mup.lab.engines import InlineEngine, LocalEngine
from neuralop_mup.lab.records import Records
from neuralop_mup.lab.run import run as train_missing

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "experiment", choices=("list", "pages", *EXPERIMENTS), metavar="EXPERIMENT", help="or list, or pages"
    )
    parser.add_argument("--check", action="store_true", help="of pages: change nothing, and fail where one disagrees")
    parser.add_argument("--tiny", action="store_true", help="few and short runs")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--write", action="store_true", help="write the page and its figure to benchmarks/results")
    parser.add_argument("--export", type=Path, help="write the runs of the page to this file, a line each", metavar="FILE")
    parser.add_argument("--folder", type=Path, help="of the records, or a file of them; default: benchmarks/records")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    args = parser.parse_args()
    if args.experiment == "list":
        print("\n".join(map(described, EXPERIMENTS)))
        return
    if args.experiment == "pages":
        sys.exit(write_pages(args.check))
    experiment = EXPERIMENTS[args.experiment].tiny() if args.tiny else EXPERIMENTS[args.experiment]
    measured = pages.RESULTS / f"{args.experiment}.jsonl"
    folder = args.folder or HERE / ("records-tiny" if args.tiny else "records")
    lines = [Lines(measured)] if measured.exists() and not args.tiny else []
    known = Asked(*lines, Folder(folder))
    if not args.report:
        if hasattr(experiment, "cannot") and (said := experiment.cannot()):
            sys.exit(said)
        engine = InlineEngine() if args.workers == 1 else LocalEngine(args.workers)
        train_missing(experiment, folder=folder, engine=engine, known=known)
    kept = Asked(Lines(folder)) if folder.is_file() else Asked(Records(folder), *known.places)
    sys.stdout.write(experiment.table(kept))
    tell_missing(experiment, kept)
    if args.export is not None:
        kept.write(args.export, getattr(experiment, "metrics", METRICS))
    if args.write and not args.tiny:
        measured.with_suffix(".md").write_text(pages.page(experiment, measured), encoding="utf-8")
        if hasattr(experiment, "draw"):
            experiment.draw(Lines(measured), measured.with_suffix(".png"))


def described(name: str) -> str:
    """Describe an experiment in a line, with the runs that are in benchmarks/results: number, time and releases."""
    path = pages.RESULTS / f"{name}.jsonl"
    if not path.exists():
        return f"{name}: {EXPERIMENTS[name].about} (not measured)"
    lines = Lines(path)
    runs = {line.get("id") or number: line for number, line in enumerate(lines.lines)}  # rules may share the runs of a base
    hours = sum(line.get("seconds") or 0 for line in runs.values()) / 3600
    done = f"{len(runs)} runs of release {lines.releases}, {hours:.1f} hours of one core"
    return f"{name}: {EXPERIMENTS[name].about} ({done})"


def tell_missing(experiment: Any, kept: Asked) -> None:
    """Which runs are still wanted, and which are kept but were made with other settings or rules."""
    if missing := [run.labels["size"] for run in experiment.missing_runs(kept)]:
        names = list(dict.fromkeys(missing))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        print(f"Missing so far: {len(missing)} runs, of {'; '.join(names[:3])}{more}.", file=sys.stderr)
    if refused := {key for place in kept.places for key in getattr(place, "refused", ())}:
        what = ", ".join(sorted({key[0] for key in refused})[:3])
        print(f"Not used, since rules or settings have changed: {len(refused)} kept runs, such as {what}.", file=sys.stderr)


def write_pages(check: bool) -> int:
    """Write the numbers of all pages; with ``check`` only say which pages disagree with the records, and fail then."""
    changed = pages.stale(EXPERIMENTS)
    for path, text in changed.items():
        told = path.relative_to(pages.ROOT)
        if not check and path.parent != pages.RESULTS:
            path.write_text(text, encoding="utf-8")
            print(f"{told}: written")
        else:
            how = f"{path.stem} --report --write" if path.parent == pages.RESULTS else "pages"
            print(f"{told} disagrees with the records: python benchmarks/run.py {how}")
    return 1 if check and changed else 0


if __name__ == "__main__":
    main()
