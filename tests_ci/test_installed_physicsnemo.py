"""PhysicsNeMo's FNO and AFNO, where that package is installed. tests/core/test_physicsnemo.py has small models instead."""

import pytest
import torch

from support.case_checks import check_case
from support.cases import PHYSICSNEMO_CASES, physicsnemo_cases

afno = pytest.importorskip("physicsnemo.models.afno", reason="physicsnemo is not installed")
fno = pytest.importorskip("physicsnemo.models.fno", reason="physicsnemo is not installed")
CASES = physicsnemo_cases("physicsnemo", fno.FNO, afno.AFNO)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_check_of_a_case(case, tmp_path):
    check_case(case, tmp_path)


@pytest.mark.parametrize(("ours", "theirs"), zip(PHYSICSNEMO_CASES, CASES, strict=True), ids=lambda case: case.name)
def test_the_small_models_have_physicsnemos_layout(ours, theirs):
    """Initial weights and output are equal for the same seed."""
    a, b = ours.build(), theirs.build()
    assert {n: p.requires_grad for n, p in a.named_parameters()} == {n: p.requires_grad for n, p in b.named_parameters()}
    torch.testing.assert_close(dict(a.named_parameters()), dict(b.named_parameters()), rtol=0, atol=0)
    inputs, _ = ours.batch()
    torch.testing.assert_close(a(**inputs), b(**inputs), rtol=1e-4, atol=1e-6)
