"""The coordinate check: its numbers on a model whose slopes are known, and what it says of neuralop's FNO."""

import math
from types import SimpleNamespace

import pytest
import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from neuralop_mup.diagnostics.coord_check import CoordCheck, judged
from neuralop_mup.diagnostics.features import rms


def _batches(n=2, grid=32):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 8, 1, grid, generator=g)
    return [{"x": b, "y": torch.roll(b, 3, -1) + 0.5 * b} for b in x]


# Of models that are not in μP.
_HOW = {
    "optimizer": lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr),
    "loss": lambda out, **_: out.square().mean(),
}


def _blocks(check):
    return list(dict.fromkeys(row["block"] for row in check.slopes))


def _fno(rule):
    return lambda w: nm.parametrize(FNO((8,), 1, 1, w, n_layers=2), base={"hidden_channels": 8}, rule=rule)


def test_mup_is_flat_over_width_and_sp_is_not():
    """μP is flat over width; the standard parametrization is not, already after one step."""
    kwargs = {"lr": 8e-3, "steps": (1, 3), "seeds": 10}
    mup, sp = (nm.coord_check(_fno(rule), [8, 32, 128], _batches(), **kwargs) for rule in ("log-modes", "standard"))
    assert mup.passed(0.25, 0.15) and not sp.passed(0.25, 0.15), mup.slopes
    assert all(r["slope"] > 0.5 for r in sp.slopes if r["step"] == 1)
    assert _blocks(mup) == ["lifting", "fno_blocks.0", "fno_blocks.1", "projection"]


def test_slopes_of_a_known_power_law():
    """features = size^p · x, so the init slope is p; the sign of the gradient moves the weight by lr at every size."""

    def power(size):
        inner = nn.Linear(1, 1, bias=False)
        nn.init.constant_(inner.weight, size**0.5)
        return nn.Sequential(inner)

    batch = [{"x": torch.ones(4, 1), "y": torch.zeros(4, 1)}]
    check = nm.coord_check(
        power, [4, 16, 64], batch, lr=0.01, steps=(1,), seeds=2, **_HOW
    )  # fmt: skip
    slopes = {r["kind"]: r["slope"] for r in check.slopes}
    assert slopes == {"init": pytest.approx(0.5, abs=1e-6), "update": pytest.approx(0, abs=1e-3)}
    values = {r["size"]: r["value"] for r in check.records if r["kind"] == "init" and r["seed"] == 0}
    assert values == pytest.approx({4: 2.0, 16: 4.0, 64: 8.0})


def _check(init, update, output_init=0.0, seeds=3):
    """A result whose slopes are given, the same for every seed: value = size^slope."""
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


def _body(check, value):
    """What is said of the body's features at initialisation, when they are given other values."""
    for r in check.records:
        if (r["block"], r["kind"]) == ("body", "init"):
            r["value"] = value(r)
    first, *_ = judged(check.slopes)
    return first


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
def test_passed_is_strict_about_what_it_should_be(slopes, passed):
    check, of_one_seed = _check(*slopes), _check(*slopes, seeds=1)
    assert check.passed() == passed == of_one_seed.passed() and check.passed(0.6, 0.6)
    assert {row["reach"] for row in of_one_seed.slopes} == {None}


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_a_dead_or_diverged_feature_does_not_pass(bad):
    row = _body(_check(0.0, 0.0), lambda r: bad if r["seed"] == 0 else r["value"])
    assert math.isnan(row["slope"]) and row["outcome"] == "did not pass"  # however few the seeds


def test_a_steep_slope_of_two_seeds_that_disagree_decides_nothing():
    """Slopes +1 and −1 of single seeds: their RMS is flat. Without either seed the slope is ∓1, so the jackknife's error is
    √(½ · 2) = 1 and the 95 % interval ± 12.706, Student's t of one degree of freedom."""
    values = {0: {2: 1.0, 8: 4.0}, 1: {2: 4.0, 8: 1.0}}
    check = _check(0.0, 0.9, seeds=2)
    row = _body(check, lambda r: values[r["seed"]][r["size"]])
    assert row["slope"] == pytest.approx(0) and row["reach"] == pytest.approx(12.7062, abs=1e-3)
    assert row["outcome"] == "passed"  # it is within its limits
    values[1][2] = 3.0  # √((1 + 9)/2) and √((16 + 1)/2), so log(17/10) / (2 log 4) = 0.19
    row = _body(check, lambda r: values[r["seed"]][r["size"]])
    assert row["slope"] == pytest.approx(0.1914, abs=1e-4) and row["outcome"] == "undecided"


@pytest.mark.parametrize(("d", "outcome"), [(0.001, "did not pass"), (0.02, "undecided"), (0.4, "undecided")])
def test_a_slope_near_its_limit_is_decided_by_its_interval(d, outcome):
    """Three seeds with slopes of 0.12 − d, 0.12, 0.12 + d, the interval roughly ± 4.3 d/√3 = ± 2.5 d.

    ±0.0025 lies beyond 0.1; ±0.05 reaches below it, and so does ±1.
    """
    row = _body(_check(0.0, 0.0), lambda r: r["size"] ** (0.12 + (r["seed"] - 1) * d))
    assert row["outcome"] == outcome


def test_rms_counts_complex_entries_by_their_modulus():
    assert rms(torch.tensor([3 + 4j, 0j])) == pytest.approx(math.sqrt(25 / 2))


