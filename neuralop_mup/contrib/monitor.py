"""The coordinate check and the update check while a model trains."""

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
    to : callable, optional
        Called with the records of each measured step, a list of dicts: ``records.extend``, or a function that writes or
        logs them. ``.latest`` holds the last measurement in any case.
    every : int, default 100
        Steps 1, 1 + every, 1 + 2·every, … are measured. A resumed run goes on with the steps that the optimizer's state
        counts (SGD's counts none).
    probe : tensor or dict, optional
        Inputs to compare features on, as the model is called with them. The current batch if not given.

    Attributes
    ----------
    latest : list of dict
        Records ``{"step", "kind", "name", "value"}`` of the last measured step.

    Raises
    ------
    MupError
        If an argument is not usable, or ``model`` is sharded. In a measured step: if there is no probe and the model was not
        called.

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
            raise MupError(f"to is {to!r}; give a function of a list of records, such as records.extend of a list.")
        optimizer = unwrap_optimizer(optimizer)
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise MupError(f"{type(optimizer).__name__} takes no step hooks: pass a torch.optim.Optimizer.")
        kernels_of(unwrap(model))  # what cannot be measured is said now
        self.latest: list[Record] = []
        self._model, self._to, self._every, self._probe = model, to, every, check_inputs(probe)
        self._steps: int | None = None  # not known before the first step, when a resumed run's state was loaded
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
        """Take the hooks off.

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
        # Evaluation, and the monitor's own look, are without gradients. Before the first step it is not known yet where a
        # resumed run stands, so that batch is kept too.
        if torch.is_grad_enabled() and self._probe is None and (self._steps or 0) % self._every == 0:
            names = inspect.signature(unwrap(model).forward).parameters
            by_name = {**dict(zip(names, args, strict=False)), **kwargs}
            self._called_with = args[0] if len(args) == 1 and not kwargs else by_name

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self._steps is None:
            taken = (float(state["step"]) for state in optimizer.state.values() if "step" in state)
            self._steps = int(max(taken, default=0))
        self._step = None  # of a step that raised
        if self._steps % self._every:
            self._called_with = None
            return None
        # torch takes a closure by place or by name.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._look()
            return None

        def looked_after() -> Any:
            # The model is called in there, the first time too (Lightning). Only the first call is before the step.
            loss = closure()
            if self._step is None:
                self._look()
            return loss

        rest = {key: value for key, value in kwargs.items() if key != "closure"}
        return (args[0], looked_after, *args[2:]), rest

    def _look(self) -> None:
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
        if self._to is not None:
            self._to(self.latest)
