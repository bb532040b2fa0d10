"""Define the plan, a table of all parameters with their multipliers that can be written as JSON."""

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property

from neuralop_mup.core.infshape import MupShape
from neuralop_mup.core.rules import OF_INIT, RULE_VERSION, RULES, ModeRule, Size, check_multipliers
from neuralop_mup.errors import MupError, nearest

# Increase this number if the same rules produce different plans. Revision 1 changed κ of kernels with one growing side.
REVISION = 1
_LAYER_NUMBER = re.compile(r"(?<![^.])(\d+)(?![^.])")  # a part of a parameter's name


@dataclass(frozen=True)
class ParamPlan:
    """Role, sizes and multipliers of one parameter, relative to the base model.

    Attributes
    ----------
    name, role, layer : str
        Qualified name, role, and type of the layer that owns the parameter.
    axes : tuple of str
        Kind of each dimension.
    shape, base_shape : tuple of int
        Logical shapes, with active modes on mode axes, in this model and in the base model.
    init_mult : float
        Factor on the default initialisation, including the user's multiplier for the role.
    lr_mult, sgd_lr_mult : float
        The rule's factors on the learning rates of an Adam-like optimizer and of SGD.
    default_std : float or None
        Root mean square of the default initialisation at this size, or None if it is not random (gates, norms).
    why : str
        Short explanation of the multipliers.
    owner : str
        Qualified name of the layer.
    init : str
        Default initialisation (see :class:`~neuralop_mup.Param`), "own" if it is a function, or "unknown" without a
        description.
    size, base_size : Size or None
        Sizes that the rule used, in this model and in the base model, or None for an empty parameter.
    lacking : bool
        Whether the base model does not have this parameter because it has fewer layers. ``base_shape`` is then the shape in
        its last layer.
    frozen : bool
        Whether the layer's constructor freezes the parameter, or the parameter was frozen and does not grow.
    fixed : bool
        Whether no dimension grows. Multipliers do not apply to such parameters.
    divisor : float
        Divisor of the layer's input (``mup.MuReadout``), or 1 for other layers.
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
        """Role that selects the user's multipliers, or "fixed" (no multipliers) if no dimension grows."""
        return "fixed" if self.fixed else self.role

    def mup_shape(self, of: int = 1) -> MupShape:
        """Return the ``infshape`` for mup's optimizers; see :class:`MupShape` for ``of``."""
        # mup only stores base sizes of growing dimensions.
        axes = ("fixed",) * len(self.axes) if self.fixed else self.axes
        multipliers = self.lr_mult, self.sgd_lr_mult
        return MupShape(axes, self.shape, self.base_shape, *multipliers, of, self.frozen, self.divisor)


