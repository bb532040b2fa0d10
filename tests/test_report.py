"""Reports and figures from hand-made records, with every number worked out by hand."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neuralop_mup.diagnostics.coord_check import CoordCheck, judged
from neuralop_mup.errors import MupError
from neuralop_mup.lab import Results, findings, plots, report, sweep, transfer_study, wording
from neuralop_mup.lab.plots import style

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


def target_rows(result):
    """Rows of the report's table about the target, by column."""
    header, *rows = report.table(result)
    return [row for row in (dict(zip(header, cells, strict=True)) for cells in rows) if row["size"] == "target"]


@pytest.mark.parametrize(
    ("arguments", "first", "said", "unsaid"),
    [
        (
            {"ours": [0.010], "plain": [0.016]},
            "The best lr 0.016 of the proxy, carried to the target under log-modes, gives loss 0.01; "
            "the same values under SP give 0.016 (1.60×).",
            ["not searched", "one seed only"],
            "did not help",
        ),
        (
            {"ours": [0.020, 0.020], "plain": [0.015, 0.015]},
            "The best lr 0.016 of the proxy, carried to the target under log-modes, gives loss 0.02; "
            "the same values under SP give 0.015 (0.75× in the median, 0.75× to 0.75× by seed).",
            ["log-modes did not help here: the same values under SP reached the lower loss."],
            "flat",
        ),
        (
            {"ours": [0.010, 0.020], "plain": [0.012, 0.022]},
            "",
            ["That difference is within the spread over 2 seeds: it favours neither."],
            "did not help",
        ),
        # 0.0105 ± 0.0003 against 0.03, 0.04 and 1: their spread is above the difference of means, but not in logarithms.
        (
            {"ours": [0.0102, 0.0105, 0.0108], "plain": [0.03, 0.04, 1.0]},
            "",
            ["under SP give 0.357", "(3.81× in the median, 2.94× to 92.59× by seed)"],
            "favours neither",
        ),
        (
            {
                **{"ours": [0.012], "plain": [0.018]},
                "verify": {"log-modes": [0.02, 0.02, 0, 0.03], "standard": [0.02, 0.010, 0, 1.0]},
            },
            "",
            ["SP reaches 0.01: the carried log-modes run is 1.20× that"],
            "not searched",
        ),
        (
            {"ours": [0.01], "plain": [0.02], "proxy": (0.01, 0.02, 0.03, 0.04)},
            "",
            ["is the lowest that was searched", "extend its grid downwards"],
            "upwards",
        ),
        (
            {"ours": [0.01], "plain": [0.02], "proxy": (0.04, 0.03, 0.02, 0.01)},
            "",
            ["is the highest that was searched", "extend its grid upwards"],
            "downwards",
        ),
        (
            {"ours": [0.01, 0.01], "plain": [None, None]},
            "The best lr 0.016 of the proxy, carried to the target under log-modes, gives loss 0.01; "
            "the same values under SP failed (2 of 2 runs: the loss is nan).",
            [],
            "did not help",
        ),
        ({"ours": [None], "plain": [None]}, "Training of the target failed under log-modes", [], "×"),
    ],
)
def test_what_a_verdict_says(arguments, first, said, unsaid):
    verdict = "\n".join(findings.verdict(make(**arguments)))
    assert verdict.startswith(first)
    assert [sentence for sentence in said if sentence not in verdict] == [] and unsaid not in verdict


def test_verify_gives_drift_and_regret():
    # Under log-modes 0.008 (one step down) is 0.010 against 0.011 carried: regret 10 %.
    # Under SP 0.004 is the lowest of the grid, so no factor is known, and 0.012 against 0.018: regret 50 %.
    result = make([0.011], [0.018], verify={"log-modes": [0.02, 0.010, 0, 0.03], "standard": [0.012, 0.014, 0, 0.05]})
    said = " ".join(findings.verdict(result))
    # In log2 of lr and log of the loss: the proxy's vertex is that of 0.03, 0.02, 0.04 with 0.05 beyond, the target's of
    # 0.02, 0.010, 0.011 with 0.03, each fitted by least squares (numpy.polyfit by hand).
    base, here = (math.exp(v) for v in (_vertex([0.05, 0.03, 0.02, 0.04]), _vertex([0.02, 0.010, 0.011, 0.03])))
    fitted = f"fitted between grid points the best learning rate is ×{here / base:.2f} of the base's"
    assert f"log-modes is best at lr 0.008 with loss 0.01; {fitted}; carrying over costs 10.0 %." in said
    assert "SP is best at lr 0.004 with loss 0.012; carrying over costs 50.0 %." in said
    # Proxy: 4 runs of 1 s, target 4 s; the search at the target: 4 runs of 4 s.
    assert "took 0.50× the time" in said
    assert "The best learning rate of the target under SP, 0.004, is the lowest that was searched" in said
    assert "tuning SP at full size" not in said
    ours, plain = target_rows(result)
    assert (ours["drift"], ours["regret"], ours["its loss here"]) == (f"×{here / base:.2f}", "10.0 %", "0.011")
    assert ours["its test loss here"] == "0.022" and plain["regret"] == "50.0 %"


