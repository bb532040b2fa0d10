"""``Tuned``, a trained target that is ready to predict: written into a study's folder, and read from there."""

import copy
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from neuralop.models import FNO
from torch import nn

from neuralop_mup.checkpoint import fit_plan
from neuralop_mup.core.parametrize import set_plan
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.weights_status import WeightsStatus
from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.batches import as_tensor
from neuralop_mup.lab.files import read_weights
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.records import WEIGHTS, Records
from neuralop_mup.lab.report import verdict
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.score import Predictor
from neuralop_mup.lab.training import function_name, quiet, variable_of
from neuralop_mup.validation import check_count

_UNKNOWN = (
    "x has entries that are not finite, in sample {} among others, so its prediction would be NaN. Training with "
    "read={{'nan': 'mask'}} filled them and added a mask; do the same with x without a mask: known = np.isfinite(x); mean = "
    "tuned.processor.in_normalizer.mean[:, :-1].numpy(); x = np.concatenate([np.where(known, x, mean), "
    "known.all(1, keepdims=True)], 1)."
)


@dataclass(frozen=True, repr=False)
class Tuned:
    """The trained target of a study: what :func:`tune` and :func:`load_tuned` return.

    Attributes
    ----------
    lr : float
        The learning rate at the base: the best that was searched, or under :func:`train` that of the formula.
    params : dict
        All that was searched, at its best: ``lr`` and, for example, ``lr_mult.spectral``.
    model : torch.nn.Module
        The target, parametrized and trained with them: of all seeds the one with the lowest ``loss``, in eval mode.
        It takes and gives what training did, which are normalised fields wherever there is a processor.
    loss : float
        Its validation loss, or what was chosen by instead, its score.
    results : Results
        Every run; ``.summary()`` and ``.best`` are computed from them.
    report : Path
        ``report.md``.
    processor : neuralop DataProcessor or None
        Between fields in your units and what the model takes, in eval mode. None where the data came as loaders or data
        sets and no processor was given: then the model takes batches as those give them.
    split : dict of str to numpy.ndarray
        "train", "val" and "test" → which samples (of trajectories: which of these) the target was trained, chosen and tested
        on: their numbers in the data that was given, or in the part of it that was given for that split. Empty for loaders.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> def build(**size):
    ...     return FNO(in_channels=1, out_channels=1, **size)
    >>> x, target = torch.randn(120, 1, 16), {"hidden_channels": 32, "n_modes": (8,)}
    >>> how = {"space": {"lr": [0.03]}, "epochs": 2, "n_workers": 1, "progress": False}
    >>> tuned = nm.tune(build, (x, x.roll(1, -1)), target=target, folder="runs", **how)
    >>> list(tuned.params), {name: len(samples) for name, samples in tuned.split.items()}
    (['lr'], {'train': 96, 'val': 12, 'test': 12})
    """

    lr: float
    params: dict[str, Any]
    model: nn.Module
    loss: float
    results: Results
    report: Path
    processor: Any
    split: dict[str, np.ndarray]
    _made: dict[str, Any] = field(compare=False)

    def predict(self, x: Any, batch_size: int = 64) -> Any:
        """The target's prediction, from fields in your units to fields in your units; no gradients.

        Parameters
        ----------
        x : torch.Tensor or numpy.ndarray, shape ``(n, channels, *grid)``
            Channels after the samples, whatever they were in a file; of one channel ``(n, *grid)`` will do. Not normalised;
            any real or complex type and device.
        batch_size : int, default 64
            Samples that go through the model at once.

        Returns
        -------
        torch.Tensor or numpy.ndarray, shape ``(n, channels, *grid)``
            As ``x`` was given, on its device, in the model's precision; without the axis of one channel where ``x`` has
            none. The model is left in the mode it was in.

        Raises
        ------
        MupError
            If there is no processor, so that the model's units are not known here. If ``x`` has other channels or axes. If
            the prediction is not finite because ``x`` is not.

        Examples
        --------
        >>> tuned.predict(x[:2]).shape, type(tuned.predict(x[:2].numpy())).__name__
        (torch.Size([2, 1, 16]), 'ndarray')
        """
        if self.processor is None:  # one of the user's own, whose numbers no file holds, or of loaders
            own = self._made["processor"] or "none"
            raise MupError(
                f"The units of the target are unknown: its folder does not contain the processor of training ({own}). Pass "
                "it, nm.load_tuned(folder, build, processor=…), or train with processor=… or on arrays (x, y); or call "
                "tuned.model on fields prepared as in training."
            )
        check_count("batch_size", batch_size, "samples")
        fields = as_tensor("x", x)
        shape = self._made["x_shape"]  # None on no grid: the processor is one of the user's, which knows
        lacks_channels = shape is not None and shape[0] == 1 and fields.ndim == len(shape)  # as files of one channel may
        fields = fields[:, None] if lacks_channels else fields
        fits = shape is None or (fields.ndim == len(shape) + 1 and fields.shape[1] == shape[0] and len(fields))
        unknown = ~torch.isfinite(fields).flatten(1).all(1) if fields.ndim > 1 else torch.zeros(0, dtype=torch.bool)
        if unknown.any() and shape is not None and fields.ndim == len(shape) + 1 and fields.shape[1] == shape[0] - 1:
            raise MupError(_UNKNOWN.format(int(unknown.nonzero()[0])))  # only the channel of the mask is missing
        if not fits:
            raise MupError(
                f"x has the shape {tuple(fields.shape)}, but the target takes (n, {', '.join(map(str, shape))}), of which "
                "the grid may differ and n is 1 or more: x[None] is one sample, x[:, None] has the axis of one channel, and "
                "x.movedim(-1, 1) (np.moveaxis for an array) channels that were last."
            )
        dtype = next(self.model.parameters()).dtype.to_real()
        dtype = dtype.to_complex() if fields.is_complex() else dtype
        modes = [(module, module.training) for module in self.model.modules()]
        predict = Predictor(self.model, self.processor)
        with quiet():
            out = torch.cat([predict(batch.to(dtype)) for batch in fields.split(batch_size)])
        for module, training in modes:
            module.training = training
        if unknown.any() and len(out) == len(fields):
            lost = unknown.to(out.device) & ~torch.isfinite(out).reshape(len(out), -1).all(1)
            if lost.any():
                raise MupError(_UNKNOWN.format(int(lost.nonzero()[0])))
        out = out[:, 0] if lacks_channels and out.shape[1] == 1 else out
        return out if isinstance(x, torch.Tensor) else out.numpy()

    def __repr__(self) -> str:
        made, said = self._made, verdict(self.results)
        base = "" if made["base"] is None else f"base={made['base']}, "
        named = made["metrics"].get("score") or "validation loss"
        return "\n".join(
            (
                *said,
                f"This model, {made['metrics']['n_params']:,} parameters and seed {made['seed']}, has {self.loss:.4g} as "
                f"its {named} and is kept in {self.results.folder}:",
                f"nm.parametrize({made['build']}({_arguments(made['size'])}), {base}rule={made['rule']!r}, "
                f"init_mult={made['init_mult']})",
            )
        )


