"""``Tuned``: the trained target of a study, ready to predict; and ``load_tuned``, which reads it from the study's folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from neuralop.models import FNO
from torch import nn

from neuralop_mup._version import __version__
from neuralop_mup.core.parametrize import set_plan
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import Diverged, MupError
from neuralop_mup.integrations.plan_files import fit_plan
from neuralop_mup.lab import findings
from neuralop_mup.lab import wording as say
from neuralop_mup.lab.checkpoint import answers_alike, answers_of, read_weights
from neuralop_mup.lab.files import write_atomically
from neuralop_mup.lab.outcome import is_complete, plain
from neuralop_mup.lab.prediction import predicted
from neuralop_mup.lab.records import WEIGHTS, Records
from neuralop_mup.lab.settings import KERNEL_INITS, Settings
from neuralop_mup.lab.space import edge_of, params_key
from neuralop_mup.lab.summary import Results
from neuralop_mup.lab.train import Training, n_params, quiet
from neuralop_mup.validation import check_count

__all__ = ["Tuned", "lines_of_use", "load_target", "load_tuned", "name_of", "write_target"]

_FILE = "target.json"
_FORMAT = 3


@dataclass(frozen=True, repr=False)
class Tuned:
    """The trained target of a study: what :func:`tune` and :func:`load_tuned` return.

    Attributes
    ----------
    lr : float
        The base's best learning rate.
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
        ``report.md``; ``report.html`` lies beside it.
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
            Channels after the samples, whatever they were in a file. Not normalised; any real or complex type and device.
        batch_size : int, default 64
            Samples that go through the model at once.

        Returns
        -------
        torch.Tensor or numpy.ndarray, shape ``(n, channels, *grid)``
            As ``x`` was given, on its device, in the model's precision. The model is left in the mode it was in.

        Raises
        ------
        MupError
            If there is no processor, so that the model's units are not known here, or if ``x`` has other channels or axes.

        Examples
        --------
        >>> tuned.predict(x[:2]).shape, type(tuned.predict(x[:2].numpy())).__name__
        (torch.Size([2, 1, 16]), 'ndarray')
        """
        if self.processor is None and self._made["processor"] is not None:  # one whose numbers no file holds
            raise MupError(
                f"The target was trained with a processor of your own ({self._made['processor']}), which the folder cannot "
                "hold: give it, nm.load_tuned(folder, build, processor=…)."
            )
        if self.processor is None:
            raise MupError(
                "The target was trained on batches as your loaders or data sets gave them, so what units they have is not "
                "known here. Call tuned.model on fields prepared as in these batches, or tune with processor=…, or with "
                "arrays (x, y), which are normalised here."
            )
        check_count("batch_size", batch_size, "samples")
        fields = x if isinstance(x, torch.Tensor) else torch.as_tensor(np.asarray(x))
        self._check(fields)
        device, dtype = (p := next(self.model.parameters())).device, p.dtype.to_real()
        dtype = dtype.to_complex() if fields.is_complex() else dtype
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            self.processor.to(device)
            self.processor.eval()
            self.model.eval()
            with torch.no_grad(), quiet():
                batches = [self._predicted(batch.to(device, dtype)).to(fields.device) for batch in fields.split(batch_size)]
        finally:
            for module, training in modes:
                module.training = training
        out = torch.cat(batches)
        return out if isinstance(x, torch.Tensor) else out.numpy()

    def _predicted(self, x: torch.Tensor) -> torch.Tensor:
        out = predicted(self.model, self.processor, {"x": x})
        if not torch.isfinite(out).all() and torch.isfinite(x).all():
            raise MupError(
                f"The prediction is not finite although x is: the processor, a {type(self.processor).__name__}, uses y, "
                "which a prediction has not, or the model leaves the finite numbers there. Call the two yourself."
            )
        return out

    def _check(self, fields: torch.Tensor) -> None:
        shape = self._made["x_shape"]  # None on no grid: the processor is one of the user's, which knows
        if shape is None or (fields.ndim == len(shape) + 1 and fields.shape[1] == shape[0] and len(fields)):
            return
        do = "give as many channels and axes as the training data has"
        if fields.ndim == len(shape) + 1 and fields.shape[-1] == shape[0]:
            do = "its channels are last: move them, np.moveaxis(x, -1, 1) or x.movedim(-1, 1)"
        elif fields.ndim == len(shape) and fields.shape[0] == shape[0]:
            do = "for one sample give x[None]"
        elif fields.ndim == len(shape) and shape[0] == 1:
            do = "give the axis of the one channel, x[:, None]"
        raise MupError(
            f"x has the shape {tuple(fields.shape)}, but the target takes (n, {', '.join(map(str, shape))}), of which the "
            f"grid may differ and n is 1 or more: {do}."
        )

    def __repr__(self) -> str:
        made, study = self._made, self.results.study
        grid, where = study.space.get("lr"), f"searched as {study.space.get('lr')}"
        if isinstance(grid, Sequence):
            edge = edge_of(self.lr, grid)
            where = f"searched from {min(grid):g} to {max(grid):g}, "
            where += f"at the {edge} of it: extend the grid" if edge else "inside"
        if others := {name: value for name, value in self.params.items() if name != "lr"}:
            where += f"; {say.params(others)}"
        seeds = f"over {n} seeds" if (n := len(study.seeds)) > 1 else "with one seed"
        loss = say.loss_of_row(self.results.row(made["rule"]), "transferred")
        init_mult = {
            **({"kernel": KERNEL_INITS[made["kernel_init"]]} if made["kernel_init"] != "default" else {}),
            **made["init_mult"],
        }
        usual = {"rule": (made["rule"], DEFAULT_RULE), "init_mult": (init_mult, {})}
        rest = "".join(f", {key}={own!r}" for key, (own, value) in usual.items() if own != value)
        size = _arguments(made["size"])
        short, long = made["training"].get("steps", (1, 1))  # every rate goes as the root of their ratio
        there = f", {self.lr * math.sqrt(short / long):.3g} for the {long} steps of the target" if short != long else ""
        price = findings.price(self.results)
        took = "" if price is None else f"; tuning took {price[0]:.2f} of one training of it"
        return "\n".join(
            (
                f"lr {self.lr:g} at the {study.base} ({where}){there}",
                f"{made.get('score') or 'validation loss'} {loss} {seeds}; this model, seed {made['seed']}: "
                f"{self.loss:.4g}{took}",
                f"target {size}, {n_params(self.model):,} parameters; kept in {self.results.folder}",
                f"nm.parametrize({made['build']}({size}), base={made['base']}{rest})",
            )
        )


def write_target(results: Results, training: Training, x_shape: Sequence[int] | None) -> dict[str, Any] | None:
    """Write down which run is the target and how its model is built; also returned. None where no run is complete."""
    study = results.study
    done = [r for r in results.carried(study.target, study.rules[0]) if is_complete(r)]
    if not done:
        return None
    record = min(done, key=lambda r: r["loss"])
    point = study.point(study.target, study.rules[0], study.as_given(record["params"]), keep=True)
    run = study.runs(point)[study.seeds.index(record["seed"])]
    settings, build = Settings.of({k: v for k, v in run.config.items() if k != "device"}), training.build
    is_fno = getattr(build, "name", None) == "FNO"
    channels = {"in_channels": build.in_channels, "out_channels": build.out_channels} if is_fno else {}
    made = {
        "format": _FORMAT,
        "version": __version__,
        "build": name_of(build),
        "module": getattr(build, "__module__", "__main__"),
        "is_fno": is_fno,
        "size": {**channels, **run.config["model"]},
        "base": dict(run.config["base"]),
        "rule": study.rules[0],
        "init_mult": dict(settings.init_mult),
        "kernel_init": settings.kernel_init,
        "training": {name: tuple(pair) for name, pair in settings.training.items()},
        "params": record["params"],
        "seed": record["seed"],
        "loss": record["loss"],
        "score": training.score and training.score.name,
        "weights": f"workspace/{run.id}/{WEIGHTS}",
        "processor": None if training.processor is None else type(training.processor).__qualname__,
        "x_shape": None if x_shape is None else list(x_shape),
        "split": training.split(),
    }
    write_atomically(results.folder / _FILE, json.dumps(plain(made), indent=2) + "\n")
    return made


def load_tuned(folder: str | Path, build: Callable[..., nn.Module] | None = None, *, processor: Any = None) -> Tuned:
    """The trained target of a finished study, read from its folder: what :func:`tune` returned there last.

    Parameters
    ----------
    folder : str or Path
        Of :func:`tune`, or of ``neuralop-mup tune`` (``--folder``).
    build : callable, optional
        The function that :func:`tune` was given. Without it neuralop's FNO is built, which the command trains.
    processor : neuralop DataProcessor, optional
        Needed where :func:`tune` was given one of a class of your own; numbers of neuralop's are in the folder.

    Returns
    -------
    Tuned
        What :func:`tune` returned, read from files.

    Raises
    ------
    MupError
        If the folder holds no study or one that is not finished, if its files are of another version or damaged, or if
        ``build`` is missing, fails or gives another model.

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
    folder = Path(folder)
    Records(folder)  # one of an earlier version is told
    if not (folder / "study.json").is_file():
        raise MupError(
            f"{folder} holds no study: give the folder of nm.tune, or the one that neuralop-mup tune names at its end."
        )
    again = "Run the same call or command again, which resumes there."
    if not (folder / _FILE).is_file():
        raise MupError(f"The study in {folder} has no trained target: it is not finished, or its target failed. {again}")
    try:
        made = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        version = made["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise MupError(f"{folder / _FILE} is damaged ({type(error).__name__}: {error}). {again}") from error
    if version != _FORMAT:
        raise MupError(
            f"The target in {folder} was written by neuralop_mup {made.get('version')} in the format {version}, and this is "
            f"{__version__} with the format {_FORMAT}: load it with the version that wrote it, or tune in another folder."
        )
    results = Results.load(folder)
    if params_key(results.best) != params_key(made["params"]):
        raise MupError(
            f"The study in {folder} has gone on since its target was trained: {say.params(results.best)} is better at the "
            f"base now than {say.params(made['params'])}. {again}"
        )
    return load_target(results, made, build, processor)


def load_target(
    results: Results, made: Mapping[str, Any] | None, build: Callable[..., nn.Module] | None, processor: Any
) -> Tuned:
    """The target that was written down, read; see :func:`load_tuned`.

    Raises
    ------
    MupError
        Also where there is none, since no run of it completed.
    """
    folder, study = results.folder, results.study
    if made is None:
        errors = (r["error"] for r in results.carried(study.target, study.rules[0]) if not is_complete(r))
        why = next(errors, "none ran")
        raise Diverged(f"No run of the target completed with {say.params(results.best)}: {why}")
    build = None if getattr(build, "name", None) == "FNO" else build  # the command's own
    if build is not None and build is not FNO and made["is_fno"]:
        raise MupError(
            f"The study in {folder} trained neuralop's FNO and needs no function: nm.load_tuned({str(folder)!r})."
        )
    if build is None and not made["is_fno"]:
        raise MupError(
            f"The study in {folder} was made with a function of your own, {made['build']}: give it, "
            f"nm.load_tuned({str(folder)!r}, {made['build'].rpartition('.')[2]})."
        )
    path = folder / made["weights"]
    content = read_weights(path)
    made = {**made, **{name: _tuples(made[name]) for name in ("size", "base", "training")}}
    builder: Callable[..., nn.Module] = build or FNO
    try:
        model = builder(**made["size"])
    except Exception as error:  # the function is the user's
        raise MupError(
            f"{name_of(builder)}({_arguments(made['size'])}) fails, with the arguments of the target in {folder}: "
            f"{type(error).__name__}: {error}"
        ) from error
    set_plan(model, fit_plan(model, Plan.from_json(content["plan"]), repr(str(path))))
    try:
        model.load_state_dict(content["weights"])
    except RuntimeError as error:
        text = " ".join(str(error).split())[:300]
        raise MupError(
            f"{name_of(builder)} gives another model than the one in {folder}: {text}. Give the function that was tuned."
        ) from error
    model.eval()
    if "like" in content:
        shape, dtype = content["like"]
        like = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        if not answers_alike(content["answers"], answers_of(model, like)):
            raise MupError(
                f"{name_of(builder)} gives another model than the one in {folder}: with the same weights it predicts "
                "otherwise than it did after training. Give the function that was tuned, as it was."
            )
    used = content["processor"] or processor
    if used is not None:
        used.to(next(model.parameters()).device)
        used.eval()
    params, split = dict(made["params"]), {name: np.asarray(numbers) for name, numbers in made["split"].items()}
    return Tuned(params["lr"], params, model, made["loss"], results, folder / "report.md", used, split, dict(made))


def lines_of_use(folder: Path, made: Mapping[str, Any]) -> list[str]:
    """The lines of Python that load the target and predict with it."""
    name, module = made["build"], "your_script" if made["module"] == "__main__" else made["module"]
    given = "" if made["is_fno"] else f", {name.rpartition('.')[2]}"
    imported = [] if made["is_fno"] else [f"from {module} import {name.partition('.')[0]}"]
    if made["processor"] is None or made["x_shape"] is None:
        last = "tuned.model  # takes batches as your loaders give them: they brought no processor"
    else:
        shape = ", ".join(map(str, made["x_shape"]))
        last = f"prediction = tuned.predict(x)  # x of shape (n, {shape}) in the units of the data, tensor or numpy"
    return ["import neuralop_mup as nm", *imported, f"tuned = nm.load_tuned({str(folder)!r}{given})", last]


def name_of(build: Any) -> str:
    """What a function that builds models is called."""
    return getattr(build, "name", None) or getattr(build, "__qualname__", type(build).__name__)


def _arguments(size: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in size.items())


def _tuples(value: Any) -> Any:
    """JSON has lists where arguments were tuples."""
    if isinstance(value, Mapping):
        return {name: _tuples(inner) for name, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
