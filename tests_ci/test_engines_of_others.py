"""Process executors: the standard library's, loky's, Dask's and Ray's. The last three are in the extra ``ci``."""

import functools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from neuralop_mup.lab.engines import ExecutorEngine
from support.engine_runs import LRS, executions, killed, quiet_sweep, train
from support.processes import START, environment

HOWS = {"how": ["never", "once"]}


@pytest.fixture(scope="module")
def ray_workers():
    """Ray on this machine, with two CPUs."""
    ray = pytest.importorskip("ray")
    variables = {"PYTHONPATH": environment()["PYTHONPATH"], "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def dask():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client.get_executor(pure=False, retries=2)


def pool():
    """A pool that breaks as a whole when one of its processes dies."""
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(START))


@pytest.fixture
def loky():
    module = pytest.importorskip("loky")
    return functools.partial(module.get_reusable_executor, max_workers=1, env={"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("name", ["loky", "dask", "ray_workers"])
def test_executors_give_the_same_losses_and_survive_a_kill(name, tmp_path, fixed, request):
    executor = request.getfixturevalue(name)
    ray = {"executor": "neuralop_mup.lab.engines.RayExecutor", "n_workers": None}
    how = ray if name == "ray_workers" else {"executor": executor, "n_workers": 2}
    expected = quiet_sweep(killed, tmp_path / "t", {"how": ["never"]}, seeds=(0, 1))
    found = quiet_sweep(killed, tmp_path / "s", HOWS, seeds=(0, 1), fixed=fixed, **how)
    assert [r["loss"] for r in found.records] == 2 * [r["loss"] for r in expected.records]
    # A dead Dask worker also loses what was not fetched.
    assert name == "dask" or executions(fixed) == {("never", 0): 1, ("never", 1): 1, ("once", 0): 2, ("once", 1): 2}


def test_only_the_run_that_breaks_a_pool_fails(tmp_path, fixed):
    hows = {"how": ["never", "always", "never 2", "never 3"]}
    found = quiet_sweep(killed, tmp_path / "s", hows, seeds=(0, 1), executor=pool, n_workers=2, fixed=fixed)
    incomplete = [(r["params"]["how"], r["outcome"]) for r in found.records if r["outcome"] != "complete"]
    assert (incomplete, len(found.records)) == ([("always", "failed")], 7)


def test_the_executor_of_the_user_stays_open(tmp_path):
    with ProcessPoolExecutor(1) as executor:
        assert ExecutorEngine(executor, 7).capacity == 7
        quiet_sweep(train, tmp_path / "s", {"lr": LRS[:2]}, executor=executor)
        assert executor.submit(int, 3).result() == 3