def test_random_state_is_the_users_own(monkeypatch):
    """A GPU's too. Before CUDA starts its state is the seed alone, which is queued again; one in use is tested below."""
    queued = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", queued.append)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    nm.coord_check(_fno("none"), [8, 16], _batches(1), lr=1e-3, steps=(1,), seeds=[5], size_name="width")
    assert torch.equal(before, torch.get_rng_state()) and queued[-1] == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_random_numbers_of_a_gpu_in_use_go_on():
    torch.manual_seed(3)
    torch.rand(1, device="cuda")
    before = torch.cuda.get_rng_state()
    nm.coord_check(_fno("none"), [8, 16], _batches(1), lr=1e-3, steps=(1,), seeds=1)
    assert torch.equal(before, torch.cuda.get_rng_state())


class _OfPairs(nn.Module):
    """A model whose first block returns its features in a form of its own."""

    def __init__(self, form):
        super().__init__()
        self.encoder, self.head = nn.Linear(1, 1), nn.Linear(1, 1)
        self.encoder.register_forward_hook(lambda module, args, out: form(out))

    def forward(self, x):
        self.encoder(x)
        return self.head(nn.functional.linear(x, self.encoder.weight))


def _of_pairs(form):
    batch = [{"x": torch.ones(4, 1)}]  # this loss does without y
    return nm.coord_check(lambda size: _OfPairs(form), [1, 2], batch, lr=0.01, steps=(1,), seeds=1, **_HOW)


@pytest.mark.parametrize(
    ("form", "names"),
    [
        (lambda y: (y, 2 * y), ["encoder[0]", "encoder[1]"]),
        (lambda y: (y, None), ["encoder"]),
        (lambda y: {"out": y, "attention": [y, y]}, ["encoder[out]", "encoder[attention][0]", "encoder[attention][1]"]),
        (lambda y: (y, y > 0), ["encoder"]),
        (lambda y: (y, torch.arange(3)), ["encoder"]),
        (lambda y: (y, y[:0]), ["encoder"]),
        (lambda y: (y, torch.complex(y, y)), ["encoder[0]", "encoder[1]"]),
    ],
)
def test_a_block_that_returns_several_tensors(form, names):
    check = _of_pairs(form)
    assert _blocks(check) == [*names, "head"] and check.passed()


def test_a_block_that_returns_no_tensor_of_numbers_is_told():
    with pytest.warns(UserWarning, match="the block encoder, which returns no tensor of numbers but a SimpleNamespace"):
        assert _blocks(_of_pairs(lambda y: SimpleNamespace(out=y))) == ["head"]


def test_the_figure_marks_slopes_as_they_are_judged(tmp_path):
    """Drawn without what is in lab/, and a mark that is nowhere is not explained."""
    records = [
        {"size": size, "seed": seed, "step": step, "block": block, "kind": kind, "value": size ** (slope + seed * scatter)}
        for size in (16, 32, 64)
        for seed in (0, 1)
        for block, slope, scatter in (("lifting", 0.0, 0.0), ("fno_blocks.0", 0.5, 0.01), ("output", 0.2, 0.2))
        for kind, step in (("init", 0), ("update", 1), ("update", 5))
    ]
    check = nm.CoordCheck([*records, {**records[0], "value": math.inf}], "hidden_channels")
    path, png = tmp_path / "new" / "check.svg", tmp_path / "check.png"
    check.plot(path, title="burgers")
    check.plot(png)
    text = path.read_text(encoding="utf-8")
    slopes = {row["block"]: row["slope"] for row in check.slopes if row["kind"] == "update"}
    assert all(
        text.count(f"{b}  slope {slopes[b]:+.2f} {mark} -->") >= 2 for b, mark in (("fno_blocks.0", "!"), ("output", "?"))
    )
    assert "burgers" in text and "!: does not pass" in text and "?: the seeds do not tell" in text
    assert png.stat().st_size > 5000
    nm.CoordCheck(records, "hidden_channels").plot(path, tolerance=2.0, init_tolerance=2.0)
    assert "does not pass" not in path.read_text(encoding="utf-8")
    with pytest.raises(nm.MupError, match="no coordinate check to draw"):
        nm.CoordCheck([], "hidden_channels").plot(path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sizes": [8]}, "two sizes"),
        ({"batches": []}, "a batch"),
        ({"steps": (0, 1)}, "1 or more"),
        ({"seeds": []}, "a seed"),
        ({"seeds": 2.5}, "seeds is 2.5; give a whole number"),
        ({"batches": _batches(1, grid=6)}, "beyond the grid"),
        # Which is seen before anything is built.
        (
            {"build": lambda w: 3 / 0, "batches": [*_batches(1), tuple(_batches(1)[0].values())]},
            r"dicts such as \{'x': …, 'y': …\}.*got tuple\.",
        ),
        ({"build": lambda w: None}, "returns None; it must return a new model"),
        ({"build": lambda w: FNO((8,), 1, 1, w)}, "not parametrized"),
        ({"build": lambda w: nn.Identity(), "optimizer": lambda m, lr: None}, "No block of this Identity returns a tensor"),
    ],
)
def test_what_cannot_be_checked_is_told(changes, match):
    arguments = {"build": _fno("none"), "sizes": [8, 16], "batches": _batches(1), "lr": 1e-3, **changes}
    with pytest.raises(nm.MupError, match=match):
        nm.coord_check(**arguments)


def test_a_check_is_printed_as_its_slopes():
    values = {8: 1.0, 16: 1.0, 32: 2.0}
    records = [
        {"size": size, "seed": seed, "step": step, "kind": kind, "block": "lifting", "value": value * (1 + seed / 100)}
        for kind, step in (("init", 0), ("update", 5))
        for size, value in values.items()
        for seed in (0, 1)
    ]
    lines = str(nm.CoordCheck(records, "width")).splitlines()
    assert "width" in lines[0] and len(lines) == 3
    assert lines[2] == "update 5, lifting: +0.50 ± 0.00, did not pass"
