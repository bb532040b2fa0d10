"""Training runs whose learning rates, or activations, are learned; done once each, and kept in a file that only grows."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.errors import Diverged
from suite_runs import BASE_WIDTH, OPTIMIZERS, PROBLEMS, Records, _batches, _error, data_of

RESULTS = Path(__file__).parent / "results"
EXAMPLE = Path(__file__).parents[1] / "examples" / "learned_activations.py"
SKIPS = "learned skips"  # in the place of an activation


def task(problem: str, **changes: Any) -> dict[str, Any]:
    """One run as plain values; of a problem of the suite at its own size where nothing else is said."""
    _, modes, width, batch = PROBLEMS[problem]
    return {
        "problem": problem,
        "width": width,
        "modes": list(modes),  # K on each axis
        "base_modes": None,  # K at base, where it is not the model's
        "depth": 4,
        "batch": batch,
        "rule": "none",
        "init": 0.1,
        "optimizer": "adam",
        "kwargs": {},
        "lr": 4e-3,
        "lr_mult": {},
        "learned": None,  # arguments of LearnedRates
        "schedule": "cosine",
        "activation": None,
        "steps": 1000,
        "seed": 0,
        **changes,
    }


def train(t: Mapping[str, Any]) -> dict[str, Any]:
    """Train one FNO: errors, processor time of the steps, and the learned multipliers.

    ``mults`` are the geometric means over the last third of the steps that learned: one value is noisy.
    """
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")
    problem, data = data_of(t["problem"])
    torch.manual_seed(t["seed"])
    model = built(t, problem.in_channels, problem.out_channels)
    nm.parametrize(model, **parametrization(t))
    optimizer = OPTIMIZERS[t["optimizer"]](model, lr=t["lr"], lr_mult=t["lr_mult"], **t["kwargs"])
    rates = None if t["learned"] is None else nm.LearnedRates(optimizer, **t["learned"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, t["steps"]) if t["schedule"] == "cosine" else None
    processor, losses = problem.processor(data), problem.losses()
    model.train(), processor.train()
    learning = min((t["learned"] or {}).get("until") or t["steps"], t["steps"])
    logs: list[dict[str, float]] = []
    start = time.process_time()
    for step, (x, y) in enumerate(_batches(data, t["batch"], t["seed"], t["steps"])):
        sample = processor.preprocess({"x": x, "y": y})
        out, sample = processor.postprocess(model(sample["x"]), sample)
        loss = sum(weight * term(out, **sample) for weight, term in losses.values()) / len(x)
        optimizer.zero_grad()
        loss.backward()
        try:
            optimizer.step()
        except Diverged as error:
            return {"loss": math.inf, "test": math.inf, "seconds": time.process_time() - start, "error": str(error)}
        if schedule is not None:
            schedule.step()
        if rates is not None and 2 * learning / 3 <= step < learning:
            logs.append({unit: math.log(mult) for unit, mult in rates.mults.items()})
    result: dict[str, Any] = {"seconds": time.process_time() - start}
    if logs:
        result["mults"] = {unit: math.exp(sum(log[unit] for log in logs) / len(logs)) for unit in logs[0]}
    for name, split in (("loss", data.val), ("test", data.test)):
        error = _error(model, processor, losses["data"][1], *split)
        result[name] = error if math.isfinite(error) else math.inf
    return result


def parametrization(t: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``parametrize``."""
    base: dict[str, Any] = {"hidden_channels": BASE_WIDTH}
    if t["base_modes"]:
        base["n_modes"] = tuple(2 * k for k in t["base_modes"])
    return {"base": base, "rule": t["rule"], "init_mult": None if t["init"] == 1 else {"spectral": t["init"]}}


def built(t: Mapping[str, Any], in_channels: int, out_channels: int) -> torch.nn.Module:
    """The model, as neuralop initializes it."""
    arguments = (tuple(2 * k for k in t["modes"]), in_channels, out_channels, t["width"])
    if t["activation"] is None:
        return FNO(*arguments, n_layers=t["depth"])
    if "learned_activations" not in sys.modules:
        spec = importlib.util.spec_from_file_location("learned_activations", EXAMPLE)
        module = importlib.util.module_from_spec(spec)
        sys.modules["learned_activations"] = module
        spec.loader.exec_module(module)
    example = sys.modules["learned_activations"]
    learned = {"non_linearity": None, "learned_skips": True}
    if t["activation"] != SKIPS:
        learned = {"non_linearity": getattr(example, t["activation"])}
    return example.AdaptiveFNO(*arguments, n_layers=t["depth"], **learned)


def of_seeds(seeds: Sequence[int]) -> str:
    """What a cell of a table is."""
    return f"mean ± standard deviation of {len(seeds)} seeds" if len(seeds) > 1 else "one seed"


class Runs:
    """Do runs that are not done yet, and say what came of them."""

    def __init__(self, path: Path | None, workers: int = 1, steps: int | None = None) -> None:
        self.workers, self.steps = workers, steps
        self.records = Records(path or Path("/nonexistent"))
        self.suite = Records(RESULTS / "suite.jsonl")
        self.keep = path is not None

    def do(self, tasks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The results of ``tasks``, in order; with ``steps`` all of them are so short."""
        tasks = [t if self.steps is None else _shortened(t, self.steps) for t in tasks]
        unique = {json.dumps(t, sort_keys=True): t for t in tasks}
        missing = [t for t in unique.values() if self._get(t) is None]
        for problem in {t["problem"] for t in missing}:
            data_of(problem)  # generated once, before workers need it
        if self.workers == 1:
            for t in missing:
                self._add(t, train(t))
        elif missing:
            with ProcessPoolExecutor(self.workers, mp_context=get_context("spawn")) as pool:
                running = {pool.submit(train, t): t for t in missing}
                for future in as_completed(running):
                    self._add(running[future], future.result())
        return [self._get(t) or {} for t in tasks]

    def _get(self, t: Mapping[str, Any]) -> dict[str, Any] | None:
        """What came of a run; a run in which nothing is learned may be one of the suite's, which is the same."""
        beyond = ("base_modes", "lr_mult", "learned", "schedule", "activation")  # what a run of the suite does not have
        plain = task(t["problem"])
        of_suite = all(t[key] == plain[key] for key in beyond)
        known = self.suite.get({key: value for key, value in t.items() if key not in beyond}) if of_suite else None
        return self.records.get(t) or known

    def _add(self, t: dict[str, Any], result: dict[str, Any]) -> None:
        if self.keep:
            self.records.add(t, result)
        else:
            self.records.done[json.dumps({k: v for k, v in t.items() if k != "contender"}, sort_keys=True)] = result
        what = {k: t[k] for k in ("problem", "width", "modes", "depth", "rule", "lr", "seed")}
        print(f"{result['loss']:.4f} in {result['seconds']:.0f} s: {what}", file=sys.stderr, flush=True)


def _shortened(t: dict[str, Any], steps: int) -> dict[str, Any]:
    learned = t["learned"]
    if learned is not None and learned.get("until"):
        learned = {**learned, "until": max(1, steps // 2)}
    return {**t, "steps": steps, "learned": learned}
