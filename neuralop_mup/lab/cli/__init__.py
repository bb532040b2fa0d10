"""The ``neuralop-mup`` command: options in, calls of the library out; nothing is computed here.

One module a verb, each with ``run(argv) -> exit code`` and imported only when its verb is asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from neuralop_mup._version import __version__
from neuralop_mup.errors import MupError, nearest

__all__ = ["main"]

_VERBS = {
    "compare": "train one FNO under Adam and under MuSOAP, as they come and tuned at a small size",
    "transfer": "check the learning rate at a cheap proxy, and train a large FNO with it",
    "summary": "what μP makes of each parameter of a model",
    "coord-check": "do features and their updates keep their size as the model grows?",
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
    verb = argv[0] if argv else "--help"
    try:
        if verb == "--version":
            print(f"neuralop-mup {__version__}")
        elif verb in ("-h", "--help"):
            verbs = "\n".join(f"  {name:<13}{does}" for name, does in _VERBS.items())
            print(f"Hyperparameter transfer (μP) for Fourier neural operators.\n\n{verbs}\n  --version\n")
            print("neuralop-mup VERB --help tells each one's options.")
        elif verb in _VERBS:
            return import_module(f"{__name__}.{verb.replace('-', '_')}").run(argv[1:])
        else:
            what = "option" if verb.startswith("-") else "verb"
            raise MupError(
                f"There is no {what} {verb!r}; {nearest(verb, ['--help', '--version'] if what == 'option' else _VERBS)}"
            )
        return 0
    except MupError as error:  # the library speaks of arguments
        text = " ".join(str(error).split()).replace("choose another folder", "choose another folder (--output FOLDER)")
        print(f"neuralop-mup: error: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = "run it again" if verb in ("data", "summary") else "the same command resumes after the last finished run"
        print(f"neuralop-mup: interrupted; {again}.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone; Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
