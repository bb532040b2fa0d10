"""Executors of processes: the standard library's, loky's, Dask's and Ray's. The last three are in the extra ``ci``."""

import functools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from neuralop_mup.lab.engines import ExecutorEngine, RayExecutor
from support.engine_runs import LRS, executions, killed, quiet_sweep, slow, train
from support.errors import refused
from support.processes import START, environment

HOWS = {"how": ["never", "once"]}


@pytest.fixture(scope="module")
def cluster():
    """Two Ray nodes on this machine, with a CPU each."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.other = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    variables = {"PYTHONPATH": environment()["PYTHONPATH"], "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    ray.init(address=cluster.address, log_to_driver=False, runtime_env={"env_vars": variables})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


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


@pytest.mark.parametrize("name", ["loky", "dask", "cluster"])
def test_executors_give_the_same_losses_and_survive_a_kill(name, tmp_path, fixed, request):
    executor = request.getfixturevalue(name)
    how = {"engine": "ray", "n_workers": None} if name == "cluster" else {"executor": executor, "n_workers": 2}
    expected = quiet_sweep(killed, tmp_path / "t", {"how": ["never"]}, seeds=(0, 1))
    found = quiet_sweep(killed, tmp_path / "s", HOWS, seeds=(0, 1), fixed=fixed, **how)
    assert [r["loss"] for r in found.records] == 2 * [r["loss"] for r in expected.records]
    # A dead worker of Dask's also loses what was not fetched.
    assert name == "dask" or executions(fixed) == {("never", 0): 1, ("never", 1): 1, ("once", 0): 2, ("once", 1): 2}


def test_only_the_run_that_breaks_a_pool_fails(tmp_path, fixed):
    pools = []

    def new_pool():
        pools.append(pool())
        return pools[-1]

    hows = {"how": ["never", "always", "never 2", "never 3"]}
    found = quiet_sweep(killed, tmp_path / "s", hows, seeds=(0, 1), executor=new_pool, n_workers=2, fixed=fixed)
    incomplete = [(r["params"]["how"], r["outcome"]) for r in found.records if r["outcome"] != "complete"]
    assert (incomplete, len(found.records)) == ([("always", "failed")], 7)
    assert len(pools) > 1


def test_a_broken_pool_that_was_not_made_by_a_function_is_refused(tmp_path, fixed):
    with refused("executor=lambda"):
        quiet_sweep(killed, tmp_path / "s", HOWS, seeds=(0, 1), executor=pool(), n_workers=2, fixed=fixed)
    again = quiet_sweep(killed, tmp_path / "s", HOWS, seeds=(0, 1), executor=pool, n_workers=2, fixed=fixed)
    assert [r["outcome"] for r in again.records] == ["complete"] * 4


def test_threads_are_refused(tmp_path, fixed):
    with ThreadPoolExecutor(3) as threads, refused("threads"):
        quiet_sweep(slow, tmp_path, executor=threads, n_workers=3, fixed=fixed)


def test_the_executor_of_the_user_stays_open(tmp_path):
    with ProcessPoolExecutor(1) as executor:
        assert ExecutorEngine(executor, 7).capacity == 7
        quiet_sweep(train, tmp_path / "s", {"lr": LRS[:2]}, executor=executor)
        assert executor.submit(int, 3).result() == 3


def test_ray_goes_on_when_a_node_dies(tmp_path, cluster, fixed):
    class Nodes(RayExecutor):
        """Kill a node after four runs were sent."""

        sent = 0

        def submit(self, *job, **more):
            self.sent += 1
            if self.sent == 5:
                cluster.remove_node(cluster.other, allow_graceful=False)
            return super().submit(*job, **more)

    assert ExecutorEngine(Nodes).capacity == 2
    found = quiet_sweep(slow, tmp_path / "s", seeds=(0, 1), executor=Nodes, n_workers=None, fixed=fixed)
    assert [r["outcome"] for r in found.records] == ["complete"] * 12
    assert executions(fixed).total() <= 14  # the run of the dead node, and what it had not handed over, run again
