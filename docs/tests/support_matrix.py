"""The support matrix: what we measured for each model and option.

    python docs/tests/support_matrix.py --write

measures every case (a few minutes on one core) and writes docs/evidence/support.md. Without ``--write`` it prints the page.
docs/tests/test_support_matrix.py measures a few slopes again.
"""

import sys
from pathlib import Path

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # for `support`

from support.cases import FNO_CASES, LAYOUT_CASES, MODEL_CASES, SPHERE, SPHERE_CASES
from support.comparing import exact
from support.slopes import MODES, MODES_WIDTH, SEEDS, STEP, WIDTHS, slope

PAGE = Path(__file__).parents[1] / "evidence" / "support.md"
COMMAND = "python docs/tests/support_matrix.py --write"
NOTE_BEYOND = 0.3

GROUPS = {
    "Options of FNO": FNO_CASES,
    "Kernel layouts": LAYOUT_CASES,
    "Models": MODEL_CASES,
    "Models that need torch_harmonics": SPHERE_CASES,
}
SLOPES = ("width", "modes")  # the columns of the tables
# These are 0. Exceptions are in a list at the end of the page.
EXACT = ("identity", "mup", "output", "step", "deepcopy", "pickle")

# The footnotes of slopes beyond ±0.3: mark and reason, in the order of the page. Where a slope over modes is steep it was
# measured with `rule="none"` too, and a single seed's lowest and highest slope are what `coord_check` gives.
NOTES = {
    ("3d", "modes"): ("two-sizes", '`rule="none"` has the same slope. Single seeds range from −0.3 to +0.8.'),
    ("legacy_cp", "modes"): (
        "shared-factors",
        "The mode rule is derived for independent blocks, and the modes of a factorized kernel share factors. "
        'The slope is +0.5 with `rule="none"` and +0.32 with `rule="log-modes"`.',
    ),
    ("uno_tucker", "modes"): (
        "factors-in-uno",
        'With `rule="none"`, the slope is −0.32. The cause is not settled. Single seeds range from −1.3 to +0.5.',
    ),
    ("gino_ada_in", "modes"): (
        "graph-in",
        '`rule="none"` has the same slope, and the first update is flat. Single seeds range from −0.3 to +1.3.',
    ),
    ("gino_nonlinear", "width"): (
        "gno-readout",
        "This is a real weakness: the slope is −0.7 at widths up to 64. A narrow GINO starts with a larger output. "
        '`init_mult={"readout": 1e-3}` avoids this ([models](../explain/inferences.md)).',
    ),
    ("codano_token", "width"): (
        "token-width",
        "This is a real weakness, also at widths up to 64 (−0.2 to −0.3). The cause is not settled "
        "([models](../explain/inferences.md)).",
    ),
    ("codano_cls_token", "modes"): (
        "tokens",
        'With `rule="none"`, the slope is +0.28. Single seeds range from −0.9 to +0.8.',
    ),
}

HEAD = f"""\
<!-- Written by `{COMMAND}` and checked by docs/tests/test_support_matrix.py: do not edit by hand. -->
# Support matrix

**Which models and options work, and do their updates keep their size as the model grows?** All of these work, and most \
updates keep their size. Each slope beyond ±0.3 has a footnote. The models are small, and only a few seeds were run. \
This code measures one model:

```python
import torch
from neuralop.models import FNO

import neuralop_mup as nm


def build(width):
    model = FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=width)
    return nm.parametrize(model, base={{"hidden_channels": 8}})


x = torch.randn(8, 1, 32)
print(nm.coord_check(build, sizes=[8, 16, 32], batches=[{{"x": x, "y": x}}], lr=4e-3, steps=(3,), seeds=2))
```

* *width*: the steepest log-log slope of a layer's update over widths {", ".join(map(str, WIDTHS))}, \
after {STEP} steps of Adam under the default rule. Updates are root mean squares over {SEEDS} seeds \
with random data, and 0 is ideal.
* *modes*: the same slope over `n_modes` {", ".join(map(str, MODES))} on each axis \
({", ".join(map(str, MODES[:2]))} in 3D), at width {MODES_WIDTH}.

For each case, we also count differences that should not occur. All counts are 0, except for \
[those listed below](#what-is-not-zero):

* *identity*: parameters that differ from neuralop's model after 10 steps at the base size
* *mup*: parameters with a different learning rate in `mup.MuAdam` than in `nm.MuAdam`
* *output*, *step*: output entries that differ after loading a checkpoint, and parameters that differ after another step
* *deepcopy*, *pickle*: rows of the plan that a copy of the model loses
"""


def render(records: dict[str, dict[str, str]]) -> str:
    """Return the page for the cells of each case, by the case's name."""
    lines = [HEAD]
    for title, group in GROUPS.items():
        lines += [f"## {title}", "", "| case | width | modes |", "| --- | --- | --- |"]
        for name in (case.name for case in group):
            cells = [name]
            for over in SLOPES:
                mark = f" [^{NOTES[name, over][0]}]" if (name, over) in NOTES else ""
                cells.append(records[name][over] + mark)
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["## What is not zero", ""]
    for name, cells in records.items():
        lines += [f"* {name}, {column}: {cells[column]}" for column in EXACT if cells[column] != "0"]
    lines += ["", *(f"[^{mark}]: {reason}" for mark, reason in NOTES.values())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if not SPHERE:
        sys.exit("Some rows need torch_harmonics: pip install '.[sphere]', then run this again.")
    torch.set_num_threads(1)
    cases = tqdm([case for group in GROUPS.values() for case in group], desc="cases")
    page = render({case.name: {**exact(case), **{over: slope(case, over) for over in SLOPES}} for case in cases})
    (PAGE if "--write" in sys.argv else Path("/dev/stdout")).write_text(page)
