"""Options of a verb: plain ones through argparse, dotted ones (``--proxy.n_modes 8``) taken apart here.

A dotted option is named after the argument it sets, of FNO or of a problem, so argparse cannot know its name.
Values are read by functions from text that raise a MupError without the option's name; whoever calls them adds it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.tuning import log2_grid

Dotted = dict[str, dict[str, str]]


class Parser(argparse.ArgumentParser):
    """Options of one verb. Raises MupError for what it cannot read, and takes no abbreviations.

    ``--help`` fits a screen; ``--help-all`` shows the options that few need, too, and the notes.

    Parameters
    ----------
    prog, about : str
        Command and description, for the help.
    groups : mapping of str to str
        What dotted options of each group set.
    notes : sequence of str
        Lines at the end of ``--help-all``.
    """

    def __init__(
        self, prog: str, about: str, groups: Mapping[str, str] | None = None, notes: Sequence[str] = (), **options: Any
    ) -> None:
        self._groups = dict(groups or {})
        self._readers: dict[str, tuple[str, Callable[[str], Any]]] = {}
        self._notes, self._rare = list(notes), []
        options = {"usage": f"{prog} [options]", "allow_abbrev": False, "add_help": False, **options}
        wide = lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26, width=118)  # noqa: E731
        super().__init__(prog=prog, description=about, formatter_class=wide, **options)
        self._section: Any = self

    def section(self, title: str) -> None:
        """Options from here on stand under this title in the help."""
        self._section = self.add_argument_group(title)

    def error(self, message: str) -> None:
        raise MupError(f"{message.removeprefix('argument ')} ({self.prog} --help lists the options).")

    def option(self, name: str, help: str, read: Callable[[str], Any] = str, rare: bool = False, **options: Any) -> None:
        """An option whose value is read by ``read`` and whose default is shown; a rare one only in ``--help-all``."""
        default = options.get("default")
        shown = help if default is None else f"{help} [{default}]"
        if name.startswith("-"):
            options.setdefault("metavar", "X")
        action = self._section.add_argument(name, help=shown, **options)
        self._readers[action.dest] = name, read
        self._rare += [action] if rare else []

    def flag(self, name: str, help: str, rare: bool = False) -> None:
        """An option without a value."""
        action = self._section.add_argument(name, help=help, action="store_true")
        self._rare += [action] if rare else []

    def help_text(self, everything: bool) -> str:
        """The help, on one screen or with everything."""
        hidden = {} if everything else {action: action.help for action in self._rare}
        for action in hidden:
            action.help = argparse.SUPPRESS
        lines = [f"  {f'--{group}.NAME X':<24}{sets}" for group, sets in self._groups.items()]
        head = ["named after what they set:"] if lines else []
        more = bool(self._rare or self._notes)
        tail = (
            self._notes
            if everything
            else ["", f"{self.prog} --help-all lists every option, argument and preset."]
            if more
            else []
        )
        self.epilog = "\n".join([*head, *lines, *tail])
        try:
            return self.format_help()
        finally:
            for action, text in hidden.items():
                action.help = text

    def read(self, argv: Sequence[str]) -> tuple[argparse.Namespace, Dotted]:
        """Plain options, and the dotted ones as ``{group: {name: text}}``."""
        if help_asked := [word for word in argv if word in ("-h", "--help", "--help-all")]:
            print(self.help_text(help_asked[0] == "--help-all"))
            raise SystemExit(0)
        plain, dotted = self._split(argv)
        options, rest = self.parse_known_args(plain)
        for word in rest:
            option = word.partition("=")[0]
            if option.startswith("-"):
                valid = [name for action in self._actions for name in action.option_strings if name.startswith("--")] + [
                    "--help"
                ]
                raise MupError(f"There is no option {option!r}; {_offer(option, valid, self._groups)}")
        if rest:
            raise MupError(f"There is an argument too many: {rest[0]!r}.")
        for dest, (name, read) in self._readers.items():
            if (text := getattr(options, dest)) is not None:
                setattr(options, dest, _value(name, text, read))
        return options, dotted

    def _split(self, argv: Sequence[str]) -> tuple[list[str], Dotted]:
        plain: list[str] = []
        dotted: Dotted = {group: {} for group in self._groups}
        words = iter(argv)
        for word in words:
            option, equals, value = word.partition("=")
            group, dot, name = option.removeprefix("--").partition(".")
            if not (word.startswith("--") and dot and self._groups):
                plain.append(word)
                continue
            if group not in dotted:
                raise MupError(f"There is no option {option!r}; {nearest(option, [f'--{g}.{name}' for g in dotted])}")
            if not equals:
                value = next(words, "")
            if not value or value.startswith("--"):
                raise MupError(f"{option} needs a value, as in {option} VALUE.")
            if name in dotted[group]:
                raise MupError(f"{option} is given twice; give it once.")
            dotted[group][name] = value
        return plain, dotted


#: What people call arguments of FNO.
_FNO_NAMES = {
    **dict.fromkeys(("width", "hidden", "channels", "hidden_channel", "hidden_size", "hidden_dim"), "hidden_channels"),
    **dict.fromkeys(("modes", "num_modes", "n_mode"), "n_modes"),
    **dict.fromkeys(("layers", "depth", "num_layers", "n_layer"), "n_layers"),
}


def _offer(option: str, valid: Sequence[str], groups: Mapping[str, str]) -> str:
    """The option that was meant, or all of them."""
    offer = nearest(option, valid)
    word = option.removeprefix("--").lower().replace("-", "_")
    argument = _FNO_NAMES.get(word, word if word in _FNO_NAMES.values() else None)
    at = [f"--{group}.{argument}" for group in ("target", "proxy", "model") if group in groups]
    if offer.startswith("did you mean") or argument is None or not at:
        return offer
    return f"did you mean {' or '.join(map(repr, at))}?"


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """Reader of one of these names."""

    def read(text: str) -> str:
        if text not in names:
            raise MupError(f"there is no {text!r}; {nearest(text, names)}")
        return text

    return read


def _checked(kind: type, holds: Callable[[Any], bool], must: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not holds(value):  # not even NaN
            raise MupError(f"must be {must}, but it is {text!r}.")
        return value

    return read


count = _checked(int, lambda value: value >= 1, "a whole number of 1 or more")
positive = _checked(float, lambda value: 0 < value < math.inf, "a number above 0")
not_negative = _checked(float, lambda value: 0 <= value < math.inf, "a number of 0 or more")
below_one = _checked(float, lambda value: 0 <= value < 1, "a number of 0 or more and below 1")


def listed(read: Callable[[str], Any]) -> Callable[[str], list]:
    """Reader of a comma list."""
    return lambda text: [read(part.strip()) for part in text.split(",")]


def grid(read: Callable[[str], Any]) -> Callable[[str], list]:
    """Reader of what is searched: ``LOW:HIGH`` in factors of 2, or a comma list."""

    def read_all(text: str) -> list:
        ends = text.split(":")
        try:
            if len(ends) == 2:
                low, high = map(read, ends)
                return [type(low)(value) for value in log2_grid(low, high)]
            values = listed(read)(text)
        except MupError as error:
            raise MupError(f"{error} Give LOW:HIGH in factors of 2, or a comma list.") from None
        if len(set(values)) < len(values):
            raise MupError(f"{text} has a value twice; give each once.")
        return values

    return read_all


def searched(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Reader of a grid, or of a distribution: ``log:1e-3:1e-1``, ``uniform:0:1``, ``int:4:64``."""

    def read_any(text: str) -> Any:
        kind, colon, ends = text.partition(":")
        if kind not in ("log", "uniform", "int", "logint") or not colon:
            return grid(read)(text)
        try:
            low, high = (read(end) for end in ends.split(":"))
            if kind.endswith("int"):
                from optuna.distributions import IntDistribution

                return IntDistribution(int(low), int(high), log=kind == "logint")
            from optuna.distributions import FloatDistribution

            return FloatDistribution(float(low), float(high), log=kind == "log")
        except ValueError as error:
            raise MupError(f"{text!r} is no distribution ({error}): give KIND:LOW:HIGH, such as log:1e-3:1e-1.") from None

    return read_any


