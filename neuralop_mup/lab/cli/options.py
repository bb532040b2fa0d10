"""Options of a verb, made from the signature of its function and from the classes whose arguments it takes, by jsonargparse.

An option is named after what it sets: ``--seeds`` an argument of the verb, ``--proxy.n_modes`` one of FNO at the proxy.
"""

from __future__ import annotations

import dataclasses
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from jsonargparse import ArgumentParser
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt, restricted_number_type
from neuralop.models import FNO

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.search import log2_grid
from neuralop_mup.lab.settings import Settings

__all__ = ["BelowOne", "Verb", "fno_arguments", "grid", "on_axes", "searched"]

BelowOne = restricted_number_type("BelowOne", float, [(">=", 0), ("<", 1)])
_MUST = {
    PositiveInt: "a whole number of 1 or more",
    PositiveFloat: "a number above 0",
    NonNegativeFloat: "a number of 0 or more",
    BelowOne: "a number of 0 or more and below 1",
    int: "a whole number",
    bool: "yes or no (true, false)",
}
#: Arguments of FNO that no option sets, and why.
_NOT_HERE = {
    "in_channels": "decided by the data",
    "out_channels": "decided by the data",
    "non_linearity": "a Python object",
    "conv_module": "a Python object",
    "decomposition_kwargs": "a Python object",
}
#: What people call arguments of FNO.
_FNO_NAMES = {
    **dict.fromkeys(("width", "hidden", "channels", "hidden_channel", "hidden_size", "hidden_dim"), "hidden_channels"),
    **dict.fromkeys(("modes", "num_modes", "n_mode"), "n_modes"),
    **dict.fromkeys(("layers", "depth", "num_layers", "n_layer"), "n_layers"),
}
_WORDS = {"yes": "true", "no": "false", "none": "null"}
#: Settings of a run are written as in Python, other options with dashes.
_AS_IN_PYTHON = {field.name for field in dataclasses.fields(Settings)}


def fno_arguments() -> type:
    """Arguments of FNO that options set, as a class; types follow from the defaults."""
    some = tuple[PositiveInt, ...]
    known = {"n_modes": some, "max_n_modes": some, "hidden_channels": PositiveInt, "n_layers": PositiveInt}
    fields = []
    for p in inspect.signature(FNO).parameters.values():
        default = None if p.default is p.empty else p.default
        of_default = Any if default is None else type(default) if isinstance(default, (bool, str)) else float
        fields.append((p.name, known.get(p.name, of_default), dataclasses.field(default=default)))
    return dataclasses.make_dataclass("FNOArguments", [field for field in fields if field[0] not in _NOT_HERE])


