"""Experiments: train what one still wants, then write its page.

    python benchmarks/run.py list
    python benchmarks/run.py law                # train what is missing, one process; interrupted, the same command goes on
    python benchmarks/run.py law --report       # the page of what is done, while it is trained or after
    python benchmarks/run.py law --tiny         # in a minute, to see that it works
    python benchmarks/run.py law --report --write --folder benchmarks/results/law.jsonl   # from the runs that are kept here

A run is kept by its content, in a folder that any number of experiments may share.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from pathlib import Path

from experiments import EXPERIMENTS, Experiment
from experiments.cheap import Cheap
from experiments.training import train
from neuralop_mup._version import __version__
from neuralop_mup.tuning.engines import Engine, make_engine
from neuralop_mup.tuning.outcome import execute, is_final
from neuralop_mup.tuning.records import Records, Run

HERE = Path(__file__).parent


class _Kept(Records):
    """Records that are only read, while another process may write them."""

    def place(self, run: Run, make: bool = False) -> Path:
        return self.folder / "workspace" / run.id


class _Lines:
    """Records in one file, a line a run: what it is called among an experiment's, and what it gave."""

    def __init__(self, path: Path) -> None:
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        self._runs = {_called(line): line for line in lines}

    def get(self, run: Run) -> dict | None:
        """The record of a run; None where there is none."""
        return self._runs.get(_called({**run.labels, **run.labels["params"]}))


def _called(labels: Mapping) -> tuple:
    return labels["size"], labels["lr"], labels["seed"]


def fill(experiment: Experiment, records: Records, engine: Engine) -> None:
    """Train what is wanted until nothing is."""
    pending: dict[Future, Run] = {}
    while True:
        under_way = {run.id for run in pending.values()}
        for run in experiment.wanted(records):
            if len(pending) >= engine.capacity:
                break
            if run.id not in under_way:
                under_way.add(run.id)
                pending[engine.submit(execute, __version__, train, run.config)] = run
        if not pending:
            return
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            run, outcome = pending.pop(future), future.result()
            outcome.pop("weights")
            records.write(run, outcome)
            if not is_final(outcome):
                records.give_up(run)
            _tell(run, outcome)


def _tell(run: Run, outcome: Mapping) -> None:
    ended = outcome["error"] or f"{outcome['loss']:.5f}"
    what = ", ".join(f"{k} {v:g}" for k, v in run.labels["params"].items())
    line = f"{run.labels['size']}: {what}, seed {run.labels['seed']}: {ended} ({outcome['seconds']:.1f} s)"
    print(time.strftime("%H:%M:%S"), line, outcome["traceback"] or "", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=("list", *EXPERIMENTS), metavar="EXPERIMENT", help="or list")
    parser.add_argument("--tiny", action="store_true", help="few and short runs")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--write", action="store_true", help="write the page and its figure to benchmarks/results")
    parser.add_argument("--folder", type=Path, help="of the records, or a file of them; default: benchmarks/records")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    args = parser.parse_args()
    if args.experiment == "list":
        print("\n".join(f"{name}: {experiment.about}" for name, experiment in EXPERIMENTS.items()))
        return
    experiment = EXPERIMENTS[args.experiment].tiny() if args.tiny else EXPERIMENTS[args.experiment]
    folder = args.folder or HERE / ("records-tiny" if args.tiny else "records")
    if isinstance(experiment, Cheap):  # its runs are those of nm.tune, which keeps them itself
        if not args.report:
            experiment.fill(folder, args.workers)
        sys.stdout.write(experiment.page(folder))
        return
    if not args.report:
        with (
            Records(folder).held() as records,
            closing(make_engine(None, None, train, args.workers, args.workers)) as engine,
        ):
            fill(experiment, records, engine)
    kept = _Lines(folder) if folder.is_file() else _Kept(folder)
    text = experiment.table(kept)
    sys.stdout.write(text)
    if args.write and not args.tiny:
        (HERE / "results" / f"{args.experiment}.md").write_text(text, encoding="utf-8")
        if hasattr(experiment, "draw"):
            experiment.draw(kept, HERE / "results" / f"{args.experiment}.png")


if __name__ == "__main__":
    main()
