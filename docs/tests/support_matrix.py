"""The support matrix: what we measured for each model and option.

    python docs/tests/support_matrix.py --write

measures every case (a few minutes on one core) and writes docs/evidence/support.md. docs/tests/test_support_matrix.py
measures a few cases again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from tqdm import tqdm

from support.cases import CASES, FNO_CASES, LAYOUT_CASES, MODEL_CASES, SPHERE, SPHERE_CASES, Case
from support.comparing import exact
from support.slopes import MODES, MODES_WIDTH, SEEDS, STEP, WIDTHS, slope

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "support.md"
COMMAND = "python docs/tests/support_matrix.py --write"
NOTE_BEYOND = 0.3
_REST = "## What is not zero"

GROUPS = {
    "Options of FNO": FNO_CASES,
    "Kernel layouts": LAYOUT_CASES,
    "Models": MODEL_CASES,
    "Models that need torch_harmonics": SPHERE_CASES,
}
SLOPES = ("width", "modes")  # the columns of the tables
# These are 0. Exceptions are in a list at the end of the page.
EXACT = ("identity", "mup", "output", "step", "deepcopy", "pickle")

# Slopes beyond ±0.3, and why. Where a slope over modes is steep it was measured with `rule="none"` too, and a single
# seed's lowest and highest slope are what `coord_check` gives.
REASONS = {
    "gno-readout": "A real weakness, to −0.7 at widths up to 64. A narrow GINO starts with a larger output, which training "
    'removes first; `init_mult={"readout": 1e-3}` mends it ([layouts](../explain/layouts.md)).',
    "token-width": "A real weakness, −0.2 to −0.3 at widths up to 64 too. The cause is not settled "
    "([layouts](../explain/layouts.md)).",
    "shared-factors": "The mode rule is derived for independent blocks, and the modes of a factorized kernel share factors. "
    '`rule="none"` has +0.5, and `rule="log-modes"` +0.32.',
    "two-sizes": '`rule="none"` has the same slope. Single seeds have −0.3 to +0.8.',
    "factors-in-uno": '`rule="none"` has −0.32. The cause is not settled; single seeds have −1.3 to +0.5.',
    "graph-in": '`rule="none"` has the same slope, and the first update is flat. Single seeds have −0.3 to +1.3.',
    "tokens": '`rule="none"` has +0.28. Single seeds have −0.9 to +0.8.',
}
NOTES = {
    ("gino_nonlinear", "width"): "gno-readout",
    ("codano_token", "width"): "token-width",
    ("legacy_cp", "modes"): "shared-factors",
    ("3d", "modes"): "two-sizes",
    ("uno_tucker", "modes"): "factors-in-uno",
    ("gino_ada_in", "modes"): "graph-in",
    ("codano_cls_token", "modes"): "tokens",
}


def measure(case: Case) -> dict[str, str]:
    """Return a cell for each column."""
    return {**exact(case), **{over: slope(case, over) for over in SLOPES}}


# The page


def number(cell: str) -> float | None:
    """Return the slope in a cell, or None if the cell has a reason instead."""
    found = re.match(r"[+-]?\d+(\.\d+)?(?= |$)", cell)
    return float(found[0]) if found else None


def render(records: Mapping[str, Mapping[str, str]]) -> str:
    """Return the page for records by name of the case."""
    lines = [
        f"<!-- Written by `{COMMAND}` and checked by docs/tests/test_support_matrix.py: do not edit by hand. -->",
        "# Support matrix",
        "",
        "Which models and options work, and do their updates keep their size as they grow? All below work, under the "
        "default rule. Slopes beyond ±0.3 have a note that says why. Tests measure some of them again.",
        "",
        f"* *width*: steepest log-log slope of a layer's update over widths {_list(WIDTHS)} after {STEP} steps of Adam; "
        f"root mean square of {SEEDS} seeds, random data; 0 is ideal;",
        f"* *modes*: the same over n_modes {_list(MODES)} on each axis ({_list(MODES[:2])} in 3D), width {MODES_WIDTH}.",
        "",
        "The following are 0 for every configuration, but for what is listed at the end:",
        "",
        "* *identity*: parameters that are not bit-equal to the stock model's after 10 steps at base size;",
        "* *mup*: parameters whose learning rate in `mup.MuAdam` differs from `neuralop_mup.MuAdam`'s;",
        "* *output* and *step*: entries that differ once a checkpoint is loaded, and parameters after one step more;",
        "* *deepcopy*, *pickle*: rows of the plan that a copy of the model loses.",
        "",
        "Sizes are small and seeds few. [What transfers](transfer.md) has larger sizes.",
    ]
    used = []
    for title, group in GROUPS.items():
        lines += ["", f"## {title}", "", "| case | " + " | ".join(SLOPES) + " |", "|" + " --- |" * (1 + len(SLOPES))]
        for case in group:
            cells = []
            for column in SLOPES:
                note = NOTES.get((case.name, column))
                used += [note] if note else []
                cells.append(records[case.name][column] + (f" [^{note}]" if note else ""))
            lines.append(f"| {case.name} | " + " | ".join(cells) + " |")
    rest = [(name, column, row[column]) for name, row in records.items() for column in EXACT]
    lines += ["", _REST, "", *(f"* {name}, {column}: {cell}" for name, column, cell in rest if cell != "0")]
    lines += ["", *(f"[^{note}]: {REASONS[note]}" for note in dict.fromkeys(used))]
    return "\n".join(lines).rstrip() + "\n"


def parse(page: str) -> dict[str, dict[str, str]]:
    """Return the slopes of each case on a page, with footnote marks."""
    rows = {}
    for line in page.partition(_REST)[0].splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "\0").strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 1 + len(SLOPES) and cells[0] not in ("case", "---"):
            name, *values = (cell.replace("\0", "\\|") for cell in cells)
            rows[name] = dict(zip(SLOPES, values, strict=True))
    return rows


def _list(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))


def main() -> None:
    if not SPHERE:
        sys.exit("Some rows need torch_harmonics: pip install '.[sphere]', then run this again.")
    torch.set_num_threads(1)
    page = render({case.name: measure(case) for case in tqdm(CASES, desc="cases")})
    (PAGE if "--write" in sys.argv else Path("/dev/stdout")).write_text(page)


if __name__ == "__main__":
    main()
