"""One training run of the suite, its records, and the processes that train what is missing."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from neuralop.models import FNO
from torch import nn
from tqdm import tqdm

import neuralop_mup as nm
from neuralop_mup.problems import Problem, ProblemData
from problems import get_problem

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
STEPS = 1000

_ADAM = (2e-3, 4e-3, 8e-3, 1.6e-2)
_SIZED = (1e-2, 2e-2, 4e-2, 8e-2)
# Optimizer and its arguments, grid of learning rates, rule, and the kernels' initialization over neuralop's.
CONTENDERS: dict[str, dict[str, Any]] = {
    "Adam (SP)": {"optimizer": "torch", "lrs": _ADAM, "rule": "standard", "init": 1.0},
    "MuAdam": {"optimizer": "adam", "lrs": _ADAM, "init": 0.1},
    "MuMuon": {"optimizer": "muon", "lrs": _SIZED, "init": 0.1, "kwargs": {"period": 1, "damping": 0.7}},
    "MuSOAP": {"optimizer": "soap", "lrs": _SIZED, "init": 0.1, "kwargs": {"period": 2, "size": "schatten"}},
    "MuSOAP, rms": {"optimizer": "soap", "lrs": _SIZED, "init": 0.1, "kwargs": {"period": 2, "size": "rms"}},
}
REFERENCE = "Adam (SP)"
MAIN = (REFERENCE, "MuAdam", "MuMuon", "MuSOAP")  # tuned on every problem at every length

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "torch": lambda model, lr, **kwargs: torch.optim.Adam(model.parameters(), lr=lr, **kwargs),
    "adam": nm.MuAdam,
    "adamw": nm.MuAdamW,
    "muon": nm.MuMuon,
    "soap": nm.MuSOAP,
}

_DATA: dict[str, tuple[Problem, ProblemData]] = {}


def data_of(problem: str, changes: Mapping[str, Any] | None = None) -> tuple[Problem, ProblemData]:
    """A problem and its data, kept by this process.

    ``changes``: ``samples``, the first so many for training; ``stride``, every so manieth point of the grid; else other
    arguments of the problem.
    """
    key = json.dumps([problem, changes or {}], sort_keys=True)
    if key not in _DATA:
        other = {name: value for name, value in (changes or {}).items() if name not in ("samples", "stride")}
        if changes and other != changes:
            described, data = data_of(problem, other)
            _DATA[key] = described, _thinned(data, changes.get("samples"), changes.get("stride", 1))
        else:
            described = get_problem(problem, **{**PROBLEMS[problem][0], **other})
            _DATA[key] = described, described.load()
    return _DATA[key]


def _thinned(data: ProblemData, samples: int | None, stride: int) -> ProblemData:
    def coarser(split: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(t[(..., *[slice(None, None, stride)] * (t.ndim - 2))] for t in split)  # type: ignore[return-value]

    train = tuple(t[:samples] for t in data.train)
    return dataclasses.replace(data, train=coarser(train), val=coarser(data.val), test=coarser(data.test))


def task(problem: str, contender: str, lr: float, steps: int = STEPS, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """One run, as plain values.

    ``changes`` are ``width``, ``modes``, ``depth``, ``init``, ``batch`` and ``kwargs``, ``data`` (see :func:`data_of`),
    ``model``, other arguments of the FNO, ``rule`` and ``training`` (see :func:`neuralop_mup.parametrize`), ``base_modes``,
    K at base where the rule needs it, ``marks``: numbers of steps after which the validation error is measured, too, and
    ``paced``: another task, whose steps these are only timed against.
    """
    _, modes, width, batch = PROBLEMS[problem]
    chosen = CONTENDERS[contender]
    return {
        "problem": problem,
        "contender": contender,
        "optimizer": chosen["optimizer"],
        "kwargs": {**chosen.get("kwargs", {}), **changes.get("kwargs", {})},
        "rule": changes.get("rule", chosen.get("rule", "none")),
        "init": changes.get("init", chosen["init"]),
        "lr": lr,
        "steps": steps,
        "seed": seed,
        "width": changes.get("width", width),
        "modes": list(changes.get("modes", modes)),
        "depth": changes.get("depth", 4),
        "batch": changes.get("batch", batch),
        **{key: changes[key] for key in ("data", "model", "training", "base_modes", "marks") if changes.get(key)},
    }


@dataclasses.dataclass
class _Training:
    """A model of a task, its optimizer, and all that a step needs."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    processor: nn.Module
    losses: Mapping[str, tuple[float, Callable]]
    data: ProblemData

    @classmethod
    def of(cls, t: Mapping[str, Any]) -> _Training:
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")  # losses are given the sample
        problem, data = data_of(t["problem"], t.get("data"))
        torch.manual_seed(t["seed"])
        n_modes = tuple(2 * k for k in t["modes"])
        more = t.get("model", {})
        model = FNO(n_modes, problem.in_channels, problem.out_channels, t["width"], n_layers=t["depth"], **more)
        init = None if t["init"] == 1 else {"kernel": max(t["init"], 1e-12)}
        base: dict[str, Any] = {"hidden_channels": BASE_WIDTH}
        if "base_modes" in t:
            base["n_modes"] = tuple(2 * k for k in t["base_modes"])
        nm.parametrize(model, base=base, rule=t["rule"], init_mult=init, training=t.get("training"))
        optimizer = OPTIMIZERS[t["optimizer"]](model, lr=t["lr"], **t["kwargs"])
        processor = problem.processor(data)
        model.train(), processor.train()
        return cls(model, optimizer, processor, problem.losses(), data)

    def backward(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """Gradients of the mean loss of a batch, and that loss."""
        sample = self.processor.preprocess({"x": x, "y": y})
        out, sample = self.processor.postprocess(self.model(sample["x"]), sample)
        loss = sum(weight * term(out, **sample) for weight, term in self.losses.values()) / len(x)
        self.optimizer.zero_grad()
        loss.backward()
        return loss.item()

    def error(self, split: str) -> float:
        """Mean error on ``val`` or ``test``."""
        return _error(self.model, self.processor, self.losses["data"][1], *getattr(self.data, split))


def train(t: Mapping[str, Any]) -> dict[str, Any]:
    """Train one FNO and measure it: validation, test and training error, and processor time of the steps.

    With marks the result also has ``"at 40"`` and so on: the validation error after so many steps, which takes no time.
    With ``paced`` nothing is trained: see :func:`pace`.
    """
    if "paced" in t:
        return pace(t)
    of = _Training.of(t)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(of.optimizer, T_max=t["steps"])
    marked: dict[str, float] = {}
    recent, start = [], time.process_time()
    for step, (x, y) in enumerate(_batches(of.data, t["batch"], t["seed"], t["steps"]), 1):
        recent = [*recent[-49:], of.backward(x, y)]
        if not math.isfinite(recent[-1]):
            marked = {f"at {mark}": marked.get(f"at {mark}", math.inf) for mark in t.get("marks", ())}
            seconds = time.process_time() - start
            return {"loss": math.inf, "test": math.inf, "train": math.inf, "seconds": seconds, **marked}
        of.optimizer.step()
        schedule.step()
        if step in t.get("marks", ()):
            paused = time.process_time()
            marked[f"at {step}"] = of.error("val")
            of.model.train(), of.processor.train()
            start += time.process_time() - paused
    seconds = time.process_time() - start
    return {
        "loss": of.error("val"),
        "test": of.error("test"),
        "train": statistics.fmean(recent),
        "seconds": seconds,
        **marked,
    }


PACE_STEPS = 60


def pace(t: Mapping[str, Any]) -> dict[str, float]:
    """Processor time of a training step over one of the reference (``t["paced"]``): both in turn, the median ratio."""
    pair = _Training.of(t), _Training.of(t["paced"])
    ratios = []
    for i, (x, y) in enumerate(_batches(pair[0].data, t["batch"], t["seed"], PACE_STEPS)):
        taken = {}
        for of in pair if i % 2 else pair[::-1]:
            start = time.process_time()
            of.backward(x, y)
            of.optimizer.step()
            taken[id(of)] = time.process_time() - start
        ratios.append(taken[id(pair[0])] / taken[id(pair[1])])
    return {"ratio": statistics.median(ratios[PACE_STEPS // 6 :])}


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
        self.reload()

    def reload(self) -> None:
        """Read what other processes have written, too."""
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                record = json.loads(line)
                self.done[_key(record["task"])] = record["result"]

    def add(self, t: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        result = _rounded(result)
        with open(self.path, "a") as file:
            file.write(_line(t, result))
        self.done[_key(t)] = result

    def get(self, t: Mapping[str, Any]) -> dict[str, Any] | None:
        return self.done.get(_key(t))

    def results(self, t: Mapping[str, Any], seeds: Sequence[int]) -> list[dict[str, Any]]:
        """Results of the seeds that are done."""
        return [result for seed in seeds if (result := self.get({**t, "seed": seed})) is not None]

    def loss(self, t: Mapping[str, Any], seeds: Sequence[int]) -> float | None:
        """Mean validation error over the seeds; None unless all are done."""
        results = self.results(t, seeds)
        return statistics.fmean(r["loss"] for r in results) if len(results) == len(seeds) else None

    def best(self, tasks: Iterable[dict[str, Any]], seeds: Sequence[int] = (0,)) -> dict[str, Any] | None:
        """The task with the smallest mean validation error; None unless all are done."""
        losses = {_key(t): (self.loss(t, seeds), t) for t in tasks}
        if not losses or any(loss is None for loss, _ in losses.values()):
            return None
        return min(losses.values(), key=lambda pair: pair[0])[1]


def _rounded(value: Any) -> Any:
    """Numbers to five digits, in dicts too (learned multipliers); words (an error) as they are."""
    if isinstance(value, Mapping):
        return {what: _rounded(own) for what, own in value.items()}
    return value if isinstance(value, str) else float(f"{value:.5g}")


_USUAL: dict[str, Any] = {"kwargs": {}, "rule": "none", "depth": 4, "batch": 10, "steps": STEPS, "seed": 0}


def _usual(t: Mapping[str, Any]) -> dict[str, Any]:
    """What a line leaves out, so that the file stays small: what most runs have, or most of this problem."""
    if t.get("problem") not in PROBLEMS:
        return _USUAL
    _, modes, width, batch = PROBLEMS[t["problem"]]
    return {**_USUAL, "width": width, "modes": list(modes), "batch": batch}


def _line(t: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    usual = _usual(t)
    told = {k: v for k, v in t.items() if k != "contender" and (k not in usual or v != usual[k])}
    return json.dumps({"task": told, "result": result}, separators=(",", ":")) + "\n"


def _key(t: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in {**_usual(t), **t}.items() if k != "contender"}, sort_keys=True)


def run(records: Records, wanted: Callable[[Records], Iterable[dict[str, Any]]], workers: int) -> None:
    """Train what is wanted until nothing new is: what comes next may depend on what was found."""
    for t in wanted(records) if workers > 1 else ():
        if records.get(t) is None:
            data_of(t["problem"], t.get("data"))  # generated once, before the workers need it
    running: dict[Future, dict[str, Any]] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool, tqdm(mininterval=30, smoothing=0.05) as bar:
        while True:
            records.reload()  # another process may train another stage
            tasks = {_key(t): t for t in wanted(records)}
            missing = [t for key, t in tasks.items() if key not in records.done]
            missing.sort(
                key=lambda t: t["steps"] > STEPS
            )  # the longest last; otherwise in the order in which they are wanted
            bar.total, bar.n = len(tasks), len(tasks) - len(missing)
            bar.refresh()
            waiting = (t for t in missing if t not in running.values())
            for t in islice(waiting, workers - len(running)):
                running[pool.submit(train, t)] = t
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                records.add(running.pop(future), future.result())
