import hypothesis
import pytest
import torch
from cases import CASES, FNO_CASES, NAMES, SKIPPED

torch.set_num_threads(1)  # small models: threads only cost
hypothesis.settings.register_profile("no clock", deadline=None)  # other work on the machine makes an example slow
hypothesis.settings.load_profile("no clock")


_ABSENT = [pytest.param(None, marks=pytest.mark.skip(reason=reason)) for reason in SKIPPED.values()]


@pytest.fixture(params=[*CASES, *_ABSENT], ids=[*NAMES, *SKIPPED])
def case(request):
    """Each model of the table in turn."""
    return request.param


@pytest.fixture(params=FNO_CASES, ids=[case.name for case in FNO_CASES])
def fno_case(request):
    """Each FNO with dense or separable kernels in turn."""
    return request.param


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """Generated data of a test session goes to a folder of its own, not to the user's cache."""
    monkeypatch.setenv("NEURALOP_MUP_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
