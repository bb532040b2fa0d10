"""Reports and figures from hand-made records, with every number worked out by hand."""

from __future__ import annotations

import html.parser
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from neuralop_mup import plots
from neuralop_mup.diagnostics.coord_check import CoordCheck
from neuralop_mup.errors import MupError
from neuralop_mup.experiments import findings, report, wording
from neuralop_mup.plots.style import spread
from neuralop_mup.tuning import Results, transfer_study

GRID = [0.004, 0.008, 0.016, 0.032]


def record(size, rule, lr, loss, seed=0, seconds=1.0, error="the loss is nan"):
    """One run; a loss of None is one that diverged."""
    done = loss is not None
    return {
        "size": size,
        "rule": rule,
        "params": {"lr": lr},
        "seed": seed,
        "outcome": "complete" if done else "diverged",
        "error": None if done else error,
        "loss": loss,
        "metrics": {"test_loss": 2 * loss} if done else {},
        "seconds": seconds,
    }


def make(ours, plain, *, proxy=(0.05, 0.03, 0.02, 0.04), verify=None, folder="unused", space=None):
    """A transfer whose losses at the target are given per seed; ``verify`` maps a rule to losses over the grid.

    At the carried learning rate the losses per seed count, not those of ``verify``.
    """
    seeds = tuple(range(len(ours)))
    study = transfer_study(
        proxy={"hidden_channels": 16, "n_modes": (8,)},
        target={"hidden_channels": 64, "n_modes": (32,)},
        space=space or {"lr": GRID},
        seeds=seeds,
        verify=bool(verify),
        rule="log-modes",
        name="T",
    )
    records = [record("proxy", "log-modes", lr, loss, s) for s in seeds for lr, loss in zip(GRID, proxy, strict=True)]
    best = GRID[proxy.index(min(p for p in proxy if p is not None))]
    for rule, losses in (("log-modes", ours), ("standard", plain)):
        records += [record("target", rule, best, loss, seed, seconds=4.0) for seed, loss in enumerate(losses)]
    for rule, losses in (verify or {}).items():
        pairs = [(lr, loss) for lr, loss in zip(GRID, losses, strict=True) if lr != best]
        records += [record("target", rule, lr, loss, seed, seconds=4.0) for seed in seeds for lr, loss in pairs]
    return Results(study, records, Path(folder))


def test_mup_wins():
    first, *rest = findings.verdict(make([0.010], [0.016]))
    assert first == (
        "The best lr 0.016 of the proxy, carried to the target under log-modes, gives loss 0.01; "
        "the same values under SP give 0.016 (1.60×)."
    )
    assert not any("did not help" in sentence for sentence in rest)
    assert any("not searched" in sentence for sentence in rest)
    assert any("one seed only" in sentence for sentence in rest)


def test_sp_wins_is_said():
    first, *rest = findings.verdict(make([0.020, 0.020], [0.015, 0.015]))
    assert "gives loss 0.02;" in first and "under SP give 0.015 (0.75×)" in first
    assert "log-modes did not help here: the same values under SP reached the lower loss." in rest


def test_a_difference_within_the_seeds_favours_neither():
    said = findings.verdict(make([0.010, 0.020], [0.012, 0.022]))
    assert "That difference is within the spread over 2 seeds: it favours neither." in said
    assert not any("did not help" in sentence for sentence in said)


def test_one_seed_that_did_not_train_hides_no_difference():
    """0.0105 ± 0.0003 against 0.03, 0.04 and 1: their spread is above the difference of means, but not in logarithms."""
    said = findings.verdict(make([0.0102, 0.0105, 0.0108], [0.03, 0.04, 1.0]))
    assert "under SP give 0.357" in said[0] and not any("favours neither" in sentence for sentence in said)