def like(default: Any) -> Callable[[str], Any]:
    """Reader of a value, or a comma list of them, of the kind that the default has."""

    def read(text: str) -> Any:
        value = _scalar(text) if "," not in text else tuple(_scalar(part) for part in text.split(",") if part)
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise MupError(f"must be yes or no (true, false), but it is {text!r}.")
        elif isinstance(default, (int, float)) and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise MupError(f"must be a number, but it is {text!r}.")
        return value

    return read


def _scalar(text: str) -> Any:
    text = text.strip()
    words = {"true": True, "yes": True, "false": False, "no": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def phrase(values: Mapping[str, Any]) -> str:
    """``{"grid": 128, "n_modes": (8, 8)}`` as ``grid 128, n_modes 8×8``; what is None is left out."""

    def text(value: Any) -> str:
        if not isinstance(value, (tuple, list)):
            return str(value)
        return ("×" if all(isinstance(part, int) for part in value) else " ").join(map(str, value))

    return ", ".join(f"{name} {text(value)}" for name, value in values.items() if value is not None)


def given(group: str, texts: Mapping[str, str], readers: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Values of a group's dotted options, each read by the reader of its name."""
    values = {}
    for name, text in texts.items():
        option = f"--{group}.{name}"
        if name not in readers:
            meant = _FNO_NAMES.get(name.lower().replace("-", "_"))
            offer = f"did you mean '--{group}.{meant}'?" if meant in readers else nearest(name, readers, f"--{group}.")
            raise MupError(f"There is no option {option!r}; {offer}")
        values[name] = _value(option, text, readers[name])
    return values


def _value(option: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except MupError as error:
        raise MupError(f"{option}: {error}") from None


def device(text: str) -> str:
    """Reader of where runs are trained."""
    if text not in ("cpu", "auto", "cuda") and not (text.startswith("cuda:") and text[5:].isdecimal()):
        raise MupError(f"must be cpu, cuda, cuda:N or auto, but it is {text!r}.")
    return text


def made(folder: Path) -> Path:
    """The folder, which exists from now on."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if folder.is_file() else error.strerror or error
        raise MupError(f"Cannot make the folder {folder}: {why}. Name another.") from error
    return folder


def filled(parts: Iterable[str]) -> str:
    """Parts in indented lines that fit a terminal, none broken."""
    lines = ["  "]
    for part in parts:
        if len(lines[-1]) + len(part) > 112:
            lines.append("  ")
        lines[-1] += part + ", "
    return "\n".join(line.rstrip() for line in lines).rstrip(",")
