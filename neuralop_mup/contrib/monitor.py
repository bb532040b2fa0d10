"""Monitor features, kernel updates and learning rates during training."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.diagnostics.update_stats import Inputs, Record, Step, check_inputs, kernels_of
from neuralop_mup.errors import MupError
from neuralop_mup.optim.checks import unwrap_optimizer
from neuralop_mup.validation import check_count


class Monitor:
    """Measure the effect of every n-th optimizer step with :func:`~neuralop_mup.update_stats`.

    The monitor uses hooks of the optimizer and the model, so it works with neuralop's Trainer and with any other training
    loop. Remove it with :meth:`close`, or use it as a context manager. Under DistributedDataParallel, only the first process
    measures. The random state and the model's mode do not change.

    Parameters
    ----------
    model : torch.nn.Module
        The model that the training loop calls, wrapped or not.
    optimizer : torch.optim.Optimizer
        Optimizer of the model.
    to : callable, optional
        Function to call with a list of records after each measured step, such as ``records.extend`` or a function that logs
        them. ``.latest`` always holds the records of the last measurement.
    every : int, default 100
        Interval in steps: steps 1, 1 + every, 1 + 2·every, … are measured. A resumed run uses the step count in the
        optimizer's state (SGD does not store one).
    probe : tensor or dict, optional
        Inputs of the model for comparing features. Default: the current batch.

    Attributes
    ----------
    latest : list of dict
        Records ``{"step", "kind", "name", "value"}`` of the last measured step.

    Raises
    ------
    MupError
        If an argument is invalid, or if ``model`` is sharded. In a measured step, if there is no probe and the model has not
        been called.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 16))
    >>> optimizer = nm.MuAdam(model)
    >>> records = []
    >>> with nm.Monitor(model, optimizer, to=records.extend, every=100):
    ...     model(torch.ones(2, 1, 16)).square().mean().backward()
    ...     optimizer.step()
    >>> records[0]["step"], records[0]["kind"], records[0]["name"]
    (1, 'kernel_update', 'fno_blocks.convs.0')
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        to: Callable[[list[Record]], Any] | None = None,
        *,
        every: int = 100,
        probe: Inputs | None = None,
    ) -> None:
        check_count("every", every, "steps")
        if to is not None and not callable(to):
            raise MupError(f"to must be a function that accepts a list of records, such as records.extend, got {to!r}.")
        optimizer = unwrap_optimizer(optimizer)
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise MupError(f"{type(optimizer).__name__} has no step hooks. Pass a torch.optim.Optimizer.")
        kernels_of(unwrap(model))  # raises MupError if the model cannot be measured
        self.latest: list[Record] = []
        self._model, self._to, self._every, self._probe = model, to, every, check_inputs(probe)
        self._steps: int | None = None  # unknown before the first step because a state may still be loaded
        self._called_with: Inputs | None = None
        self._step: Step | None = None
        self._handles: list[Any] = []
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not distributed or torch.distributed.get_rank() == 0:
            self._handles = [
                optimizer.register_step_pre_hook(self._before),
                optimizer.register_step_post_hook(self._after),
                model.register_forward_pre_hook(self._call, with_kwargs=True),
            ]

    def close(self) -> None:
        """Remove the hooks.

        Examples
        --------
        >>> monitor = nm.Monitor(model, optimizer)
        >>> monitor.close()
        """
        for handle in self._handles:
            handle.remove()
        self._handles, self._called_with, self._step = [], None, None

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _call(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        # Evaluation and the monitor's own forward pass run without gradients, so they are skipped here. Before the first
        # step, the step count of a resumed run is unknown, so the batch is always kept.
        if torch.is_grad_enabled() and self._probe is None and (self._steps or 0) % self._every == 0:
            names = inspect.signature(unwrap(model).forward).parameters
            by_name = {**dict(zip(names, args, strict=False)), **kwargs}
            self._called_with = args[0] if len(args) == 1 and not kwargs else by_name

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self._steps is None:
            taken = (float(state["step"]) for state in optimizer.state.values() if "step" in state)
            self._steps = int(max(taken, default=0))
        self._step = None  # a previous step may have raised
        if self._steps % self._every:
            self._called_with = None
            return None
        # torch accepts a closure by position or by name.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._look()
            return None

        def measured_closure() -> Any:
            # The closure calls the model, as in Lightning. Only its first call happens before the parameters change.
            loss = closure()
            if self._step is None:
                self._look()
            return loss

        rest = {key: value for key, value in kwargs.items() if key != "closure"}
        return (args[0], measured_closure, *args[2:]), rest

    def _look(self) -> None:
        inputs = self._called_with if self._probe is None else self._probe
        if inputs is None:
            raise MupError(
                "The model was not called before this step, so the monitor has no batch for comparing features. Pass the "
                "model that your loop calls (compiled or wrapped), or pass a batch as probe=…."
            )
        self._step = Step(self._model, inputs)

    def _after(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self._steps = (self._steps or 0) + 1
        if self._step is None:
            return
        step, self._step, self._called_with = self._step, None, None
        self.latest = [{"step": self._steps, **record} for record in step.compare(optimizer)]
        if self._to is not None:
            self._to(self.latest)
