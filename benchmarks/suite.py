"""Which optimizer, which learning rate: every contender on eight problems, at three lengths.

    python benchmarks/suite.py main                # error of tuned contenders; some hours on two cores
    python benchmarks/suite.py choices             # MuSOAP and MuMuon, one choice at a time
    python benchmarks/suite.py report              # tables from what has been trained, nothing else

Defaults were chosen on Burgers, Darcy and Allen–Cahn; the other problems are reported only. Each contender is tuned at
1,000 steps with one seed and the same number of learning rates, in factors of 2; its best one (by validation error) is
trained with two further seeds. At 300 and 3,000 steps it is carried over, with a factor of 2 to either side, and the best of
the three is trained with two further seeds. Steps follow one cosine to zero; errors are relative L2 on held-out samples.
A run is a line in benchmarks/results/suite.jsonl: interrupted, the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from neuralop.models import FNO
from torch import nn
from tqdm import tqdm

import neuralop_mup as nm
from neuralop_mup.problems import Problem, ProblemData, get_problem

HERE = Path(__file__).parent
RESULTS = HERE / "results"
RUNS = RESULTS / "suite.jsonl"
BASE_WIDTH = 16
CHOSEN_ON = ("burgers", "darcy", "allen-cahn")

# Arguments of the data, K = n_modes // 2 on each axis, width, and batch size.
PROBLEMS: dict[str, tuple[dict[str, Any], tuple[int, ...], int, int]] = {
    "burgers": ({"n_train": 800, "grid": 64}, (12,), 24, 10),
    "darcy": ({"n_train": 400, "grid": 20}, (5, 5), 16, 10),
    "allen-cahn": ({"n_train": 400, "grid": 20}, (5, 5), 16, 10),
    "korteweg-de-vries": ({"n_train": 800}, (16,), 24, 10),
    "gray-scott": ({"n_train": 400, "grid": 20}, (5, 5), 16, 10),
    "darcy-pino": ({"n_train": 200, "grid": 20}, (5, 5), 16, 10),
    "burgers-pino": ({"n_train": 200, "grid": 32, "time_points": 16}, (4, 8), 16, 10),
    "navier-stokes": ({"n_train": 100, "grid": 12, "time_points": 8}, (3, 4, 4), 12, 5),
}
LONG = ("burgers", "darcy", "korteweg-de-vries", "gray-scott")  # trained for 3,000 steps, too
STEPS = 1000
_ORDER = (STEPS, 300, 3000)  # what is asked for most comes first

_ADAM = (2e-3, 4e-3, 8e-3, 1.6e-2)
_SIZED = (1e-2, 2e-2, 4e-2, 8e-2)
# Optimizer and its arguments, grid of learning rates, rule, and the kernels' initialization over neuralop's.
CONTENDERS: dict[str, dict[str, Any]] = {
    "Adam (SP)": {"optimizer": "torch", "lrs": _ADAM, "rule": "standard", "init": 1.0},
    "MuAdam": {"optimizer": "adam", "lrs": _ADAM, "init": 0.1},
    "MuMuon": {"optimizer": "muon", "lrs": _SIZED, "init": 0.1, "kwargs": {"period": 1, "damping": 0.7}},
    "MuSOAP": {"optimizer": "soap", "lrs": _SIZED, "init": 0.1},
}
REFERENCE = "Adam (SP)"

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "torch": lambda model, lr, **kwargs: torch.optim.Adam(model.parameters(), lr=lr, **kwargs),
    "adam": nm.MuAdam,
    "muon": nm.MuMuon,
    "soap": nm.MuSOAP,
}

_DATA: dict[str, tuple[Problem, ProblemData]] = {}


def data_of(problem: str) -> tuple[Problem, ProblemData]:
    """A problem and its data, kept by this process."""
    if problem not in _DATA:
        described = get_problem(problem, **PROBLEMS[problem][0])
        _DATA[problem] = described, described.load()
    return _DATA[problem]


def task(problem: str, contender: str, lr: float, steps: int = STEPS, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """One run, as plain values; ``changes`` are ``width``, ``modes``, ``depth``, ``init`` and ``kwargs``."""
    _, modes, width, batch = PROBLEMS[problem]
    chosen = CONTENDERS[contender]
    return {
        "problem": problem,
        "contender": contender,
        "optimizer": chosen["optimizer"],
        "kwargs": {**chosen.get("kwargs", {}), **changes.get("kwargs", {})},
        "rule": chosen.get("rule", "none"),
        "init": changes.get("init", chosen["init"]),
        "lr": lr,
        "steps": steps,
        "seed": seed,
        "width": changes.get("width", width),
        "modes": list(changes.get("modes", modes)),
        "depth": changes.get("depth", 4),
        "batch": batch,
    }


def train(t: Mapping[str, Any]) -> dict[str, Any]:
    """Train one FNO and measure it: validation, test and training error, and processor time of the steps."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")  # losses are given the sample
    problem, data = data_of(t["problem"])
    torch.manual_seed(t["seed"])
    n_modes = tuple(2 * k for k in t["modes"])
    model = FNO(n_modes, problem.in_channels, problem.out_channels, t["width"], n_layers=t["depth"])
    init = None if t["init"] == 1 else {"spectral": max(t["init"], 1e-12)}
    nm.parametrize(model, base={"hidden_channels": BASE_WIDTH}, rule=t["rule"], init_mult=init)
    optimizer = OPTIMIZERS[t["optimizer"]](model, lr=t["lr"], **t["kwargs"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=t["steps"])
    processor, losses = problem.processor(data), problem.losses()
    model.train(), processor.train()
    recent, start = [], time.process_time()
    for x, y in _batches(data, t["batch"], t["seed"], t["steps"]):
        sample = processor.preprocess({"x": x, "y": y})
        out, sample = processor.postprocess(model(sample["x"]), sample)
        loss = sum(weight * term(out, **sample) for weight, term in losses.values()) / len(x)
        optimizer.zero_grad()
        loss.backward()
        recent = [*recent[-49:], loss.item()]
        if not math.isfinite(recent[-1]):
            return {"loss": math.inf, "test": math.inf, "train": math.inf, "seconds": time.process_time() - start}
        optimizer.step()
        schedule.step()
    seconds = time.process_time() - start
    errors = {split: _error(model, processor, losses["data"][1], *getattr(data, split)) for split in ("val", "test")}
    return {"loss": errors["val"], "test": errors["test"], "train": statistics.fmean(recent), "seconds": seconds}


def _batches(data: ProblemData, size: int, seed: int, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    x, y = data.train
    generator, order = torch.Generator().manual_seed(seed), torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(len(x), generator=generator)
        yield x[order[:size]], y[order[:size]]
        order = order[size:]


@torch.no_grad()
def _error(model: nn.Module, processor: nn.Module, loss: Callable, x: torch.Tensor, y: torch.Tensor) -> float:
    model.eval(), processor.eval()
    total = 0.0
    for part in torch.arange(len(x)).split(20):
        sample = processor.preprocess({"x": x[part], "y": y[part]})
        out, sample = processor.postprocess(model(sample["x"]), sample)
        total += float(loss(out, y=sample["y"]))
    return total / len(x)


# ------------------------------------------------------------------------------------------------------- what is run


class Records:
    """Finished runs by what they were, in a file that only grows."""

    def __init__(self, path: Path) -> None:
        self.path, self.done = path, {}
        if path.exists():
            for line in path.read_text().splitlines():
                record = json.loads(line)
                self.done[_key(record["task"])] = record["result"]

    def add(self, t: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a") as file:
            file.write(json.dumps({"task": t, "result": result}) + "\n")
        self.done[_key(t)] = dict(result)

    def get(self, t: Mapping[str, Any]) -> dict[str, Any] | None:
        return self.done.get(_key(t))

    def loss(self, t: Mapping[str, Any]) -> float:
        result = self.get(t)
        return math.inf if result is None else result["loss"]

    def best(self, tasks: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
        """The task with the smallest validation error; None unless all are done."""
        tasks = list(tasks)
        if any(self.get(t) is None for t in tasks):
            return None
        return min(tasks, key=self.loss)


def _key(t: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in t.items() if k != "contender"}, sort_keys=True)


def run(records: Records, wanted: Callable[[Records], Iterable[dict[str, Any]]], workers: int) -> None:
    """Train what is wanted until nothing new is: what comes next may depend on what was found."""
    while True:
        tasks = {_key(t): t for t in wanted(records)}
        missing = [t for key, t in tasks.items() if key not in records.done]
        if not missing:
            return
        for problem in {t["problem"] for t in missing}:
            data_of(problem)  # generated once, before the workers need it
        missing.sort(key=lambda t: _ORDER.index(t["steps"]))
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            futures = {pool.submit(train, t): t for t in missing}
            for future in tqdm(as_completed(futures), total=len(missing), mininterval=30, smoothing=0.05):
                records.add(futures[future], future.result())


def main_runs(records: Records) -> Iterator[dict[str, Any]]:
    """Tune at 1,000 steps; carry over to 300 and 3,000."""
    for problem in PROBLEMS:
        for name, chosen in CONTENDERS.items():
            grid = [task(problem, name, lr) for lr in chosen["lrs"]]
            yield from grid
            if (best := records.best(grid)) is None:
                continue
            yield from ({**best, "seed": seed} for seed in (1, 2))
            for steps in (300, *((3000,) if problem in LONG else ())):
                around = [{**best, "lr": best["lr"] * factor, "steps": steps} for factor in (0.5, 1, 2)]
                yield from around
                if (carried := records.best(around)) is not None:
                    yield from ({**carried, "seed": seed} for seed in (1, 2))


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "MuSOAP": ("MuSOAP", {}),
    "no Nesterov": ("MuSOAP", {"nesterov": False}),
    "size: operator norm": ("MuSOAP", {"size": "operator"}),
    "size: Adam's": ("MuSOAP", {"size": "adam"}),
    "momentum 0.9": ("MuSOAP", {"momentum": 0.9}),
    "beta2 0.99": ("MuSOAP", {"beta2": 0.99}),
    "basis_beta 0.99": ("MuSOAP", {"basis_beta": 0.99}),
    "refresh 5": ("MuSOAP", {"refresh": 5}),
    "refresh 20": ("MuSOAP", {"refresh": 20}),
    "MuMuon": ("MuMuon", {}),
    "MuMuon, period 4": ("MuMuon", {"period": 4}),
    "MuMuon, no damping": ("MuMuon", {"damping": 0.0}),
}


def choice_runs(records: Records) -> Iterator[dict[str, Any]]:
    """One choice at a time, on the problems for choosing, at two lengths and two learning rates."""
    for problem in CHOSEN_ON:
        for name, kwargs in VARIANTS.values():
            for steps in (300, STEPS):
                for lr in (2e-2, 4e-2):
                    yield task(problem, name, lr, steps, kwargs=kwargs)


# ------------------------------------------------------------------------------------------------------------ tables


def finals(records: Records, problem: str, name: str, steps: int) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """The chosen point at one length and its results over the seeds that are done; None before it was chosen."""
    best = records.best(task(problem, name, lr) for lr in CONTENDERS[name]["lrs"])
    if best is not None and steps != STEPS:
        best = records.best({**best, "lr": best["lr"] * factor, "steps": steps} for factor in (0.5, 1, 2))
    if best is None:
        return None
    return best, [result for seed in (0, 1, 2) if (result := records.get({**best, "seed": seed}))]


def report(records: Records) -> str:
    """Test errors of tuned contenders, and their ratio to the reference on the problems that nothing was chosen on."""
    lines = [
        "# Contenders on eight problems",
        "",
        "`python benchmarks/suite.py main`. Test error (relative L2; mean ± standard deviation of the seeds, their number "
        "where it is not 3), and the learning rate. * marks problems that defaults were chosen on; ratios to tuned "
        f"{REFERENCE} are geometric means over the others.",
    ]
    for steps in (300, STEPS, 3000):
        rows, ratios = [], {name: [] for name in CONTENDERS}
        for problem in PROBLEMS:
            found = {name: finals(records, problem, name, steps) for name in CONTENDERS}
            if not any(found.values()):
                continue
            means = {}
            cells = []
            for chosen in found.values():
                if chosen is None:
                    cells.append("–")
                    continue
                best, results = chosen
                errors = [result["test"] for result in results]
                spread = f" ± {statistics.stdev(errors):.4f}" if len(errors) > 1 else ""
                seeds = "" if len(errors) == 3 else f" ({len(errors)})"
                means[best["contender"]] = statistics.fmean(errors)
                cells.append(f"{statistics.fmean(errors):.4f}{spread}{seeds}, lr {best['lr']:g}")
            rows.append(f"| {problem}{'*' if problem in CHOSEN_ON else ''} | " + " | ".join(cells) + " |")
            if problem not in CHOSEN_ON and REFERENCE in means:
                for name, mean in means.items():
                    ratios[name].append(mean / means[REFERENCE])
        if rows:
            heads = "".join(f" {name} |" for name in CONTENDERS)
            lines += ["", f"## {steps} steps", "", f"| problem |{heads}", "| --- |" + " --- |" * len(CONTENDERS), *rows]
            cells = (
                f"{statistics.geometric_mean(own):.2f} (largest {max(own):.2f}, {len(own)} problems)" if own else "–"
                for own in ratios.values()
            )
            lines.append("| ratio to the reference, problems without * | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


STAGES = {"main": main_runs, "choices": choice_runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=(*STAGES, "report"))
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes, one thread each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = Records(RUNS)
    if args.stage != "report":
        run(records, STAGES[args.stage], args.workers)
    text = report(records)
    (RESULTS / "suite.md").write_text(text)
    print(text, flush=True)


if __name__ == "__main__":
    main()
