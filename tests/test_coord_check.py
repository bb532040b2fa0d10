"""The coordinate check: its numbers on a model whose slopes are known, its verdict on neuralop's FNO."""

import math
from dataclasses import dataclass

import pytest
import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from neuralop_mup.core.classify import check_grid
from neuralop_mup.diagnostics.coord_check import CoordCheck
from neuralop_mup.diagnostics.features import features, rms


def _batches(n=2, grid=32):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 8, 1, grid, generator=g)
    return [{"x": b, "y": torch.roll(b, 3, -1) + 0.5 * b} for b in x]


def _fno(rule):
    return lambda w: nm.parametrize(FNO((8,), 1, 1, w, n_layers=2), base={"hidden_channels": 8}, rule=rule)


def test_verdict_on_width():
    """μP is flat over width; the standard parametrization is not, already after one step."""
    kwargs = {"lr": 8e-3, "steps": (1, 3), "seeds": 10}
    mup = nm.coord_check(_fno("log-modes"), [8, 32, 128], _batches(), **kwargs)
    sp = nm.coord_check(_fno("standard"), [8, 32, 128], _batches(), **kwargs)
    assert mup.passed(0.25, 0.15), mup.to_markdown()
    assert not sp.passed(0.25, 0.15)
    first = {r["block"]: r["slope"] for r in sp.slopes if r["step"] == 1}
    assert all(slope > 0.5 for slope in first.values())
    assert mup.blocks == ["lifting", "fno_blocks.0", "fno_blocks.1", "projection"]


class _Power(nn.Module):
    """One number whose feature is exactly size^power and whose update under SGD is size^power · (a constant)."""

    def __init__(self, size, power):
        super().__init__()
        self.inner = nn.Linear(1, 1, bias=False)
        self.scale = size**power
        with torch.no_grad():
            self.inner.weight.fill_(self.scale)

    def forward(self, x):
        return self.inner(x)


def test_slopes_of_a_known_power_law():
    """features = size^p · x, so the init slope is p; the sign of the gradient moves the weight by lr at every size."""
    batch = [{"x": torch.ones(4, 1), "y": torch.zeros(4, 1)}]
    check = nm.coord_check(
        lambda s: _Power(s, 0.5),
        [4, 16, 64],
        batch,
        lr=0.01,
        steps=(1,),
        seeds=2,
        optimizer=lambda m, lr: torch.optim.Adam(m.parameters(), lr=lr),
        loss=lambda out, y, **_: out.square().mean(),
    )
    slopes = {r["kind"]: r for r in check.slopes}
    assert slopes["init"]["slope"] == pytest.approx(0.5, abs=1e-6)
    assert slopes["update"]["slope"] == pytest.approx(0, abs=1e-3)
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


def test_passed_is_strict_about_what_it_should_be():
    assert _check(0.05, 0.2).passed()
    assert not _check(0.2, 0.0).passed()
    assert not _check(-0.2, 0.0).passed()
    assert not _check(0.0, 0.3).passed()
    assert not _check(0.0, -0.3).passed()
    assert _check(0.0, 0.0, output_init=-0.5).passed()  # the output starts small under μP
    assert not _check(0.0, 0.0, output_init=0.5).passed()


def test_a_dead_or_diverged_feature_does_not_pass():
    check = _check(0.0, 0.0)
    for bad in (0.0, math.nan, math.inf):
        records = [dict(r) for r in check.records]
        records[0]["value"] = bad
        check = CoordCheck(records, "width")
        assert not check.passed() and check.outcome() == "did not pass"  # however few the seeds
        assert "body at init is zero or not finite for some seed" in check.verdict()


