"""Coordinate check of every kernel layout, over width and modes, and of the models of the tests, over width.

    python benchmarks/layouts.py

Layouts: an FNO-1D at widths 16 to 128, as it is, and with the kernel alone in each block (no skip, no channel MLP),
where nothing else can hide it; tensor ranks in proportion to width (a float) or fixed (integers). Models: from
tests/cases.py, at widths 8 to 64. Base is the smallest size. Writes benchmarks/results/layouts.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
from neuralop.models import FNO

import neuralop_mup as nm

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import cases
from support import batches_of, sized, squared_error, steepest

RESULTS = Path(__file__).parent / "results"
WIDTHS, MODEL_WIDTHS, MODES = [16, 32, 64, 128], [8, 16, 32, 64], [4, 8, 16, 32]
LAYOUTS = {
    "dense": {},
    "separable": {"separable": True},
    "Tucker, rank 0.4": {"factorization": "tucker", "rank": 0.4},
    "CP, rank 0.1": {"factorization": "cp", "rank": 0.1},
    "TT, rank 0.4": {"factorization": "tt", "rank": 0.4},
    "Tucker, ranks (8, 8, 6)": {"factorization": "tucker", "rank": (8, 8, 6)},
    "CP, rank 12": {"factorization": "cp", "rank": 12},
    "TT, ranks (8, 6)": {"factorization": "tt", "rank": (1, 8, 6, 1)},
}
KERNEL_ALONE = {"fno_skip": None, "use_channel_mlp": False}
MODELS = [
    *("complex_data_1d", "legacy_dense", "legacy_tucker_joint", "uno", "uno_tucker", "gino", "gino_nonlinear"),
    *("fnogno", "codano", "codano_token", "uqno", "sfno_dense", "sfno_tucker", "local_no", "local_no_groups"),
]


def batches_1d(n: int, grid: int = 64) -> list[dict[str, torch.Tensor]]:
    """Smooth random functions and a nonlinear function of each and its shift."""
    g = torch.Generator().manual_seed(0)
    x = torch.arange(grid) / grid
    phase = 2 * math.pi * torch.arange(1, 9)[:, None] * x
    result = []
    for _ in range(n):
        c = torch.randn(16, 1, 8, 2, generator=g)
        a = (c[..., 0] @ torch.cos(phase) + c[..., 1] @ torch.sin(phase)) / 3
        result.append({"x": a, "y": torch.tanh(a) * a.roll(5, -1)})
    return result


def layout(kwargs: dict, rule: str):
    def at(width: int) -> FNO:
        model = FNO((16,), 1, 1, width, n_layers=2, **kwargs)
        return nm.parametrize(model, base={"hidden_channels": WIDTHS[0]}, rule=rule)

    return at


def layout_modes(kwargs: dict, rule: str):
    def at(k: int) -> FNO:
        model = FNO((2 * k,), 1, 1, 32, n_layers=2, **kwargs)
        return nm.parametrize(model, base={"n_modes": (2 * MODES[0],)}, rule=rule)

    return at


def worst(check: nm.CoordCheck, kind: str, step: int) -> str:
    """Steepest mean slope over blocks, and its block."""
    row = steepest(check, kind, step)
    return f"{row['slope']:+.2f} ({row['block']})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    steps = (1, 5, 10)
    head = "| | parametrization | init | update, t = 1 | t = 5 | t = 10 |\n| --- | --- | --- | --- | --- | --- |"
    lines = [
        "# Coordinate check of every layout and model",
        "",
        f"`python benchmarks/layouts.py --lr {args.lr:g} --seeds {args.seeds}`: the steepest slope of log RMS against "
        "log size among a model's blocks, over all seeds, and the block it belongs to. Zero is what μP promises; the "
        "output at init is left out, since it falls as it should. CODANO has three seeds.",
    ]

    names = {"log-modes": "μP", "operator-norm": "μP, operator-norm"}

    def row(name: str, rule: str, check) -> None:
        cells = [worst(check, "init", 0), *(worst(check, "update", t) for t in steps)]
        lines.append(f"| {name} | {names.get(rule, rule)} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
        (RESULTS / "layouts.md").write_text("\n".join(lines) + "\n")

    common = {"lr": args.lr, "seeds": args.seeds, "steps": steps}
    for title, extra in (("FNO-1D", {}), ("FNO-1D, kernel alone in each block", KERNEL_ALONE)):
        lines += ["", f"## {title}, width {WIDTHS[0]} to {WIDTHS[-1]}", "", head]
        for name, kwargs in LAYOUTS.items():
            for rule in ("log-modes", "standard") if extra else ("log-modes",):
                row(name, rule, nm.coord_check(layout({**kwargs, **extra}, rule), WIDTHS, batches_1d(10), **common))
    lines += ["", f"## FNO-1D of width 32, kernel alone in each block, K = {MODES[0]} to {MODES[-1]}", "", head]
    for name, kwargs in LAYOUTS.items():
        if isinstance(kwargs.get("rank", 0.0), float):  # fixed ranks list a size for each axis
            for rule in ("log-modes", "operator-norm", "standard"):
                build = layout_modes({**kwargs, **KERNEL_ALONE}, rule)
                row(name, rule, nm.coord_check(build, MODES, batches_1d(10), **common))
    lines += ["", f"## Models, width {MODEL_WIDTHS[0]} to {MODEL_WIDTHS[-1]}", "", head]
    for name in MODELS:
        case = cases.BY_NAME.get(name)
        for rule in ("log-modes", "standard") if case else ():
            seeds = min(args.seeds, 3) if name.startswith("codano") else args.seeds  # attention over tokens is slow
            kwargs = {**common, "seeds": seeds, "loss": squared_error}
            build = sized(case, "width", rule, MODEL_WIDTHS)
            row(name, rule, nm.coord_check(build, MODEL_WIDTHS, batches_of(case, 5), **kwargs))


if __name__ == "__main__":
    main()