def test_verify_gives_drift_and_regret():
    # Under log-modes 0.008 (one step down) is 0.010 against 0.011 carried: regret 10 %.
    # Under SP 0.004 (two steps down) is 0.012 against 0.018: regret 50 %.
    result = make([0.011], [0.018], verify={"log-modes": [0.02, 0.010, 0, 0.03], "standard": [0.012, 0.014, 0, 0.05]})
    said = " ".join(findings.verdict(result))
    assert "log-modes is best at lr 0.008 with loss 0.01, -1 step from the carried one; carrying over costs 10.0 %." in said
    assert "SP is best at lr 0.004 with loss 0.012, -2 steps from the carried one; carrying over costs 50.0 %." in said
    # Proxy: 4 runs of 1 s, target 4 s; the search at the target: 4 runs of 4 s.
    assert "took 0.50× the time" in said
    assert "The best learning rate of the target under SP, 0.004, is the lowest that was searched" in said
    assert "tuning SP at full size" not in said
    header, _, ours, _, plain = report.table(result)
    cells = dict(zip(header, ours, strict=True))
    assert (cells["drift (steps)"], cells["regret"], cells["its loss here"]) == ("-1", "10.0 %", "0.011")
    assert cells["its test loss here"] == "0.022"
    assert dict(zip(header, plain, strict=True))["regret"] == "50.0 %"


def test_directly_tuned_sp_that_is_better_is_said():
    result = make([0.012], [0.018], verify={"log-modes": [0.02, 0.02, 0, 0.03], "standard": [0.02, 0.010, 0, 1.0]})
    assert any("SP reaches 0.01: the carried log-modes run is 1.20× that" in s for s in findings.verdict(result))


@pytest.mark.parametrize(
    ("proxy", "edge", "way"),
    [((0.01, 0.02, 0.03, 0.04), "lowest", "downwards"), ((0.04, 0.03, 0.02, 0.01), "highest", "upwards")],
)
def test_an_optimum_at_the_edge_is_said(proxy, edge, way):
    said = " ".join(findings.verdict(make([0.01], [0.02], proxy=proxy)))
    assert f"is the {edge} that was searched" in said and f"extend its grid {way}" in said


def test_a_flat_optimum_is_said():
    """By hand, two seeds: 0.008 has mean 0.021 ± 0.001, the best, 0.016, has 0.02 ± 0.001; 0.004 and 0.032 are far."""
    result = make([0.01, 0.01], [0.02, 0.02])
    losses = {0.004: (0.05, 0.05), 0.008: (0.020, 0.022), 0.016: (0.019, 0.021), 0.032: (0.04, 0.04)}
    for r in result.records:
        if r["size"] == "proxy":
            r["loss"] = losses[r["params"]["lr"]][r["seed"]]
    assert result.level(result.walk("proxy", "log-modes")) == [0.008, 0.016]
    assert any("flat at the proxy: learning rates from 0.008 to 0.016 are level" in s for s in findings.verdict(result))
    sharp = make([0.01, 0.01], [0.02, 0.02])
    assert not any("flat" in s for s in findings.verdict(sharp))


def test_failed_target_training_comes_first(tmp_path):
    result = make([0.01, None, 0.01], [0.02, 0.02, 0.02], folder=tmp_path)
    first = findings.verdict(result)[0]
    assert first.startswith(
        "Training of the target failed under log-modes with the best lr 0.016 of the proxy (1 of 3 runs: the loss is nan)"
    )
    assert "×" not in first
    assert len(findings.target_failures(result)) == 1
    header, *rows = report.table(result)
    failed = {(row[header.index("rule")], row[header.index("size")]): row[header.index("failed")] for row in rows}
    assert (failed["log-modes", "target"], failed["SP", "target"]) == ("1/3", "0/3")
    text = report.write_report(result, settings={}, command="again").read_text(encoding="utf-8")
    assert "## Runs that did not complete" in text and "the loss is nan" in text


def test_failed_naive_transfer_is_a_result():
    first = findings.verdict(make([0.01, 0.01], [None, None]))[0]
    assert "gives loss 0.01; the same values under SP failed (2 of 2 runs: the loss is nan)." in first


def test_every_training_failed_has_no_numbers():
    result = make([None], [None])
    assert findings.verdict(result)[0].startswith("Training of the target failed under log-modes")
    assert "its loss here" not in report.table(result)[0]


