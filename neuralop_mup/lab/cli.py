"""The ``neuralop-mup`` command line. Options come from the signatures of the commands, and errors take one line."""

import os
import re
import shlex
import sys
import warnings
from argparse import ArgumentError
from collections.abc import Iterable, Sequence
from typing import Any, get_origin

from jsonargparse import ArgumentParser, auto_parser

from neuralop_mup._version import __version__
from neuralop_mup.errors import Diverged, MupError, nearest
from neuralop_mup.lab.commands import COMMANDS
from neuralop_mup.lab.training import FNOs

#: Maps a type in jsonargparse's messages to a description of the expected value.
_KINDS = {
    "float": "a number",
    "int": "an integer",
    "bool": "yes or no",
    "Mapping": "names and values, such as --{0}.NAME VALUE",
}


class _Parser(ArgumentParser):
    """A parser that rejects abbreviations, raises ArgumentError, and shows docstrings without links."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False, "exit_on_error": False})

    def format_help(self) -> str:
        # Only the last part of the name in a link is shown.
        return re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", super().format_help()).replace("``", "`")


def parser(command: str | None = None) -> ArgumentParser:
    """Return the parser for all commands, or for a single command."""
    components = COMMANDS if command is None else COMMANDS[command]
    return auto_parser(components, parser_class=_Parser, prog="neuralop-mup", version=__version__)


def in_full(argv: Sequence[str]) -> list[str]:
    """Return the words of a command with all optional syntax filled in: ``--data=``, brackets of lists, values of flags.

    Raises
    ------
    MupError
        If an option is unknown. The message contains the most similar option.
    """
    command, *words = argv
    if words and not words[0].startswith("-"):
        words[0] = f"--data={words[0]}"
    hints = {option: getattr(a, "_typehint", None) for a in parser(command)._actions for option in a.option_strings}
    full, option = [command], ""
    for word, following in zip(words, [*words[1:], "--"], strict=False):
        name, equals, text = map(str.strip, word.partition("=")) if word.startswith("--") else (option, "", word.strip())
        if name.strip("-") and (known := name.partition(".")[0]) not in hints:
            options = [name for name in hints if name.startswith("--") and not name.endswith("+") and name != "--version"]
            options += ["--target.n_modes", "--target.hidden_channels"] if "--target" in hints else []
            raise MupError(f"Unknown option {known!r} for {command!r}: {nearest(known, options)}")
        if name.startswith("--read.") and name.count(".") > 1:  # jsonargparse would keep only the last of several
            above, _, inner = name.rpartition(".")
            raise MupError(f"{name} is not an option. Write all axes in one option: {above} '{{{inner}: VALUE}}'.")
        option, hint = name, hints.get(name)
        if "." in name and text[:1] in ("(", "{"):  # tuples, as Python writes them
            text = text.translate(str.maketrans("()", "[]"))
        is_list = get_origin(hint) in (tuple, Sequence, Iterable) or name.startswith("--space.")
        may_be_list = f"{name}+" in hints or "." in name  # jsonargparse has such an option for each list
        if (is_list or ("," in text and may_be_list)) and text and text[0] not in "[{":
            text = f"[{text}]"
        if hint is bool and word == name and following.startswith("--"):
            equals, text = "=", "true"
        full.append(f"{name}{equals}{text}" if word.startswith("--") else text)
    return full


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the name of the program. Default: the arguments of this process.

    Returns
    -------
    int
        0 on success; 1 if the training of the target or the coordinate check failed, or if the check is undecided; 2 for an
        error that the user can fix, which is printed as one line on stderr; 130 after Ctrl-C.
    """
    argv = [str(word) for word in (sys.argv[1:] if argv is None else argv)] or ["--help"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.simplefilter("ignore", ResourceWarning)  # about objects that Python collects at any time
            warnings.showwarning = lambda message, *_: print(f"note: {message}", file=sys.stderr)
            if argv[0] not in COMMANDS and argv[0].partition("=")[0] not in parser()._option_string_actions:
                raise MupError(f"Unknown command {argv[0]!r}: {nearest(argv[0], [*COMMANDS, '--help', '--version'])}")
            given = parser().parse_args(in_full(argv) if argv[0] in COMMANDS else argv)
            options = given[given.subcommand].as_dict()
            options.pop("config", None)
            FNOs.command = shlex.join(["neuralop-mup", *argv])
            return COMMANDS[given.subcommand](**options)
    except SystemExit as done:  # --help, --version
        return int(done.code or 0)
    except ArgumentError as error:
        return _failed(_in_words(" ".join(str(error).split())))
    except UnicodeDecodeError:
        return _failed("The file of --config is not a text file. It must contain options as YAML, such as epochs: 20.")
    except MupError as error:
        return _failed(str(error), 1 if isinstance(error, Diverged) else 2)
    except KeyboardInterrupt as error:  # with the folder and what is resumed, if runs had begun
        return _failed(str(error) or "Interrupted. Repeat the command to resume.", 130)
    except BrokenPipeError:
        # The reader (head, less) has exited. Without this, Python would print an error when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _in_words(text: str) -> str:
    """Rewrite a message of jsonargparse so that it states the expected value and the given one."""
    found = re.match(r'Parser key "(.+?)": .*?Expected a (?:<class \'(?:\w+\.)*(\w+)\'>|.*?\[(.*?)\]).*value: (.*)', text)
    if found:
        name, kind, choices, value = found.groups()
        expected = f"one of {choices}" if choices else _KINDS.get(kind, kind).format(name)
        return f"--{name} must be {expected}, but got {value!r}."
    if text.startswith("unrecognized arguments"):
        text += ". Write lists and several file names with commas and without spaces, such as --seeds 0,1. If a file name "
        text += "starts with a dash, use ./-name."
    return text


def _failed(text: str, code: int = 2) -> int:
    print(f"neuralop-mup: error: {' '.join(text.split())}", file=sys.stderr)
    return code
