"""Models and options of neuralop's main branch that release 2.0.0 does not have."""

import pytest

from support.case_checks import check_case
from support.cases import NEXT_CASES

pytestmark = pytest.mark.skipif(not NEXT_CASES, reason="this neuralop has none of them")


@pytest.mark.parametrize("case", NEXT_CASES, ids=lambda case: case.name)
def test_every_check_of_a_case(case, tmp_path):
    check_case(case, tmp_path)
