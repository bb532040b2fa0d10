"""Compare Adam and MuSOAP on the same model and data, with default and with tuned learning rates."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn

from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.lab.decisions import decide
from neuralop_mup.lab.engines import cuda_devices
from neuralop_mup.lab.files import as_folder
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.results import seconds
from neuralop_mup.lab.settings import OPTIMIZERS
from neuralop_mup.lab.statistics import SEEDS, difference
from neuralop_mup.lab.study import Study, log2_grid
from neuralop_mup.lab.sweeps import train_missing
from neuralop_mup.lab.wording import aligned, counted, number, size_text
from neuralop_mup.optim.musoap.optimizer import default_lr

#: The default in torch, and the learning rate of the original FNO (github.com/neuraloperator/neuraloperator, fourier_1d.py).
ADAM_LR = 1e-3
ADAM, SOAP = "Adam (default)", "MuSOAP (default)"
#: Tuned on a small model with one seed. Adam's rate is used unchanged on the target; MuSOAP's is transferred by μP.
SMALL_ADAM, SMALL_SOAP = "Adam (tuned on a small model)", "MuSOAP (tuned on a small model)"
#: Optional: the best of five learning rates on the target, in factors of 2 around the best one of the small model.
TARGET_ADAM = "Adam (tuned on the target)"
#: All methods, in the order of the table.
METHODS = (ADAM, SOAP, SMALL_ADAM, SMALL_SOAP, TARGET_ADAM)


@dataclass(frozen=True)
class Method:
    """The results of one method of training the target.

    Attributes
    ----------
    lr : float
        Learning rate.
    errors : tuple of float
        Error for each seed, on the test data if there is any, otherwise on the validation data. Infinite if the training
        failed.
    seconds : float
        Mean time for training the target once.
    tuning_seconds : float
        Time spent on the search for the learning rate.
    lr_source : str
        Origin of the learning rate.
    """

    lr: float
    errors: tuple[float, ...]
    seconds: float
    tuning_seconds: float = 0.0
    lr_source: str = "default"


@dataclass(frozen=True)
class Comparison:
    """The results of several methods of training the same target.

    Attributes
    ----------
    methods : mapping of str to Method
        Results by method name, in the order of :data:`METHODS`. The last method may be missing.
    title : str
        Title of the figure.
    about : str
        One sentence that describes what is compared.
    """

    methods: Mapping[str, Method]
    title: str
    about: str

    def table(self) -> str:
        """Return a Markdown table with one row per method."""
        rows = [["method", "error", "range over seeds", "learning rate", "from", "one training", "tuning"]]
        for name, own in self.methods.items():
            span = f"{number(min(own.errors))} to {number(max(own.errors))}"
            time, tuning = f"{own.seconds:.1f} s", f"{own.tuning_seconds:.1f} s"
            rows.append([name, number(median(own.errors)), span, f"{own.lr:.3g}", own.lr_source, time, tuning])
        return aligned(rows)

    def result(self) -> str:
        """Return one sentence that compares the error of MuSOAP, with its default learning rate, with the errors of Adam."""
        ours = self.methods[SOAP].errors
        found = {name: difference(ours, own.errors) for name, own in self.methods.items() if name.startswith("Adam")}
        parts = [f"relative to {name}: {text}" for name, text in found.items() if text]
        if not parts:
            return f"Result: none, because a comparison requires at least {SEEDS} seeds that completed training."
        return f"Result: the error of MuSOAP with its default learning rate, {'; '.join(parts)}."

    def __str__(self) -> str:
        hint = "Adam was not tuned on the target itself. To tune it there, add --tuned (in Python: tuned=True)."
        text = [self.about, self.table(), *([] if TARGET_ADAM in self.methods else [hint]), self.result()]
        return "\n\n".join(text)


def compare(
    build: Callable[..., nn.Module],
    data: Any,
    *,
    target: Mapping[str, Any],
    folder: str | Path,
    read: Mapping[str, Any] | None = None,
    loss: Any = None,
    tuned: bool = False,
    epochs: int = 20,
    batch_size: int = 20,
    seeds: Iterable[int] = (0, 1, 2),
    device: str = "auto",
    n_workers: int | None = None,
    progress: bool = True,
) -> Comparison:
    """Train a model with Adam and MuSOAP, each with its default learning rate and with one tuned on a small model.

    Parameters
    ----------
    build : callable
        ``build(**size)`` returns a new model with its usual initialization.
    data : path, list, tuple, dict or callable
        Data in any form that :func:`neuralop_mup.tune` accepts.
    target : mapping
        Arguments of ``build`` for the model.
    folder : str or Path
        Folder for the runs. Repeating the call with the same folder resumes them.
    read : mapping, optional
        Options for files and arrays (see :func:`neuralop_mup.tune`).
    loss : str, callable or dict, default "l2"
        Training loss (see :func:`neuralop_mup.tune`).
    tuned : bool, default False
        Whether to also tune Adam on the target, with five learning rates. This requires training the target five more times.
    epochs : int, default 20
        Number of epochs.
    batch_size : int, default 20
        Number of samples in a batch. Loaders use their own batch size.
    seeds : iterable of int, default (0, 1, 2)
        Seeds for training the target. Learning rates are tuned with the first seed only.
    device : str, default "auto"
        A torch device. With ``"auto"``, each run uses its own GPU if there are GPUs, otherwise the CPU.
    n_workers : int, optional
        Number of concurrent runs, each in its own process. Default: one per GPU, or one per core.
    progress : bool, default True
        Whether to show progress on stderr and print a description of the comparison.

    Returns
    -------
    Comparison
        Errors, learning rates and times of each method. ``str`` returns them as a table.

    Raises
    ------
    MupError
        If the data or the model cannot be used, or if the model has no Fourier kernel.
    """
    folder, seeds = as_folder(folder), tuple(seeds)
    shared = {"epochs": epochs, "batch_size": batch_size, "device": device}
    arguments = {"target": target, "read": read, "loss": loss, "seeds": seeds[:1], **shared}
    decided = decide(build, data, folder, rules=(DEFAULT_RULE, "standard"), optimizer="soap", **arguments)
    study, training, steps = decided.study, decided.study.train, decided.steps
    held_out = "test" if "test" in training.data.counts() else "validation"
    used = training.loss if isinstance(training.loss, str) else "user-defined"
    about = (
        f"Comparison of Adam and MuSOAP for {decided.title} ({size_text(target)}): {steps} steps, "
        f"{counted(len(seeds), 'seed')}, loss {used}; the error is the {training.error_name} on held-out {held_out} data."
    )
    if progress:
        print(about, decided, sep="\n")
    how: dict[str, Any] = {"n_workers": n_workers, "progress": progress, "devices": cuda_devices(device)}
    lrs, tuning, settings = {ADAM: ADAM_LR, SOAP: default_lr(steps)}, {}, {}
    for name in METHODS if tuned else METHODS[:-1]:
        optimizer, rule = ("soap", DEFAULT_RULE) if "SOAP" in name else ("adam", "standard")
        base = None
        if name not in lrs:
            size, space, base = "proxy", OPTIMIZERS[optimizer].search_lrs(steps), study.sizes["proxy"]
            if name == TARGET_ADAM:
                size, space = "target", log2_grid(lrs[SMALL_ADAM] / 4, 4 * lrs[SMALL_ADAM])
            search = replace(
                study,
                name=name,
                space={"lr": space},
                sizes={size: study.sizes[size]},
                rules=(rule,),
                fixed={**study.fixed, "optimizer": optimizer},
                keep_weights=False,
            )
            found = train_missing(search, folder, **how)
            lrs[name] = found.best["lr"]  # raises an error if no learning rate completed
            source = f"best of {len(space)}, {min(space):.3g} to {max(space):.3g}, at {size_text(study.sizes[size])}"
            tuning[name] = seconds(found.records), source
        of_rule = {"rule": rule, **study.settings_by_rule[rule]}
        settings[name] = {"optimizer": optimizer, **of_rule, "base": base, "lr": lrs[name]}
    final = Study(
        name=folder.resolve().name,
        space={},
        seeds=seeds,
        rules=tuple(settings),
        settings_by_rule=settings,
        fixed={**shared, "model": target},
        train=training,
    )
    results, methods = train_missing(final, folder, **how), {}
    for name in settings:
        own = results.cell(None, name)
        errors = tuple(r["metrics"].get("test_loss", r["loss"]) if is_complete(r) else math.inf for r in own)
        done = [record for record in own if is_complete(record)]
        methods[name] = Method(lrs[name], errors, seconds(done) / len(done) if done else 0.0, *tuning.get(name, ()))
    return Comparison(methods, decided.title, about)