def load_tuned(folder: str | Path, build: Callable[..., nn.Module] | None = None, *, processor: Any = None) -> Tuned:
    """The trained target of a finished study, read from its folder: what :func:`train` or :func:`tune` returned last.

    Parameters
    ----------
    folder : str or Path
        Of :func:`train` or :func:`tune`, or of their commands (``--folder``).
    build : callable, optional
        The function that :func:`tune` was given. Without it neuralop's FNO is built, which the command trains.
    processor : neuralop DataProcessor, optional
        Needed where :func:`tune` was given one of a class of your own; numbers of neuralop's are in the folder.

    Returns
    -------
    Tuned
        What the call returned, read from files.

    Raises
    ------
    MupError
        If the folder holds no study or one that is not finished, if its files are of another version or damaged, or if
        ``build`` is missing, fails or gives another model.

    Warns
    -----
    UserWarning
        If ``build`` is not as it was: its code, or what it uses, is another one.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> def build(**size):
    ...     return FNO(in_channels=1, out_channels=1, **size)
    >>> x, target = torch.randn(120, 1, 16), {"hidden_channels": 32, "n_modes": (8,)}
    >>> how = {"space": {"lr": [0.03]}, "epochs": 2, "n_workers": 1, "progress": False}
    >>> tuned = nm.tune(build, (x, x.roll(1, -1)), target=target, folder="runs", **how)
    >>> again = nm.load_tuned("runs", build)
    >>> torch.equal(again.predict(x), tuned.predict(x))
    True
    """
    Records(folder)  # raises an error if the folder is a file
    tuned = load_target(Results.load(folder), build, processor)
    made = tuned._made
    with suppress(MupError):  # objects that cannot be inspected are unknown
        if not made["is_fno"] and fingerprint(build) != made["build_is"]:
            warnings.warn(
                f"The function {function_name(build)} has changed since {folder} was tuned: its code, what it uses, or the "
                "version of a package. The target may predict other values. Pass the function as it was.",
                stacklevel=2,
            )
    return tuned


def load_target(results: Results, build: Callable[..., nn.Module] | None, processor: Any) -> Tuned:
    """Read the target of a study; see :func:`load_tuned`."""
    study, folder = results.study, results.folder
    done = [record for record in results.carried(study.target, study.rules[0]) if study.keep_weights and is_complete(record)]
    if not done:
        raise MupError(
            f"{folder} holds no trained target: of the study that ran last there it did not complete, or was a function's "
            "of your own. Run nm.train or nm.tune there."
        )
    record = min(done, key=lambda record: record["loss"])
    path = folder / "workspace" / record["id"] / WEIGHTS
    content = read_weights(path)
    made = {**record, **tuples(content["made"])}
    if build is None and not made["is_fno"]:
        raise MupError(
            f"The study in {folder} was made with a function of your own, {made['build']}: give it, "
            f"nm.load_tuned({str(folder)!r}, {variable_of(made['build'])})."
        )
    builder: Any = FNO if made["is_fno"] else build
    try:
        with torch.random.fork_rng(devices=[]):
            model = builder(**made["size"]).eval()
        set_plan(model, fit_plan(model, Plan.from_json(content["plan"]), repr(str(path))), WeightsStatus.TRAINED)
        model.load_state_dict(content["weights"])
    except Exception as error:  # the function is the user's
        raise MupError(
            f"{function_name(builder)}({_arguments(made['size'])}) does not give the model in {folder}: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}. Give the function that was tuned, as it was."
        ) from error
    used = content["processor"] or copy.deepcopy(processor)
    if used is not None:
        used.to(next(model.parameters()).device)
        used.eval()
    params, split = dict(made["params"]), {name: np.asarray(numbers) for name, numbers in made["split"].items()}
    return Tuned(params["lr"], params, model, made["loss"], results, folder / "report.md", used, split, made)


def _arguments(size: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in size.items())


def tuples(value: Any) -> Any:
    """JSON has lists where arguments were tuples."""
    if isinstance(value, Mapping):
        return {name: tuples(inner) for name, inner in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value