def _vertex(losses):
    """Logarithm of where the parabola through the grid's losses near the lowest (at most twice it) is least."""
    near = [(math.log(lr), math.log(loss)) for lr, loss in zip(GRID, losses, strict=True) if loss <= 2.01 * min(losses)]
    a, b, _ = np.polyfit(*zip(*near, strict=True), 2)
    return -b / (2 * a)


def test_a_flat_optimum_is_said():
    """By hand, two seeds: 0.008 has mean 0.021 ± 0.001, the best, 0.016, has 0.02 ± 0.001; 0.004 and 0.032 are far."""
    result = make([0.01, 0.01], [0.02, 0.02])
    losses = {0.004: (0.05, 0.05), 0.008: (0.020, 0.022), 0.016: (0.019, 0.021), 0.032: (0.04, 0.04)}
    for r in result.records:
        if r["size"] == "proxy":
            r["loss"] = losses[r["params"]["lr"]][r["seed"]]
    assert result.level(result.walk("proxy", "log-modes")) == [0.008, 0.016]
    assert any("flat at the proxy: learning rates from 0.008 to 0.016 are level" in s for s in findings.verdict(result))


def test_failed_target_training_comes_first(tmp_path):
    result = make([0.01, None, 0.01], [0.02, 0.02, 0.02], folder=tmp_path)
    first = findings.verdict(result)[0]
    assert first.startswith(
        "Training of the target failed under log-modes with the best lr 0.016 of the proxy (1 of 3 runs: the loss is nan)"
    )
    assert "×" not in first
    assert [row["failed"] for row in target_rows(result)] == ["1/3", "0/3"]
    text = report.write_report(result, settings={}, command="again").read_text(encoding="utf-8")
    assert "## Runs that did not complete" in text and "the loss is nan" in text


def test_every_training_failed_has_no_numbers():
    assert "its loss here" not in report.table(make([None], [None]))[0]


@pytest.mark.parametrize(
    ("ours", "best", "expected"),
    [(-1.0, -2.0, 0.5), (0.0, 0.0, None), (1.0, 0.0, None), (0.0, -1.0, 1.0), (-2.0, -2.0, 0.0)],
)
def test_losses_of_zero_and_below_are_losses(ours, best, expected, tmp_path):
    """Regret is what carrying over costs as a fraction of the size of the best loss; nothing of it may raise."""
    verify = {"log-modes": [5.0, best, 0, 5.0], "standard": [5.0, best, 0, 5.0]}
    result = make([ours, ours], [3.0, 3.0], proxy=(0.0, -1.0, -3.0, 2.0), verify=verify, folder=tmp_path)
    regret = result.row("log-modes")["regret"]
    assert (regret and regret.value) == (expected and pytest.approx(expected))
    report.write_report(result, settings={}, command="again")
    assert (tmp_path / "lr.png").stat().st_size > 5_000


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
    assert {"python", "torch", "neuraloperator", "mup", "optuna", "neuralop-mup"} <= set(run["machine"])
    assert run["summary"][1]["transferred_loss"] == pytest.approx(0.0115)
    assert (tmp_path / "lr.png").read_bytes()[:4] == b"\x89PNG"
    svg = (tmp_path / "lr.svg").read_bytes()
    assert 10_000 < len(svg) < 300_000 and b"</svg>" in svg
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<img") == 1 and "&lt;burgers&gt;" in page
    assert not re.findall(r"""(?:src|href)=["']?(?!["']?data:)[^\s>]+""", page)  # nothing is fetched from elsewhere
    assert page.count("<tr") >= len(result.records) and "sortable" in page  # a row a run, and the heads


def test_a_sweep_has_a_report(tmp_path):

    result = sweep(lambda c: (c["lr"] - 0.02) ** 2, {"lr": GRID}, folder=tmp_path, n_workers=1, progress=False)
    assert findings.verdict(result)[0] == "The best point is lr 0.016, with loss 1.6e-05."
    assert "| best" in report.write_report(result, command="again").read_text()


