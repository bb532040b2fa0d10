"""What would fail in every run, or make it worthless, refused before the first one: model, loss and data on two samples."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.describe_model import check_grid
from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.problem_data import ProblemData
from neuralop_mup.lab.outcome import copied
from neuralop_mup.lab.training import Losses, quiet, untouched


@contextmanager
def looking(on_meta: bool = False) -> Iterator[None]:
    """For models that are only looked at: always the same, and no random numbers are used up."""
    with torch.random.fork_rng(devices=[]), quiet(), torch.device("meta") if on_meta else nullcontext():
        torch.manual_seed(0)
        yield


def check_batch(
    call: str, model: nn.Module, sample: Mapping[str, Any], losses: Losses, processor: Any, named: bool, on_grid: bool
) -> None:
    """MupError for a processor, model or loss that fails on two samples, or gives what is no error of them."""
    if processor is not None and not all(hasattr(processor, part) for part in ("preprocess", "postprocess", "to")):
        raise MupError(f"processor={processor!r} must be one of neuralop's data processors, or one derived from them.")
    where = next(model.parameters()).device
    batch = {k: (v[:2] if on_grid else v).to(where) if torch.is_tensor(v) else v for k, v in sample.items()}
    shapes = ", ".join(f"{k} of shape {tuple(v.shape)}" for k, v in batch.items() if torch.is_tensor(v))
    processor = copy.deepcopy(processor)
    try:
        with looking(), torch.no_grad():
            if processor is not None:
                processor.to(where)
                batch = processor.preprocess(batch)
            out = model.eval()(**batch)
            if processor is not None:
                out, batch = processor.postprocess(out, batch)
    except Exception as error:  # the model is the user's
        raise MupError(
            f"The model of {call} fails on a batch of the data, {shapes}: {type(error).__name__}: {error}. Fields are "
            "(n, channels, *grid), x.movedim(-1, 1) and y likewise where channels are last, and the model must take as many "
            "channels as x has."
        ) from error
    if named and isinstance(out, torch.Tensor) and out.shape[1:] != batch["y"].shape[1:]:
        raise MupError(
            f"The model of {call} gives fields of shape {tuple(out.shape[1:])} for a batch with {shapes}: "
            "they must be like y. Give it as many out_channels as y has channels."
        )
    for name, (_, term) in {} if named else losses.items():
        with looking(), torch.no_grad():
            _check_loss("The loss" if name == "data" else f"The loss {name!r}", term, out, batch)


def _check_loss(what: str, term: Callable[..., torch.Tensor], out: Any, batch: Mapping[str, Any]) -> None:
    """MupError for a loss that fails, gives no number or another one the second time, or the mean over a batch."""
    n = len(batch["y"])
    half = n // 2 if torch.is_tensor(out) else 0
    parts = (slice(2 * half or n), slice(2 * half or n), slice(half or n), slice(half, 2 * half or n))
    whole, again, first, second = (
        _value(what, copied(term), _cut(out, n, p), {k: _cut(v, n, p) for k, v in batch.items()}) for p in parts
    )
    if whole != again and not math.isnan(whole):
        raise MupError(
            f"{what} gives {whole:.6g} and then {again:.6g} for the same prediction and batch: it draws random numbers that "
            "are not torch's, so that no run could be repeated. Draw them by torch, which is seeded here."
        )
    both = first + second
    if half and math.isclose(whole, both / 2, rel_tol=1e-3) and not math.isclose(whole, both, rel_tol=1e-3):
        raise MupError(
            f"{what} is a mean over the batch: it gives {whole:.4g} for {2 * half} samples, and {first:.4g} and "
            f"{second:.4g} for the halves of them. Losses are added up over batches, so that other batch sizes would be "
            "other losses: sum over the samples, such as ((y_pred - y) ** 2).flatten(1).mean(1).sum()."
        )


def _cut(value: Any, n: int, part: slice) -> Any:
    return value[part] if torch.is_tensor(value) and value.ndim and len(value) == n else value


def _value(what: str, term: Callable[..., torch.Tensor], prediction: torch.Tensor, sample: Mapping[str, Any]) -> float:
    """What a loss gives; MupError in the user's words where that is no number."""
    torch.manual_seed(0)
    try:
        value = term(prediction, **sample)
    except Exception as error:  # the function is the user's
        raise MupError(
            f"{what} fails on a batch with {', '.join(sample)}: {type(error).__name__}: {error}. It is called as "
            "loss(y_pred, **batch), so take y and **batch."
        ) from error
    if not torch.is_tensor(value) or value.numel() != 1:
        kind = f"a tensor of shape {tuple(value.shape)}" if torch.is_tensor(value) else f"{value!r}"
        raise MupError(f"{what} gives {kind}; it must return a tensor of one number, summed over the batch.")
    return float(value)


def check_data(data: Any, y: Any, models: Mapping[str, nn.Module], batch: int, loss: Any, grid: Sequence[int]) -> None:
    """MupError for too large a batch, samples that no loss can judge, and grids on which a model's modes would be cut."""
    n_train = data.counts()["train"]
    if isinstance(data, ProblemData) and batch > n_train:
        raise MupError(
            f"A batch of {batch} is larger than the training data, {n_train} samples: each epoch would be one step. "
            f"Take a batch_size of {n_train} at most, better a tenth of it, or more data."
        )
    if isinstance(loss, str) and torch.is_tensor(y) and y.is_complex():
        raise MupError(
            f"loss={loss!r} with complex targets: neuralop's losses are of real fields. Give a function of your own "
            "that takes moduli, loss(y_pred, y, **batch), summed over the batch; or real and imaginary parts as channels."
        )
    data.check(relative=isinstance(loss, str))
    train, evals = data.loaders(batch, 0)
    for split, loader in {"train": train, **evals}.items() if grid else ():
        with untouched(loader):
            points = tuple(next(iter(loader))["x"].shape[2:])
        for model in models.values():
            try:
                check_grid(model, points)
            except MupError as error:
                raise MupError(f"Of the {split} data, on {'×'.join(map(str, points))} points: {error}") from error
