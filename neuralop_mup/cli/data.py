"""``neuralop-mup data``: a problem's data, and what is in the cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from neuralop_mup import plots
from neuralop_mup.cli.arguments import problem_help, problem_of
from neuralop_mup.cli.options import Parser, made, phrase
from neuralop_mup.errors import MupError
from neuralop_mup.experiments.wording import aligned
from neuralop_mup.problems import PROBLEMS, ProblemData
from neuralop_mup.problems.cache import cache_folder
from neuralop_mup.problems.mode_energy import ENOUGH, ModeEnergy, mode_energy


def run(argv: list[str]) -> int:
    """Load the data, describe it, draw it if asked."""
    parser = Parser(
        "neuralop-mup data",
        "Generate a problem's data, or find it in the cache (folder: NEURALOP_MUP_CACHE).",
        {"problem": "argument of the problem"},
        problem_help(),
    )
    parser.option("problem", f"one of {', '.join(PROBLEMS)}", nargs="?", default="burgers")
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
    problem = problem_of(options.problem, dotted["problem"], options.preset)
    for path in filter(None, (options.plot, options.spectrum)):
        made(path.parent)
    data = problem.load()
    print(f"{problem.name}: {phrase(dataclasses.asdict(problem))}")
    if problem.file_name is not None:
        print(f"file  {folder / problem.file_name}\nkey   {problem.key}\n")
    print(aligned(_statistics(data)))
    if options.plot:
        plots.plot_fields(*data.test, options.plot, title=f"{problem.name}, test samples")
        print(f"\nfigure {options.plot}")
    if options.spectrum:
        energy = mode_energy(*data.train)
        enough = energy.enough()
        needed = {"enough": enough, "share": ENOUGH, "title": f"{problem.name}, energy of the training data"}
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
            numbers = (values.mean(), values.std(), values.min(), values.max())
            shape = "×".join(map(str, values.shape))
            rows.append([f"{split} {letter}", shape, *(f"{float(number):.4g}" for number in numbers)])
    return rows


def _drawable(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise MupError(f"must end in .png, .svg or .pdf, but it is {text!r}.")
    return path