@dataclass(frozen=True)
class Plan:
    """Table of all parameters with their roles, sizes and multipliers.

    Attributes
    ----------
    rule : str
        Name of the rule.
    rows : tuple of ParamPlan
        One row per parameter, in the order of ``named_parameters``.
    init_mult : dict
        User's initialisation multipliers by role, which the rows' ``init_mult`` already includes.
    init_applied : bool, default True
        Whether the weights were rescaled (False after ``parametrize(…, init=False)``).
    version : int, default 2
        Version of the rules. Files with a different version are rejected.
    reason : str, default ""
        Explanation of the rule in one line.
    revision : int
        Revision of the plan. It is 0 for plans of releases up to 0.3. In these plans, κ depends on the width if only one
        side of a kernel grows.
    function : callable or None
        The rule, if it is a function. A file only stores its name and the multipliers.
    at_base : str, default ""
        Description, in one line, of the base model and of how the growing dimensions were found.
    lrs : dict, optional
        Learning rate of each parameter as text, if an optimizer was passed to ``summary``. It is not saved.

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
        """Rule to pass to :func:`~neuralop_mup.core.rules.multipliers`.

        Returns
        -------
        str or callable
            Name of the rule, or the function if the rule is a function.

        Raises
        ------
        MupError
            If the rule was a function and the plan comes from a file or a pickle, which only store its name.

        Examples
        --------
        >>> nm.summary(nm.parametrize(FNO((8,), 1, 1, 16))).mode_rule
        'operator-norm'
        """
        if self.function is None and self.rule not in RULES:
            raise MupError(
                f"The plan follows the rule {self.rule!r}, which is a function, but only its name was saved. The function "
                f"is needed to compute multipliers for other modes. Set neuralop_mup.rules.RULES[{self.rule!r}] = … first."
            )
        return self.function or self.rule

    def __deepcopy__(self, memo: dict) -> "Plan":
        return self  # a plan is immutable, and this keeps a rule that is a function

    def __getstate__(self) -> dict:
        module = sys.modules.get(getattr(self.function, "__module__", None) or "")
        found = getattr(module, getattr(self.function, "__qualname__", ""), None)
        # Omit functions that cannot be pickled, such as lambdas, because a model with a plan must be picklable.
        function = self.function if found is self.function else None
        return {**{own.name: getattr(self, own.name) for own in fields(self)}, "function": function}

    @cached_property
    def _by_name(self) -> dict[str, ParamPlan]:
        return {row.name: row for row in self.rows}

    def __getitem__(self, name: str) -> ParamPlan:
        if name not in self:
            raise MupError(
                f"The plan has no parameter {name!r}: {nearest(str(name), self._by_name)} Index a plan by parameter name, "
                "or use plan.rows for its rows and str(plan) for its table."
            )
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._by_name

    def __iter__(self) -> Iterator[ParamPlan]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        """Return the table, preceded by lines that describe the rule and the base model.

        Repeated layers with equal values share a row, such as ``blocks.0–3.weight``.
        """
        cells = _cells(self)
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        lines.insert(1, "  ".join("-" * w for w in widths))
        init = "" if self.init_applied else "; init × not applied"
        head = f"μP plan, rule {self.rule!r}, {len(self.rows)} parameters (lr × is for Adam-like{init})"
        reason = f"{self.rule}: {self.reason}" if self.reason else ""
        depth = "base has fewer layers: only MuSOAP scales with depth" if any(row.lacking for row in self.rows) else ""
        return "\n".join([head, *filter(None, (self.at_base, reason, depth)), *lines])

    def to_markdown(self) -> str:
        """Return the table as GitHub Markdown.

        Returns
        -------
        str
            Table with a header and one line per parameter. Repeated layers with equal values share a line.

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
        """JSON of the plan in one line, cached because every ``state_dict`` contains it."""
        return self.to_json(indent=None)

    def differences(self, other: "Plan") -> list[str]:
        """Return the differences from another plan, which are none if both scale every parameter equally.

        Rounding errors are ignored, as is whether the initialisation was applied.

        Parameters
        ----------
        other : Plan
            Plan to compare with.

        Returns
        -------
        list of str
            One line per difference, such as a different rule or a different multiplier of a parameter.

        Examples
        --------
        >>> one, other = (nm.summary(nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": c})) for c in (8, 4))
        >>> one.differences(one), len(one.differences(other))
        ([], 40)
        """
        lines = [
            f"{what}: {a!r} → {b!r}"
            for what in ("rule", "version", "init_mult")
            if (a := getattr(self, what)) != (b := getattr(other, what))
        ]
        ours, theirs = self._by_name, other._by_name
        for name in sorted(ours.keys() ^ theirs.keys()):
            lines.append(f"{name}: only in the {'first' if name in ours else 'second'}")
        for name in ours if ours.keys() == theirs.keys() else ():
            lines += _row_differences(ours[name], theirs[name])
        return lines

    def to_json(self, indent: int | None = 2) -> str:
        """Return the plan as JSON: ``rule``, ``version``, ``init_mult`` and ``rows`` with every field of :class:`ParamPlan`.

        If the rule is a function, only its name, its reason and the multipliers are stored.

        Parameters
        ----------
        indent : int or None, default 2
            Number of spaces per level, or None for a single line.

        Returns
        -------
        str
            JSON for :meth:`from_json`.

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
        """Read a plan from the JSON of :meth:`to_json`.

        Parameters
        ----------
        text : str
            JSON of a plan.

        Returns
        -------
        Plan
            Plan that is equal to the stored plan. If the rule was a function, only its name is restored.

        Raises
        ------
        MupError
            If the text is not a plan or is truncated, or if the plan follows another version of the rules.

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
                    f"The plan follows version {stored['version']} of the rules, but this package uses version "
                    f"{RULE_VERSION}, which has different multipliers. Use the release that wrote the plan."
                )
            stored.setdefault("revision", 0)
            stored.pop("init_pending", None)  # written by release 0.3.0
            stored["rows"] = tuple(ParamPlan(**_fields(row)) for row in stored["rows"])
            stored["init_mult"] = check_multipliers(stored["init_mult"], "init_mult", OF_INIT)
            return cls(**stored)
        except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
            raise MupError(
                "This is not the JSON of a plan: it is truncated, in a different format, or written by release 0.2 "
                f"({error}). Write it with Plan.to_json, or use the release that wrote it."
            ) from error


def _fields(stored: Mapping) -> dict:
    """Convert lists to tuples and mappings to Size objects."""
    return {
        key: tuple(value) if isinstance(value, list) else Size(**_fields(value)) if isinstance(value, dict) else value
        for key, value in stored.items()
    }


def _cells(plan: Plan) -> list[tuple[str, ...]]:
    """Return the cells of the table. Repeated layers with equal cells share a row, such as ``blocks.0–3.weight``."""
    head = ("parameter", "role", "shape", "base shape", "init ×", "lr ×", *(["lr"] if plan.lrs else []), "why")
    numbers: dict[tuple[str, ...], list[str]] = {}
    for r in plan.rows:
        name = _LAYER_NUMBER.split(r.name, maxsplit=1)  # before the number, the number, and after it
        lr = [plan.lrs[r.name]] if plan.lrs else []
        cells = (r.tuned_as, _dims(r.shape), _dims(r.base_shape), f"{r.init_mult:.4g}", f"{r.lr_mult:.4g}", *lr, r.why)
        numbers.setdefault((name[0], "".join(name[2:]), *cells), []).extend(name[1:2])
    return [head, *((f"{before}{_span(found)}{after}", *cells) for (before, after, *cells), found in numbers.items())]


def _span(numbers: list[str]) -> str:
    """Return numbers as text, such as 0–3 or 0,2."""
    is_span = len(numbers) > 2 and int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1
    return f"{numbers[0]}–{numbers[-1]}" if is_span else ",".join(numbers)


def _row_differences(a: ParamPlan, b: ParamPlan) -> list[str]:
    parts = [
        f"{what} {x} → {y}"
        for what in ("role", "axes", "shape", "base_shape")
        if (x := getattr(a, what)) != (y := getattr(b, what))
    ]
    parts += [
        f"{what} {x:.4g} → {y:.4g}"
        for what in ("init_mult", "lr_mult", "sgd_lr_mult")
        if not math.isclose(x := getattr(a, what), y := getattr(b, what), rel_tol=1e-9)
    ]
    return [f"{a.name}: {', '.join(parts)}"] if parts else []


def _dims(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
