"""What dotted options set: arguments of the problems and of neuralop's FNO."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from neuralop.models import FNO

from neuralop_mup.cli.options import Dotted, count, filled, given, like, listed, positive
from neuralop_mup.errors import MupError
from neuralop_mup.experiments.presets import problem_with
from neuralop_mup.problems import PROBLEMS, OwnData, Problem, get_problem
from neuralop_mup.problems.own_files import READERS

#: Arguments of FNO that no option sets, and why.
_NOT_HERE = {
    "in_channels": "decided by the data",
    "out_channels": "decided by the data",
    "non_linearity": "a Python object",
    "conv_module": "a Python object",
    "decomposition_kwargs": "a Python object",
}


def problem_of(name: str, texts: Mapping[str, str], preset: str = "cpu") -> Problem:
    """The problem with the preset's arguments and the user's on top."""
    defaults = dataclasses.asdict(problem_with(name, preset, {}))
    readers = {argument: like(default) for argument, default in defaults.items()}
    return problem_with(name, preset, given("problem", texts, readers))


def chosen_problem(options: argparse.Namespace, dotted: Dotted, preset: str = "cpu") -> Problem:
    """The problem that a command names, by default burgers, or the user's own files.

    Raises
    ------
    MupError
        If both are given, or options of the one with the other; or if files are not there.
    """
    if options.data is not None:
        if options.problem or dotted["problem"]:
            raise MupError("--data FILE takes the place of a problem; leave the problem and its arguments out.")
        return own_data(options.data, dotted["data"])
    if dotted["data"]:
        raise MupError(f"--data.{next(iter(dotted['data']))} says how --data FILE is read; give the file.")
    name = options.problem or "burgers"
    if name not in PROBLEMS and (Path(name).suffix.lower() in READERS or Path(name).is_file()):
        raise MupError(
            f"{name} is a file and no problem: for data of your own write --data {name} (several files with commas)."
        )
    problem = problem_of(name, dotted["problem"], preset)
    getattr(problem, "check_files", lambda: None)()
    return problem


#: How the arguments of one's own data are read.
_OWN = {
    "x": str,
    "y": str,
    "channels": str,
    "time_step": count,
    "split": listed(positive),
    "shuffle": like(True),
    "crop": like(False),
    "in_memory": positive,
}


def own_data(files: str, texts: Mapping[str, str]) -> OwnData:
    """The user's own files."""
    return get_problem("data", files=tuple(f.strip() for f in files.split(",")), **given("data", texts, _OWN))


def own_data_help() -> str:
    """How own data may be read, for the help of a command."""
    return f"how --data is read: x, y (keys), {', '.join(name for name in _OWN if name not in 'xy')}"


def fno_defaults() -> dict[str, Any]:
    """Arguments of FNO that options set, with their defaults."""
    parameters = list(inspect.signature(FNO.__init__).parameters.values())[1:]
    return {
        p.name: None if p.default is p.empty else p.default
        for p in parameters
        if p.name not in _NOT_HERE and p.kind is p.POSITIONAL_OR_KEYWORD
    }


def fno_arguments(group: str, texts: Mapping[str, str], n_dim: int) -> dict[str, Any]:
    """Arguments of FNO; one number of modes stands for every axis."""
    for name in texts:
        if name in _NOT_HERE:
            raise MupError(
                f"--{group}.{name} is {_NOT_HERE[name]}; it cannot be given on the command line, only from Python."
            )
    readers = {name: like(default) for name, default in fno_defaults().items()}
    readers |= dict.fromkeys(("hidden_channels", "n_layers"), count)
    readers |= dict.fromkeys(("n_modes", "max_n_modes"), _modes(n_dim))
    return given(group, texts, readers)


def _modes(n_dim: int) -> Callable[[str], tuple[int, ...]]:
    def read(text: str) -> tuple[int, ...]:
        numbers = listed(count)(text)
        if len(numbers) not in (1, n_dim):
            axes = f"{n_dim} {'axis' if n_dim == 1 else 'axes'}"
            raise MupError(f"{text} gives {len(numbers)} numbers for a grid of {axes}: give one, or {n_dim}.")
        return tuple(numbers) * (n_dim // len(numbers))

    return read


def fno_help() -> list[str]:
    """Lines of help on FNO's arguments."""
    shown = {name: value for name, value in fno_defaults().items() if name not in ("n_modes", "hidden_channels")}
    return ["", "FNO: hidden_channels, n_modes (one number for all axes, or a comma list),", _with_defaults(shown)]


def problem_help() -> list[str]:
    """Lines of help on each problem's arguments."""
    lines = []
    for name, problem in PROBLEMS.items():
        lines += ["", f"{name}:", _with_defaults(dataclasses.asdict(problem.preset("cpu")))]
        for preset, arguments in problem.presets.items():
            if arguments:
                lines += [f"  --preset {preset}:", _with_defaults(arguments)]
    return lines


def _with_defaults(values: Mapping[str, Any]) -> str:
    return filled(f"{name} [{value}]" for name, value in values.items())
