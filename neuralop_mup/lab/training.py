"""Train one model with neuralop's ``Trainer``, from a configuration to its measurements."""

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from neuralop.losses import WeightedSumLoss
from neuralop.models import FNO
from neuralop.training import Trainer
from torch import nn

from neuralop_mup.core.parametrize import parametrize
from neuralop_mup.core.plan_warnings import WIDER
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.errors import Diverged, MupError, error_text
from neuralop_mup.lab.data.batches import advanced
from neuralop_mup.lab.data.loaders import untouched
from neuralop_mup.lab.data.problem_data import ProblemData
from neuralop_mup.lab.files import Checkpoint, keep_weights
from neuralop_mup.lab.fingerprint import fingerprint, fingerprint_or_new
from neuralop_mup.lab.loss import NONZERO, Losses, Term
from neuralop_mup.lab.outcome import copied, releases
from neuralop_mup.lab.problems.base import Problem
from neuralop_mup.lab.progress import bar
from neuralop_mup.lab.records import CHECKPOINT, WEIGHTS
from neuralop_mup.lab.score import Score
from neuralop_mup.lab.settings import (
    OPTIMIZERS,
    Choice,
    Settings,
    build_optimizer,
    build_scheduler,
    optimizer_arguments,
)
from neuralop_mup.validation import check_names

#: Increase this number when the same configuration produces different results.
VERSION = 1


@dataclass(frozen=True)
class FNOs:
    """A function that builds neuralop's FNO for data with given numbers of channels and axes."""

    in_channels: int
    out_channels: int
    n_dim: int

    name = "FNO"
    command = ""  # the command line of this process, for reports

    def fingerprint_content(self) -> Any:
        """Return neuralop's FNO class, which also identifies its version, and the numbers of channels."""
        return FNO, self.in_channels, self.out_channels

    def __call__(self, **size: Any) -> FNO:
        """Return the FNO with this size.

        Raises
        ------
        MupError
            If the constructor does not accept the arguments.
        """
        n_modes = size.get("n_modes")
        if not isinstance(n_modes, (tuple, list)) or len(n_modes) != self.n_dim:
            raise MupError(f"n_modes={n_modes!r} does not fit the {self.n_dim} axes of the data. Pass one number per axis.")
        check_names(size, FNO)
        return build_model(FNO, {"in_channels": self.in_channels, "out_channels": self.out_channels, **size})


def build_model(build: Callable[..., nn.Module], size: Mapping[str, Any], where: str = "") -> nn.Module:
    """Build the model at a size. Raise MupError if this fails."""
    call = f"{function_name(build)}(**{dict(size)})"
    try:
        model = build(**size)
    except MupError:
        raise
    except Exception as error:  # user-defined constructors and functions may raise any exception
        n = size.get("n_modes")
        advice = f" Pass n_modes as a tuple: ({n},) in 1D, ({n}, {n}) in 2D." if isinstance(n, int) else ""
        raise MupError(f"{call} failed{where}: {error_text(error)}.{advice}") from error
    if not isinstance(model, nn.Module):
        raise MupError(f"{call} returned {model!r}, but it must return a torch.nn.Module.")
    return model


def n_params(model: nn.Module) -> int:
    """Return the number of trainable values. A complex value counts as two."""
    return sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters())


def function_name(build: Any) -> str:
    """Return the name of a function that builds models."""
    return getattr(build, "name", None) or getattr(build, "__qualname__", type(build).__name__)


def variable_of(name: str) -> str:
    """Return a valid variable name for a function, since lambdas have no name."""
    last = name.rpartition(".")[2]
    return last if last.isidentifier() else "build"


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the warnings of models and losses about batch entries that they ignore."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")
        warnings.filterwarnings("ignore", message=WIDER)  # a base that is too large raises an error elsewhere
        yield