def test_the_verdict_names_the_block_at_fault():
    assert _check(0.05, 0.2).verdict() == (
        "passed: the steepest is the update of body at t = 1, slope +0.20 ± 0.00 (-0.25 to +0.25 passes)."
    )
    said = _check(0.11, 0.1).verdict()
    assert said == "did not pass: body at init, slope +0.11 ± 0.00 (-0.10 to +0.10 passes)."
    said = _check(0.2, -0.8, output_init=0.5).verdict()
    # The furthest first, in multiples of what passes: 0.55 of 0.5, 0.1 of 0.2, 0.25 of 1.
    assert said.index("update of body") < said.index("body at init") < said.index("output at init")
    assert "output at init, slope +0.50 ± 0.00 (-0.75 to +0.25 passes)" in said
    assert "body at init, slope +0.11 ± 0.00 (-0.10 to +0.10 passes)" in _check(0.11, 0.1).verdict(tolerance=0.5)
    assert _check(0.11, 0.1).verdict(init_tolerance=0.2).startswith("passed")


def test_a_steep_slope_of_two_seeds_that_disagree_decides_nothing():
    """Slopes +1 and −1 of single seeds: their RMS is flat. Without either seed the slope is ∓1, so the jackknife's error is
    √(½ · 2) = 1 and the 95 % interval ± 12.706, Student's t of one degree of freedom."""
    values = {0: {2: 1.0, 8: 4.0}, 1: {2: 4.0, 8: 1.0}}
    check = _check(0.0, 0.0, seeds=2)
    for r in check.records:
        if (r["block"], r["kind"]) == ("body", "init"):
            r["value"] = values[r["seed"]][r["size"]]
    row = check.slopes[0]
    assert (row["block"], row["kind"]) == ("body", "init")
    assert row["slope"] == pytest.approx(0) and (row["low"], row["high"]) == pytest.approx((-1, 1))
    assert row["reach"] == pytest.approx(12.7062, abs=1e-3)
    assert check.outcome() == "passed"  # it is within its limits
    values[1][2] = 3.0  # √((1 + 9)/2) and √((16 + 1)/2), so log(17/10) / (2 log 4) = 0.19
    for r in check.records:
        if (r["block"], r["kind"]) == ("body", "init"):
            r["value"] = values[r["seed"]][r["size"]]
    assert check.outcome() == "undecided" and not check.passed()
    said = check.verdict()
    assert said.startswith("undecided: take more seeds (10, say); these 2 show neither a pass nor a fail: body at init")
    assert "+0.19 ± 11 (-0.10 to +0.10 passes)." in said
    for r in check.records:
        if (r["block"], r["kind"]) == ("body", "update"):
            r["value"] = r["size"] ** 0.9  # a fail that is certain outweighs it
    assert check.outcome() == "did not pass" and "the update of body" in check.verdict()


def test_a_slope_near_its_limit_is_decided_by_its_interval():
    """Three seeds with slopes of 0.12 − d, 0.12, 0.12 + d, the interval roughly ± 4.3 d/√3 = ± 2.5 d."""
    outcomes = {}
    for d in (0.001, 0.02, 0.4):
        check = _check(0.0, 0.0)
        for r in check.records:
            if (r["block"], r["kind"]) == ("body", "init"):
                r["value"] = r["size"] ** (0.12 + (r["seed"] - 1) * d)
        outcomes[d] = check.outcome(), check.outcome(init_tolerance=0.15)
    # ±0.0025 lies beyond 0.1; ±0.05 reaches below it, and so does ±1, whose RMS is steeper than 0.15, too.
    assert outcomes == {
        0.001: ("did not pass", "passed"),
        0.02: ("undecided", "passed"),
        0.4: ("undecided", "undecided"),
    }


def test_one_seed_has_no_interval():
    check = _check(0.0, 0.3, seeds=1)
    assert check.slopes[0]["reach"] is None and check.outcome() == "did not pass" and "±" not in check.verdict()
    assert _check(0.0, 0.2, seeds=1).passed()


