"""Reports and figures of records written by hand, with every number worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

from neuralop_mup.lab import Results, plots, report, sweep, transfer_study, verdict

GRID = [0.004, 0.008, 0.016, 0.032]
WHERE = {"versions": {"python": "3.12.3", "torch": "99.0"}, "host": "one", "date": "2026-11-25T08:00:00+00:00"}


def record(size, rule, lr, loss, seed=0, **more):
    """One run; a loss of None is one that diverged."""
    done = loss is not None
    return {
        "size": size,
        "rule": rule,
        "params": {"lr": lr},
        "seed": seed,
        "outcome": "complete" if done else "diverged",
        "error": None if done else "the loss is nan",
        "loss": loss,
        "metrics": {"test_loss": 2 * loss, "equation_loss": 9.0, "test_equation_loss": 3 * loss} if done else {},
        "seconds": 4.0 if size == "target" else 1.0,
        **more,
    }


def make(ours, plain, *, proxy=(0.05, 0.03, 0.02, 0.04), folder="unused", interpolate=False):
    """A transfer with these losses of the target, one for each seed, under log-modes and as neuralop builds it."""
    seeds = tuple(range(len(ours)))
    study = transfer_study(
        proxy={"hidden_channels": 16, "n_modes": (8,)},
        target={"hidden_channels": 64, "n_modes": (32,)},
        space={"lr": GRID},
        seeds=seeds,
        rule="log-modes",
        name="T",
    )
    study = replace(study, interpolate=interpolate)
    records = [record("proxy", "log-modes", lr, loss, s) for s in seeds for lr, loss in zip(GRID, proxy, strict=True)]
    best = study.best_params([({"lr": lr}, [r for r in records if r["params"]["lr"] == lr]) for lr in GRID])["lr"]
    for rule, losses in (("log-modes", ours), ("standard", plain)):
        records += [record("target", rule, best, loss, seed) for seed, loss in enumerate(losses)]
    return Results(study, records, Path(folder))


def table(result):
    """Cells of the report's table, the header first."""
    header, _, *rows = report.aligned_table(result).splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in (header, *rows)]


def target_rows(result):
    """Rows of the report's table about the target, by column."""
    header, *rows = table(result)
    return [row for row in (dict(zip(header, cells, strict=True)) for cells in rows) if row["size"] == "target"]


@pytest.mark.parametrize(
    ("arguments", "present", "absent"),
    [
        (
            {"ours": [0.010], "plain": [0.016]},
            ["With lr 0.016, the loss of the target under log-modes is 0.01.", "under SP is 0.016.", "A single seed"],
            "relative to SP",
        ),
        # Two seeds are too few to compare, however far apart they are.
        ({"ours": [0.010, 0.010], "plain": [0.050, 0.050]}, ["is 0.01.", "SP is 0.05."], "relative to SP"),
        # Ratios 4/3: by their logarithms, without a spread.
        (
            {"ours": [0.02, 0.04, 0.08], "plain": [0.015, 0.03, 0.06]},
            ["0.0467 ± 0.02", "0.035 ± 0.02", "relative to SP: 33 % higher (95 % interval: 33 to 33 %)"],
            "no clear",
        ),
        # Logarithms of 1.2, 0.9 and 1.1: mean 0.0574, spread 0.1475, so ± 4.303 × 0.1475 / √3, and the same below 1.
        (
            {"ours": [0.01, 0.01, 0.01], "plain": [0.012, 0.009, 0.011]},
            ["no clear difference (95 % interval of the ratio: 0.65 to 1.36)"],
            "higher",
        ),
        ({"ours": [0.01], "plain": [0.02], "proxy": (0.01, 0.02, 0.03, 0.04)}, ["lowest", "downwards"], "up"),
        ({"ours": [0.01], "plain": [0.02]}, ["With lr 0.016,"], "parabola"),
        # The logarithms -3.507, -3.912 and -3.219 have their minimum at -0.131 octaves from 0.016.
        ({"ours": [0.01], "plain": [0.02], "interpolate": True}, ["The lr 0.0146 is the minimum of a parabola"], "outside"),
        ({"ours": [0.01], "plain": [0.02], "proxy": (0.04, 0.03, 0.02, 0.01)}, ["highest", "upwards"], "down"),
        (
            {"ours": [0.01] * 3, "plain": [None, 0.02, None]},
            ["is 0.01.", "under SP failed (2 of 3", "is nan", "2 of 18"],
            "relative to SP",
        ),
        ({"ours": [0.01, None, 0.01], "plain": [0.02] * 3}, ["1 of 3", "SP is 0.02."], "relative to SP"),
        (
            {"ours": [-2.0] * 3, "plain": [-1.0] * 3, "proxy": (0.0, -1.0, -3.0, 2.0)},
            ["lr 0.016", "is -2.", "is -1."],
            "relative to SP",
        ),
    ],
)
def test_numbers_in_a_verdict(arguments, present, absent):
    text = "\n".join(verdict(make(**arguments)))
    assert [words for words in present if words not in text] == [] and absent not in text


