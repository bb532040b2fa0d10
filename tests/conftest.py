import hypothesis
import pytest
import torch
from cases import CASES, FNO_CASES, NAMES, SKIPPED
from processes import environment

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


@pytest.fixture
def light_workers(monkeypatch):
    """Processes that start in the test, and need no torch, start without it."""
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])


# Fixtures that are costly to set up: what uses one runs in one worker of pytest-xdist.
COSTLY = {"two": "two processes", "cluster": "Ray", "postgres": "PostgreSQL", "url": "PostgreSQL"}


def pytest_configure(config):
    if config.getoption("dist", "no") == "load":  # what -n means by itself; groups need another one
        config.option.dist = "loadgroup"
    if hasattr(config, "workerinput"):  # a worker reads the command anew and does not see the line above
        config.option.loadgroup = True


@pytest.hookimpl(tryfirst=True)  # xdist's own reads the groups
def pytest_collection_modifyitems(config, items):
    for item in items:
        for name in COSTLY.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(COSTLY[name]))
    if hasattr(config, "workerinput"):  # so that no worker has a long one left when the others are done
        items.sort(key=lambda item: item.get_closest_marker("long") is None)
