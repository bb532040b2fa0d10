"""What holds for each case of the table, measured and written down: the support matrix.

    python tests/support.py --write

measures every case (a few minutes on one core) and writes docs/evidence/support.md; tests/test_cases.py and
tests/test_support_matrix.py measure it again.
"""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mup
import torch
from neuralop.models import FNO
from torch import nn
from tqdm import tqdm

import neuralop_mup as nm
from cases import CASES, FNO_CASES, LAYOUT_CASES, MODEL_CASES, SPHERE, SPHERE_CASES, Case, Model
from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.lab.problems import get_problem
from neuralop_mup.lab.training import FNOs, Training, losses_of

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "support.md"
COMMAND = "python tests/support.py --write"
RULE = DEFAULT_RULE
LR, SEEDS, STEP = 5e-3, 8, 3  # with three seeds a flat slope reads up to ±0.5
WIDTHS = (8, 16, 32)
MODES = (8, 16, 32)  # n_modes; halved, K = 4, 8, 16
MODES_WIDTH = 16
NOTE_BEYOND = 0.3
_REST = "## What is not zero"

GROUPS = {
    "Options of FNO": FNO_CASES,
    "Kernel layouts": LAYOUT_CASES,
    "Models": MODEL_CASES,
    "Models that need torch_harmonics": SPHERE_CASES,
}
EXACT = ("identity", "mup", "output", "step", "deepcopy", "pickle")
SLOPES = ("width", "modes")
COLUMNS = ("identity", "width", "modes", "mup", "output", "step", "deepcopy", "pickle")
#: Of these every case has a cell in its table. The others are 0, and what is not stands in a list of its own.
SHOWN = SLOPES

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


# Training and comparing


def train(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 10) -> None:
    """Take steps on the case's batch, squared error."""
    x, y = case.batch()
    for _ in range(steps):
        optimizer.zero_grad()
        (case.output(model, x) - y).abs().square().mean().backward()
        optimizer.step()


def parametrized(case: Case, seed: int = 0, **kwargs: Any) -> nn.Module:
    """The case's model with its own base."""
    return nm.parametrize(case.build(seed), base=case.base, **kwargs)


def assert_same(a: nn.Module, b: nn.Module) -> None:
    """Parameters are bit-equal, and have the same names inside of what the models are wrapped in."""
    for (name, p), (other, q) in zip(nm.unwrap(a).named_parameters(), nm.unwrap(b).named_parameters(), strict=True):
        assert name == other and torch.equal(p, q), name


def rates(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, tuple[float, float]]:
    """Learning rate and decay of each parameter, by its name in the bare model."""
    names = {id(p): name for name, p in nm.unwrap(model).named_parameters()}
    return {names[id(p)]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}


def a_summary_has_every_parameter(model: nn.Module) -> None:
    """In each of its three forms."""
    plan = nm.summary(model)
    names = [name for name, _ in model.named_parameters()]
    text, markdown, rows = str(plan), plan.to_markdown(), json.loads(plan.to_json())["rows"]
    assert [row["name"] for row in rows] == names
    assert all(name in text and f"| {name} |" in markdown for name in names)


