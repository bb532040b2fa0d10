"""What reference/commands.md shows of the commands, read from their parsers when the site is built.

``{options} tune`` has the options of a command, ``{arguments} burgers`` what may follow the dot of ``--problem.NAME`` or, for
``FNO`` and ``data``, of ``--target.NAME`` and ``--read.NAME``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from neuralop.models import FNO
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from neuralop_mup.lab.cli import parser
from neuralop_mup.lab.problems import PROBLEMS, OwnData

_HIDDEN = ("help", "version", "print_config")
_TAKE = {"FNO": FNO, "data": OwnData, **PROBLEMS}
#: Decided by the data, or filled in by itself.
_OWN = ("in_channels", "out_channels", "files", "stamps")


def _options(command: str) -> Iterator[str]:
    """MyST text: one option directive each."""
    yield f"```{{program}} neuralop-mup {command}\n```"
    for action in parser(command)._actions:
        if action.dest not in _HIDDEN:
            # Two dashes would become one, and two backticks are reST's.
            told = re.sub(r"(?<!`)--[a-z][\w.-]*(?: [\w.,]+(?=[\s.])| [A-Z]+\b)?", lambda m: f"`{m[0]}`", action.help or "")
            told = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", told.replace("``", "`"))
            default = "" if action.default in (None, "", ()) else f" (default: `{action.default}`)"
            yield f"```{{option}} --{action.dest} VALUE\n{' '.join(told.split())}{default}\n```"


def _arguments(name: str) -> str:
    """A table of the arguments of a class that an option sets, with their defaults."""
    rows = ["| argument | default |", "| --- | --- |"]
    for p in inspect.signature(_TAKE[name]).parameters.values():
        if p.name not in _OWN:
            rows.append(f"| `{p.name}` | {'' if p.default in (None, p.empty) else f'`{p.default}`'} |")
    return "\n".join(rows)


class _Generated(SphinxDirective):
    required_arguments = 1

    def text(self, name: str) -> str:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(self.text(self.arguments[0]))


class Options(_Generated):
    def text(self, name: str) -> str:
        return "\n\n".join(_options(name))


class Arguments(_Generated):
    def text(self, name: str) -> str:
        return _arguments(name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("options", Options)
    app.add_directive("arguments", Arguments)
    return {"parallel_read_safe": True}
