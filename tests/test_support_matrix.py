"""docs/support.md says what is so: every exact number is measured again, some slopes, and no case lacks a row."""

import pytest
import torch
from cases import BY_NAME, NAMES, NEXT_CASES, PHYSICSNEMO_CASES, SKIPPED, SPHERE, Case
from support import COLUMNS, COMMAND, EXACT, GROUPS, NOTE_BEYOND, NOTES, PAGE, REASONS, SLOPES, exact, number, parse, slope

import neuralop_mup as nm

TEXT = PAGE.read_text() if PAGE.exists() else ""
AGAIN = f"docs/support.md is not what was measured; if that is meant, write it again: `{COMMAND}`"
OFF_THE_PAGE = [*NEXT_CASES, *PHYSICSNEMO_CASES]  # newer than the release that the page is of, or of another package
SAMPLE = [
    *(("2d", over) for over in SLOPES),
    *(("separable", over) for over in SLOPES),
    *(("cp_factorized", over) for over in SLOPES),
    ("tt_factorized", "width"),
    ("legacy_incremental", "modes"),
    ("uno", "width"),
    ("gino", "width"),
]


@pytest.fixture(scope="module")
def rows():
    # Without torch_harmonics there are no such cases, but the page has their rows.
    return parse(TEXT if SPHERE else TEXT.split(f"## {list(GROUPS)[-1]}")[0])


def test_every_case_has_a_row_and_every_row_a_case(rows):
    others = {case.name for case in OFF_THE_PAGE}
    released = [name for name in NAMES if name not in others]
    assert [name for name in rows if name not in SKIPPED] == released, AGAIN
    assert [case.name for group in GROUPS.values() for case in group] == released


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning", "ignore:Attempting to update metadata")
def test_exact_columns(case, rows):
    if case in OFF_THE_PAGE:
        assert {exact(case)[column] for column in EXACT if column not in ("parameters", "pickle")} == {"0"}
        return
    row = rows[case.name]
    assert {column: row[column] for column in EXACT} == exact(case), AGAIN


@pytest.mark.parametrize(("name", "over"), SAMPLE)
def test_slopes_within_what_machines_differ_by(name, over, rows):
    cell, measured = rows[name][over], slope(BY_NAME[name], over)
    if number(cell) is None:
        assert cell == measured, AGAIN
    else:
        assert number(measured) == pytest.approx(number(cell), abs=0.05), AGAIN


def test_a_steep_slope_has_a_footnote_and_no_other_cell_has(rows):
    for name, row in rows.items():
        for over in SLOPES:
            value = number(row[over])
            steep = value is not None and not abs(value) <= NOTE_BEYOND
            assert steep == (f"[^{NOTES.get((name, over))}]" in row[over]), (name, over)
    for reason, text in REASONS.items():
        assert f"[^{reason}]: {text}" in TEXT
    assert {name for name, _ in NOTES} <= set(rows) or not SPHERE


def test_no_cell_is_a_tick(rows):
    for row in rows.values():
        for column in COLUMNS:
            assert number(row[column]) is not None or ": " in row[column], row


def test_what_neuralop_itself_cannot_run_is_said_so():
    assert slope(Case("five channels", (8,), (4,), {"in_channels": 5}), "width").startswith(
        "neuralop cannot run it: RuntimeError"
    )


def test_a_reader_can_make_the_page_again():
    assert COMMAND in TEXT.splitlines()[0]


def test_the_matrix_sees_what_breaks(monkeypatch):
    """Numbers above zero appear when a rescaled, a re-rated or a forgetful model is measured."""
    import support

    case, parametrize, build = BY_NAME["2d"], nm.parametrize, type(BY_NAME["2d"]).build
    monkeypatch.setattr(nm, "parametrize", lambda model, base, rule: parametrize(model, base or case.base, rule))
    assert support.identity(case) > 0
    monkeypatch.setattr(nm, "parametrize", parametrize)
    monkeypatch.setattr(nm, "MuAdam", lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr))
    assert support.interop(case) > 0
    monkeypatch.undo()
    assert support.lost(case, lambda _: parametrize(build(case, 0), base={}, rule=support.RULE)) > 0
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", lambda *args, **kwargs: None)
    assert min(support.checkpoint(case)) > 0
