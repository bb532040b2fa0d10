"""``Tuned``, a trained target that predicts, and reading it from the folder of a study."""

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
    """The trained target of a study, as :func:`train`, :func:`tune` and :func:`load_tuned` return it.

    Attributes
    ----------
    lr : float
        The learning rate at the base: the best one of the search, or under :func:`train` that of the formula.
    params : dict
        Best values of everything that was searched: ``lr`` and, for example, ``lr_mult.spectral``.
    model : torch.nn.Module
        The target in μP, trained with these values, in eval mode. With several seeds, the one with the lowest ``loss``.
        With a processor, its inputs and outputs are normalized fields.
    loss : float
        Its validation loss, or its score if a score chooses.
    results : Results
        Every run, with ``.summary()`` and ``.best``.
    report : Path
        ``report.md``.
    processor : neuralop DataProcessor or None
        Converts between fields in your units and those of the model, in eval mode. None for loaders and data sets without a
        processor: then the model takes their batches.
    split : dict of str to numpy.ndarray
        "train", "val" and "test" → numbers of the samples or trajectories of that split, in your data, or in the part of it
        that you passed for the split. Empty for loaders.

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
    _provenance: dict[str, Any] = field(compare=False)

    def predict(self, x: Any, batch_size: int = 64) -> Any:
        """Return the prediction for fields in your units, in your units, without gradients.

        Parameters
        ----------
        x : torch.Tensor or numpy.ndarray, shape ``(n, channels, *grid)``
            Not normalized, of any real or complex type, on any device. With one channel, ``(n, *grid)`` is allowed.
        batch_size : int, default 64
            Samples in one call of the model.

        Returns
        -------
        torch.Tensor or numpy.ndarray, shape ``(n, channels, *grid)``
            Of the type of ``x``, on its device, in the precision of the model. Without the axis of channels if ``x`` has
            none. The mode of the model does not change.

        Raises
        ------
        MupError
            If there is no processor, so that the units of the model are unknown. If ``x`` has other channels or axes. If
            the prediction is not finite because ``x`` is not.

        Examples
        --------
        >>> tuned.predict(x[:2]).shape, type(tuned.predict(x[:2].numpy())).__name__
        (torch.Size([2, 1, 16]), 'ndarray')
        """
        if self.processor is None:  # a class of the user, which is not written to files, or loaders
            own = self._provenance["processor"] or "none"
            raise MupError(
                f"The units of the target are unknown: its folder does not contain the processor of training ({own}). Write "
                "nm.load_tuned(folder, build, processor=…), or train with processor=… or on arrays (x, y). Or call "
                "tuned.model on fields prepared as in training."
            )
        check_count("batch_size", batch_size, "samples")
        fields = as_tensor("x", x)
        shape = self._provenance["x_shape"]  # None without a grid: then the user's processor decides
        adds_channel = shape is not None and shape[0] == 1 and fields.ndim == len(shape)
        fields = fields[:, None] if adds_channel else fields
        fits = shape is None or (fields.ndim == len(shape) + 1 and fields.shape[1] == shape[0] and len(fields))
        unknown = ~torch.isfinite(fields).flatten(1).all(1) if fields.ndim > 1 else torch.zeros(0, dtype=torch.bool)
        if unknown.any() and shape is not None and fields.ndim == len(shape) + 1 and fields.shape[1] == shape[0] - 1:
            raise MupError(_UNKNOWN.format(int(unknown.nonzero()[0])))  # only the channel of the mask is missing
        if not fits:
            raise MupError(
                f"x has the shape {tuple(fields.shape)}, but the target takes (n, {', '.join(map(str, shape))}), n at least "
                "1 and any grid. x[None] is one sample, x[:, None] adds the axis of one channel, and "
                "x.movedim(-1, 1) (np.moveaxis for an array) moves channels that are last."
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
        out = out[:, 0] if adds_channel and out.shape[1] == 1 else out
        return out if isinstance(x, torch.Tensor) else out.numpy()

    def __repr__(self) -> str:
        made = self._provenance
        base = "" if made["base"] is None else f"base={made['base']}, "
        named = made["metrics"].get("score") or "validation loss"
        return "\n".join(
            (
                *verdict(self.results),
                f"This model has {made['metrics']['n_params']:,} parameters, seed {made['seed']} and a {named} of "
                f"{self.loss:.4g}. It is in {self.results.folder}:",
                f"nm.parametrize({made['build']}({_arguments(made['size'])}), {base}rule={made['rule']!r}, "
                f"init_mult={made['init_mult']})",
            )
        )


def load_tuned(folder: str | Path, build: Callable[..., nn.Module] | None = None, *, processor: Any = None) -> Tuned:
    """Read the trained target of the last study in a folder, as :func:`train` or :func:`tune` returned it.

    Parameters
    ----------
    folder : str or Path
        Folder of :func:`train` or :func:`tune`, or of their commands (``--folder``).
    build : callable, optional
        The function that you passed to :func:`tune`. Default: neuralop's FNO, as the commands train it.
    processor : neuralop DataProcessor, optional
        Your processor, if its class is not from neuralop. Others are in the folder.

    Returns
    -------
    Tuned
        The trained target.

    Raises
    ------
    MupError
        If the folder has no finished study, if its files belong to another version or are damaged, or if ``build`` is
        missing, fails or returns another model.

    Warns
    -----
    UserWarning
        If the code of ``build`` or of what it uses has changed.

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
    made = tuned._provenance
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
            f"{folder} contains no trained target: its last study did not complete, or your own function trained. "
            "Run nm.train or nm.tune there."
        )
    record = min(done, key=lambda record: record["loss"])
    path = folder / "workspace" / record["id"] / WEIGHTS
    content = read_weights(path)
    made = {**record, **tuples(content["made"])}
    if build is None and not made["is_fno"]:
        raise MupError(
            f"The function {made['build']} built the target in {folder}. Pass it: "
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
            f"{function_name(builder)}({_arguments(made['size'])}) does not return the model in {folder}: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}. Pass the function as it was in training."
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
    """Return a value of JSON with tuples instead of lists."""
    if isinstance(value, Mapping):
        return {name: tuples(inner) for name, inner in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value