class _Trainer(Trainer):
    """neuralop's trainer, which here also stops if the loss is not finite and writes checkpoints between epochs."""

    checkpoint: Checkpoint | None = None
    bar: Any  # progress bar over the steps
    began: float  # clock time at which the training would have started without interruptions

    def on_epoch_start(self, epoch: int) -> None:
        super().on_epoch_start(epoch)
        if self.checkpoint is not None and epoch > self.start_epoch:
            self.checkpoint.save_if_due(epoch, time.perf_counter() - self.began)

    def train_one_batch(self, idx: int, sample: dict, training_loss: Any) -> torch.Tensor:
        loss = super().train_one_batch(idx, sample, training_loss)
        self.bar.update()
        if not torch.isfinite(loss):
            lr = max(group["lr"] for group in self.optimizer.param_groups)
            raise Diverged(
                f"Training diverged: the loss is {loss.item()} at step {idx + 1} of epoch {self.epoch + 1}, where the "
                f"largest learning rate is {lr:.3g}. Use a lower lr."
            )
        return loss


class Unrolled(nn.Module):
    """A model that is applied to its own predictions for several steps and returns all of them as one batch.

    Parameters
    ----------
    model : torch.nn.Module
    data : ProblemData
        Data that defines the number of steps and the number of frames in an input.
    """

    def __init__(self, model: nn.Module, data: ProblemData) -> None:
        super().__init__()
        self.model, self.steps, self.history = model, data.rollout, data.history

    def forward(self, x: torch.Tensor, **batch: Any) -> torch.Tensor:
        """Return the predictions of all steps, in the order of ``y``."""
        predictions: list[torch.Tensor] = []
        for _ in range(self.steps):
            predictions.append(self.model(x, **batch))
            x = advanced(x, predictions[-1], self.history)
        return torch.cat(predictions)


def processor_of(source: Any, data: Any) -> Any:
    """Return the data processor of a problem or of other data, or None for loaders without one."""
    return source.processor(data) if isinstance(source, Problem) else data.processor()


