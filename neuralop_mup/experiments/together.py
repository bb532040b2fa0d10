"""Many runs of one architecture as one program: data order, initialization, schedules and checkpoints are each run's own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_map

from neuralop_mup.errors import MupError
from neuralop_mup.experiments.stacked_models import StackedModels, like, obstacle
from neuralop_mup.experiments.training import Job, finish, quiet, start, training_loss
from neuralop_mup.optim.stacked import StackedStep
from neuralop_mup.tuning.outcome import Outcome, execute
from neuralop_mup.tuning.space import params_key

__all__ = ["Together", "Trains", "train_together"]

End = tuple[Outcome, str | None]

_TIMED = 3  # steps a size, after one that warms up
_TIMING = 0.05  # of the runs' time may be spent on it
_TEMPORARIES = 3  # a step holds about so many times what its backward keeps


class Trains(Protocol):
    """A train function whose runs can be trained together."""

    def __call__(self, config: Mapping[str, Any]) -> Mapping[str, float]:
        """One run by itself."""
        ...

    def job(self, config: Mapping[str, Any], shared: dict) -> Job:
        """The run, ready to be trained; ``shared`` keeps what runs of one group share."""
        ...

    def keep(self, config: Mapping[str, Any], job: Job) -> None:
        """Called when the run is complete."""
        ...


class Together:
    """A train function for :class:`~neuralop_mup.tuning.engines.BatchedEngine`: one run, or a group of runs at once.

    Parameters
    ----------
    trains : Trains
        At module level, so that it can be sent to worker processes.
    """

    #: What runs of one group have in common; in everything else they may differ.
    shared = ("problem", "problem_args", "model", "batch_size", "loss", "device")

    def __init__(self, trains: Trains) -> None:
        self.trains = trains

    def __call__(self, config: Mapping[str, Any]) -> Mapping[str, float]:
        return self.trains(config)

    def group(self, config: Mapping[str, Any]) -> str:
        """Equal for runs that may be trained as one."""
        return params_key({name: config.get(name) for name in self.shared})

    def many(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Train the first of ``config["configs"]`` as one program; see
        :class:`~neuralop_mup.tuning.engines.BatchedEngine`."""
        notes: list[str] = []
        how = {"at_once": config["at_once"], "measure": config["measure"], "share": 0.5 / config["workers"]}
        ends, at_once = train_some(self.trains, config["configs"], **how, note=notes.append)
        found = [ends.get(number) for number in range(len(config["configs"]))]
        return {"loss": 0.0, "ends": found, "at_once": at_once, "notes": notes}


