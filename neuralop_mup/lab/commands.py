"""The commands of ``neuralop-mup``. They call functions of this package, with neuralop's FNO as the model."""

import inspect
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import torch

from neuralop_mup.core.describe_model import check_grid
from neuralop_mup.core.parametrize import get_plan, parametrize
from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.diagnostics import coord_check as diagnostics
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab import plots, tuning
from neuralop_mup.lab.checks import note_on_odd_grid
from neuralop_mup.lab.compare import compare as compare_methods
from neuralop_mup.lab.data.files import similar_names
from neuralop_mup.lab.data.given import as_source
from neuralop_mup.lab.files import put
from neuralop_mup.lab.problems import PROBLEMS, get_problem
from neuralop_mup.lab.problems.base import cache_folder
from neuralop_mup.lab.problems.mode_energy import ENOUGH, mode_energy
from neuralop_mup.lab.settings import Settings, build_optimizer, optimizer_of
from neuralop_mup.lab.target import tuples
from neuralop_mup.lab.training import FNOs, processor_of

Some = Mapping[str, Any] | None  # options with a dot in their names


#: Documentation of the arguments that all commands that read data share.
_DATA_ARGUMENTS = """data
    A problem (burgers, darcy, darcy-pino) or your own data: a file, a folder, a pattern, or several files separated by
    commas. The word --data can be omitted directly after the command.
problem
    Arguments of the problem, such as --problem.viscosity 0.1.
read
    Options for reading your files, such as --read.x KEY (see OwnData)."""


def _on_data(command: Callable[..., int]) -> Callable[..., int]:
    """Append the data arguments to the docstring of a command, which must end with a list of arguments."""
    command.__doc__ = f"{inspect.getdoc(command)}\n{_DATA_ARGUMENTS}"
    return command


@_on_data
def compare(
    data: str = "burgers",
    *,
    problem: Some = None,
    read: Some = None,
    target: Some = None,
    folder: str = "",
    **how: Any,
) -> int:
    """Compare Adam and MuSOAP for an FNO on your data. Example: neuralop-mup compare heat.npz

    Without arguments, the command uses a small data set for Burgers' equation.

    Parameters
    ----------
    target
        FNO arguments for the model, such as --target.hidden_channels 64 --target.n_modes 16,16. A single number applies
        to every axis. Default: width 64 (32 in 3D), and half as many modes as grid points, at most 32 (16 in 3D).
    folder
        Folder for the runs. Repeating the command resumes them. Default: runs/DATA-compare.
    """
    if data == "burgers" and not problem and not target:  # by default, the command takes one to three minutes on two cores
        problem, target = {"n_train": 140, "n_val": 40, "grid": 64}, {"hidden_channels": 64, "n_modes": 32}
    source, fnos, out = _opened("compare", folder, data, problem, read)
    found = compare_methods(fnos, source, target=_target(source, target), folder=out, read=None, **how)
    methods = {fill(name, 16): (own.errors, own.lr) for name, own in found.methods.items()}
    plots.plot_ways(methods, out / "comparison.png", title=found.title)
    _write(out / "comparison.md", f"# {found.title}\n\n{found}\n")
    details, result = str(found).rsplit("\n\n", 1)
    print(f"\n{details}\n\nFigure and table: {out} (comparison.png, comparison.md)\n\n{result}")
    return 0 if all(max(own.errors) < math.inf for name, own in found.methods.items() if "SOAP" in name) else 1


@_on_data
def train(
    data: str = "burgers",
    *,
    problem: Some = None,
    read: Some = None,
    target: Some = None,
    base: Some = None,
    folder: str = "",
    **how: Any,
) -> int:
    """Train an FNO on your data without tuning and write a report. Example: neuralop-mup train heat.npz --epochs 100

    Parameters
    ----------
    target
        FNO arguments for the model, such as --target.hidden_channels 64 --target.n_modes 16,16. A single number applies
        to every axis. Default: width 64 (32 in 3D), and half as many modes as grid points, at most 32 (16 in 3D).
    base
        FNO arguments that differ in the base model, that is, at the size for which the learning rate is meant, such as
        --base.hidden_channels 16. Default: the reference size, hidden_channels 32 and n_modes 16.
    folder
        Folder for the weights and the report. Repeating the command resumes the training. Default: runs/DATA-train.
    """
    source, fnos, out = _opened("train", folder, data, problem, read)
    sizes = {"target": _target(source, target), "base": base and _size(base, source.n_dim)}
    tuning.train(fnos, source, folder=out, **sizes, processor=None, read=None, **how)
    return _trained(out)


