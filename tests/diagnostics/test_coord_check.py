"""The coordinate check: slopes that are known, slopes of neuralop's FNO, decisions, blocks, figure, wrong input."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from neuralop.layers.fno_block import FNOBlocks
from neuralop.models import FNO
from neuralop.training import AdamW
from torch import nn

import neuralop_mup as nm
from neuralop_mup.diagnostics.coord_check import CoordCheck
from neuralop_mup.diagnostics.features import rms
from support.errors import refused, warned

# For models that are not parametrized.
PLAIN = {
    "optimizer": lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr),
    "loss": lambda out, **_: out.square().mean(),
}


def batches(n=2, grid=32):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 8, 1, grid, generator=g)
    return [{"x": b, "y": torch.roll(b, 3, -1) + 0.5 * b} for b in x]


def fno(rule):
    return lambda width: nm.parametrize(FNO((8,), 1, 1, width, n_layers=2), base={"hidden_channels": 8}, rule=rule)


def blocks_of(check):
    return list(dict.fromkeys(row["block"] for row in check.slopes))


# --- slopes


def test_mup_is_flat_over_width_and_the_standard_parametrization_is_not():
    kwargs = {"lr": 8e-3, "steps": (1,), "seeds": 8}
    mup, standard = (nm.coord_check(fno(rule), [8, 64], batches(), **kwargs) for rule in ("log-modes", "standard"))
    outcomes = [{row["outcome"] for row in check.verdicts() if row["step"] == 1} for check in (mup, standard)]
    assert outcomes == [{"passed"}, {"did not pass"}] and not standard.passed()
    assert all(row["slope"] > 0.5 for row in standard.slopes if row["step"] == 1)
    assert blocks_of(mup) == ["lifting", "fno_blocks.0", "fno_blocks.1", "projection"]


def test_slopes_of_a_known_power_law():
    """features = size^p · x, so the init slope is p; the sign of the gradient moves the weight by lr at every size."""

    def power(size):
        inner = nn.Linear(1, 1, bias=False)
        nn.init.constant_(inner.weight, size**0.5)
        return nn.Sequential(inner)

    batch = [{"x": torch.ones(4, 1), "y": torch.zeros(4, 1)}]
    check = nm.coord_check(power, [4, 16, 64], batch, lr=0.01, steps=(1,), seeds=1, **PLAIN)
    slopes = {r["kind"]: r["slope"] for r in check.slopes}
    assert slopes == {"init": pytest.approx(0.5, abs=1e-6), "update": pytest.approx(0, abs=1e-3)}
    values = {r["size"]: r["value"] for r in check.records if r["kind"] == "init" and r["seed"] == 0}
    assert values == pytest.approx({4: 2.0, 16: 4.0, 64: 8.0})


def test_equal_weights_of_all_seeds_are_refused():
    """Models from a function that sets its own seed had intervals of zero width, and some slopes did not pass."""

    def build(width):
        torch.manual_seed(0)
        return fno("none")(width)

    with refused("seed torch.manual_seed"):
        nm.coord_check(build, [8, 16], batches(), lr=8e-3, steps=(1,), seeds=2)


def test_rms_counts_complex_entries_by_their_modulus():
    assert rms(torch.tensor([3 + 4j, 0j])) == pytest.approx(math.sqrt(25 / 2))


# --- optimizers


@pytest.mark.parametrize(
    ("optimizer", "rule", "same"),
    [
        ("adam", "log-modes", nm.MuAdam),
        ("AdamW", "log-modes", nm.MuAdamW),
        ("musoap", "log-modes", nm.MuSOAP),
        ("adam", None, torch.optim.Adam),
        ("adamw", None, torch.optim.AdamW),
        (nm.MuSGD, None, torch.optim.SGD),
        (torch.optim.NAdam, "log-modes", partial(nm.MuAdam, impl=torch.optim.NAdam)),
        (torch.optim.NAdam, None, torch.optim.NAdam),
        (torch.optim.AdamW, "log-modes", nm.MuAdamW),
        (torch.optim.SGD, "none", nm.MuSGD),
        (AdamW, "log-modes", partial(nm.MuAdam, impl=AdamW)),
        (nm.MuSOAP, "log-modes", nm.MuSOAP),
    ],
)
def test_names_and_classes_of_optimizers(optimizer, rule, same):
    """A model without μP is trained by the plain optimizer, which does what ``rule="standard"`` does."""
    kwargs = {"lr": 8e-3, "steps": (2,), "seeds": 1}
    build = fno(rule) if rule else lambda width: FNO((8,), 1, 1, width, n_layers=2)
    records = nm.coord_check(build, [8, 16], batches(), optimizer=optimizer, **kwargs).records
    if rule is None:
        assert records == nm.coord_check(fno("standard"), [8, 16], batches(), optimizer=optimizer, **kwargs).records
        by_hand = nm.coord_check(build, [8, 16], batches(), optimizer=lambda m, lr: same(m.parameters(), lr=lr), **kwargs)
    else:
        by_hand = nm.coord_check(build, [8, 16], batches(), optimizer=lambda m, lr: same(m, lr=lr), **kwargs)
    assert records == by_hand.records


# --- kernels without a gradient


class Discards(nn.Module):
    """A model that discards the output of its Fourier layers, as in PR 64 of The Well."""

    def __init__(self, width):
        super().__init__()
        self.lift, self.out = nn.Conv1d(1, width, 1), nn.Conv1d(width, 1, 1)
        self.blocks = FNOBlocks(width, width, (8,), n_layers=2)

    def forward(self, x):
        x = self.lift(x)
        self.blocks(x, 0)
        return self.out(x)


@pytest.mark.parametrize("optimizer", ["adam", "musoap"])
def test_kernels_without_a_gradient_trigger_one_warning(optimizer):
    with warned("no gradient") as caught:
        nm.coord_check(
            lambda width: nm.parametrize(Discards(width), base=lambda: Discards(8)),
            [16, 32], batches(1), lr=8e-3, steps=(1,), seeds=2, optimizer=optimizer,
        )  # fmt: skip
    assert [str(w.message).count("blocks.convs.") for w in caught] == [2]


# --- decisions


def check_with(init, update, output_init=0.0, seeds=3):
    """Return a check with these slopes, the same for every seed: value = size^slope."""
    records = [
        {"size": s, "seed": seed, "step": step, "block": block, "kind": kind, "value": s**slope}
        for s in (2, 8)
        for seed in range(seeds)
        for block, kind, step, slope in (
            ("body", "init", 0, init),
            ("output", "init", 0, output_init),
            ("body", "update", 1, update),
            ("output", "update", 1, 0.0),
        )
    ]
    return CoordCheck(records, "width")


def body_with(check, value):
    """Replace the body's features at initialization with ``value(record)`` and return their slope and its outcome."""
    for r in check.records:
        if (r["block"], r["kind"]) == ("body", "init"):
            r["value"] = value(r)
    return check.verdicts()[0]