def test_rms_counts_complex_entries_by_their_modulus():
    z = torch.tensor([3 + 4j, 0j])
    assert rms(z) == pytest.approx(math.sqrt(25 / 2))
    assert rms(z.abs()) == pytest.approx(rms(z))


def test_features_leaves_the_model_as_it_was():
    model = FNO((8,), 1, 1, 8, n_layers=2, norm="batch_norm").train()
    before = {k: v.clone() for k, v in model.state_dict().items() if torch.is_tensor(v)}
    out = features(model, torch.randn(4, 1, 32))
    assert list(out) == ["lifting", "fno_blocks.0", "fno_blocks.1", "projection"]
    assert model.training and not any(m._forward_hooks for m in model.modules())
    for k, v in before.items():
        assert torch.equal(model.state_dict()[k], v)


def test_random_state_is_the_users_own():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    nm.coord_check(_fno("none"), [8, 16], _batches(1), lr=1e-3, steps=(1,), seeds=1)
    assert torch.equal(before, torch.get_rng_state())


def test_random_numbers_of_a_gpu_are_the_users_own(monkeypatch):
    """Before CUDA starts its state is the seed alone, which is queued again; the test of a GPU in use needs one."""
    queued = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", queued.append)
    torch.manual_seed(3)
    nm.coord_check(_fno("none"), [8, 16], _batches(1), lr=1e-3, steps=(1,), seeds=[5], size_name="width")
    assert queued[-1] == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_random_numbers_of_a_gpu_in_use_go_on():
    torch.manual_seed(3)
    torch.rand(1, device="cuda")
    before = torch.cuda.get_rng_state()
    nm.coord_check(_fno("none"), [8, 16], _batches(1), lr=1e-3, steps=(1,), seeds=1)
    assert torch.equal(before, torch.cuda.get_rng_state())


class _Pair(nn.Module):
    """A block that returns its features in a form of its own."""

    def __init__(self, form):
        super().__init__()
        self.inner, self.last, self.form = nn.Linear(1, 1), nn.Linear(1, 1), form

    def forward(self, x):
        return self.form(self.inner(x))


class _OfPairs(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.encoder, self.head = _Pair(form), nn.Linear(1, 1)

    def forward(self, x):
        out = self.encoder(x)
        while not isinstance(out, torch.Tensor):
            out = vars(out) if isinstance(out, (_Fields, _Opaque)) else out
            out = next(value for value in (out.values() if isinstance(out, dict) else out) if value is not None)
        return self.head(out)


@dataclass
class _Fields:
    out: torch.Tensor
    mask: torch.Tensor | None = None


class _Opaque:
    def __init__(self, out):
        self.out = out


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
        (_Fields, ["encoder"]),
        (lambda y: _Fields(y, y), ["encoder.out", "encoder.mask"]),
    ],
)
def test_a_block_that_returns_several_tensors(form, names):
    batch = [{"x": torch.ones(4, 1), "y": torch.zeros(4, 1)}]
    kwargs = {"lr": 0.01, "steps": (1,), "seeds": 1, "loss": lambda out, y, **_: out.square().mean()}
    adam = lambda m, lr: torch.optim.Adam(m.parameters(), lr=lr)  # noqa: E731
    check = nm.coord_check(lambda size: _OfPairs(form), [1, 2], batch, optimizer=adam, **kwargs)
    assert check.blocks == [*names, "head"] and check.outcome() == "passed"
    assert {r["block"] for r in check.slopes} == set(check.blocks)
    with pytest.raises(nm.MupError, match="No block of this Identity returns a tensor"):
        nm.coord_check(lambda size: nn.Identity(), [1, 2], batch, optimizer=lambda m, lr: None, **kwargs)
    with pytest.warns(UserWarning, match=r"knows nothing of blocks that return no tensor of numbers: encoder \(a _Opaque\)"):
        check = nm.coord_check(lambda size: _OfPairs(_Opaque), [1, 2], batch, optimizer=adam, **kwargs)
    assert check.blocks == ["head"]