@_on_data
def tune(
    data: str = "burgers",
    *,
    problem: Some = None,
    read: Some = None,
    target: Some = None,
    base: Some = None,
    space: Some = None,
    folder: str = "",
    **how: Any,
) -> int:
    """Tune the learning rate on a small FNO and train the large one with it. Example: neuralop-mup tune heat.npz

    Parameters
    ----------
    target
        FNO arguments for the model, such as --target.hidden_channels 64 --target.n_modes 16,16. A single number applies
        to every axis. Default: width 64 (32 in 3D), and half as many modes as grid points, at most 32 (16 in 3D).
    base
        FNO arguments that differ in the small model. Default: a quarter of the target's width (at least 16; half of a
        width up to 16), and as many modes as needed to capture 99.9 % of the targets' energy.
    space
        Values to try, such as --space.lr 0.01,0.02,0.04 --space.lr_mult.spectral 1,2. Default: five learning rates in
        factors of 2 around the formula for the number of steps, or 0.001 to 0.064 for an optimizer without a formula.
    folder
        Folder for the runs, the target's weights and the report. Repeating the command resumes the study. Default:
        runs/DATA-tune.
    """
    source, fnos, out = _opened("tune", folder, data, problem, read)
    sizes = {"target": _target(source, target), "base": base and _size(base, source.n_dim), "space": space and _flat(space)}
    tuning.tune(fnos, source, folder=out, **sizes, processor=None, read=None, **how)
    return _trained(out)


def _trained(folder: Path) -> int:
    """Print where the results of a training are and how to use them, and return the exit code."""
    print(f"\nReport, figures and every run: {folder}")
    print(f"In Python: tuned = nm.load_tuned({str(folder)!r}); tuned.predict(x)")
    return 0


def summary(
    *,
    model: Some = None,
    base: Mapping[str, Any] | str | None = None,
    n_dim: int = 2,
    rule: str = DEFAULT_RULE,
    format: Literal["text", "markdown", "json"] = "text",
) -> int:
    """Print μP's multipliers for each parameter of an FNO. Example: neuralop-mup summary --model.hidden_channels 256

    Nothing is trained, and the model need not fit in memory.

    Parameters
    ----------
    model
        FNO arguments for the model, such as --model.hidden_channels 64. Default: hidden_channels 128, n_modes 64.
    base
        FNO arguments for the base model, such as --base.hidden_channels 16, or a file of base shapes. Default: the
        reference size, hidden_channels 32 and n_modes 16.
    n_dim
        Number of axes of the grid.
    rule
        μP rule: operator-norm, log-modes, none or standard.
    format
        Format of the output.
    """
    size = _size({"hidden_channels": 128, "n_modes": 64, **(model or {})}, n_dim)
    with torch.device("meta"):
        base = _size(base, n_dim) if isinstance(base, Mapping) else base
        own = parametrize(FNOs(1, 1, n_dim)(**size), base, rule=rule)
    plan = replace(get_plan(own), init_applied=True)  # print the plan as for a model with weights
    print({"text": plan.__str__, "markdown": plan.to_markdown, "json": plan.to_json}[format]())
    return 0


@_on_data
def coord_check(
    data: str = "burgers",
    *,
    problem: Some = None,
    read: Some = None,
    model: Some = None,
    base: Some = None,
    sizes: tuple[int, ...] = (16, 32, 64, 128),
    size_name: Literal["hidden_channels", "n_modes"] = "hidden_channels",
    rule: str = DEFAULT_RULE,
    optimizer: str = "adam",
    lr: float | None = None,
    batch_size: int = 20,
    folder: str = "",
    **how: Any,
) -> int:
    """Check that features keep their size as an FNO grows. Example: neuralop-mup coord-check heat.npz --sizes 16,32,64

    The check trains for a few steps at each size. The exit code is 0 if the check passed, and 1 if it did not pass or is
    undecided.

    Parameters
    ----------
    model
        FNO arguments that are shared by all sizes. Default: hidden_channels 32, n_modes 16.
    base
        FNO arguments for the base model. Default: the smallest of the sizes.
    sizes
        Sizes to compare. At least two are required. Widths below 16 say little.
    size_name
        FNO argument that is set to these sizes.
    rule
        μP rule: operator-norm, log-modes, none or standard.
    optimizer
        Optimizer: soap, adam, adamw, neuralop-adamw, sgd, or the import path of a function (model, lr, steps).
    lr
        Learning rate of the base model. Default: the default of the optimizer.
    batch_size
        Number of samples in a batch.
    folder
        Folder for the table and the figure. Default: runs/DATA-coord-check.
    """
    source, fnos, out = _opened("coord-check", folder, data, problem, read)
    name, optimizers = optimizer_of(optimizer)
    settings = Settings.of({"optimizer": name, "lr": lr}, optimizers)
    start = {"hidden_channels": 32, "n_modes": tuple(min(16, n) for n in source.grid_shape), **(model or {})}
    small = {**start, size_name: min(sizes), **(base or {})}

    def build(size: int) -> torch.nn.Module:
        made = fnos(**_size({**start, size_name: size}, source.n_dim))
        drawn = not next(made.parameters()).is_meta
        return parametrize(made, base=lambda: fnos(**_size(small, source.n_dim)), rule=rule, init=drawn)

    with torch.device("meta"):  # check the grid before any data is generated
        for size in sizes:
            check_grid(build(size), source.grid_shape)
    loaded = source.load()
    batches = map(processor_of(source, loaded).preprocess, loaded.loaders(batch_size=batch_size, seed=0)[0])
    check = diagnostics.coord_check(
        build,
        sizes,
        [{"x": batch["x"], "y": batch["y"]} for batch in batches],
        size_name=size_name,
        lr=settings.lr,
        optimizer=lambda built, _: build_optimizer(built, settings),
        loss=None,
        **how,
    )
    found = {row["outcome"] for row in check.verdicts()}
    outcome = next(outcome for outcome in ("did not pass", "undecided", "passed") if outcome in found)
    text, title = str(check), f"{source.title}, rule {rule}: {outcome}"
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "coord_check.md", f"# {title}\n\n```\n{text}\n```\n")
    check.plot(out / "coord_check.png", title=title)
    print(f"{text}\n{title}.\nSlopes and figure: {out}")
    return 0 if outcome == "passed" else 1