@pytest.mark.parametrize(
    ("slopes", "passed"),
    [
        ((0.05, 0.2), True),
        ((0.2, 0.0), False),
        ((-0.2, 0.0), False),
        ((0.0, 0.3), False),
        ((0.0, -0.3), False),
        ((0.0, 0.0, -0.5), True),  # the output starts small under μP
        ((0.0, 0.0, 0.5), False),
    ],
)
def test_limits_of_slopes(slopes, passed):
    check, of_one_seed = check_with(*slopes), check_with(*slopes, seeds=1)
    assert check.passed() == passed and check.passed(0.6, 0.6)
    assert {(row["reach"], row["outcome"]) for row in of_one_seed.verdicts()} == {(None, "undecided")}


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_a_dead_or_diverged_feature_does_not_pass(bad):
    row = body_with(check_with(0.0, 0.0), lambda r: bad if r["seed"] == 0 else r["value"])
    assert math.isnan(row["slope"]) and row["outcome"] == "did not pass"


def test_interval_of_two_seeds_that_disagree():
    """Slopes +1 and −1 of single seeds: their RMS is flat. Without either seed the slope is ∓1, so the jackknife's error is
    √(½ · 2) = 1 and the 95 % interval ± 12.706, Student's t of one degree of freedom."""
    values = {0: {2: 1.0, 8: 4.0}, 1: {2: 4.0, 8: 1.0}}
    check = check_with(0.0, 0.9, seeds=2)
    row = body_with(check, lambda r: values[r["seed"]][r["size"]])
    assert row["slope"] == pytest.approx(0) and row["reach"] == pytest.approx(12.7062, abs=1e-3)
    assert row["outcome"] == "undecided"  # although the slope lies within its limits


@pytest.mark.parametrize(
    ("slope", "d", "outcome", "seeds"),
    [
        (0.12, 0.001, "did not pass", None),
        (0.12, 0.02, "undecided", 7),
        (0.08, 0.001, "passed", None),
        (0.08, 0.02, "undecided", 7),
        (0.1, 0.02, "undecided", None),
    ],
)
def test_the_whole_interval_decides(slope, d, outcome, seeds):
    """Three seeds with slopes of s − d, s, s + d have the interval s ± t₂ d/√3 = s ± 2.48 d, against the limit 0.1.

    With n seeds and the same scatter it is s ± t_{n−1} d/√n. For d = 0.02 this is 0.021 at n = 6 and 0.0185 at n = 7, below
    the distance of 0.02 to the limit. If s is the limit, no number of seeds decides.
    """
    row = body_with(check_with(0.0, 0.0), lambda r: r["size"] ** (slope + (r["seed"] - 1) * d))
    assert (row["outcome"], row["seeds_needed"]) == (outcome, seeds)


