"""``neuralop-mup data``: a problem's data or the user's own, and what is in the cache."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from neuralop_mup import plots
from neuralop_mup.cli.arguments import chosen_problem, own_data_help, problem_help
from neuralop_mup.cli.options import Parser, made, phrase
from neuralop_mup.errors import MupError
from neuralop_mup.experiments.proxy import sample_of
from neuralop_mup.experiments.wording import aligned
from neuralop_mup.problems import PROBLEMS, ProblemData
from neuralop_mup.problems.cache import cache_folder
from neuralop_mup.problems.mode_energy import ENOUGH, ModeEnergy, mode_energy

_CHUNK = 64  # samples read at once
_DRAWN = 4  # samples in a figure


def run(argv: list[str]) -> int:
    """Load the data, describe it, draw it if asked."""
    parser = Parser(
        "neuralop-mup data",
        "Generate a problem's data, find it in the cache (folder: NEURALOP_MUP_CACHE), or read your own.",
        {"problem": "argument of the problem", "data": own_data_help()},
        problem_help(),
        usage="neuralop-mup data [PROBLEM | --data FILE] [options]",
    )
    parser.option("problem", f"{', '.join(PROBLEMS)} [burgers]", nargs="?", metavar="PROBLEM")
    parser.option("--data", "your own fields instead: .npz, .pt or .h5; several with commas")
    parser.option("--preset", "cpu, gpu or paper", default="cpu")
    parser.flag("--list", "list the cached files and stop")
    parser.option("--plot", "also draw samples into this .png, .svg or .pdf", _drawable)
    parser.option(
        "--spectrum", "also draw the energy that n_modes leave out of inputs and targets, into this file", _drawable
    )
    options, dotted = parser.read(argv)
    folder = cache_folder()
    if options.list:
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
        for path in files:
            print(f"{path.stat().st_size / 2**20:9.1f} MiB  {path}")
        print(f"{len(files)} cached {'file' if len(files) == 1 else 'files'} in {folder}")
        return 0
    problem = chosen_problem(options, dotted, options.preset)
    title = getattr(problem, "title", problem.name)
    for path in filter(None, (options.plot, options.spectrum)):
        made(path.parent)
    data = problem.load()
    print(f"{title}: {getattr(problem, 'description', None) or phrase(dataclasses.asdict(problem))}")
    for what, text in getattr(problem, "readings", {}).items():
        print(f"{what:<7} {text}")
    if problem.file_name is not None:
        print(f"file  {folder / problem.file_name}\nkey   {problem.key}\n")
    print(aligned(_statistics(data)))
    if options.plot:
        some = range(min(_DRAWN, len(data.test[0])))
        x, y = (values[some] for values in data.test)
        plots.plot_fields(x, y, options.plot, count=_DRAWN, title=f"{title}, test samples")
        print(f"\nfigure {options.plot}")
    if options.spectrum:
        energy = mode_energy(*sample_of(problem))
        enough = energy.enough()
        needed = {"enough": enough, "share": ENOUGH, "title": f"{title}, energy of the training data"}
        plots.plot_mode_energy(energy.inputs, energy.targets, options.spectrum, **needed)
        print(f"\n{_sentence(energy, enough)}\nfigure {options.spectrum}")
    return 0


def _sentence(energy: ModeEnergy, enough: tuple[int, ...]) -> str:
    kept = ", ".join(f"{100 * share:.4g} %" for share in energy.kept(enough, "inputs"))
    n_modes = ", ".join(map(str, enough))
    return f"n_modes = {n_modes} keep {100 * ENOUGH:g} % of the targets' energy (and {kept} of the inputs')."


def _statistics(data: ProblemData) -> list[list[str]]:
    rows = [["part", "shape", "mean", "std", "min", "max"]]
    for split in ("train", "val", "test"):
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


def _drawable(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise MupError(f"must end in .png, .svg or .pdf, but it is {text!r}.")
    return path
