"""The plan: one row a parameter, with everything the rule made of it, as data and JSON."""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property

from neuralop_mup.core.infshape import MupShape
from neuralop_mup.core.rules import OF_INIT, RULE_VERSION, RULES, ModeRule, Size, check_multipliers
from neuralop_mup.errors import MupError, nearest

# Of plans: what they say of kernels of which one side grows.
REVISION = 1


@dataclass(frozen=True)
class ParamPlan:
    """One parameter: what it is, how big, how big at base, and its multipliers (all relative to base).

    Attributes
    ----------
    name, role, layer : str
        Qualified name, role, and type of the layer that owns it.
    axes : tuple of str
        Kind of each dimension.
    shape, base_shape : tuple of int
        Logical shapes (active modes on mode axes).
    init_mult : float
        Factor on the default initialisation, a multiplier of the role included.
    lr_mult, sgd_lr_mult : float
        The rule's factors on an Adam-like learning rate, and on SGD's.
    default_std : float or None
        Root mean square of the default initialisation at this size; None where that is not random (gates, norms).
    why : str
        The rule in a few words.
    owner : str
        Name of the layer.
    init : str
        How the default initialisation depends on the fans (:class:`~neuralop_mup.Param`); ``own`` where the layer's
        description has a function for it, ``unknown`` where nobody described the parameter.
    size, base_size : Size or None
        The numbers that the rule read, here and at base; None where a parameter holds no numbers.
    lacking : bool
        Whether base, which has fewer layers, lacks the parameter; ``base_shape`` is then that of its last layer.
    frozen : bool
        Whether the layer's own constructor freezes it, or it was frozen and nothing of it grows.
    fixed : bool
        Whether nothing of it grows. It keeps its own initialization and the base rate, without multipliers of its role.
    divisor : float
        What the layer's forward pass divides its input by (``mup.MuReadout``); 1 for other layers.
    """

    name: str
    role: str
    layer: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    init_mult: float = 1.0
    lr_mult: float = 1.0
    sgd_lr_mult: float = 1.0
    default_std: float | None = None
    why: str = ""
    owner: str = ""
    init: str = ""
    size: Size | None = None
    base_size: Size | None = None
    lacking: bool = False
    frozen: bool = False
    fixed: bool = False
    divisor: float = 1.0

    @property
    def tuned_as(self) -> str:
        """The role whose multipliers it takes; "fixed", which is none, where nothing of it grows."""
        return "fixed" if self.fixed else self.role

    def mup_shape(self, of: int = 1) -> MupShape:
        """The ``infshape`` that mup's optimizers read; ``of`` is the number of rows in the plan that are not frozen."""
        # mup writes sizes of what grows alone.
        axes = ("fixed",) * len(self.axes) if self.fixed else self.axes
        multipliers = self.lr_mult, self.sgd_lr_mult
        return MupShape(axes, self.shape, self.base_shape, *multipliers, of, self.frozen, self.divisor)


