"""The ``neuralop-mup`` command: options in, calls of the library out; nothing is computed here.

One module a verb, each with ``run(argv) -> exit code`` and imported only when its verb is asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from neuralop_mup import __version__
from neuralop_mup.cli.options import Parser
from neuralop_mup.errors import MupError, nearest

__all__ = ["main"]

_VERBS = {
    "transfer": "tune a small FNO, train a large one with the same hyperparameters, compare with the naive way",
    "summary": "what μP makes of each parameter of a model",
    "coord-check": "do features and their updates keep their size as the model grows?",
    "reproduce": "the source paper's experiments, SP and μP side by side: tables, figures and a report",
    "data": "generate, list and draw the problems' data",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; those of this process by default.

    Returns
    -------
    int
        0; 1 if the target's training or the coordinate check failed, or the check is undecided; 2 for something the user
        can mend, told in one line on stderr; 130 after Ctrl-C.
    """
    argv = [str(word) for word in (sys.argv[1:] if argv is None else argv)]
    verb = argv[0] if argv and argv[0] in _VERBS else None
    try:
        if verb is None:
            return _top(argv)
        return import_module(f"{__name__}.{verb.replace('-', '_')}").run(argv[1:])
    except MupError as error:
        print(f"neuralop-mup: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        resumes = verb in ("transfer", "reproduce", "coord-check")
        again = "the same command resumes after the last finished run" if resumes else "run it again"
        print(f"neuralop-mup: interrupted; {again}.", file=sys.stderr)
        return 130
    except SystemExit as stop:  # argparse's --help and --version
        return int(stop.code or 0)
    except BrokenPipeError:
        # The reader (head, less) has gone; Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _top(argv: list[str]) -> int:
    about = "Hyperparameter transfer (μP) for Fourier neural operators."
    verbs = "\n".join(f"  {verb:<13}{does}" for verb, does in _VERBS.items())
    about = f"{about}\n\n{verbs}\n\nneuralop-mup VERB --help tells each one's options."
    parser = Parser("neuralop-mup", about, usage="neuralop-mup VERB [options]")
    parser.add_argument("--version", action="version", version=f"neuralop-mup {__version__}")
    if argv and not argv[0].startswith("-"):
        raise MupError(f"There is no verb {argv[0]!r}; {nearest(argv[0], _VERBS)}")
    parser.read(argv)
    parser.print_help()
    return 0
