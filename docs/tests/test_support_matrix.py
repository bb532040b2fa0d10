"""docs/evidence/support.md has a row for each case. Some of its slopes are measured again; test_cases.py has the rest."""

import pytest
from support_matrix import COMMAND, GROUPS, NOTE_BEYOND, NOTES, PAGE, SLOPES, number, parse

from support.cases import BY_NAME, NAMES, NEXT_CASES, PHYSICSNEMO_CASES, SKIPPED, SPHERE
from support.slopes import slope

TEXT = PAGE.read_text()
OUTDATED = f"docs/evidence/support.md differs from what was measured. If the change is intended, run `{COMMAND}`"
# The page also has rows of cases that need torch_harmonics.
ROWS = parse(TEXT if SPHERE else TEXT.split(f"## {list(GROUPS)[-1]}")[0])
SAMPLE = [("2d", "width"), ("separable", "modes"), ("legacy_incremental", "modes")]


def test_every_case_has_a_row_and_every_row_a_case():
    # The page is about one release of neuraloperator. The other cases are newer, or belong to another package.
    others = {case.name for case in (*NEXT_CASES, *PHYSICSNEMO_CASES)}
    released = [name for name in NAMES if name not in others]
    assert [name for name in ROWS if name not in SKIPPED] == released, OUTDATED
    assert [case.name for group in GROUPS.values() for case in group] == released


@pytest.mark.parametrize(("name", "over"), SAMPLE)
def test_slopes_are_those_on_the_page(name, over):
    """Machines differ by up to 0.05."""
    cell, measured = ROWS[name][over], slope(BY_NAME[name], over)
    if number(cell) is None:
        assert cell == measured, OUTDATED
    else:
        assert number(measured) == pytest.approx(number(cell), abs=0.05), OUTDATED


def test_steep_slopes_have_a_footnote():
    slopes = {(name, over): row[over] for name, row in ROWS.items() for over in SLOPES}
    steep = {key for key, cell in slopes.items() if abs(number(cell) or 0) > NOTE_BEYOND}
    noted = {key for key, cell in slopes.items() if f"[^{NOTES.get(key)}]" in cell}
    assert steep == noted == {key for key, cell in slopes.items() if "[^" in cell}