@dataclass(eq=False)
class _Run:
    """A run among others."""

    number: int
    config: Mapping[str, Any]
    job: Job
    random: torch.Tensor  # torch's random state, as this run by itself would have it
    trainer: Any = None
    epoch: int = 0
    batches: Any = None
    total: float = 0.0  # of this epoch's losses
    samples: int = 0
    error: Exception | None = None
    sample: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def own_random(self) -> Iterator[None]:
        torch.set_rng_state(self.random)
        try:
            yield
        finally:
            self.random = torch.get_rng_state()

    def prepared(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A batch as the model takes it; what neuralop's Trainer does."""
        if self.job.processor is not None:
            return self.job.processor.preprocess(batch)
        return {k: v.to(self.job.settings.device) for k, v in batch.items() if torch.is_tensor(v)}


class _Compact:
    """A state whose tensors are copies: a slice would bring the whole stack into the file."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def state_dict(self) -> dict[str, Any]:
        state = self._part.state_dict()
        copied = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, dict(state))
        if hasattr(state, "_metadata"):
            copied = type(state)(copied)
            copied._metadata = state._metadata
        return copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._part.load_state_dict(state)


class _Stack:
    """Runs that are stepped together at present."""

    def __init__(self, runs: Sequence[_Run]) -> None:
        job = runs[0].job
        self.runs, self._processor, self._loss = list(runs), job.processor, training_loss(job.losses)
        self.models = StackedModels([run.job.model for run in runs])
        self._stepper = StackedStep([r.trainer.optimizer for r in runs], self.models.parameters, self.models.stacks)

    def loss(self, out: Any, sample: dict[str, Any]) -> torch.Tensor:
        return loss_of(self._processor, self._loss)(out, sample)

    def step(self, samples: Sequence[Mapping[str, Any]]) -> tuple[list[float], dict[int, Exception]]:
        """One step of all runs whose loss is finite: their losses, and those whose optimizer refused."""
        if not like(samples):
            return self._one_by_one(samples)
        losses = self.models.losses(samples, self.loss)
        gradients = self.models.gradients(losses)
        values = losses.tolist()
        if all(map(_finite, values)):
            return values, self._stepper.step(gradients)
        # The others go on as if those had not been there.
        going = [r for r, value in enumerate(values) if _finite(value)]
        if not going:
            return values, {}
        rest = _Stack([self.runs[r] for r in going])
        refused = rest._stepper.step([None if g is None else g[going] for g in gradients])
        return values, {going[r]: error for r, error in refused.items()}

    def _one_by_one(self, samples: Sequence[Mapping[str, Any]]) -> tuple[list[float], dict[int, Exception]]:
        """The same for batches of different shapes."""
        values, refused = [], {}
        for r, (run, sample) in enumerate(zip(self.runs, samples, strict=True)):
            run.trainer.optimizer.zero_grad(set_to_none=True)
            loss = self.loss(run.job.model(**sample), dict(sample))
            values.append(loss.item())
            if not _finite(values[-1]):
                continue
            loss.backward()
            try:
                run.trainer.optimizer.step()
            except Exception as error:  # of this run alone
                refused[r] = error
        return values, refused

    def release(self, run: _Run) -> None:
        self.models.release(self.runs.index(run))


def loss_of(processor: Any, loss: Callable[..., torch.Tensor]) -> Callable[[Any, dict[str, Any]], torch.Tensor]:
    """``loss(output, sample)`` as neuralop's Trainer computes it."""

    def of(out: Any, sample: dict[str, Any]) -> torch.Tensor:
        if processor is not None:
            out, sample = processor.postprocess(out, sample)
        return 0.0 + loss(out, **sample)

    return of


def _finite(value: float) -> bool:
    return value - value == 0


def train_together(
    trains: Trains,
    configs: Sequence[Mapping[str, Any]],
    *,
    measure: bool = True,
    memory: float | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> list[End]:
    """Train runs of one architecture on one data set, several as one program.

    Parameters
    ----------
    trains : Trains
    configs : sequence of mapping
        They may differ in everything but the architecture, the batch size, the data and the loss.
    measure : bool
        Time a few steps of one run and of 2, 4, 8, … at once, and take what is fastest; else as many as memory allows.
    memory : float, optional
        Bytes that the runs may take at once; default half of what is free.
    note : callable
        Told in a sentence why runs are trained one by one, or how many at once.

    Returns
    -------
    list of (Outcome, str or None)
        As :func:`neuralop_mup.tuning.outcome.execute` gives for each configuration.
    """
    ends: dict[int, End] = {}
    at_once, shared = None, {}
    while left := [number for number in range(len(configs)) if number not in ends]:
        how = {"at_once": at_once, "measure": measure, "memory": memory, "shared": shared, "note": note}
        some, at_once = train_some(trains, [configs[number] for number in left], **how)
        ends.update((left[i], end) for i, end in some.items())
    return [ends[number] for number in range(len(configs))]


def train_some(
    trains: Trains,
    configs: Sequence[Mapping[str, Any]],
    *,
    at_once: int | None,
    measure: bool = True,
    memory: float | None = None,
    share: float = 0.5,
    shared: dict[str, Any] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[dict[int, End], int | None]:
    """Train the first of these runs as one program, or the first one by itself; at least one ends.

    Parameters
    ----------
    trains, configs, measure, memory, note
        As for :func:`train_together`.
    at_once : int, optional
        Runs in a program, as an earlier call found it; None: it is found now.
    share : float
        Of the free memory, if ``memory`` is not given.
    shared : dict, optional
        What runs share, kept for the next call.

    Returns
    -------
    ends : dict of int to (Outcome, str or None)
        By place in ``configs``.
    at_once : int or None
        For the next call.
    """
    ends: dict[int, End] = {}
    shared = {} if shared is None else shared
    with torch.random.fork_rng(devices=[]), quiet():
        new = at_once is None and len(configs) > 1
        if new:
            at_once = _most(trains, list(enumerate(configs)), shared, ends, memory, share, note)
        left = [item for item in enumerate(configs) if item[0] not in ends]
        runs = _runs(trains, left[:at_once], shared, ends) if len(left) > 1 and at_once and at_once > 1 else []
        if new and measure and len(runs) > 1:
            best = _fastest(runs, note)
            at_once, runs = (at_once, runs) if best == len(runs) else (best, runs[:best] if best > 1 else [])
        try:
            _train(trains, runs, ends)
        except Exception as error:  # whichever run brought it, each says by itself how it ends
            note(f"Trained one by one, since together they failed ({type(error).__name__}: {error}).")
            at_once = 1
        if not ends:
            number, config = left[0]
            ends[number] = execute(trains, config)
    return ends, at_once


def _runs(trains: Trains, items: Sequence[tuple[int, Mapping]], shared: dict, ends: dict[int, End]) -> list[_Run]:
    """The runs that can be built, with optimizer and schedule; how the others ended goes to ``ends``."""
    runs = []
    for number, config in items:

        def build(config: Mapping[str, Any], number: int = number) -> float:
            job = trains.job(config, shared)
            run = _Run(number, config, job, torch.get_rng_state())
            run.trainer = start(job)
            if run.trainer.run is not None:
                parts = {"model": job.model, "optimizer": run.trainer.optimizer, "scheduler": run.trainer.scheduler}
                run.trainer.run.attach(job.train_loader, **{name: _Compact(part) for name, part in parts.items()})
            runs.append(run)
            return 0.0

        before = len(runs)
        end = execute(build, config)
        if len(runs) == before:
            ends[number] = end
    return runs


def _most(
    trains: Trains,
    left: Sequence[tuple[int, Mapping]],
    shared: dict,
    ends: dict[int, End],
    memory: float | None,
    share: float,
    note: Callable[[str], None],
) -> int:
    """How many runs may be trained as one, by what their model can do and by memory; 1: one by one."""
    run = next((runs[0] for item in left if (runs := _runs(trains, [item], shared, ends))), None)
    if run is None:
        return 1
    run.job.model.train()
    if run.job.processor is not None:
        run.job.processor.to(run.job.settings.device).train()
    sample, loss = _a_sample(run), loss_of(run.job.processor, training_loss(run.job.losses))
    try:
        needs = _bytes(run.job.model, sample, loss)
        why = obstacle(run.job.model, sample, loss)
    except Exception:  # a run that fails by itself says so best by itself
        return 1
    if why is not None:
        note(f"{type(run.job.model).__name__}s are trained one by one: {why}.")
        return 1
    limit = share * _free(run.job.settings.device) if memory is None else memory
    most = int(limit // needs)
    if most < 2:
        note(f"Two runs at once need about {2 * needs / 2**20:.0f} MiB, and {limit / 2**20:.0f} may be used: one by one.")
    return max(1, most)


def _a_sample(run: _Run) -> dict[str, Any]:
    """A batch; the order of the samples stays what it was."""
    generator = getattr(run.job.train_loader, "generator", None)
    order, random = generator and generator.get_state(), torch.get_rng_state()
    try:
        return run.prepared(next(iter(run.job.train_loader)))
    finally:
        torch.set_rng_state(random)
        if generator is not None:
            generator.set_state(order)


def _bytes(model: nn.Module, sample: Mapping[str, Any], loss: Callable) -> float:
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


def _fastest(runs: Sequence[_Run], note: Callable[[str], None]) -> int:
    """How many runs at once take the least time a run, by a few steps of each; 1: one by one. The runs stay as they were.

    Timing takes a twentieth of what the runs take one by one, at most: what there is no time to try counts as good as the
    largest number that was tried.
    """
    weights = [[p.detach().clone() for p in run.job.model.parameters()] for run in runs]
    samples = [_a_sample(run) for run in runs]
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
            step = _alone(runs[0], samples[0]) if size == 1 else _at_once(some, samples[:size])
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
    told = ", ".join(f"{size}: {1e3 * s:.3g} ms" for size, s in seconds.items())
    note(f"{'One by one' if best == 1 else f'{best} runs at once'}, by time a step and run ({told}).")
    return best


def _alone(run: _Run, sample: dict[str, Any]) -> Callable[[], Any]:
    loss, optimizer = loss_of(run.job.processor, training_loss(run.job.losses)), run.trainer.optimizer

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(run.job.model(**sample), dict(sample)).backward()
        optimizer.step()

    return step


def _at_once(runs: Sequence[_Run], samples: Sequence[dict[str, Any]]) -> Callable[[], Any]:
    stack = _Stack(runs)
    return lambda: stack.step(samples)


def _timed(step: Callable[[], Any], device: Any) -> float:
    times = []
    for _ in range(_TIMED + 1):
        begun = time.perf_counter()
        step()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun)
    return median(times[1:])


def _train(trains: Trains, runs: Sequence[_Run], ends: dict[int, End]) -> None:
    """Train runs to their ends, epoch by epoch; those that end early leave the others."""

    def settle(run: _Run, last: Callable[[], Any]) -> None:
        if stack is not None and run in stack.runs:
            stack.release(run)
        ends[run.number] = execute(lambda _: last(), {})
        ends[run.number][0]["seconds"] = run.trainer.spent

    stack: _Stack | None = None
    going = []
    for run in runs:
        with run.own_random():
            try:
                run.trainer.restore()
            except MupError as error:
                settle(run, _raising(error))
                continue
        run.epoch = run.trainer.start_epoch
        if run.epoch < run.trainer.n_epochs:
            going.append(run)
        else:  # killed after its last epoch
            ends[run.number] = execute(trains, run.config)
    while going:
        begun = time.perf_counter()
        stack = _epoch(going, stack)
        share = (time.perf_counter() - begun) / len(going)
        for run in list(going):
            run.trainer.spent += share
            run.epoch += 1
            if run.error is not None:
                settle(run, _raising(run.error))
            elif run.epoch >= run.trainer.n_epochs:
                settle(run, _finishing(trains, run))
            else:
                continue
            going.remove(run)


def _raising(error: Exception) -> Callable[[], Any]:
    def last() -> None:
        raise error

    return last


def _finishing(trains: Trains, run: _Run) -> Callable[[], Any]:
    def last() -> dict[str, float]:
        began = time.perf_counter()
        with run.own_random():
            metrics = finish(run.trainer, run.job, run.total / run.samples)
            trains.keep(run.config, run.job)
        run.trainer.spent += time.perf_counter() - began
        return {**metrics, "seconds": run.trainer.spent}

    return last


def _epoch(going: Sequence[_Run], stack: _Stack | None) -> _Stack | None:
    """One epoch of every run; one that failed has its error and is left out from there on."""
    for run in going:
        run.total, run.samples = 0.0, 0
        run.job.model.train()
        with run.own_random():
            run.trainer.on_epoch_start(run.epoch)
            run.batches = iter(run.job.train_loader)
    if (processor := going[0].job.processor) is not None:
        processor.to(going[0].job.settings.device).train()
    for index in range(len(going[0].job.train_loader)):
        active = [run for run in going if run.error is None]
        if not active:
            break
        for run in active:
            with run.own_random():
                run.sample = run.prepared(next(run.batches))
        if stack is None or stack.runs != active:
            stack = _Stack(active)
        _step(active, stack, index)
    for run in going:
        if run.error is None:
            with run.own_random():
                next(run.batches, None)  # torch's sampler draws once more when it is asked past its end
            run.trainer.scheduler.step()
    return stack


def _step(active: Sequence[_Run], stack: _Stack, index: int) -> None:
    samples = [run.sample for run in active]
    values, refused = stack.step(samples)
    for r, (run, value) in enumerate(zip(active, values, strict=True)):
        run.total += value
        run.samples += len(run.sample["y"]) if isinstance(run.sample["y"], torch.Tensor) else 1
        if not _finite(value):
            run.error = run.trainer.diverged(index, value)
        elif r in refused:
            run.error = refused[r]