@_on_data
def data(
    data: str = "burgers",
    *,
    problem: Some = None,
    read: Some = None,
) -> int:
    """Print how your data is read and how many modes capture its energy. Example: neuralop-mup data heat.npz --read.x a

    The data of a problem is generated or read from the cache (environment variable NEURALOP_MUP_CACHE).

    Parameters
    ----------
    """
    source = _source(data, problem, read)
    found = source.load()
    lines = getattr(source, "readings", None) or {**asdict(source), "file": cache_folder() / source.file_name}
    print(source.title, *(f"{name:<11} {text}" for name, text in lines.items()), sep="\n")
    for split in found.counts():
        x, y = getattr(found, split)
        print(f"{split:<11} x {tuple(x.shape)}{' and the mask' * found.masked}, y {tuple(y.shape)}")
    sample = found.sample()
    modes = () if found.masked else mode_energy(sample["y"]).enough()
    enough = f"n_modes = {','.join(map(str, modes))} captures {100 * ENOUGH:g} % of the targets' energy."
    about_modes = enough if modes else "No n_modes is proposed, because the edge of the mask would dominate the energy."
    print("", *filter(None, (about_modes, note_on_odd_grid(sample["y"].shape[2:]))), sep="\n")
    return 0


def _source(data: str, problem: Some, read: Some) -> Any:
    """Return the problem with this name, or the user's data."""
    given = tuples({**(problem or {}), **(read or {})})
    if data in PROBLEMS:
        return get_problem(data, **given)
    if re.fullmatch(r"[\w-]+", data) and not Path(data).exists():
        names = [*PROBLEMS, *similar_names(data)]
        raise MupError(f"{data!r} is not a known problem, file or folder: {nearest(data, names)}")
    return as_source(data.split(",") if "," in data and not os.path.exists(os.path.expanduser(data)) else data, given)


def _opened(command: str, folder: str, data: str, problem: Some, read: Some) -> tuple[Any, FNOs, Path]:
    """Return the data of a command, the function that builds FNOs for it, and the folder for the results."""
    source = _source(data, problem, read)
    fnos = FNOs(source.in_channels, source.out_channels, source.n_dim)
    # By default, the name of the folder contains the path of the data.
    return source, fnos, Path(folder or f"runs/{source.title.replace('/', '-')}-{command}")


def _write(path: Path, text: str) -> None:
    """Write a text file, and print a note if this replaces different text from an earlier command."""
    if path.exists() and path.read_text(encoding="utf-8") != text:
        print(
            f"The earlier results in {path} were replaced. To keep both, pass another folder, such as --folder runs/second."
        )
    put(path.parent, path, text)


def _target(source: Any, given: Some) -> dict[str, Any]:
    """Return the FNO arguments for the large model. Their defaults depend on the grid."""
    width, most = (32, 16) if source.n_dim > 2 else (64, 32)
    modes = [max(4, min(most, points // 2)) for points in source.grid_shape]
    return _size({"hidden_channels": width, "n_modes": modes, **(given or {})}, source.n_dim)


def _size(given: Mapping[str, Any], n_dim: int) -> dict[str, Any]:
    """Return FNO arguments with one number of modes per axis."""
    size = tuples(given)
    return {k: (v,) * n_dim if k in ("n_modes", "max_n_modes") and isinstance(v, int) else v for k, v in size.items()}


def _flat(space: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``{"lr_mult": {"spectral": …}}``, as jsonargparse returns it, to ``{"lr_mult.spectral": …}``, with lists."""
    flat = {}
    for name, values in space.items():
        flat |= {f"{name}.{role}": v for role, v in values.items()} if isinstance(values, Mapping) else {name: values}
    return {name: values if isinstance(values, (list, tuple)) else [values] for name, values in flat.items()}


COMMANDS: dict[str, Callable[..., int]] = {
    "compare": compare,
    "train": train,
    "tune": tune,
    "summary": summary,
    "coord-check": coord_check,
    "data": data,
}
