import multiprocessing

import hypothesis
import pytest

# What processes are forked from is one process for all tests of a worker, which loads this once (as LocalEngine's).
multiprocessing.set_forkserver_preload(["neuralop_mup.lab.training", "torch._dynamo"])
hypothesis.settings.register_profile("no clock", deadline=None)  # other work on the machine makes an example slow
hypothesis.settings.load_profile("no clock")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Models are small: threads only cost. The process that hands tests out does not load torch."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """Generated data of a test session goes to a folder of its own, not to the user's cache."""
    monkeypatch.setenv("NEURALOP_MUP_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


# Files with a fixture that takes long to set up (processes, a cluster, a database): one worker of pytest-xdist has them all.
TOGETHER = ("tests_ci/test_engines_of_others.py", "tests/test_wrapping.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """What ``-n`` does by itself, but for the files above; xdist loses its own groups under pytest 9.2 (its #1386)."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::")[0]
            return file if file in TOGETHER else nodeid

    return Scheduling(config, log)


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):  # so that no worker has a long one left when the others are done
        items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture
def fixed(tmp_path):
    """Where runs leave their marks, and a flag that tells them something."""
    return {"log": str(tmp_path / "log"), "flag": str(tmp_path / "flag")}
