"""Train the missing runs of an experiment and write its report.

    python benchmarks/run.py list
    python benchmarks/run.py law                # train the missing runs in one process; resumes after an interruption
    python benchmarks/run.py law --report       # print the report of the finished runs, also during the training
    python benchmarks/run.py law --tiny         # a small version that takes about a minute
    python benchmarks/run.py law --report --export benchmarks/results/law.jsonl           # export the records
    python benchmarks/run.py law --report --write --folder benchmarks/results/law.jsonl   # write report and figure
    python benchmarks/run.py pages [--check]    # update the numbers on README.md and the pages, or only check them

The key of a run is its content, and experiments may share a folder of records. Runs in benchmarks/results are not trained
again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from experiments import EXPERIMENTS, pages
from experiments.records import METRICS, RecordsFile, RecordsFolder, UsedRecords
from neuralop_mup.lab.engines import InlineEngine, LocalEngine
from neuralop_mup.lab.run import run as train_missing

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "experiment", choices=("list", "pages", *EXPERIMENTS), metavar="EXPERIMENT", help="an experiment, 'list' or 'pages'"
    )
    parser.add_argument("--check", action="store_true", help="with 'pages': fail if a page is outdated, and write nothing")
    parser.add_argument("--tiny", action="store_true", help="train a few small models")
    parser.add_argument("--report", action="store_true", help="do not train")
    parser.add_argument("--write", action="store_true", help="write the report and the figure to benchmarks/results")
    parser.add_argument("--export", type=Path, help="write the records of the report to this file", metavar="FILE")
    parser.add_argument("--folder", type=Path, help="folder or file of records (default: benchmarks/records)")
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    args = parser.parse_args()
    if args.experiment == "list":
        print("\n".join(map(described, EXPERIMENTS)))
        return
    if args.experiment == "pages":
        sys.exit(write_pages(args.check))
    experiment = EXPERIMENTS[args.experiment].tiny() if args.tiny else EXPERIMENTS[args.experiment]
    published = pages.RESULTS / f"{args.experiment}.jsonl"
    folder = args.folder or HERE / ("records-tiny" if args.tiny else "records")
    files = [RecordsFile(published)] if published.exists() and not args.tiny else []
    if not args.report:
        engine = InlineEngine() if args.workers == 1 else LocalEngine(args.workers)
        train_missing(experiment, folder=folder, engine=engine, known=UsedRecords(*files, RecordsFolder(folder)))
    sources = [RecordsFile(folder)] if folder.is_file() else [*files, RecordsFolder(folder)]
    used = UsedRecords(*sources)
    print(experiment.table(used))
    print_missing(experiment, used)
    if args.export is not None:
        used.write(args.export, getattr(experiment, "metrics", METRICS))
    if args.write and not args.tiny:
        published.with_suffix(".md").write_text(pages.report(experiment, published), encoding="utf-8")
        if hasattr(experiment, "draw"):
            experiment.draw(RecordsFile(published), published.with_suffix(".png"))


def described(name: str) -> str:
    """Return a line about an experiment and its published runs: number, time and releases."""
    path = pages.RESULTS / f"{name}.jsonl"
    if not path.exists():
        return f"{name}: {EXPERIMENTS[name].about} (not measured)"
    file = RecordsFile(path)
    runs = {line.get("id") or number: line for number, line in enumerate(file.lines)}  # rules may share the runs of a base
    hours = sum(line.get("seconds") or 0 for line in runs.values()) / 3600
    return f"{name}: {EXPERIMENTS[name].about} ({len(runs)} runs of release {file.releases}, {hours:.1f} hours of one core)"


def print_missing(experiment: Any, used: UsedRecords) -> None:
    """Print which runs are missing, and which records cannot be used because their settings or rules have changed."""
    if missing := [run.labels["size"] for run in experiment.missing_runs(used)]:
        names = list(dict.fromkeys(missing))
        others = f" and {len(names) - 3} more" if len(names) > 3 else ""
        print(f"{len(missing)} runs are missing: {'; '.join(names[:3])}{others}.", file=sys.stderr)
    if refused := {label for source in used.sources for label in getattr(source, "refused", ())}:
        names = ", ".join(sorted({label[0] for label in refused})[:3])
        print(
            f"{len(refused)} records were not used because rules or settings have changed, such as {names}.", file=sys.stderr
        )


def write_pages(check: bool) -> int:
    """Update the numbers on all pages and return an exit status. With ``check``, only print which pages are outdated."""
    changed = pages.stale(EXPERIMENTS)
    for path, text in changed.items():
        name = path.relative_to(pages.ROOT)
        if not check and path.parent != pages.RESULTS:
            path.write_text(text, encoding="utf-8")
            print(f"{name}: written")
        else:
            command = f"{path.stem} --report --write" if path.parent == pages.RESULTS else "pages"
            print(f"{name} disagrees with the records: python benchmarks/run.py {command}")
    return 1 if check and changed else 0


if __name__ == "__main__":
    main()