@dataclass(frozen=True)
class Plan:
    """The whole table. ``str(plan)`` is text; :meth:`to_markdown` and :meth:`to_json` are the other forms.

    Attributes
    ----------
    rule : str
        Name of the rule that the multipliers follow.
    rows : tuple of ParamPlan
        In ``named_parameters`` order.
    init_mult : dict
        Multipliers of init by role (already inside the rows' ``init_mult``).
    init_applied : bool, default True
        Whether the weights were rescaled (False after ``parametrize(…, init=False)``).
    version : int, default 2
        Version of the rules. A file of another version is refused.
    reason : str, default ""
        What the rule does, in a line.
    revision : int
        0 in plans of releases up to 0.3, where κ of a kernel of which one side grows has a factor of the width.
    function : callable or None
        The rule, where it was given as a function. A file keeps its name and every number that it gave.
    at_base : str, default ""
        What the base is, and how it was found out what grows, in words.
    lrs : dict, optional
        Learning rate of each parameter in an optimizer, in words, where one was given to ``summary``. Not saved.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> plan = nm.summary(nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 8}))
    >>> plan.rule, len(plan)
    ('operator-norm', 40)
    >>> row = plan["projection.fcs.1.weight"]
    >>> row.role, row.shape, row.base_shape, row.init_mult, row.lr_mult
    ('readout', (1, 64, 1), (1, 16, 1), 0.5, 0.25)
    """

    rule: str
    rows: tuple[ParamPlan, ...]
    init_mult: Mapping[str, float]
    init_applied: bool = True
    version: int = RULE_VERSION
    revision: int = REVISION
    reason: str = field(default="", compare=False)
    function: ModeRule | None = field(default=None, compare=False, repr=False)
    at_base: str = field(default="", compare=False)
    lrs: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def mode_rule(self) -> str | ModeRule:
        """The rule as :func:`~neuralop_mup.core.rules.multipliers` takes it.

        Returns
        -------
        str or callable
            The name, or the function where one was given.

        Raises
        ------
        MupError
            If it was a function, of which a file or a pickle has kept the name alone.

        Examples
        --------
        >>> nm.summary(nm.parametrize(FNO((8,), 1, 1, 16))).mode_rule
        'operator-norm'
        """
        if self.function is None and self.rule not in RULES:
            raise MupError(
                f"The plan follows the rule {self.rule!r}, a function of which only the name was saved, so multipliers at "
                f"other modes are not known: set neuralop_mup.rules.RULES[{self.rule!r}] to that function first."
            )
        return self.function or self.rule

    def __deepcopy__(self, memo: dict) -> "Plan":
        return self  # nothing in it changes, and a rule that was given as a function stays with it

    def __getstate__(self) -> dict:
        module = sys.modules.get(getattr(self.function, "__module__", None) or "")
        found = getattr(module, getattr(self.function, "__qualname__", ""), None)
        # A lambda cannot be pickled, but a model with its plan has to be.
        function = self.function if found is self.function else None
        return {**{own.name: getattr(self, own.name) for own in fields(self)}, "function": function}

    @cached_property
    def _by_name(self) -> dict[str, ParamPlan]:
        return {row.name: row for row in self.rows}

    def __getitem__(self, name: str) -> ParamPlan:
        if name not in self:
            raise MupError(
                f"A plan is indexed by the name of a parameter, not by {name!r}: its rows are plan.rows, its text is "
                f"str(plan). Of the names: {nearest(str(name), self._by_name)}"
            )
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._by_name

    def __iter__(self) -> Iterator[ParamPlan]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        """The table, under a line for the rule and one for what was measured."""
        cells = _cells(self)
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        lines.insert(1, "  ".join("-" * w for w in widths))
        init = "" if self.init_applied else "; init × not applied"
        head = f"μP plan, rule {self.rule!r}, {len(self.rows)} parameters (lr × is for Adam-like{init})"
        reason = f"{self.rule}: {self.reason}" if self.reason else ""
        depth = (
            "base has fewer layers: nothing scales with depth but in MuSOAP" if any(row.lacking for row in self.rows) else ""
        )
        return "\n".join([head, *filter(None, (self.at_base, reason, depth)), *lines])

    def to_markdown(self) -> str:
        """The table as GitHub markdown.

        Returns
        -------
        str
            A header, and a line for each parameter.

        Examples
        --------
        >>> plan = nm.summary(nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8}))
        >>> print(plan.to_markdown().splitlines()[0])
        | parameter | role | shape | base shape | init × | lr × | why |
        """
        head, *rows = ("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in _cells(self))
        return "\n".join([head, "|" + " --- |" * (7 + bool(self.lrs)), *rows])

    @cached_property
    def text(self) -> str:
        """:meth:`to_json` in one line, made once: it goes into every ``state_dict``."""
        return self.to_json(indent=None)

    def differences(self, other: "Plan") -> list[str]:
        """What distinguishes another plan from this one, a line each; empty if both scale every parameter alike.

        Whether the initialisation was applied does not count, nor do rounding errors of another machine.

        Parameters
        ----------
        other : Plan
            The one to compare with.

        Returns
        -------
        list of str
            What is different, such as the rule, or a parameter's multiplier.

        Examples
        --------
        >>> one, other = (nm.summary(nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": c})) for c in (8, 4))
        >>> one.differences(one), len(one.differences(other))
        ([], 40)
        """
        lines = [
            f"{what}: {a!r} → {b!r}"
            for what, a, b in (
                ("rule", self.rule, other.rule),
                ("version of the rules", self.version, other.version),
                ("init_mult", dict(self.init_mult), dict(other.init_mult)),
            )
            if a != b
        ]
        ours, theirs = self._by_name, other._by_name
        for name in sorted(ours.keys() ^ theirs.keys()):
            lines.append(f"{name}: only in the {'first' if name in ours else 'second'}")
        for name in ours if ours.keys() == theirs.keys() else ():
            lines += _row_differences(ours[name], theirs[name])
        return lines

    def to_json(self, indent: int | None = 2) -> str:
        """The plan as JSON: ``rule``, ``version``, ``init_mult`` and ``rows`` with every field of :class:`ParamPlan`.

        Of a rule that was given as a function it has the name, the reason and every number that the function gave.

        Parameters
        ----------
        indent : int or None, default 2
            Spaces by which the text is indented; None puts all of it into one line.

        Returns
        -------
        str
            What :meth:`from_json` reads.

        Examples
        --------
        >>> import json
        >>> plan = nm.summary(nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8}))
        >>> json.loads(plan.to_json())["rows"][0]["name"]
        'fno_blocks.convs.0.bias'
        """
        stored = asdict(replace(self, function=None))
        del stored["lrs"]
        return json.dumps(stored, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The plan that :meth:`to_json` wrote.

        Parameters
        ----------
        text : str
            The JSON.

        Returns
        -------
        Plan
            Equal to the one that was written, but for a rule that was given as a function: of that it has the name.

        Raises
        ------
        MupError
            If the text is not such a plan, cut off, or written by a version of the rules that this one does not know.

        Examples
        --------
        >>> plan = nm.summary(nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8}))
        >>> nm.Plan.from_json(plan.to_json()) == plan
        True
        """
        try:
            stored = json.loads(text)
            if stored["version"] != RULE_VERSION:
                raise MupError(
                    f"The plan follows version {stored['version']} of the rules, this package version {RULE_VERSION}: its "
                    "multipliers would not be the same. Train on with the release that wrote it."
                )
            for key, what in _REFUSED.items():
                if stored.pop(key, None):
                    raise MupError(f"The plan {what} ({key}), which this version does not: train on with release 0.2.")
            stored.setdefault("revision", 0)
            stored.pop("init_pending", None)  # release 0.3.0 wrote it
            stored["rows"] = tuple(ParamPlan(**_fields(row)) for row in stored["rows"])
            stored["init_mult"] = check_multipliers(stored["init_mult"], "init_mult", OF_INIT)
            return cls(**stored)
        except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
            raise MupError(
                f"This is not the JSON of a plan, or it is cut off ({error}): write it with Plan.to_json."
            ) from error


def _fields(stored: Mapping) -> dict:
    """Lists as tuples and mappings as sizes, without what 0.2 stored besides."""
    return {
        key: tuple(value) if isinstance(value, list) else Size(**_fields(value)) if isinstance(value, dict) else value
        for key, value in stored.items()
        if key not in _FORMER
    }


# What a plan of 0.2 may say that this version leaves out, and what it cannot follow.
_FORMER = ("place", "eps_mult", "std_ratio", "steps", "tensor_shape")
_REFUSED = {"correct_tt": "corrects tensor-train kernels", "training": "carries learning rates over steps"}


def _cells(plan: Plan) -> list[tuple[str, ...]]:
    head: tuple[str, ...] = ("parameter", "role", "shape", "base shape", "init ×", "lr ×", "why")
    rows = (
        (r.name, r.tuned_as, _dims(r.shape), _dims(r.base_shape), f"{r.init_mult:.4g}", f"{r.lr_mult:.4g}", r.why)
        for r in plan.rows
    )
    if not plan.lrs:
        return [head, *rows]
    column = ("lr", *(plan.lrs[r.name] for r in plan.rows))
    return [(*row[:-1], lr, row[-1]) for row, lr in zip([head, *rows], column, strict=True)]


def _row_differences(a: ParamPlan, b: ParamPlan) -> list[str]:
    parts = [
        f"{what} {x} → {y}"
        for what, x, y in (
            ("role", a.role, b.role),
            ("axes", ", ".join(a.axes), ", ".join(b.axes)),
            ("shape", _dims(a.shape), _dims(b.shape)),
            ("base shape", _dims(a.base_shape), _dims(b.base_shape)),
        )
        if x != y
    ]
    parts += [
        f"{what} {x:.4g} → {y:.4g}"
        for what, x, y in (
            ("init ×", a.init_mult, b.init_mult),
            ("lr ×", a.lr_mult, b.lr_mult),
            ("SGD lr ×", a.sgd_lr_mult, b.sgd_lr_mult),
        )
        if not math.isclose(x, y, rel_tol=1e-9)
    ]
    return [f"{a.name}: {', '.join(parts)}"] if parts else []


def _dims(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