def test_curve_is_the_mean_over_seeds_and_leaves_out_failed_points():
    curve = plots.Curve.of({0.1: [1.0, 3.0], 0.2: [0.5, None]})
    assert (curve.x, curve.mean, curve.low, curve.high, curve.failed) == ([0.1], [2.0], [1.0], [3.0], [0.2])
    assert curve.optimum == (0.1, 2.0)


def drawn(result, path):
    """The figure of a report."""
    report.write_report(replace(result, folder=path), command="again")
    return (path / "lr.svg").read_text(encoding="utf-8")


def test_a_diverged_run_does_not_flatten_the_figure(tmp_path):
    calm = drawn(make([0.011], [0.018]), tmp_path / "calm")
    wild = drawn(make([0.011], [1e6], proxy=(0.05, 0.03, 0.02, 1e5)), tmp_path / "wild")
    assert min(text.count("ytick_") for text in (calm, wild)) >= 3
    assert "<!-- 1e+05 -->" not in wild and "beyond the axis" in wild


def test_nothing_to_draw_is_no_figure_and_an_error_of_the_plot(tmp_path):
    result = replace(make([0.01], [0.02], folder=tmp_path), records=[record("proxy", "log-modes", lr, None) for lr in GRID])
    assert "](lr.png)" not in report.write_report(result, command="again").read_text()
    with pytest.raises(MupError, match="no figure to draw"):
        plots.plot_panels({None: []}, tmp_path / "f.png")


def test_labels_of_a_figure_do_not_collide(monkeypatch, tmp_path):
    """Every text's box, as drawn: no two of a panel overlap."""
    kept = []
    save = style.save
    monkeypatch.setattr(style, "save", lambda figure, path: kept.append(figure) or save(figure, path))
    verify = {"log-modes": [0.012, 0.0113, 0, 0.0201], "standard": [0.012] * 4}
    drawn(make([0.011, 0.0112], [0.0111, 0.0113], verify=verify), tmp_path)
    kept[0].canvas.draw()
    for axes in kept[0].axes:
        one, other = (text.get_window_extent() for text in axes.texts)
        assert not one.overlaps(other)


def test_labels_are_moved_apart_and_stay_inside():
    placed = style.spread([0.0, 0.01, 0.99, 1.0], 0.1, 0.0, 1.0)
    assert all(b - a >= 0.1 - 1e-12 for a, b in zip(placed, placed[1:], strict=False))
    assert min(placed) >= 0 and max(placed) <= 1


def test_a_rule_has_one_colour_in_every_figure():
    names = ["standard", "log-modes", "operator-norm", "none"]
    assert len({style.colour_of(n) for n in names}) == len({style.marker_of(n) for n in names}) == 4
    optimizers = ["adam", "adamw", "neuralop-adamw", "sgd", "soap"]
    assert len({(style.colour_of(n), style.marker_of(n)) for n in optimizers}) == 5


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_coord_check_figure(tmp_path, suffix):
    records = [
        {"size": size, "seed": seed, "step": step, "block": block, "kind": kind, "value": size ** (slope + seed * scatter)}
        for size in (16, 32, 64)
        for seed in (0, 1)
        for block, slope, scatter in (("lifting", 0.0, 0.0), ("fno_blocks.0", 0.5, 0.01), ("output", 0.2, 0.2))
        for kind, step in (("init", 0), ("update", 1), ("update", 5))
    ]
    check = CoordCheck(records, "hidden_channels")
    path = tmp_path / f"c.{suffix}"
    check.plot(path, title="burgers")
    assert path.stat().st_size > 5_000
    if suffix == "svg":
        text = path.read_text(encoding="utf-8")
        # Marked as they are judged.
        rows = {(row["block"], row["kind"]): row for row in judged(check.slopes)}
        for block, mark in (("lifting", ""), ("fno_blocks.0", " !"), ("output", " ?")):
            slope = rows[block, "update"]["slope"]
            assert text.count(f"{block}  slope {slope:+.2f}{mark} -->") >= 2
        assert "!: does not pass" in text and "?: the seeds do not tell" in text
        check.plot(path, tolerance=2.0, init_tolerance=2.0)  # a mark that is nowhere is not explained
        assert "does not pass" not in path.read_text(encoding="utf-8")


def test_the_same_records_give_the_same_svg_and_leave_pyplot_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    assert drawn(make([0.011], [0.018]), tmp_path / "one") == drawn(make([0.011], [0.018]), tmp_path / "two")
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
    assert {row["rule"]: row["test equation"] for row in target_rows(results)} == {"log-modes": "0.25", "SP": "0.75"}
    assert any("log-modes: data 0.04, equation 0.25; SP: data 0.1, equation 0.75" in s for s in findings.verdict(results))