def learning_rates_are_mups(model: nn.Module) -> None:
    """Of every parameter, and its decay, under every optimizer."""
    settings = {"lr": LR, "weight_decay": 0.1}
    for ours, theirs in ((nm.MuAdam, mup.MuAdam), (nm.MuAdamW, mup.MuAdamW), (nm.MuSGD, mup.MuSGD)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*use MuAdamW")  # Adam's decay is not independent
            mine = rates(ours(model, **settings), model)
        assert mine == rates(theirs(model.parameters(), **settings), model), ours
        assert len(mine) == len(list(model.parameters()))


def differing(a: nn.Module, b: nn.Module) -> int:
    """Number of parameters that are not bit-equal."""
    return sum(not torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def small_fno(rule="log-modes", width=12, modes=(8,), **kwargs):
    torch.manual_seed(0)
    model = FNO(modes, 2, 3, width, **{"n_layers": 2, **kwargs})
    base = {"hidden_channels": 4} if rule != "operator-norm" else {"hidden_channels": 4, "n_modes": (4,) * len(modes)}
    return nm.parametrize(model, base=base, rule=rule)


def random_gradients(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


def training_of(problem: str, loss: str = "l2", **arguments: Any) -> Training:
    """The train function of an FNO on a problem."""
    source = get_problem(problem, **arguments)
    build = FNOs(source.in_channels, source.out_channels, source.n_dim)
    data = source.load()
    return Training(build, source, data, losses_of(loss, source.n_dim, source.losses()), told=loss)


def train_run(config: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    """What one run gives; ``problem``, ``problem_args`` and ``loss`` are the data's."""
    config = {**config, "base": {**config["model"], **config["base"]}}
    training = training_of(config.pop("problem"), config.pop("loss", "l2"), **config.pop("problem_args"))
    return training(config, **how)


def in_double(model):
    """Weights in double precision, complex ones too, which ``model.double()`` leaves."""
    for p in model.parameters():
        p.data = p.data.to(torch.complex128 if p.is_complex() else torch.float64)
    return model


def squared_error(prediction: Any, y: torch.Tensor, **_: Any) -> torch.Tensor:
    """Loss of a coordinate check, of UQNO's residual model where the prediction is a pair."""
    prediction = prediction[1] if isinstance(prediction, tuple) else prediction
    return (prediction - y).abs().square().mean()


def batches_of(case: Case, n: int, grid: int | None = None) -> list[dict[str, torch.Tensor]]:
    """Batches of the case in the form that ``coord_check`` takes."""
    result = []
    for seed in range(n):
        x, y = case.batch(seed, grid=grid)
        result.append({**(x if isinstance(x, dict) else {"x": x}), "y": y})
    return result


def steepest(check: nm.CoordCheck, kind: str, step: int) -> dict[str, Any]:
    """Row of the steepest slope over blocks; at init the output is left out, since it may fall."""
    # UQNO's base model is not trained: it has no update.
    rows = [r for r in check.slopes if (r["kind"], r["step"]) == (kind, step) and r["block"] != "base_model"]
    if kind == "init":
        rows = [r for r in rows if r["block"] != check.slopes[-1]["block"]] or rows
    return max(rows, key=lambda r: math.inf if math.isnan(r["slope"]) else abs(r["slope"]))


# The exact columns


def identity(case: Case, steps: int = 10) -> int:
    """Parameters that differ from the stock model's after some steps of Adam at base."""
    plain, ours = case.build(), nm.parametrize(case.build(), base=case.same, rule=RULE)
    train(case, plain, torch.optim.Adam(plain.parameters(), lr=LR), steps)
    train(case, ours, nm.MuAdam(ours, lr=LR), steps)
    return differing(plain, ours)


def interop(model: nn.Module) -> int:
    """Parameters whose learning rate in mup's own MuAdam is not ours."""
    ours, theirs = (rates(opt, model) for opt in (nm.MuAdam(model, lr=LR), mup.MuAdam(model.parameters(), lr=LR)))
    return sum(ours.get(name) != theirs.get(name) for name, _ in model.named_parameters())


def checkpoint(case: Case, model: nn.Module) -> tuple[int, int]:
    """Train, save and load into a model drawn anew: differing entries of the output, differing parameters a step later."""
    optimizer = nm.MuAdam(model, lr=LR)
    train(case, model, optimizer, steps=2)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=False)  # neuralop keeps its models' arguments, classes too, in the state dict
    loaded = parametrized(case, seed=1, rule=RULE)
    resumed = nm.MuAdam(loaded, lr=LR)
    loaded.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    output = int((_output(case, model) != _output(case, loaded)).sum())
    train(case, model, optimizer, steps=1)
    train(case, loaded, resumed, steps=1)
    return output, differing(model, loaded)


def lost(model: nn.Module, duplicate: Callable[[nn.Module], nn.Module]) -> int:
    """Rows of the plan that a copy of the model does not keep."""
    rows = nm.summary(duplicate(model)).rows
    return sum(a != b for a, b in zip(nm.summary(model).rows, rows, strict=True))


def exact(case: Case, steps: int = 10) -> dict[str, str]:
    """Every exact column of one case; ``steps`` are those that the identity takes."""
    model = parametrized(case, rule=RULE)
    cells = {
        "identity": identity(case, steps),
        "mup": interop(model),
        "deepcopy": lost(model, copy.deepcopy),
        "pickle": _pickle(case, model),
    }
    cells["output"], cells["step"] = checkpoint(case, model)
    return {column: str(cell) for column, cell in cells.items()}


def _pickle(case: Case, model: nn.Module) -> int | str:
    try:
        pickle.dumps(case.build())
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        return f"neuralop's class cannot be pickled: {type(error).__name__}"
    return lost(model, lambda model: pickle.loads(pickle.dumps(model)))


def _output(case: Case, model: nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        result = case.output(model, case.batch()[0])
    model.train()
    return result


def _short(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}, {error}".split()).replace("|", "\\|")
    return text if len(text) < 80 else text[:77] + "…"


# The slopes


def sized(case: Case, over: str, rule: str = RULE, sizes: Sequence[int] = ()) -> Callable[[int], nn.Module]:
    """``build(size)`` for ``coord_check``: the case over width, or over modes; base is the smallest size."""
    sizes = sizes or sizes_of(case, over)

    def make(size: int) -> nn.Module:
        if over == "width":
            return case.sized(size, case.n_modes)
        axes = len(case.n_modes)
        # What is stored must hold the largest number of modes.
        more = {"max_n_modes": (sizes[-1] + 2,) * axes} if "max_n_modes" in case.kwargs else {}
        return case.sized(MODES_WIDTH, (size,) * axes, **more)

    def build(size: int) -> nn.Module:
        return nm.parametrize(make(size), base=lambda: make(sizes[0]), rule=rule)

    return build


def sizes_of(case: Case, over: str) -> tuple[int, ...]:
    """Sizes of the coordinate check; two numbers of modes in 3D, where grids are large."""
    if over == "width":
        return WIDTHS
    return MODES[:2] if len(case.n_modes) > 2 else MODES


def slope(case: Case, over: str) -> str:
    """The steepest slope of an update over blocks, or the reason why there is none."""
    sizes = sizes_of(case, over)
    build = sized(case, over)
    batches = batches_of(case, STEP, grid=sizes[-1] if over == "modes" else None)
    reason = _cannot_run(case, build, sizes, batches[0])
    if reason:
        return f"neuralop cannot run it: {reason}"
    if over == "modes" and all(row.shape == row.base_shape for row in nm.summary(build(sizes[-1])).rows):
        return "no modes vary: the active ones are fixed"
    check = nm.coord_check(build, sizes, batches, lr=LR, steps=(STEP,), seeds=SEEDS, loss=squared_error)
    row = steepest(check, "update", STEP)
    return f"{row['slope']:+.2f}"


def _cannot_run(case: Case, build: Callable, sizes: Iterable[int], batch: Mapping) -> str | None:
    """How the stock model fails at one of the sizes, if it does; a failure of ours is not caught."""
    inputs = {key: value for key, value in batch.items() if key != "y"}
    for size in sizes:
        model = nm.unparametrize(build(size))
        try:
            with torch.no_grad():
                case.output(model, inputs if isinstance(case, Model) else inputs["x"])
        except (RuntimeError, ValueError, IndexError) as error:
            return f"{_short(error)} (size {size})"
    return None


def measure(case: Case) -> dict[str, str]:
    """The record of one case: a cell for each column."""
    return {**exact(case), **{over: slope(case, over) for over in SLOPES}}


# The page


def number(cell: str) -> float | None:
    """The slope that a cell shows; None where it gives a reason."""
    found = re.match(r"[+-]?\d+(\.\d+)?(?= |$)", cell)
    return float(found[0]) if found else None


def render(records: Mapping[str, Mapping[str, str]]) -> str:
    """The page of all records, which are by name of the case."""
    lines = [
        f"<!-- Written by `{COMMAND}` and checked by tests/test_cases.py and tests/test_support_matrix.py: "
        "do not edit by hand. -->",
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
        lines += ["", f"## {title}", "", "| case | " + " | ".join(SHOWN) + " |", "|" + " --- |" * (1 + len(SHOWN))]
        for case in group:
            cells = []
            for column in SHOWN:
                note = NOTES.get((case.name, column))
                used += [note] if note else []
                cells.append(records[case.name][column] + (f" [^{note}]" if note else ""))
            lines.append(f"| {case.name} | " + " | ".join(cells) + " |")
    rest = [(name, column, row[column]) for name, row in records.items() for column in COLUMNS if column not in SHOWN]
    lines += ["", _REST, "", *(f"* {name}, {column}: {cell}" for name, column, cell in rest if cell != "0")]
    lines += ["", *(f"[^{note}]: {REASONS[note]}" for note in dict.fromkeys(used))]
    return "\n".join(lines).rstrip() + "\n"


def parse(page: str) -> dict[str, dict[str, str]]:
    """The records on a page, footnote marks included."""
    page, _, rest = page.partition(_REST)
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "\0").strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 1 + len(SHOWN) and cells[0] not in ("case", "---"):
            name, *values = (cell.replace("\0", "\\|") for cell in cells)
            rows[name] = {**dict.fromkeys(COLUMNS, "0"), **dict(zip(SHOWN, values, strict=True))}
    for name, column, cell in re.findall(r"^\* (\w\S*), (\w+): (.+)$", rest, re.MULTILINE):
        if name in rows:
            rows[name][column] = cell
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
