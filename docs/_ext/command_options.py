"""What reference/commands.md shows of the commands, read from their parsers when the site is built.

``{options} tune`` has the options of a command, ``{arguments} NAME`` a table of what may follow a dot: the arguments of FNO
(``--target.NAME``), of files (``data``, ``--read.NAME``) or of a problem (``--problem.NAME``), with their defaults.
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

_TAKE = {"FNO": FNO, "data": OwnData, **PROBLEMS}
#: Arguments that the data decides or that a shell cannot give.
_NOT_HERE = (
    "in_channels",
    "out_channels",
    "non_linearity",
    "conv_module",
    "decomposition_kwargs",
    "files",
    "arrays",
    "stamps",
)
_OPTION = re.compile(r"--[a-z][\w.-]*(?: (?:[A-Z]+\b|\d[\d.,]*\d|\d))?")


def _options(command: str) -> Iterator[str]:
    """MyST text: one option directive each."""
    yield f"```{{program}} neuralop-mup {command}\n```"
    for action in parser(command)._actions:
        if action.dest in ("help", "version", "print_config") or action.dest.endswith(".help"):
            continue
        name = f"{action.dest}.NAME" if "Mapping" in str(getattr(action, "_typehint", "")) else action.dest
        told = " ".join((action.help or "").split()).replace("``", "`")
        told = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", told)
        told = _OPTION.sub(lambda m: f"`{m[0]}`", told)  # two dashes would become one
        plain = isinstance(action.default, (bool, int, float, str)) and action.default != ""
        default = f" (default: `{action.default}`)" if plain or action.default else ""
        yield f"```{{option}} --{name} VALUE\n{told}{default}\n```"


def _arguments(name: str) -> Iterator[str]:
    """Rows of a table."""
    yield from ("| argument | default |", "| --- | --- |")
    for p in inspect.signature(_TAKE[name]).parameters.values():
        if p.name not in _NOT_HERE:
            yield f"| `{p.name}` | {'' if p.default in (None, p.empty) else f'`{p.default}`'} |"


class Options(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n\n".join(_options(self.arguments[0])))


class Arguments(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(_arguments(self.arguments[0])))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("options", Options)
    app.add_directive("arguments", Arguments)
    return {"parallel_read_safe": True}