@pytest.mark.parametrize(
    ("ours", "best", "expected"),
    [(-1.0, -2.0, 0.5), (0.0, 0.0, 0.0), (1.0, 0.0, math.inf), (0.0, -1.0, 1.0), (-2.0, -2.0, 0.0)],
)
def test_losses_of_zero_and_below_are_losses(ours, best, expected, tmp_path):
    """Regret is what carrying over costs as a fraction of the size of the best loss; nothing of it may raise."""
    verify = {"log-modes": [5.0, best, 0, 5.0], "standard": [5.0, best, 0, 5.0]}
    result = make([ours, ours], [3.0, 3.0], proxy=(0.0, -1.0, -3.0, 2.0), verify=verify, folder=tmp_path)
    assert result.row("log-modes")["regret"] == pytest.approx(expected)
    report.write_report(result, settings={}, command="again")
    assert (tmp_path / "lr.png").stat().st_size > 5_000


class Counter(html.parser.HTMLParser):
    """Counts tags, and what would be fetched from elsewhere."""

    def __init__(self):
        super().__init__()
        self.tags, self.links = {}, []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.links += [v for k, v in attributes if k in ("src", "href") and not v.startswith("data:")]


def test_report_folder(tmp_path):
    verify = {"log-modes": [0.02, 0.014, 0, 0.03], "standard": [0.012, 0.014, 0, None]}
    result = make([0.011, 0.012], [0.018, 0.019], verify=verify, folder=tmp_path)
    settings = {"problem": "<burgers>", "epochs": 8}
    path = report.write_report(result, settings=settings, command="neuralop-mup transfer", title="T")
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# T\n\n**{findings.verdict(result)[0]}**")
    assert "](lr.png)" in text and "| epochs " in text and "| problem | <burgers>" in text
    run = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert run["seeds"] == [0, 1] and run["command"] == "neuralop-mup transfer"
    assert {"python", "torch", "neuraloperator", "mup", "optuna", "neuralop-mup"} <= set(run["versions"])
    assert run["summary"][1]["transferred_loss"] == pytest.approx(0.0115)
    assert (tmp_path / "lr.png").read_bytes()[:4] == b"\x89PNG"
    svg = (tmp_path / "lr.svg").read_bytes()
    assert 10_000 < len(svg) < 300_000 and b"</svg>" in svg
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = Counter()
    found.feed(page)
    assert found.links == [] and found.tags["img"] == 1 and "&lt;burgers&gt;" in page
    # A row a run, and the heads.
    assert found.tags["tr"] >= len(result.records) and "sortable" in page


def test_a_sweep_has_a_report(tmp_path):
    from neuralop_mup.tuning import sweep

    result = sweep(lambda c: (c["lr"] - 0.02) ** 2, {"lr": GRID}, folder=tmp_path, n_workers=1, progress=False)
    assert findings.verdict(result)[0] == "The best point is lr 0.016, with loss 1.6e-05."
    assert "| best" in report.write_report(result, command="again").read_text()


def test_curve_is_the_mean_over_seeds_and_leaves_out_failed_points():
    records = [record("proxy", "r", 0.1, loss, seed) for seed, loss in enumerate((1.0, 3.0))]
    records += [record("proxy", "r", 0.2, loss, seed) for seed, loss in enumerate((0.5, None))]
    curve = plots.loss_curve(records)
    assert (curve.x, curve.mean, curve.low, curve.high, curve.failed) == ([0.1], [2.0], [1.0], [3.0], [0.2])
    assert curve.optimum == (0.1, 2.0)


def test_curve_is_the_best_of_the_other_hyperparameters():
    low, high = record("proxy", "r", 0.1, 1.0), record("proxy", "r", 0.1, 2.0)
    low["params"]["lr_mult.spectral"], high["params"]["lr_mult.spectral"] = 2.0, 1.0
    assert plots.loss_curve([high, low]).mean == [1.0]


def test_a_diverged_run_does_not_flatten_the_figure(tmp_path):
    calm, wild = make([0.011], [0.018]), make([0.011], [1e6], proxy=(0.05, 0.03, 0.02, 1e5))
    for name, result in (("calm", calm), ("wild", wild)):
        plots.plot_study(result, tmp_path / f"{name}.svg")
    ticks = [(tmp_path / f"{name}.svg").read_text(encoding="utf-8").count("ytick_") for name in ("calm", "wild")]
    wild = (tmp_path / "wild.svg").read_text(encoding="utf-8")
    assert min(ticks) >= 3 and "<!-- 1e+05 -->" not in wild and "beyond the axis" in wild


