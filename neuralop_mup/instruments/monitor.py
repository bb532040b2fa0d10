"""The coordinate check and the update check while a model trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.diagnostics.kernel_norms import kernels_of
from neuralop_mup.diagnostics.update_stats import Inputs, Record, Step, by_name, check_inputs
from neuralop_mup.errors import MupError
from neuralop_mup.instruments.loggers import CsvLogger, make_logger
from neuralop_mup.optim.on_plan import unwrap_optimizer
from neuralop_mup.validation import check_count

__all__ = ["Monitor"]


class Monitor:
    """Measure, at every so many optimizer steps, what the step did (:func:`~neuralop_mup.update_stats`).

    It hangs on the optimizer's and the model's hooks, since neuralop's Trainer has no callbacks; any training loop will
    do. Detach it with :meth:`close`, or use it as a context manager. Under DistributedDataParallel the first process
    measures. The training's random state and the model's mode are left as they were.

    Parameters
    ----------
    model : torch.nn.Module
        The model, wrapped as it is called in training.
    optimizer : torch.optim.Optimizer
        Its optimizer.
    to : path, str, SummaryWriter or callable, optional
        A path ending in ``.csv`` (rows ``step, kind, name, value``; appended to on resume), ``"wandb"`` (as neuralop does:
        only while a run is active; with its Trainer the last measurement of an epoch is kept), ``"tensorboard"``, a
        SummaryWriter, or a function of the list of records. ``.latest`` holds the last measurement in any case.
    every : int, default 100
        Steps 1, 1 + every, 1 + 2·every, … are measured.
    probe : tensor or dict, optional
        Inputs to compare features on, as the model is called with them. The current batch if not given.
    start : int, optional
        Steps taken before this run. If not given, read from the optimizer's state where it counts steps (Adam), else 0.

    Attributes
    ----------
    latest : list of dict
        Records ``{"step", "kind", "name", "value"}`` of the last measured step.

    Raises
    ------
    MupError
        If an argument is not usable, ``model`` holds a parameter of unknown kind, or the package for ``to`` is missing. In
        the first step: if the CSV file holds another run's records, or there is no probe and the model was not called.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 16))
    >>> optimizer = nm.MuAdam(model)
    >>> with nm.Monitor(model, optimizer, to="updates.csv", every=100) as monitor:
    ...     model(torch.ones(2, 1, 16)).square().mean().backward()
    ...     optimizer.step()
    >>> monitor.latest[0]["step"], monitor.latest[0]["kind"], monitor.latest[0]["name"]
    (1, 'kernel_update', 'fno_blocks.convs.0')
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        to: Any = None,
        *,
        every: int = 100,
        probe: Inputs | None = None,
        start: int | None = None,
    ) -> None:
        check_count("every", every, "steps")
        if start is not None:
            check_count("start", start, "steps taken before", least=0)
        if not isinstance(model, nn.Module):
            raise MupError(f"Expected a model to monitor, got {type(model).__name__}.")
        optimizer = unwrap_optimizer(optimizer)
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise MupError(f"{type(optimizer).__name__} takes no step hooks: pass a torch.optim.Optimizer.")
        self.latest: list[Record] = []
        self._model, self._every, self._probe, self._start = model, every, check_inputs(probe), start
        self._steps: int | None = None
        self._called_with: Inputs | None = None
        self._step: Step | None = None
        self._handles: list[Any] = []
        kernels_of(unwrap(model))  # what cannot be measured is said now
        if not _is_first():
            return
        self._log = make_logger(to)
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        if probe is None:
            self._handles.append(model.register_forward_pre_hook(self._call, with_kwargs=True))

    def close(self) -> None:
        """Take the hooks off.

        Examples
        --------
        >>> monitor = nm.Monitor(model, nm.MuAdam(model), to="updates.csv")
        >>> monitor.close()
        """
        for handle in self._handles:
            handle.remove()
        self._handles, self._called_with, self._step = [], None, None

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _call(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        # Evaluation, and the monitor's own look, are without gradients. Before the first step it is not known yet where a
        # resumed run stands, so that batch is kept too.
        if torch.is_grad_enabled() and (self._steps or 0) % self._every == 0:
            self._called_with = by_name(model, args, kwargs)

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if self._steps is None:
            steps = _steps_taken(optimizer) if self._start is None else self._start
            if isinstance(self._log, CsvLogger):
                self._log.resume(steps)
            self._steps = steps
        if self._steps % self._every:
            self._called_with = None
            return
        inputs = self._called_with if self._probe is None else self._probe
        if inputs is None:
            raise MupError(
                "The monitor saw no call of the model before this step, so it has no batch to compare features on: give "
                "it the model as your loop calls it (the compiled or wrapped one), or a batch as probe=…."
            )
        self._step = Step(self._model, inputs)

    def _after(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self._steps = (self._steps or 0) + 1
        if self._step is None:
            return
        step, self._step, self._called_with = self._step, None, None
        self.latest = [{"step": self._steps, **record} for record in step.compare(optimizer)]
        if self._log is not None:
            self._log(self._steps, self.latest)


def _is_first() -> bool:
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def _steps_taken(optimizer: torch.optim.Optimizer) -> int:
    return int(max((float(state["step"]) for state in optimizer.state.values() if "step" in state), default=0))
