"""docs/evidence/support.md has a row for each case, and some of its slopes are measured again."""

import re

import pytest
from support_matrix import COMMAND, GROUPS, NOTE_BEYOND, PAGE

from support.cases import BY_NAME
from support.slopes import slope

ROW = re.compile(r"^\| (\w\S*) \| (\S[^|]*) \| (\S[^|]*) \|$", re.MULTILINE)
ROWS = {name: {"width": width, "modes": modes} for name, width, modes in ROW.findall(PAGE.read_text()) if name != "case"}
OUTDATED = f"docs/evidence/support.md differs from what was measured. If the change is intended, run `{COMMAND}`"


def test_every_case_has_a_row():
    """The last rows need torch_harmonics."""
    names = [case.name for group in GROUPS.values() for case in group]
    assert list(ROWS)[: len(names)] == names, OUTDATED


@pytest.mark.parametrize(("name", "over"), [("2d", "width"), ("separable", "modes")])
def test_slopes_are_those_on_the_page(name, over):
    """Machines differ by up to 0.05."""
    assert float(slope(BY_NAME[name], over)) == pytest.approx(float(ROWS[name][over]), abs=0.05), OUTDATED


def test_steep_slopes_have_a_footnote():
    cells = [cell for row in ROWS.values() for cell in row.values()]
    steep = [cell for cell in cells if cell[0] in "+-" and abs(float(cell.split()[0])) > NOTE_BEYOND]
    assert steep == [cell for cell in cells if "[^" in cell]
