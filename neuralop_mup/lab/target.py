"""``Tuned``, a trained model that predicts, and its loading from the folder of a study."""

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
from neuralop_mup.core.describe_model import fourier_blocks
from neuralop_mup.core.parametrize import set_plan
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.weights_status import WeightsStatus
from neuralop_mup.errors import MupError, error_text
from neuralop_mup.lab.checks import note_on_odd_grid
from neuralop_mup.lab.data.batches import as_tensor, with_mask
from neuralop_mup.lab.files import is_known, read_weights
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.records import WEIGHTS
from neuralop_mup.lab.report import verdict
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.score import Predictor
from neuralop_mup.lab.training import function_name, quiet, variable_of
from neuralop_mup.validation import check_count


@dataclass(frozen=True, repr=False)
class Tuned:
    """The trained target of a study, which :func:`train`, :func:`tune` and :func:`load_tuned` return.

    Attributes
    ----------
    lr : float
        The learning rate of the base model: the best one of the search or, for :func:`train`, the one from the formula.
    params : dict
        Best values of all hyperparameters that were searched: ``lr`` and, for example, ``lr_mult.spectral``.
    model : torch.nn.Module
        The target in μP, trained with these values, in eval mode. With several seeds, this is the model with the lowest
        ``loss``. If there is a processor, the inputs and outputs of the model are normalized fields.
    loss : float
        The validation loss of the model, or its score if a score is used for selection.
    results : Results
        The results of all runs, with ``.summary()`` and ``.best``.
    report : Path
        Path of ``report.md``.
    processor : neuralop DataProcessor or None
        Data processor in eval mode, which converts between fields in your units and normalized fields. None for loaders and
        data sets without a processor; the model then takes their batches directly.
    split : dict of str to numpy.ndarray
        Maps "train", "val" and "test" to the indices of the samples or trajectories of that split, in your data or in the
        part of it that you passed for the split. Data with only one or two trajectories is cut into ten
        pieces per trajectory, and these are the indices of the pieces. Empty for loaders.

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
        """Return the prediction for fields in your units. The prediction has your units too, and no gradients.

        Parameters
        ----------
        x : torch.Tensor or numpy.ndarray, shape ``(n, channels, *grid)``
            Fields that are not normalized, of any real or complex type, on any device. With one channel, the shape
            ``(n, *grid)`` is also allowed. After training with ``read={"nan": "mask"}``, fields may contain NaN and have no
            channel for the mask.
        batch_size : int, default 64
            Number of samples in one call of the model.

        Returns
        -------
        torch.Tensor or numpy.ndarray, shape ``(n, channels, *grid)``
            The prediction, of the same type and on the same device as ``x``, in the precision of the model. It has no
            channel axis if ``x`` has none. The training mode of the model does not change. Where targets were NaN in
            training, such as over land, the prediction has no meaning.

        Raises
        ------
        MupError
            If there is no processor, so the units of the model are unknown; if the channels or axes of ``x`` do not match
            those used in training; or if ``x`` contains values that are not finite, unless these were masked in training.

        Warns
        -----
        UserWarning
            If an axis has an odd number of points, for which neuraloperator 2.0.0 is wrong in 2D and 3D; or if ``x`` has no
            NaN, although the inputs in training had.

        Examples
        --------
        >>> tuned.predict(x[:2]).shape, type(tuned.predict(x[:2].numpy())).__name__
        (torch.Size([2, 1, 16]), 'ndarray')
        """
        if self.processor is None:  # loaders, or a user-defined class, which is not stored in files
            own = self._provenance["processor"] or "none"
            raise MupError(
                "The units of the target are unknown, because its folder does not contain the data processor that was used "
                f"in training ({own}). Call nm.load_tuned(folder, build, processor=…), or retrain with processor=… or on "
                "arrays (x, y). Alternatively, call tuned.model on fields that are preprocessed as in training."
            )
        check_count("batch_size", batch_size, "samples")
        fields = as_tensor("x", x)
        shape = self._provenance["x_shape"]  # None if there is no grid; the user's processor then validates x
        fill = self._provenance.get("fill")
        if fill is not None:  # the last channel of the model's input is the mask
            shape = [shape[0] - 1, *shape[1:]]
        adds_channel = shape is not None and shape[0] == 1 and fields.ndim == len(shape)
        fields = fields[:, None] if adds_channel else fields
        unknown = (~torch.isfinite(fields)).nonzero()
        fills = fill is not None or not is_known(self.processor)  # a user-defined processor may fill such values
        if fields.ndim and len(unknown) and not fills:
            raise MupError(
                f"x contains values that are not finite, for example in sample {int(unknown[0, 0])}, so the prediction "
                "would be NaN. Remove such samples. To predict with missing values, train with read={'nan': 'mask'}."
            )
        if shape is not None and not (fields.ndim == len(shape) + 1 and fields.shape[1] == shape[0] and len(fields)):
            raise MupError(
                f"x has the shape {tuple(fields.shape)}, but the target expects (n, {', '.join(map(str, shape))}) with n ≥ "
                "1 and any number of grid points. Use x[None] for a single sample, x[:, None] to add a channel axis, or "
                "x.movedim(-1, 1) (np.moveaxis for an array) if the channels come last. The channels are those of the input "
                "in training: for trajectories, the frames, oldest first, and then further inputs."
            )
        mean = getattr(getattr(self.processor, "in_normalizer", None), "mean", None)
        if fields.is_complex() and torch.is_tensor(mean) and not mean.is_complex():
            raise MupError("x is complex, but the target was trained on real fields. Pass x as in training, such as x.real.")
        if fill is not None:
            if fields.isinf().any() or not torch.isfinite(fields).flatten(1).any(1).all():
                raise MupError(
                    "x contains infinite values or a sample that is NaN everywhere, and predict cannot fill these. Remove "
                    "such samples."
                )
            if not len(unknown) and self._provenance.get("x_had_nan"):
                warnings.warn(
                    "x contains no NaN, although the inputs in training did, so all its points are treated as known. If x "
                    "is a prediction, as in a rollout, first set unknown points, such as land, to NaN.",
                    stacklevel=2,
                )
            fields = with_mask(fields, torch.tensor(fill))
        dtype = next(self.model.parameters()).dtype.to_real()
        dtype = dtype.to_complex() if fields.is_complex() else dtype
        modes = [(module, module.training) for module in self.model.modules()]
        predict = Predictor(self.model, self.processor)
        if any(fourier_blocks(self.model)) and (note := note_on_odd_grid(fields.shape[2:])):
            warnings.warn(note, stacklevel=2)
        with quiet():
            out = torch.cat([predict(batch.to(dtype)) for batch in fields.split(batch_size)])
        for module, training in modes:
            module.training = training
        out = out[:, 0] if adds_channel and out.shape[1] == 1 else out
        return out if isinstance(x, torch.Tensor) else out.numpy()

    def __repr__(self) -> str:
        made = self._provenance
        base = "" if made["base"] is None else f"base={made['base']}, "
        named = made["metrics"].get("score") or made["metrics"].get("error_name", "loss")
        return "\n".join(
            (
                *verdict(self.results),
                f"This model has {made['metrics']['n_params']:,} parameters and was trained with seed {made['seed']}. Its "
                f"{named} on the validation data is {self.loss:.4g}. The model is stored in {self.results.folder} and was "
                "built by:",
                f"nm.parametrize({made['build']}({_arguments(made['size'])}), {base}rule={made['rule']!r}, "
                f"init_mult={made['init_mult']})",
            )
        )


def load_tuned(folder: str | Path, build: Callable[..., nn.Module] | None = None, *, processor: Any = None) -> Tuned:
    """Load the trained target of the last study in a folder, as returned by :func:`train` or :func:`tune`.

    Parameters
    ----------
    folder : str or Path
        Folder that was passed to :func:`train` or :func:`tune`, or to their commands (``--folder``).
    build : callable, optional
        The function that you passed to :func:`train` or :func:`tune`. Default: neuralop's FNO, which the commands train.
    processor : neuralop DataProcessor, optional
        Your processor, if its class is not from neuralop. Other processors are stored in the folder.

    Returns
    -------
    Tuned
        The trained target.

    Raises
    ------
    MupError
        If the folder contains no finished study, if its files are damaged or were written by an incompatible version, or if
        ``build`` is missing, fails or returns a different model.

    Warns
    -----
    UserWarning
        If the code of ``build`` or of anything that it uses has changed.

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
    tuned = load_target(Results.load(folder), build, processor)
    made = tuned._provenance
    with suppress(MupError):  # for objects that cannot be inspected, changes cannot be detected
        if not made["is_fno"] and fingerprint(build) != made["build_is"]:
            warnings.warn(
                f"The function {function_name(build)} has changed since the target in {folder} was trained: its code, "
                "something that it uses, or the version of a package is different. Predictions may therefore differ. Pass "
                "the original function.",
                stacklevel=2,
            )
    return tuned


