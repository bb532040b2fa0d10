"""docs/evidence/support.md says what is so: no case lacks a row, and some slopes are measured again.

test_cases.py has the rest.
"""

import pytest
from support_matrix import COMMAND, GROUPS, NOTE_BEYOND, NOTES, PAGE, SLOPES, number, parse

from support.cases import BY_NAME, NAMES, NEXT_CASES, PHYSICSNEMO_CASES, SKIPPED, SPHERE
from support.slopes import slope

TEXT = PAGE.read_text()
AGAIN = f"docs/evidence/support.md is not what was measured; if that is meant, write it again: `{COMMAND}`"
# Without torch_harmonics there are no such cases, but the page has their rows.
ROWS = parse(TEXT if SPHERE else TEXT.split(f"## {list(GROUPS)[-1]}")[0])
SAMPLE = [
    *(("2d", over) for over in SLOPES),
    ("separable", "modes"),
    ("cp_factorized", "width"),
    ("legacy_incremental", "modes"),
    ("gino", "width"),
]


def test_every_case_has_a_row_and_every_row_a_case():
    # Those left out are newer than the release that the page is of, or of another package.
    others = {case.name for case in (*NEXT_CASES, *PHYSICSNEMO_CASES)}
    released = [name for name in NAMES if name not in others]
    assert [name for name in ROWS if name not in SKIPPED] == released, AGAIN
    assert [case.name for group in GROUPS.values() for case in group] == released


@pytest.mark.parametrize(("name", "over"), SAMPLE)
def test_slopes_within_what_machines_differ_by(name, over):
    cell, measured = ROWS[name][over], slope(BY_NAME[name], over)
    if number(cell) is None:
        assert cell == measured, AGAIN
    else:
        assert number(measured) == pytest.approx(number(cell), abs=0.05), AGAIN


def test_a_steep_slope_has_a_footnote():
    for name, row in ROWS.items():
        for over in SLOPES:
            value = number(row[over])
            steep = value is not None and not abs(value) <= NOTE_BEYOND
            assert steep == (f"[^{NOTES.get((name, over))}]" in row[over]), (name, over)
