"""How many runs are trained at once: by what their model can do, by memory and by time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from neuralop_mup.experiments.program import Run, Stack, loss_of
from neuralop_mup.experiments.stacked_models import obstacle

__all__ = ["a_sample", "fastest", "most", "needed", "one_alone"]

_TIMED = 3  # steps a size, after one that warms up
_TIMING = 0.05  # of the runs' time may be spent on it
_TEMPORARIES = 3  # a step holds about so many times what its backward keeps


def most(run: Run, share: float, memory: float | None, note: Callable[[str], None]) -> int:
    """How many runs like this one may be trained as one, by what their model can do and by memory; 1: one by one.

    Parameters
    ----------
    run : Run
        Its weights and its order of samples stay what they are.
    share : float
        Of the memory that is free, where ``memory`` is None.
    memory : float, optional
        Bytes.
    note : callable
        Told why it is 1.
    """
    job = run.job
    job.model.train()
    if job.processor is not None:
        job.processor.to(job.settings.device).train()
    try:
        sample, loss = a_sample(run), loss_of(job)
        needs = needed(job.model, sample, loss)
        why = obstacle(job.model, sample, loss)
    except Exception:  # a run that fails by itself says so best by itself
        return 1
    if why is not None:
        note(f"{type(job.model).__name__}s are trained one by one: {why}.")
        return 1
    limit = share * _free(job.settings.device) if memory is None else memory
    if limit < 2 * needs:
        note(f"Two runs at once need about {2 * needs / 2**20:.0f} MiB, and {limit / 2**20:.0f} may be used: one by one.")
    return max(1, int(limit // needs))


def a_sample(run: Run) -> dict[str, Any]:
    """A batch; the order of the samples stays what it was."""
    generator = getattr(run.job.train_loader, "generator", None)
    order, random = generator and generator.get_state(), torch.get_rng_state()
    try:
        return run.prepared(next(iter(run.job.train_loader)))
    finally:
        torch.set_rng_state(random)
        if generator is not None:
            generator.set_state(order)


def needed(model: nn.Module, sample: Mapping[str, Any], loss: Callable) -> float:
    """About what one run holds in a step: weights, their gradient and two states; what backward keeps, and temporaries."""
    kept: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss(model(**sample), dict(sample))
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return 5 * weights + _TEMPORARIES * sum(kept.values())


def _free(device: Any) -> float:
    """Bytes that are free now."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fastest(runs: Sequence[Run], note: Callable[[str], None]) -> int:
    """How many runs at once take the least time a run, by a few steps of each; 1: one by one. The runs stay as they were.

    Timing takes a twentieth of what the runs take one by one, at most: what there is no time to try counts as good as the
    largest number that was tried.
    """
    weights = [[p.detach().clone() for p in run.job.model.parameters()] for run in runs]
    samples = [a_sample(run) for run in runs]
    sizes = [1, *(2**k for k in range(1, len(runs).bit_length()) if 2**k < len(runs)), len(runs)]
    steps = sum(len(run.job.train_loader) * run.trainer.n_epochs for run in runs)
    seconds: dict[int, float] = {}
    spent = 0.0
    for size in sizes:
        some = runs[:size]
        if seconds and spent + (_TIMED + 1) * size * min(seconds.values()) > _TIMING * seconds[1] * steps:
            break
        begun = time.perf_counter()
        try:
            step = one_alone(runs[0], samples[0]) if size == 1 else partial(Stack(some).step, samples[:size])
            seconds[size] = _timed(step, runs[0].job.settings.device) / size
        except Exception:  # a run that fails in its first steps does so in its record, too
            return len(runs)
        finally:
            for run, own in zip(some, weights, strict=False):
                run.trainer.optimizer.state.clear()
                for p, weight in zip(run.job.model.parameters(), own, strict=True):
                    p.data, p.grad = weight.clone(), None
        spent += time.perf_counter() - begun
        if seconds[size] > 1.2 * min(seconds.values()):
            break
    best = min(seconds, key=seconds.__getitem__)
    if len(seconds) < len(sizes) and best == max(seconds) > 1:
        best = len(runs)
    note(_decision(best, seconds))
    return best


def _decision(best: int, seconds: Mapping[int, float]) -> str:
    """How many runs are trained at once, and the timing that says so: seconds of a step and run, by runs at once."""
    alone = f"a step of one run takes {_duration(seconds[1])} alone"
    tried = [f"{_duration(s)} among {size}" for size, s in seconds.items() if size > 1]
    among = f" and {', '.join(tried)} trained together" if tried else ", and there is no time to try several at once"
    what = "Runs are trained one by one" if best == 1 else f"{best} runs are trained at once"
    return f"{what}: {alone}{among}."


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def one_alone(run: Run, sample: dict[str, Any]) -> Callable[[], Any]:
    loss, optimizer = loss_of(run.job), run.trainer.optimizer

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(run.job.model(**sample), dict(sample)).backward()
        optimizer.step()

    return step


def _timed(step: Callable[[], Any], device: Any) -> float:
    times = []
    for _ in range(_TIMED + 1):
        begun = time.perf_counter()
        step()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun)
    return median(times[1:])
