"""A plan as people read it: as a table, as markdown, and what distinguishes two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a plan prints itself by these functions
    from neuralop_mup.core.plan import Plan, Row


def as_text(plan: Plan, lrs: Mapping[str, str] | None = None) -> str:
    """The table, with a column of ``lrs`` (by name) if given, under a line for the rule and for what scales all of it."""
    cells = _cells(plan, lrs)
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    lines.insert(1, "  ".join("-" * w for w in widths))
    init = "; init × still to come" if plan.init_pending else "" if plan.init_applied else "; init × not applied"
    head = [f"μP plan, rule {plan.rule!r}, {len(plan.rows)} parameters (lr × is for Adam-like{init})"]
    if plan.at_base:
        head.append(plan.at_base)
    if plan.reason:
        head.append(f"{plan.rule}: {plan.reason}")
    if any(row.lacking for row in plan.rows):
        head.append("base has fewer layers: nothing scales with depth but in MuSOAP")
    return "\n".join([*head, *lines])


def as_markdown(plan: Plan, lrs: Mapping[str, str] | None = None) -> str:
    """The table as GitHub markdown."""
    head, *rows = ("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in _cells(plan, lrs))
    return "\n".join([head, "|" + " --- |" * (7 + bool(lrs)), *rows])


def _cells(plan: Plan, lrs: Mapping[str, str] | None) -> list[tuple[str, ...]]:
    head: tuple[str, ...] = ("parameter", "role", "shape", "base shape", "init ×", "lr ×", "why")
    rows = (
        (r.name, r.role, _dims(r.shape), _dims(r.base_shape), f"{r.init_mult:.4g}", f"{r.lr_mult:.4g}", r.why)
        for r in plan.rows
    )
    if not lrs:
        return [head, *rows]
    column = ("lr", *(lrs[r.name] for r in plan.rows))
    return [(*row[:-1], lr, row[-1]) for row, lr in zip([head, *rows], column, strict=True)]


def differences(plan: Plan, other: Plan) -> list[str]:
    """What distinguishes ``other`` from ``plan``, a line each (:meth:`~neuralop_mup.core.plan.Plan.differences`)."""
    lines = [
        f"{what}: {a!r} → {b!r}"
        for what, a, b in (
            ("rule", plan.rule, other.rule),
            ("version of the rules", plan.version, other.version),
            ("init_mult", dict(plan.init_mult), dict(other.init_mult)),
        )
        if a != b
    ]
    ours, theirs = ({row.name: row for row in of.rows} for of in (plan, other))
    lines += [f"{name}: only in the first" for name in ours if name not in theirs]
    lines += [f"{name}: only in the second" for name in theirs if name not in ours]
    for name in ours if ours.keys() == theirs.keys() else ():
        lines += _row_differences(ours[name], theirs[name])
    return sorted(lines, key=lambda line: line.split(":")[0] in ours)


def _row_differences(a: Row, b: Row) -> list[str]:
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
