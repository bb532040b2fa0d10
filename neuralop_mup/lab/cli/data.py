"""The data that a command is about, a generated problem with its arguments or the user's own files; and the verb that shows
it, and what is in the cache: ``neuralop-mup data``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.lab import plots
from neuralop_mup.lab.cli.options import Verb
from neuralop_mup.lab.problems import PROBLEMS, OwnData, Problem, ProblemData, get_problem
from neuralop_mup.lab.problems.cache import cache_folder
from neuralop_mup.lab.problems.mode_energy import ENOUGH, mode_energy
from neuralop_mup.lab.problems.own_files import READERS
from neuralop_mup.lab.wording import aligned

_CHUNK = 64  # samples read at once
_DRAWN = 4  # samples in a figure


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Files(OwnData):
    """The user's own data, of which a command speaks in options."""

    def option(self, **said: Any) -> str:
        """How a user of the command says something of the data."""
        words = {True: "yes", False: "no"}
        return " ".join(f"--data.{name} {words.get(value, value)}" for name, value in said.items())


def data_groups(argv: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """Dotted options of the data: of the problem that is named, and of own files."""
    named = argv[0] if argv and not argv[0].startswith("-") else "burgers"
    own = dataclasses.make_dataclass(
        "Read", [(f.name, f.type, f) for f in dataclasses.fields(OwnData) if f.name not in ("files", "stamps")]
    )
    return {
        "problem_": (PROBLEMS.get(named, PROBLEMS["burgers"]), "argument of the problem, such as --problem.viscosity 0.1"),
        "data_": (own, "how --data is read: x, y (keys), channels, time_step, split, shuffle, crop, in_memory"),
    }


def chosen(
    problem: str | None, data: str, problem_: Mapping[str, Any], data_: Mapping[str, Any], preset: str = "cpu"
) -> Any:
    """The problem that a command names, by default burgers, or the user's own files.

    Raises
    ------
    MupError
        If both are given, or options of the one with the other; or if files are not there.
    """
    if data:
        if problem is not None or problem_:
            raise MupError("--data FILE takes the place of a problem; leave the problem and its arguments out.")
        files = [part.strip() for part in data.split(",")]
        return _Files(files=files[0] if len(files) == 1 else files, **data_)
    if data_:
        raise MupError(f"--data.{next(iter(data_))} says how --data FILE is read; give the file.")
    name = problem or "burgers"
    if name not in PROBLEMS and (Path(name).suffix.lower() in READERS or Path(name).is_file()):
        raise MupError(
            f"{name} is a file and no problem: for data of your own write --data {name} (several files with commas)."
        )
    made = get_problem(name, **problem_)
    getattr(made, "check_files", lambda: None)()
    return made


def problem_lines() -> list[str]:
    """Lines of help on each problem's arguments."""
    lines = []
    for name, problem in PROBLEMS.items():
        for preset, arguments in {"": dataclasses.asdict(problem.preset("cpu")), **problem.presets}.items():
            if arguments:
                words = ", ".join(f"{k} [{v}]" for k, v in arguments.items())
                lines.append(f"{name}{f' --preset {preset}' if preset else ''}: {words}")
    return ["", "arguments of the problems, with their defaults:", *lines]


def run(argv: list[str]) -> int:
    """Read the options and do it."""
    return Verb("data", data, data_groups(argv), notes=problem_lines()).call(argv)


def data(
    problem: str | None = None,
    *,
    data: str = "",
    preset: str = "cpu",
    list: bool = False,
    plot: str = "",
    spectrum: str = "",
    problem_: Mapping[str, Any],
    data_: Mapping[str, Any],
    command: str,
) -> int:
    """Generate a problem's data, find it in the cache (folder: NEURALOP_MUP_CACHE), or read your own.

    Parameters
    ----------
    problem
        burgers, burgers-pino, darcy, darcy-pino, navier-stokes, …
    data
        your own fields instead: .npz, .pt or .h5; a folder, a pattern, or several with commas
    preset
        cpu, gpu or paper
    list
        list the cached files and stop
    plot
        also draw samples into this .png, .svg or .pdf
    spectrum
        also draw the energy that n_modes leave out of inputs and targets, into this file
    """
    folder = cache_folder()
    if list:
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
        for path in files:
            print(f"{path.stat().st_size / 2**20:9.1f} MiB  {path}")
        print(f"{len(files)} cached {'file' if len(files) == 1 else 'files'} in {folder}")
        return 0
    for option, path in (("--plot", plot), ("--spectrum", spectrum)):
        if path and Path(path).suffix not in (".png", ".svg", ".pdf"):
            raise MupError(f"{option} must end in .png, .svg or .pdf, but it is {path!r}.")
    source = chosen(problem, data, problem_, data_, preset)
    found = source.load()
    told = {k: v for k, v in source.content().items() if k != "problem"} if isinstance(source, Problem) else source.readings
    print(f"{source.title}: {getattr(source, 'description', None) or ', '.join(f'{k} {v}' for k, v in told.items())}")
    if not isinstance(source, Problem):
        print(*(f"{what:<7} {text}" for what, text in told.items()), sep="\n")
    elif source.file_name is not None:
        print(f"file  {folder / source.file_name}\nkey   {source.key}\n")
    print(aligned(_statistics(found)))
    if plot:
        held = found.test or found.val
        x, y = (values[range(min(_DRAWN, len(held[0])))] for values in held)
        plots.plot_fields(x, y, plot, count=_DRAWN, title=f"{source.title}, test samples")
        print(f"\nfigure {plot}")
    if spectrum:
        sample = found.sample()
        energy = mode_energy(sample["x"], sample["y"])
        enough = energy.enough()
        needed = {"enough": enough, "share": ENOUGH, "title": f"{source.title}, energy of the training data"}
        plots.plot_mode_energy(energy.inputs, energy.targets, spectrum, **needed)
        kept = ", ".join(f"{100 * share:.4g} %" for share in energy.kept(enough, "inputs"))
        n_modes = ", ".join(map(str, enough))
        print(f"\nn_modes = {n_modes} keep {100 * ENOUGH:g} % of the targets' energy (and {kept} of the inputs').")
        print(f"figure {spectrum}")
    return 0


def _statistics(data: ProblemData) -> list[list[str]]:
    rows = [["part", "shape", "mean", "std", "min", "max"]]
    for split in data.counts():
        for letter, values in zip("xy", getattr(data, split), strict=True):
            shape = "×".join(map(str, values.shape))
            rows.append([f"{split} {letter}", shape, *(f"{number:.4g}" for number in _moments(values))])
    return rows


def _moments(values: Any) -> tuple[float, float, float, float]:
    """Mean, standard deviation, least and largest, some samples at a time: data in files may not fit in memory."""
    count, total, squares, least, largest = 0, 0.0, 0.0, math.inf, -math.inf
    for start in range(0, len(values), _CHUNK):
        part = values[range(start, min(start + _CHUNK, len(values)))].double()
        count, total, squares = count + part.numel(), total + float(part.sum()), squares + float(part.square().sum())
        least, largest = min(least, float(part.min())), max(largest, float(part.max()))
    mean = total / count
    return mean, math.sqrt(max(0.0, squares - count * mean**2) / max(1, count - 1)), least, largest