# --- random state


def test_random_state_is_restored(monkeypatch):
    """Also a GPU's: before CUDA starts, its state is only a seed, which is queued again. tests_ci tests a GPU in use."""
    queued = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", queued.append)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    nm.coord_check(fno("none"), [8, 16], batches(1), lr=1e-3, steps=(1,), seeds=[5])
    assert torch.equal(before, torch.get_rng_state()) and queued[-1] == 3


# --- blocks


class TwoBlocks(nn.Module):
    """A model whose first block returns ``form(features)``."""

    def __init__(self, form):
        super().__init__()
        self.encoder, self.head = nn.Linear(1, 1), nn.Linear(1, 1)
        self.encoder.register_forward_hook(lambda module, args, out: form(out))

    def forward(self, x):
        self.encoder(x)
        return self.head(nn.functional.linear(x, self.encoder.weight))


def check_of_two_blocks(form):
    batch = [{"x": torch.ones(4, 1)}]  # this loss does not use y
    return nm.coord_check(lambda size: TwoBlocks(form), [1, 2], batch, lr=0.01, steps=(1,), seeds=1, **PLAIN)


@pytest.mark.parametrize(
    ("form", "names"),
    [
        (lambda y: (y, 2 * y), ["encoder[0]", "encoder[1]"]),
        (lambda y: {"out": y, "attention": [y, y]}, ["encoder[out]", "encoder[attention][0]", "encoder[attention][1]"]),
        (lambda y: (y, None, y > 0, torch.arange(3), y[:0]), ["encoder"]),
        (lambda y: (y, torch.complex(y, y)), ["encoder[0]", "encoder[1]"]),
    ],
)
def test_a_block_that_returns_several_tensors(form, names):
    check = check_of_two_blocks(form)
    assert blocks_of(check) == [*names, "head"]


def test_a_block_without_a_tensor_of_numbers_triggers_a_warning():
    with pytest.warns(UserWarning, match="encoder.*SimpleNamespace"):
        assert blocks_of(check_of_two_blocks(lambda y: SimpleNamespace(out=y))) == ["head"]


# --- figure and text


def test_figure_marks_slopes_that_do_not_pass(tmp_path):
    records = [
        {"size": size, "seed": seed, "step": step, "block": block, "kind": kind, "value": size ** (slope + seed * scatter)}
        for size in (16, 32, 64)
        for seed in (0, 1)
        for block, slope, scatter in (("lifting", 0.0, 0.0), ("fno_blocks.0", 0.5, 0.01), ("output", 0.2, 0.2))
        for kind, step in (("init", 0), ("update", 1), ("update", 5))
    ]
    check = nm.CoordCheck([*records, {**records[0], "value": math.inf}], "hidden_channels")
    path = tmp_path / "new" / "check.svg"
    check.plot(path, title="burgers")
    text = path.read_text(encoding="utf-8")
    lines = [line.partition(", ") for line in str(check).splitlines()[1:]]
    assert "update 5" in {panel for panel, _, _ in lines} and all(slope.partition(" (")[0] in text for _, _, slope in lines)
    assert "burgers" in text and "fno_blocks.0: +0.51 ± 0.06, did not pass" in text and ", undecided" in text
    assert ", undecided (≈" in str(check)
    with refused(""):
        nm.CoordCheck([], "hidden_channels").plot(path)


# --- wrong input


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"sizes": [8]}, "sizes[8]"),
        ({"batches": []}, "0batches"),
        ({"steps": (0, 1)}, "steps[0,1]"),
        ({"seeds": []}, "seeds[]"),
        ({"seeds": 2.5}, "seeds 2.5"),
        ({"batches": batches(1, grid=6)}, "8 6"),
        ({"batches": [{"x": batches(1)[0]["x"]}]}, "'x' 'y'"),
        # Batches are checked before a model is built.
        ({"build": lambda w: 3 / 0, "batches": [*batches(1), tuple(batches(1)[0].values())]}, "batches tuple"),
        ({"build": lambda w: None}, "build(8) None"),
        ({"optimizer": "adma"}, "'adma' 'adam'"),
        ({"optimizer": 3}, "3 musoap"),
        ({"build": lambda w: FNO((8,), 1, 1, w), "optimizer": "musoap", "lr": 0.03}, "parametrized"),
        ({"build": lambda w: nn.Identity(), "optimizer": lambda m, lr: None}, "Identity"),
    ],
)
def test_wrong_input(changes, names):
    arguments = {"build": fno("none"), "sizes": [8, 16], "batches": batches(1), "lr": 1e-3, **changes}
    with refused(names):
        nm.coord_check(**arguments)