def test_nothing_to_draw_is_an_error(tmp_path):
    result = replace(make([0.01], [0.02]), records=[record("proxy", "log-modes", lr, None) for lr in GRID])
    with pytest.raises(MupError, match="no figure to draw"):
        plots.plot_study(result, tmp_path / "f.png")


def test_labels_are_moved_apart_and_stay_inside():
    placed = spread([0.0, 0.01, 0.99, 1.0], 0.1, 0.0, 1.0)
    assert all(b - a >= 0.1 - 1e-12 for a, b in zip(placed, placed[1:], strict=False))
    assert min(placed) >= 0 and max(placed) <= 1


def test_labels_of_a_figure_do_not_collide(monkeypatch):
    """Every text's box, as drawn: no two of a panel overlap, and all are inside the figure that is saved."""
    from neuralop_mup.plots import style

    kept = []
    monkeypatch.setattr(style, "save", lambda figure, path: kept.append(figure) or path)
    verify = {"log-modes": [0.012, 0.0113, 0, 0.0201], "standard": [0.012] * 4}
    result = make([0.011, 0.0112], [0.0111, 0.0113], verify=verify)
    plots.plot_study(result, "x.png", labels={"proxy": "proxy\n(width 16)", "target": "target\n(width 64)"})
    (figure,) = kept
    figure.canvas.draw()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) == 2 and not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_a_rule_has_one_colour_in_every_figure():
    from neuralop_mup.plots import style

    names = ["standard", "log-modes", "operator-norm", "none"]
    assert len({style.colour_of(n) for n in names}) == len({style.marker_of(n) for n in names}) == 4
    optimizers = ["adam", "adamw", "neuralop-adamw", "sgd", "muon", "soap"]
    assert len({(style.colour_of(n), style.marker_of(n)) for n in optimizers}) == 6


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_coord_check_figure(tmp_path, suffix):
    records = [
        {"size": size, "seed": seed, "step": step, "block": block, "kind": kind, "value": size**slope * (1 + seed / 10)}
        for size in (16, 32, 64)
        for seed in (0, 1)
        for block, slope in (("lifting", 0.0), ("fno_blocks.0", 0.5))
        for kind, step in (("init", 0), ("update", 1), ("update", 5))
    ]
    check = CoordCheck(records, "hidden_channels")
    path = plots.plot_coord_check(check, tmp_path / f"c.{suffix}", tolerance=0.25, title="burgers")
    assert path.stat().st_size > 5_000
    if suffix == "svg":
        text = path.read_text(encoding="utf-8")
        assert text.count("fno_blocks.0  slope +0.50 !") == 2 and "lifting  slope +0.00 !" not in text
        assert "!: steeper than 0.25" in text
        # A mark that is nowhere is not explained.
        assert "!: steeper" not in plots.plot_coord_check(check, path, tolerance=0.75).read_text(encoding="utf-8")


def test_the_same_records_give_the_same_svg(tmp_path):
    first, again = (plots.plot_study(make([0.011], [0.018]), tmp_path / f"{i}.svg").read_bytes() for i in (0, 1))
    assert first == again


def test_drawing_leaves_pyplot_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.plot_study(make([0.011], [0.018]), tmp_path / "f.png")
    assert dict(matplotlib.rcParams) == before


def test_aligned_table_lines_up():
    lines = wording.aligned([["a", "long header"], ["longer cell", "b"]]).splitlines()
    assert len({len(line) for line in lines}) == 1 and len(lines) == 3


def test_data_error_and_equation_residual_are_shown_apart():
    """Test errors are twice the losses: 0.02 → 0.04 and 0.05 → 0.1; residuals are given."""
    results = make([0.02], [0.05])
    assert "apart" not in " ".join(findings.verdict(results)) and "test equation" not in report.table(results)[0]
    residual = {"log-modes": 0.25, "standard": 0.75}
    for r in results.records:
        r["metrics"] |= {"equation_loss": 9.0, "test_equation_loss": residual[r["rule"]]}
    header, *rows = report.table(results)
    at = header.index("rule"), header.index("size"), header.index("test equation")
    told = {row[at[0]]: row[at[2]] for row in rows if row[at[1]] == "target"}
    assert told == {"log-modes": "0.25", "SP": "0.75"}
    assert any("log-modes: data 0.04, equation 0.25; SP: data 0.1, equation 0.75" in s for s in findings.verdict(results))