def test_features_that_change_shape_are_named():
    batch = [{"x": torch.ones(4, 1), "y": torch.zeros(4, 1)}]
    sizes = iter([4, 3, 2, 1] * 9)
    form = lambda y: (y, y[: next(sizes)])  # noqa: E731
    adam = lambda m, lr: torch.optim.Adam(m.parameters(), lr=lr)  # noqa: E731
    with pytest.raises(nm.MupError, match=r"What encoder\[1\] returns .* went from \(4, 1\) to \(2, 1\) by step 1"):
        nm.coord_check(lambda size: _OfPairs(form), [1, 2], batch, lr=0.01, steps=(1,), optimizer=adam)


def test_table_and_figure(tmp_path):
    check = nm.coord_check(_fno("none"), [8, 16], _batches(1), lr=1e-3, steps=(1,), seeds=1)
    assert "| fno_blocks.1 |" in check.to_markdown()
    check.plot(tmp_path / "check.png")
    assert (tmp_path / "check.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("sizes", "batches", "kwargs", "match"),
    [
        ([8], 1, {}, "two sizes"),
        ([8, 16], 0, {}, "a batch"),
        ([8, 16], 1, {"steps": (0, 1)}, "1 or more"),
        ([8, 16], 1, {"seeds": 0}, "a seed"),
        (16, 1, {}, "sizes is 16; give several, as a list"),
        ([8, 16], 1, {"steps": 3}, "steps is 3; give several, as a list"),
        ([8, 16], 1, {"seeds": 2.5}, "seeds is 2.5; give a whole number"),
    ],
)
def test_too_little_to_check(sizes, batches, kwargs, match):
    with pytest.raises(nm.MupError, match=match):
        nm.coord_check(_fno("none"), sizes, _batches(1) * batches, lr=1e-3, **kwargs)


def test_a_batch_without_y_and_a_build_without_a_model():
    x = [{"x": batch["x"]} for batch in _batches(1)]
    with pytest.raises(nm.MupError, match="A batch has 'x' and no 'y'.*loss=… that does without"):
        nm.coord_check(_fno("none"), [8, 16], x, lr=1e-3)
    loss = lambda out, **_: out.square().mean()  # noqa: E731
    assert nm.coord_check(_fno("none"), [8, 16], x, lr=1e-3, steps=(1,), seeds=1, loss=loss).records
    with pytest.raises(nm.MupError, match=r"build\(8\) returns None; it must return a new model"):
        nm.coord_check(lambda w: None, [8, 16], _batches(1), lr=1e-3)


def test_batches_must_be_dicts_which_is_seen_before_anything_is_built():
    def build(width):
        raise AssertionError("built")

    pairs = [(batch["x"], batch["y"]) for batch in _batches(1)]
    with pytest.raises(nm.MupError, match=r"dicts such as \{'x': …, 'y': …\}.*got tuple\."):
        nm.coord_check(build, [8, 16], [*_batches(1), *pairs], lr=1e-3)


def test_modes_beyond_the_grid():
    with pytest.raises(nm.MupError, match="beyond the grid"):
        nm.coord_check(_fno("none"), [8, 16], _batches(1, grid=6), lr=1e-3)


def test_a_grid_is_at_the_end():
    """RNO's input is (batch, time, channels, *grid): what comes before the grid is no axis of it."""
    model = FNO((8, 8), 1, 1, 8, n_layers=1)
    check_grid(model, (2, 8, 8))
    with pytest.raises(nm.MupError, match=r"grid of \(8, 6\) points"):
        check_grid(model, (16, 8, 6))


def test_unparametrized_models_need_an_optimizer_of_their_own():
    with pytest.raises(nm.MupError, match="not parametrized"):
        nm.coord_check(lambda w: FNO((8,), 1, 1, w), [8, 16], _batches(1), lr=1e-3)
