"""What must hold for every model of the table (support/cases.py)."""

import pytest

from support.case_checks import check_case
from support.cases import ORDINARY_CASES


@pytest.mark.parametrize("case", ORDINARY_CASES, ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence", "ignore:Attempting to update metadata")
def test_every_check_of_a_case(case, tmp_path):
    check_case(case, tmp_path)
