"""Check the model, the loss and the data on two samples, before any run."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.describe_model import check_grid
from neuralop_mup.errors import MupError, error_text
from neuralop_mup.lab.loss import Losses, is_of_normalized
from neuralop_mup.lab.outcome import copied, versions
from neuralop_mup.lab.problems import ProblemData
from neuralop_mup.lab.training import quiet, untouched


@contextmanager
def inspection(on_meta: bool = False) -> Iterator[None]:
    """Build and call models for inspection, with a fixed seed and without changing the global random state."""
    with torch.random.fork_rng(devices=[]), quiet(), torch.device("meta") if on_meta else nullcontext():
        torch.manual_seed(0)
        yield


def check_batch(
    call: str, model: nn.Module, sample: Mapping[str, Any], losses: Losses, processor: Any, named: bool, on_grid: bool
) -> None:
    """Raise MupError if the processor, the model or the loss fails on two samples, or if the loss is invalid."""
    if processor is not None and not all(hasattr(processor, part) for part in ("preprocess", "postprocess", "to")):
        raise MupError(f"processor={processor!r} must be an instance of a neuralop data processor or of a subclass.")
    where = next(model.parameters()).device
    batch = {k: (v[:2] if on_grid else v).to(where) if torch.is_tensor(v) else v for k, v in sample.items()}
    mask = "; with nan='mask', the last channel of x is the mask" if "mask" in batch else ""
    shapes = ", ".join(f"{k} of shape {tuple(v.shape)}" for k, v in batch.items() if torch.is_tensor(v)) + mask
    processor = copy.deepcopy(processor)
    try:
        with inspection(), torch.no_grad():
            if processor is not None:
                processor.to(where)
                batch = processor.preprocess(batch)
            out = model.eval()(**batch)
            if processor is not None:
                out, batch = processor.postprocess(out, batch)
    except Exception as error:  # the user's model may raise any exception
        raise MupError(
            f"The model from {call} failed on a batch of the data ({shapes}): {error_text(error)}. Fields must "
            "have the shape (n, channels, *grid); use x.movedim(-1, 1) if the channels come last. In the model, in_channels "
            "must equal the number of channels of x, n_modes must have one entry per axis, and forward(self, x, **_) must "
            "accept extra keyword arguments."
        ) from error
    if named and isinstance(out, torch.Tensor) and out.shape[1:] != batch["y"].shape[1:]:
        raise MupError(
            f"The model from {call} returned fields of shape {tuple(out.shape[1:])} for a batch with {shapes}, but "
            "predictions must have the same shape as y. Set out_channels to the number of channels of y."
        )
    for name, (_, term) in {} if named else losses.items():
        with inspection(), torch.no_grad():
            _check_loss("The loss" if name == "data" else f"The loss {name!r}", term, out, batch)


def _check_loss(what: str, term: Callable[..., torch.Tensor], out: Any, batch: Mapping[str, Any]) -> None:
    """Raise MupError if a loss fails, does not return a number, is not deterministic, or is a mean over the batch."""
    n = len(batch["y"])
    half = n // 2 if torch.is_tensor(out) else 0
    parts = (slice(2 * half or n), slice(2 * half or n), slice(half or n), slice(half, 2 * half or n))
    whole, again, first, second = (
        _value(what, copied(term), _cut(out, n, p), {k: _cut(v, n, p) for k, v in batch.items()}) for p in parts
    )
    if whole != again and not math.isnan(whole):
        raise MupError(
            f"{what} returned {whole:.6g} and then {again:.6g} for the same prediction and batch, so runs "
            "would not be reproducible. Draw random numbers with torch, which is seeded for each run."
        )
    both = first + second
    if half and math.isclose(whole, both / 2, rel_tol=1e-3) and not math.isclose(whole, both, rel_tol=1e-3):
        raise MupError(
            f"{what} is averaged over the batch: its value is {whole:.4g} for {2 * half} samples, and {first:.4g} and "
            f"{second:.4g} for the two halves of this batch. A loss must be a sum over the samples, because a mean would "
            "depend on the batch size. For example, use ((y_pred - y) ** 2).flatten(1).mean(1).sum()."
        )


def _cut(value: Any, n: int, part: slice) -> Any:
    return value[part] if torch.is_tensor(value) and value.ndim and len(value) == n else value


def _value(what: str, term: Callable[..., torch.Tensor], prediction: torch.Tensor, sample: Mapping[str, Any]) -> float:
    """Return the value of a loss. Raise MupError if it is not a single number."""
    torch.manual_seed(0)
    try:
        value = term(prediction, **sample)
    except Exception as error:  # the user's function may raise any exception
        raise MupError(
            f"{what} failed on a batch with the entries {', '.join(sample)}: {error_text(error)}. It is called "
            "as loss(y_pred, **batch), so it must accept y and **batch. For the mean squared error, use loss='mse'."
        ) from error
    if not torch.is_tensor(value) or value.numel() != 1:
        kind = f"a tensor of shape {tuple(value.shape)}" if torch.is_tensor(value) else f"{value!r}"
        raise MupError(f"{what} returned {kind}, but it must return a tensor with one element, the sum over the batch.")
    return float(value)


def check_data(data: Any, y: Any, models: Mapping[str, nn.Module], batch: int, loss: Any, grid: Sequence[int]) -> None:
    """Raise MupError if the batch is too large, the loss is undefined for a sample, or a grid is too coarse."""
    n_train = data.counts()["train"]
    if isinstance(data, ProblemData) and batch > n_train:
        raise MupError(
            f"The batch size {batch} exceeds the {n_train} training samples, so each epoch would be a single step. Use a "
            f"batch_size of at most {n_train}, preferably about a tenth of that, or more data."
        )
    if isinstance(loss, str) and torch.is_tensor(y) and y.is_complex():
        raise MupError(
            f"loss={loss!r} cannot be used with complex targets. Pass a function loss(y_pred, y, **batch) that uses "
            "absolute values and sums over the batch, or pass the real and imaginary parts as separate channels."
        )
    data.check(relative=isinstance(loss, str) and not is_of_normalized(loss))
    train, evals = data.loaders(batch, 0)
    for split, loader in {"train": train, **evals}.items() if grid else ():
        with untouched(loader):
            points = tuple(next(iter(loader))["x"].shape[2:])
        for model in models.values():
            try:
                check_grid(model, points)
            except MupError as error:
                raise MupError(f"The {split} data has {'×'.join(map(str, points))} points. {error}") from error


def note_on_odd_grid(points: Sequence[int]) -> str:
    """Return a warning about an odd number of points, for which neuraloperator 2.0.0 is wrong on several axes, or ""."""
    if len(points) < 2 or not any(n % 2 for n in points) or versions()["neuraloperator"] != "2.0.0":
        return ""
    return (
        f"The grid has {'×'.join(map(str, points))} points, but SpectralConv in neuraloperator 2.0.0 gives wrong results "
        "for an odd number of points. Use an even number of points on each axis, or crop the last point of the odd axes "
        "(read={'crop': {'x': (0, -1)}})."
    )