def test_the_table_by_hand():
    """The best of the base's grid; the target under each rule. Test errors are twice losses, residuals three times."""
    result = make([0.010, 0.012], [0.018, None])
    header, base, *_ = table(result)
    ours, plain = target_rows(result)
    assert base[: header.index("seconds") + 1] == ["proxy", "–", "lr 0.016", "0.02", "0.04", "0.06", "–", "8.0"]
    assert (ours["values"], ours["loss"], ours["test loss"]) == ("lr 0.016", "0.011 ± 0.001", "0.022")
    assert (plain["rule"], plain["loss"], plain["failed"], plain["seconds"]) == ("SP", "0.018", "1", "8.0")
    assert (ours["test equation"], plain["test equation"]) == ("0.033", "0.054")


def test_a_report_is_one_page_and_a_figure(tmp_path):
    result = make([0.011, None], [0.018, 0.019], folder=tmp_path)
    report.write_report(result, settings={"problem": "a|b", "epochs": 8}, command="run again", title="T", use="import it")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    parts = ["# T", verdict(result)[0], report.aligned_table(result), "](lr.png)", "| epochs ", "| a\\|b", "the loss is nan"]
    assert [part for part in [*parts, "import it", "run again"] if part not in text] == []
    assert (tmp_path / "lr.png").read_bytes()[:4] == b"\x89PNG" and len(list(tmp_path.iterdir())) == 2


def test_a_report_says_where_its_records_were_made(tmp_path):
    """Not where the report is written. Runs of one place share a line."""
    result = make([0.01, 0.01], [0.02, 0.02], folder=tmp_path)
    for r in result.records:
        r |= WHERE
    result.records[0] |= {"versions": {"python": "3.12.3", "torch": "2.6.0"}, "date": "2026-11-26T08:00:00+00:00"}
    result.records[-1] |= {"date": "2026-11-27T08:00:00+00:00"}
    page = report.write_report(result, command="again").read_text()
    assert re.search(r"- 1 run: .* torch 2\.6\.0, host one.* 2026-11-26.* 2026-11-26", page)
    assert re.search(r"11 runs.* torch 99\.0, host one.* 2026-11-25.* 2026-11-27", page)


def test_a_sweep_has_a_report(tmp_path):
    result = sweep(lambda c: (c["lr"] - 0.02) ** 2, {"lr": GRID}, folder=tmp_path, n_workers=1, progress=False)
    assert "lr 0.016" in verdict(result)[0] and "1.6e-05" in verdict(result)[0]
    assert "| values " in report.write_report(result, command="again").read_text() and (tmp_path / "lr.png").exists()
    failed = replace(result, records=[record(None, None, lr, None) for lr in GRID])
    assert "No configuration completed" in verdict(failed)[0]
    assert "](lr.png)" not in report.write_report(failed, command="again").read_text()


# Figures


def drawn(result, monkeypatch):
    """The figure of a report, as text."""
    save = plots.save
    monkeypatch.setattr(plots, "save", lambda figure, path: save(figure, path.with_suffix(".svg")))
    report.write_report(result, command="again")
    return (result.folder / "lr.svg").read_text(encoding="utf-8")


def test_a_diverged_run_does_not_flatten_the_figure(tmp_path, monkeypatch):
    calm = drawn(make([0.011], [0.018], folder=tmp_path / "calm"), monkeypatch)
    wild = drawn(make([0.011], [1e6], proxy=(0.05, 0.03, 0.02, 1e5), folder=tmp_path / "wild"), monkeypatch)
    lost = drawn(make([0.011], [None], proxy=(0.05, 0.03, 0.02, None), folder=tmp_path / "lost"), monkeypatch)
    assert min(text.count("ytick_") for text in (calm, wild, lost)) >= 3
    assert "<!-- 1e+05 -->" not in wild and "a seed failed" in lost
    assert "a seed failed" not in calm and "modes 32)" in calm and "log-modes" in calm


def test_the_same_records_give_the_same_svg_and_keep_rcparams(tmp_path, monkeypatch):
    before = dict(matplotlib.rcParams)
    one, two = (drawn(make([0.011], [0.018], folder=tmp_path / name), monkeypatch) for name in ("one", "two"))
    assert one == two and dict(matplotlib.rcParams) == before
