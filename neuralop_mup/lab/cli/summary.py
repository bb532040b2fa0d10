"""``neuralop-mup summary``: the plan of a model that need not fit in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from jsonargparse.typing import PositiveInt

from neuralop_mup.core.parametrize import get_plan, parametrize
from neuralop_mup.core.rules import DEFAULT_RULE, check_rule
from neuralop_mup.errors import MupError
from neuralop_mup.lab.cli.options import Verb, fno_arguments, on_axes
from neuralop_mup.lab.fno import FNOs


def run(argv: list[str]) -> int:
    """Read the options and do it."""
    fno = fno_arguments()
    groups = {"model": (fno, "argument of FNO"), "base_": (fno, "argument of FNO at the base size")}
    notes = [
        "",
        "Without options: model hidden_channels 128, n_modes 64; base the reference size, hidden_channels 32, n_modes 16.",
    ]
    return Verb("summary", summary, groups, notes=notes).call(argv)


def summary(
    *,
    base: str = "",
    n_dim: PositiveInt = 2,
    in_channels: PositiveInt = 1,
    out_channels: PositiveInt = 1,
    rule: str = DEFAULT_RULE,
    format: Literal["text", "markdown", "json"] = "text",
    model: Mapping[str, Any],
    base_: Mapping[str, Any],
    command: str,
) -> int:
    """The plan of a neuralop FNO: one row per parameter. Trains nothing.

    Parameters
    ----------
    base
        base-shape file, instead of --base.NAME VALUE
    n_dim
        dimensions of the grid
    in_channels
        input channels
    out_channels
        output channels
    rule
        operator-norm, log-modes, none or standard
    format
        text, markdown or json
    """
    check_rule(rule)
    if base and base_:
        raise MupError("--base FILE and --base.NAME VALUE are two ways to give the base; use one.")
    size = {"hidden_channels": 128, "n_modes": (64,) * n_dim, **on_axes(model, n_dim)}
    # On the meta device a plan of a model with 10^9 parameters costs no memory.
    with torch.device("meta"):
        own = parametrize(FNOs(in_channels, out_channels, n_dim)(**size), base or on_axes(base_, n_dim) or None, rule=rule)
    plan = replace(get_plan(own), init_applied=True, init_pending=False)  # as of a model whose weights are drawn
    print({"text": plan.__str__, "markdown": plan.to_markdown, "json": plan.to_json}[format]())
    return 0
