"""What reference/commands.md shows of the commands, read from their parsers when the site is built.

``{options} transfer`` has the options of a verb as ``--help`` names them, with those that only ``--help-all`` has.
``{arguments} FNO`` has what may follow the dot of an option such as ``--target.n_modes``; see ``_ARGUMENTS``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, get_args, get_origin
from unittest import mock

from docutils import nodes
from neuralop_mup.lab.presets import PRESETS
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from neuralop_mup.lab.cli.data import data_groups
from neuralop_mup.lab.cli.options import Verb, _shown, fno_arguments
from neuralop_mup.lab.problems import PROBLEMS

_NOTHING = (None, False, (), "")


def verb(name: str) -> Verb:
    """The parser of a verb, which is called with nothing."""
    with mock.patch.object(Verb, "call", lambda self, argv: self):
        return import_module(f"neuralop_mup.lab.cli.{name.replace('-', '_')}").run([])


def _code(value: Any) -> str:
    return f"`{','.join(map(str, value)) if isinstance(value, (tuple, list)) else value}`"


def _prose(text: str) -> str:
    """Options within a sentence as code: two dashes would become one."""
    return re.sub(r"--[a-z][\w.-]*(?: [A-Z]+\b)?", lambda m: f"`{m[0]}`", " ".join(text.split()))


def _options(name: str) -> Iterator[str]:
    """MyST text: one option directive each."""
    parser = verb(name)
    yield f"```{{program}} neuralop-mup {name}\n```"
    for action in parser._plain:
        shown, hint = _shown(action.dest), parser._hint(action.dest)
        choices = "|".join(map(str, get_args(hint))) if "Literal" in str(get_origin(hint)) else "VALUE"
        value = "" if shown == "PROBLEM" or hint is bool else f" {choices}"
        text, _, default = (action.help or "").strip().partition(" [")
        if default or action.default not in _NOTHING:
            text += f" (default: {default.removesuffix(']') or _code(action.default)})"
        yield f"```{{option}} {shown}{value}\n{_prose(text)}\n```"
    for group, (kind, text) in parser._sets.items():
        names = "" if isinstance(kind, type) else f"; NAME is {', '.join(map(_code, kind))}"
        yield f"```{{option}} --{group.rstrip('_')}.NAME VALUE\n{_prose(text)}{names}\n```"


def _table(*rows: Iterable[str]) -> str:
    first, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([first, re.sub(r"[^|]+", " --- ", first), *others])


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}` {'' if value is None else value}".strip() for name, value in values.items())


def _fields(cls: type) -> str:
    """Arguments that are fields of a class, with their defaults."""
    rows = [(_code(f.name), "" if f.default in _NOTHING[:1] else _code(f.default)) for f in dataclasses.fields(cls)]
    return _table(("argument", "default"), *rows)


def _problems() -> Iterator[str]:
    for name, problem in PROBLEMS.items():
        for preset, arguments in {"": dataclasses.asdict(problem.preset("cpu")), **problem.presets}.items():
            if arguments:
                yield f"`{name}{f' --preset {preset}' if preset else ''}`\n: {_listed(arguments)}\n"


def _presets() -> Iterator[Iterable[str]]:
    def size(pair: tuple) -> str:
        width, modes = pair
        return f"{width}, {modes if isinstance(modes, int) else ' × '.join(map(str, modes))}"

    yield ("problem", "preset", "proxy: width, modes", "target: width, modes", "epochs", "batch", "Adam's rates", "schedule")
    for (problem, preset), row in PRESETS.items():
        rates = " to ".join(f"{rate:g}" for rate in row.lr)
        sizes = (size(row.proxy), size(row.target))
        yield (f"`{problem}`", f"`{preset}`", *sizes, str(row.epochs), str(row.batch_size), rates, f"`{row.schedule}`")


_ARGUMENTS = {
    "FNO": lambda: _fields(fno_arguments()),
    "data": lambda: _fields(data_groups([])["data_"][0]),
    "problems": lambda: "\n".join(_problems()),
    "presets": lambda: _table(*_presets()),
}


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
        return _ARGUMENTS[name]()


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("options", Options)
    app.add_directive("arguments", Arguments)
    return {"parallel_read_safe": True}
