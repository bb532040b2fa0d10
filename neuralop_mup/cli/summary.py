"""``neuralop-mup summary``: the plan of a model that need not fit in memory."""

from __future__ import annotations

import torch
from neuralop.models import FNO

from neuralop_mup.cli.arguments import fno_arguments, fno_help
from neuralop_mup.cli.options import Parser, count, one_of, phrase
from neuralop_mup.core.planning import make_plan
from neuralop_mup.core.rules import DEFAULT_RULE, check_rule
from neuralop_mup.errors import MupError

_FORMATS = ("text", "markdown", "json")


def run(argv: list[str]) -> int:
    """Print one row per parameter."""
    parser = Parser(
        "neuralop-mup summary",
        "The plan of a neuralop FNO: one row per parameter. Trains nothing.",
        {"model": "argument of FNO", "base": "argument of FNO at the base size"},
        [
            *fno_help(),
            "",
            "Without options: model hidden_channels 128, n_modes 64; base hidden_channels 32, n_modes 12.",
        ],
    )
    parser.option("--base", "base-shape file, instead of --base.NAME VALUE")
    parser.option("--n_dim", "dimensions of the grid", count, default="2")
    parser.option("--in_channels", "input channels", count, default="1")
    parser.option("--out_channels", "output channels", count, default="1")
    parser.option("--rule", "operator-norm, log-modes, none or standard", check_rule, default=DEFAULT_RULE)
    parser.option("--format", "text, markdown or json", one_of(_FORMATS), default="text")
    options, dotted = parser.read(argv)
    if options.base and dotted["base"]:
        raise MupError("--base FILE and --base.NAME VALUE are two ways to give the base; use one.")
    n_dim = options.n_dim
    channels = {"in_channels": options.in_channels, "out_channels": options.out_channels}
    defaults = {"hidden_channels": 128, "n_modes": (64,) * n_dim}
    model = {**channels, **defaults, **fno_arguments("model", dotted["model"], n_dim)}
    base = {"hidden_channels": 32, "n_modes": (12,) * n_dim, **fno_arguments("base", dotted["base"], n_dim)}
    # On the meta device a plan of a model with 10^9 parameters costs no memory.
    with torch.device("meta"):
        try:
            fno = FNO(**model)
        except Exception as error:  # the constructor's reason is what the user needs
            raise MupError(f"FNO cannot be built from {phrase(model)}: {type(error).__name__}: {error}") from error
        plan = make_plan(fno, options.base or base, options.rule)
    print({"text": plan.__str__, "markdown": plan.to_markdown, "json": plan.to_json}[options.format]())
    return 0