class Training:
    """The train function of :func:`neuralop_mup.train` and :func:`neuralop_mup.tune`, which trains one model per call.

    Parameters
    ----------
    build : callable
        ``build(**arguments)`` returns a fresh model.
    source : object
        Object with a method ``load()`` that returns the data. Other processes receive this object instead of the data.
    data : ProblemData or Loaders
        The data, already loaded in this process.
    losses : mapping
        Maps a name to (weight, function); see :func:`~neuralop_mup.lab.loss.losses_of`.
    processor : neuralop DataProcessor, optional
        The user's processor. Default: the processor of the data.
    loss : str, callable or mapping
        The argument from which the losses were made. It is part of the fingerprint.
    score : Score, optional
        Score that is used to select learning rates instead of the validation error.
    optimizers : mapping
        Maps a name to a :class:`~neuralop_mup.lab.settings.Choice`.
    x_shape : tuple of int, optional
        Shape ``(channels, *grid)`` of an input, if the data is on a grid.
    errors : mapping, optional
        Maps a name to a function that measures the error of a trained model; see
        :func:`~neuralop_mup.lab.loss.errors_of`. Default: the losses.
    error_name : str, default "loss"
        Name of the first of these errors, for reports.
    """

    keeps_files = True
    show_progress = False  # whether to show a progress bar over the steps on stderr

    def __init__(
        self,
        build: Callable[..., nn.Module],
        source: Any,
        data: Any,
        losses: Losses,
        processor: Any = None,
        loss: Any = "l2",
        score: Score | None = None,
        optimizers: Mapping[str, Choice] = OPTIMIZERS,
        x_shape: tuple[int, ...] | None = None,
        errors: Mapping[str, Term] | None = None,
        error_name: str = "loss",
    ) -> None:
        self.build, self.source, self.losses, self.loss, self.score = build, source, losses, loss, score
        self.optimizers, self._data, self.processor_given, self.x_shape = optimizers, data, processor, x_shape
        self.error_name = error_name
        self.errors = {name: term for name, (_, term) in losses.items()} if errors is None else errors
        self.processor = processor_of(source, data) if processor is None else processor
        if processor is not None and getattr(data, "rollout", 1) > 1:
            raise MupError(
                "A rollout requires input frames that are normalized in the same way as the predictions. Omit processor, or "
                "set rollout=1."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_data": None}  # each process loads the data itself

    def __deepcopy__(self, memo: dict[int, Any]) -> "Training":
        """Copy the functions and the processor, which may be stateful, but share the data."""
        copies = {name: copied(getattr(self, name)) for name in ("build", "losses", "errors", "processor", "score")}
        twin = copy.copy(self)
        vars(twin).update(copies, _data=self._data)
        return twin

    @property
    def data(self) -> Any:
        """The data, which each process loads once."""
        if self._data is None:
            self._data = self.source.load()
        return self._data

    @property
    def parts(self) -> tuple:
        """The objects that must be sent to other processes."""
        return self.build, self.losses, self.processor, self.score, self.optimizers

    # The content of a run

    @cached_property
    def fingerprints(self) -> dict[str, Any]:
        """Fingerprints of everything that a run depends on, except for its settings."""
        parts = {
            "build": self.build,
            "data": self.data,
            "loss": self.loss,
            "processor": self.processor_given,
            "score": self.score and self.score.given,
            "optimizers": {name: choice.make for name, choice in self.optimizers.items() if choice.user_defined} or None,
        }
        given = {name: part for name, part in parts.items() if part is not None}
        printed = {name: part if isinstance(part, str) else fingerprint_or_new(part) for name, part in given.items()}
        return {**printed, "samples": self.data.counts()}

    def content(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return everything that the result of a run depends on. The device is excluded, as it affects only rounding."""
        s = Settings.of({k: v for k, v in config.items() if k != "device"}, self.optimizers)
        return {
            "train": "neuralop_mup",
            "version": {"training": VERSION, "rules": RULE_VERSION},
            **self.fingerprints,
            **{f.name: getattr(s, f.name) for f in fields(s) if f.name not in ("device", "arguments", "optimizers")},
            "optimizer_arguments": optimizer_arguments(s),
        }

    # A run

    def provenance(self, s: Settings) -> dict[str, Any]:
        """Return a description of how a trained model was built and of the data that it was trained on."""
        is_fno, masked = isinstance(self.build, FNOs), getattr(self.data, "masked", False)
        channels = {"in_channels": self.build.in_channels, "out_channels": self.build.out_channels} if is_fno else {}
        counted = self.data.counts() if isinstance(self.data, ProblemData) else {}
        numbers = getattr(self.source, "split_indices", {name: range(n) for name, n in counted.items()})
        return {
            "build": function_name(self.build),
            "is_fno": is_fno,
            "build_is": self.fingerprints["build"],
            "size": {**channels, **s.model},
            "base": s.base,
            "init_mult": {"kernel": 1.0, **s.init_mult},
            "processor": None if self.processor is None else type(self.processor).__qualname__,
            "x_shape": self.x_shape,
            # What NaN in x was filled with, or None.
            "fill": self.data.normalizers[0].mean.tolist() if masked else None,
            "x_had_nan": masked and bool((self.data.sample()["x"][:, -1] == 0).any()),
            "split": {name: list(map(int, found)) for name, found in numbers.items()},  # empty for loaders
        }

    def model(self, s: Settings) -> nn.Module:
        """Return a new parametrized model, initialized with the run's seed."""
        torch.manual_seed(s.seed)
        with quiet():
            return parametrize(
                self.build(**s.model),
                base=None if s.base is None else lambda: self.build(**s.base),
                rule=s.rule,
                init_mult={"kernel": 1.0, **s.init_mult},  # override the default, which is small at the reference size
            )

    def __call__(self, config: Mapping[str, Any], place: str | None = None, keep: bool = False) -> dict[str, Any]:
        """Train one model and measure its errors.

        Parameters
        ----------
        config : mapping
            Arguments of ``build`` as ``model`` and ``base``, other fields of :class:`Settings`, and multipliers as
            ``lr_mult.ROLE`` and ``init_mult.ROLE``.
        place : path, optional
            Folder of the run. A run that was killed resumes from the checkpoint in this folder, bit for bit on a CPU.
        keep : bool
            Whether to write the weights to the folder.

        Returns
        -------
        dict
            Measurements: ``loss``, the error on the validation data, which is used to select hyperparameters;
            ``test_loss``; ``train_loss``, the mean training loss in the last epoch; ``seconds``; ``n_params``; ``steps``;
            ``error_name``; and other losses by name, such as ``equation_loss`` and ``test_equation_loss``. With a score,
            ``loss`` is the score, ``score`` is its name, ``validation_error`` is the error on the validation data, and
            ``test_score`` is a named score on the test data.

        Raises
        ------
        Diverged
            If a loss is not finite.
        MupError
            If the configuration has an unknown key or value, or if the data changed during training.
        """
        s = Settings.of(config, self.optimizers)
        model, trainer, train, evals = self.prepare(s)
        steps, spent = len(train) * s.epochs, 0.0
        if place is not None:
            key = fingerprint([self.fingerprints, releases(), {k: v for k, v in config.items() if k != "device"}])
            state = {"model": model, "optimizer": trainer.optimizer, "scheduler": trainer.scheduler}
            trainer.checkpoint = Checkpoint(Path(place, CHECKPOINT), train, key, **state)
            trainer.start_epoch, spent = trainer.checkpoint.restore()
        trainer.began = time.perf_counter() - spent
        trainer.bar = bar(
            desc="steps", total=steps, initial=trainer.start_epoch * len(train), disable=not self.show_progress, leave=False
        )
        with quiet(), untouched(train), trainer.bar:  # restore the order, since the next run uses the same loader
            metrics = trainer.train(
                train_loader=train,
                test_loaders={},  # errors are measured only once, at the end
                optimizer=trainer.optimizer,
                scheduler=trainer.scheduler,
                training_loss=WeightedSumLoss(*zip(*((term, weight) for weight, term in self.losses.values()), strict=True)),
            )
            trainer.model = model
            measured = self._measured(trainer, evals)
        if not math.isfinite(measured["loss"]):  # the loss of each training step was finite
            raise Diverged(f"Training diverged: the validation error is {measured['loss']} at lr {s.lr:g}. Use a lower lr.")
        if self.score is not None:
            with quiet():
                value = self.score.of(model, self.processor, self.data)
            if not math.isfinite(value):
                raise Diverged(
                    f"The score {self.score.name} of the trained model is {value}. Use a lower lr, or train for longer."
                )
            measured |= {"loss": value, "validation_error": measured["loss"], "score": self.score.name}
            if "test" in evals and isinstance(self.score.given, str):
                with quiet(), suppress(MupError):  # test trajectories may be too short for a rollout
                    measured["test_score"] = self.score.of(model, self.processor, self.data, "test")
        self.data.check_unchanged()
        measured |= {
            "train_loss": float(metrics["avg_loss"]),
            "n_params": n_params(model),
            "steps": steps,
            "seconds": time.perf_counter() - trainer.began,
            "error_name": self.error_name,
        }
        if keep and place is not None:
            keep_weights(model, self.processor, Path(place, WEIGHTS), self.provenance(s))
        return measured

    def prepare(self, s: Settings) -> tuple[nn.Module, _Trainer, Any, Mapping[str, Any]]:
        """Return a new model, its trainer, the training loader, and the evaluation loaders by split."""
        model, data = self.model(s), self.data
        train, evals = data.loaders(s.batch_size, s.seed)
        trained = Unrolled(model, data) if getattr(data, "rollout", 1) > 1 else model
        trainer = _Trainer(model=trained.to(s.device), n_epochs=s.epochs, data_processor=self.processor, device=s.device)
        trainer.optimizer = build_optimizer(model, s, len(train) * s.epochs)
        trainer.scheduler = build_scheduler(trainer.optimizer, s)
        return model, trainer, train, evals

    def _measured(self, trainer: _Trainer, evals: Mapping[str, Any]) -> dict[str, Any]:
        """Return the errors of a trained model on the validation and test data."""
        measured = {}
        for split, loader in evals.items():
            errors = trainer.evaluate(self.errors, loader, log_prefix=split)
            found = {name: float(errors[f"{split}_{name}"]) for name in self.errors}
            share = found.pop(NONZERO, 1.0)  # fraction of the samples with a defined relative error
            if not share:
                raise MupError(
                    f"All samples in {split} are zero everywhere, so their relative error is undefined. Use other samples."
                )
            found["data"] /= share
            for name, value in found.items():
                key = "loss" if name == "data" else f"{name}_loss"
                measured[key if split == "val" else f"{split}_{key}"] = value
        return measured