def on_axes(size: Mapping[str, Any], n_dim: int) -> dict[str, Any]:
    """Arguments of FNO; one number of modes stands for every axis."""
    size = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in size.items()}
    for name in ("n_modes", "max_n_modes"):
        if (modes := size.get(name)) is not None:
            if len(modes) not in (1, n_dim):
                axes = f"{n_dim} {'axis' if n_dim == 1 else 'axes'}"
                raise MupError(f"{name} has {len(modes)} numbers for a grid of {axes}: give one, or {n_dim}.")
            size[name] = tuple(modes) * (n_dim // len(modes))
    return size


def grid(option: str, text: str, kind: Callable[[str], Any] = float, least: float = 0.0) -> list:
    """What is searched: ``LOW:HIGH`` in factors of 2, or a comma list, of numbers above ``least``.

    Raises
    ------
    MupError
        With the option's name.
    """
    try:
        values = [float(part) for part in text.replace(":", ",").split(",")]
        if not all(least < value < float("inf") for value in values):
            raise ValueError(f"every value must be above {least:g}")
        if kind is int and not all(value.is_integer() for value in values):
            raise ValueError("these are whole numbers")
        values = [kind(value) for value in values]
        values = [kind(v) for v in log2_grid(*values)] if text.count(":") == 1 and len(values) == 2 else values
        if ":" in text and "," in text or len(set(values)) < len(values):
            raise ValueError("it has a value twice" if ":" not in text else "it is neither")
    except ValueError as error:
        raise MupError(
            f"{option}: {text!r} cannot be searched ({error}): give LOW:HIGH in factors of 2, or a comma list."
        ) from None
    return values


def searched(option: str, text: str, kind: Callable[[str], Any] = float, least: float = 0.0) -> Any:
    """A grid, or a distribution: ``log:1e-3:1e-1``, ``uniform:0:1``, ``int:4:64``, ``logint:4:64``."""
    name, colon, ends = text.partition(":")
    if name not in ("log", "uniform", "int", "logint") or not colon:
        return grid(option, text, kind, least)
    from optuna.distributions import FloatDistribution, IntDistribution

    try:
        low, high = (kind(end) for end in ends.split(":"))
        of = IntDistribution if name.endswith("int") else FloatDistribution
        return of(low, high, log=name.startswith("log"))
    except ValueError as error:
        raise MupError(
            f"{option}: {text!r} is no distribution ({error}): give KIND:LOW:HIGH, such as log:1e-3:1e-1."
        ) from None


class Verb(ArgumentParser):
    """The options of one verb. Raises MupError for what it cannot read, and takes no abbreviations.

    ``--help`` fits a screen; ``--help-all`` shows the options that few need, too, and the notes.

    Parameters
    ----------
    name : str
    function : callable
        Its arguments are options, its docstring is the help. An argument ``problem`` may be given without its name;
        ``command`` is the whole line.
    groups : mapping of str to (type or sequence, str)
        Arguments of the function that are dotted options, and what they are: the class whose arguments they set, or names
        whose texts the function reads. A name may end in "_" where there is a plain option without it.
    rare : sequence of str
        Options that ``--help`` leaves out.
    notes : sequence of str
        Lines at the end of ``--help-all``.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        groups: Mapping[str, tuple[Any, str]] | None = None,
        rare: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(prog=f"neuralop-mup {name}", add_help=False, exit_on_error=False, allow_abbrev=False)
        self._function, self._sets, self._rare, self._lines = function, dict(groups or {}), set(rare), notes
        self.add_function_arguments(function, skip={*self._sets, "command"})
        self._plain = [a for a in self._actions if a.dest not in ("help", "version")]
        for group, (cls, _) in self._sets.items():
            if isinstance(cls, type):
                self.add_class_arguments(cls, group)
        self._options = {a.dest: a for a in self._actions if a.dest not in (*self._sets, "help")}
        self._options |= {
            f"{g}.{n}": None for g, (names, _) in self._sets.items() if not isinstance(names, type) for n in names
        }

    def error(self, message: str, ex: Exception | None = None) -> Any:
        raise MupError(" ".join(message.split()))

    def call(self, argv: Sequence[str]) -> Any:
        """Read the words and call the function with what they say.

        Raises
        ------
        MupError
            For an option that there is not, one without a value, twice, or whose value cannot work.
        """
        if asked := [word for word in argv if word in ("-h", "--help", "--help-all")]:
            print(self.help_text(asked[0] == "--help-all"))
            return 0
        texts = self._texts(argv)
        given: dict[str, Any] = {group: {} for group in self._sets}
        for name, text in texts.items():
            group, _, argument = name.partition(".")
            if self._options[name] is None:
                given[group] |= {argument: text}
                continue
            try:
                value = self.parse_args([f"--{name}={self._as_yaml(name, text)}"], defaults=False).as_dict()
            except Exception as error:  # jsonargparse tells of types, and not what to write
                raise MupError(self._wrong(name, text)) from error
            given[group] = {**given[group], **value[group]} if group in self._sets else value[group]
        return self._function(**given, command=shlex.join([*self.prog.split(), *argv]))

    def _texts(self, argv: Sequence[str]) -> dict[str, str]:
        """Option → its text."""
        texts: dict[str, str] = {}
        words = list(argv)
        if words and not words[0].startswith("-") and "problem" in self._options:
            words[0] = f"--problem={words[0]}"
        while words:
            option, equals, text = words.pop(0).partition("=")
            name = option.removeprefix("--").replace("-", "_")
            group, dot, argument = name.partition(".")
            name = f"{group}_.{argument}" if dot and f"{group}_" in self._sets else name
            if not option.startswith("--"):
                raise MupError(f"There is an argument too many: {option!r}.")
            if name not in self._options:
                raise MupError(f"There is no option {option!r}; {self._offer(option, name)}")
            if not equals:
                flag = self._hint(name) is bool and "." not in name
                if not flag and (not words or words[0].startswith("--")):
                    raise MupError(f"{option} needs a value, as in {option} VALUE.")
                text = "true" if flag else words.pop(0)
            if name in texts:
                raise MupError(f"{option} is given twice; give it once.")
            texts[name] = text
        return texts

    def _hint(self, name: str) -> Any:
        if (action := self._options[name]) is None:
            return str
        hint = getattr(action, "_typehint", None) or action.type
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return kinds[0] if type(None) in get_args(hint) and len(kinds) == 1 else hint

    def _as_yaml(self, name: str, text: str) -> str:
        """A comma list as one, and words for yes and no."""
        if get_origin(self._hint(name)) in (tuple, list) or (self._hint(name) is Any and "," in text):
            return f"[{text}]"
        as_it_is = self._hint(name) is str or get_origin(self._hint(name)) is Literal  # whose "none" is a rule
        return text if as_it_is else _WORDS.get(text.lower(), text)

    def _offer(self, option: str, name: str) -> str:
        """The option that was meant, or all of them."""
        group, dot, argument = name.partition(".")
        fno = [g for g in ("target", "proxy", "model", "base") if g in self._sets]
        meant = _FNO_NAMES.get(argument or name, name if name in _FNO_NAMES.values() else None)
        if not dot:
            offer = nearest(option, [*(_shown(a.dest) for a in self._plain), "--help"])
            other = " or ".join(repr(f"--{g}.{meant}") for g in fno)
            return f"did you mean {other}?" if meant and fno and not offer.startswith("did you mean") else offer
        if group not in self._sets:
            return nearest(option, [f"--{g.rstrip('_')}.{argument}" for g in self._sets]) if self._sets else "see --help."
        if group in fno and argument in _NOT_HERE:
            return f"it is {_NOT_HERE[argument]}, so that it can be given from Python only."
        if group in fno and meant:
            return f"did you mean '--{group}.{meant}'?"
        valid = [k.partition(".")[2] for k in self._options if k.startswith(f"{group}.")]
        return nearest(argument, valid, f"--{group.rstrip('_')}.")

    def _wrong(self, name: str, text: str) -> str:
        hint, option = self._hint(name), _shown(name)
        if get_origin(hint) is Literal:
            return f"{option}: there is no {text!r}; {nearest(text, get_args(hint))}"
        several = get_origin(hint) in (tuple, list)
        must = _MUST.get(get_args(hint)[0] if several else hint, "a number")
        return f"{option} must be {must}{' or a comma list of such' if several else ''}, but it is {text!r}."

    def help_text(self, everything: bool) -> str:
        """The help, on one screen or with everything."""
        if everything:
            text = "\n".join([self.format_help(), *self._lines])
            for group in self._sets:
                text = text.replace(f"--{group}.", f"--{group.rstrip('_')}.")
            return text
        lines = [inspect.getdoc(self._function).partition("\n\n")[0], "", f"{self.prog} [options]", ""]
        for action in [a for a in self._plain if a.dest not in self._rare]:
            default = "" if action.default in (None, False, (), "") else f" [{action.default}]"
            lines.append(f"  {_shown(action.dest):<18}{' '.join((action.help or '').split())}{default}")
        lines += [f"  {f'--{g.rstrip(chr(95))}.NAME X':<18}{what}" for g, (_, what) in self._sets.items()]
        return "\n".join([*lines, "", f"{self.prog} --help-all lists every option, argument and preset."])


def _shown(dest: str) -> str:
    if "." in dest:
        return f"--{dest.replace('_.', '.')}"
    return "PROBLEM" if dest == "problem" else f"--{dest}" if dest in _AS_IN_PYTHON else f"--{dest.replace('_', '-')}"