def load_target(results: Results, build: Callable[..., nn.Module] | None, processor: Any) -> Tuned:
    """Load the target of a study (see :func:`load_tuned`)."""
    study, folder = results.study, results.folder
    done = [record for record in results.carried(study.target, study.rules[0]) if study.keep_weights and is_complete(record)]
    if not done:
        raise MupError(
            f"{folder} contains no trained target: its last study did not complete, or the training was done by your own "
            "function. Run nm.train or nm.tune there."
        )
    record = min(done, key=lambda record: record["loss"])
    path = folder / "workspace" / record["id"] / WEIGHTS
    content = read_weights(path)
    made = {**record, **tuples(content["made"])}
    if build is None and not made["is_fno"]:
        raise MupError(
            f"The target in {folder} was built by the function {made['build']}. Pass this function: "
            f"nm.load_tuned({str(folder)!r}, {variable_of(made['build'])})."
        )
    builder: Any = FNO if made["is_fno"] else build
    try:
        with torch.random.fork_rng(devices=[]):
            model = builder(**made["size"]).eval()
        set_plan(model, fit_plan(model, Plan.from_json(content["plan"]), repr(str(path))), WeightsStatus.TRAINED)
        model.load_state_dict(content["weights"])
    except Exception as error:  # the user's function may raise any exception
        raise MupError(
            f"{function_name(builder)}({_arguments(made['size'])}) does not return the model stored in {folder}: "
            f"{error_text(error)}. Pass the function that was used in training."
        ) from error
    used = Predictor(model, content["processor"] or processor).processor  # in eval mode, on the device of the model
    params, split = dict(made["params"]), {name: np.asarray(numbers) for name, numbers in made["split"].items()}
    return Tuned(params["lr"], params, model, made["loss"], results, folder / "report.md", used, split, made)


def _arguments(size: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in size.items())


def tuples(value: Any) -> Any:
    """Return a JSON value with tuples instead of lists."""
    if isinstance(value, Mapping):
        return {name: tuples(inner) for name, inner in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value
