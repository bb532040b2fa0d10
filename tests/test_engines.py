"""Engines and storages: loky, Dask, Ray on several nodes, PostgreSQL; workers that die, drivers that meet, pruning."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from engine_runs import LRS, always_killed, killed_once, mark, slow, slow_on_ray, train, visible
from processes import environment

from neuralop_mup.errors import MupError
from neuralop_mup.tuning import sweep, transfer
from neuralop_mup.tuning.engines import ExecutorEngine, LocalEngine, RayEngine
from neuralop_mup.tuning.outcome import is_complete

pytestmark = pytest.mark.usefixtures("light_workers")


def runs(log):
    return Counter(tuple(json.loads(line)) for line in Path(log).read_text().splitlines())


def quiet(train, folder, space=None, **arguments):
    return sweep(train, space or {"lr": LRS}, folder=folder, **{"progress": False, "seeds": (0, 1), **arguments})


def same(found, expected):
    keys = ("params", "seed", "outcome", "loss")
    assert [[r[k] for k in keys] for r in found.records] == [[r[k] for k in keys] for r in expected.records]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The sweep in one process."""
    return quiet(train, tmp_path_factory.mktemp("one"), n_workers=1)


@pytest.fixture
def fixed(tmp_path):
    return {"log": str(tmp_path / "log"), "flag": str(tmp_path / "flag")}


def once(fixed, but=()):
    counts = runs(fixed["log"])
    assert len(counts) == 2 * len(LRS) and {key for key, n in counts.items() if n > 1} <= set(but), counts


# Executors


def test_any_executor(tmp_path, expected, fixed):
    with ThreadPoolExecutor(3) as pool:
        same(quiet(train, tmp_path / "s", executor=pool, n_workers=3, fixed=fixed), expected)
        assert pool.submit(int, 3).result() == 3  # it is the user's, and left open
    once(fixed)


def test_loky(tmp_path, expected, fixed):
    loky = pytest.importorskip("loky")
    executor = loky.get_reusable_executor(max_workers=2)
    same(quiet(train, tmp_path / "s", executor=executor, n_workers=2, fixed=fixed), expected)
    once(fixed)


def test_a_pool_that_breaks_as_a_whole_is_made_anew_and_only_the_guilty_is_blamed(tmp_path, fixed):
    loky = pytest.importorskip("loky")
    made = []

    def make():
        made.append(loky.ProcessPoolExecutor(2))
        return made[-1]

    found = quiet(always_killed, tmp_path / "s", executor=make, n_workers=2, fixed=fixed)
    outcomes = {(r["params"]["lr"], r["seed"]): r["outcome"] for r in found.records}
    assert {key for key, kind in outcomes.items() if kind == "lost"} == {(0.25, 0)}
    # How often the pool is made anew depends on what else ran beside the guilty run each time.
    assert Counter(outcomes.values()) == {"complete": 10, "lost": 1} and len(made) > 1
    for pool in made:
        pool.shutdown(wait=False, kill_workers=True)


def test_an_executor_that_breaks_and_cannot_be_made_anew_is_told(tmp_path, fixed, expected):
    loky = pytest.importorskip("loky")
    with pytest.raises(
        MupError, match="The executor takes no more runs .*: give the same command a new executor, or a function that makes"
    ):
        quiet(killed_once, tmp_path / "s", executor=loky.ProcessPoolExecutor(2), n_workers=2, fixed=fixed)
    again = quiet(killed_once, tmp_path / "s", executor=lambda: loky.ProcessPoolExecutor(2), n_workers=2, fixed=fixed)
    same(again, expected)
    once(fixed, but={(lr, 0) for lr in LRS})


def test_dask_on_a_local_cluster_whose_worker_is_killed(tmp_path, fixed, expected):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor(pure=False, retries=2)
        same(quiet(killed_once, tmp_path / "s", executor=executor, n_workers=2, fixed=fixed), expected)
    # What ran on the dead worker and had not been fetched runs again.
    assert len(runs(fixed["log"])) == 2 * len(LRS)


# Workers of this machine


def test_each_worker_sees_its_own_gpu_before_torch_starts(tmp_path):
    engine = LocalEngine(3, ["0", "5"])
    found = sweep(visible, {"lr": LRS}, folder=tmp_path, engine=engine, progress=False)
    assert {r["metrics"]["sees"] for r in found.records} <= {"0", "5"} and os.environ.get("CUDA_VISIBLE_DEVICES") != "5"
    assert [w._environment["CUDA_VISIBLE_DEVICES"] for w in engine._workers] == ["0", "5", "0"]


def test_a_killed_worker_costs_its_run_alone(tmp_path, fixed, expected):
    same(quiet(killed_once, tmp_path / "s", n_workers=2, fixed=fixed), expected)
    once(fixed)  # the killed run had not left its mark


# Ray


@pytest.fixture(scope="module")
def cluster():
    """Three Ray nodes on this machine: the head without CPUs, two with one each. The last test of it kills one of them."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    cluster.nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    ray.init(
        address=cluster.address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": environment()["PYTHONPATH"]}}
    )
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_ray_refuses_a_worker_of_another_version(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr("neuralop_mup._version.__version__", "9.9")
    with pytest.raises(MupError, match="worker has neuralop_mup 0.* has 9.9"):
        quiet(train, tmp_path / "s", engine=RayEngine())


def test_ray_without_room_or_cluster_is_told(cluster):
    with pytest.raises(MupError, match="no node with 1 CPUs and 4 GPUs"):
        RayEngine(gpus=4)


def test_ray_goes_on_when_a_node_dies(tmp_path, cluster, expected, fixed):
    class Engine(RayEngine):
        """Kills a node after four runs were sent."""

        sent = 0

        def submit(self, *job):
            self.sent += 1
            if self.sent == 5:
                cluster.remove_node(cluster.nodes[0], allow_graceful=False)
            return super().submit(*job)

    engine = Engine()
    assert engine.capacity == 2
    found = quiet(slow_on_ray, tmp_path / "s", engine=engine, fixed=fixed)
    same(found, expected)
    counts = runs(fixed["log"])
    assert (
        len(counts) == 2 * len(LRS) and counts.total() <= 2 * len(LRS) + 2
    )  # the dead node's run, and what it had not handed over
    end = time.monotonic() + 60
    while engine.capacity != 1 and time.monotonic() < end:  # the head takes a while to count the node out
        time.sleep(0.2)
    assert engine.capacity == 1


# Storages


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """A PostgreSQL server of the distribution's packages; the URL of a database in it."""
    found = [shutil.which("initdb"), *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True))]
    initdb = next(filter(None, found), None)
    if initdb is None:
        pytest.skip("no PostgreSQL server is installed: apt-get install postgresql")
    pytest.importorskip("psycopg2", reason="the driver of PostgreSQL is not installed: pip install psycopg2-binary")
    folder = Path("/tmp") / f"neuralop-mup-postgres-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    user = []
    if os.getuid() == 0:  # the server refuses to run as root
        subprocess.run(["chown", "postgres", str(folder)], check=True)
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    port, binaries = 20000 + os.getpid() % 20000, Path(initdb).parent
    quiet_run = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
    subprocess.run([*user, initdb, "-D", str(folder / "data"), "-U", "mup", "--auth=trust"], **quiet_run)
    control = [*user, str(binaries / "pg_ctl"), "-D", str(folder / "data"), "-w"]
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1"
    subprocess.run([*control, "-l", str(folder / "log"), "-o", options, "start"], **quiet_run)
    yield f"postgresql+psycopg2://mup:secret@127.0.0.1:{port}/postgres"
    subprocess.run([*control, "-m", "immediate", "stop"], **quiet_run)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    return f"sqlite:///{tmp_path}/optuna.db" if request.param == "sqlite" else request.getfixturevalue("postgres")


def test_a_study_lives_in_a_database(tmp_path, url, expected, fixed):
    name = f"db-{tmp_path.name}"
    found = quiet(train, tmp_path / "s", storage=url, name=name, n_workers=1, fixed=fixed)
    same(found, expected)
    assert not (tmp_path / "s" / "journal.log").exists()
    study = optuna.load_study(study_name=f"{name}/{name}", storage=url)
    assert study.best_trial.params == found.best and study.best_value == pytest.approx(found.best_loss)
    assert study.best_trial.intermediate_values == pytest.approx({0: 0.0, 1: 0.1})
    # From another folder, the study is the same one.
    same(quiet(train, tmp_path / "t", storage=url, name=name, n_workers=1, fixed=fixed), expected)
    once(fixed)
    with pytest.raises(MupError, match=r"fixed.more was None and is now 1\. Its"):
        quiet(train, tmp_path / "u", storage=url, name=name, n_workers=1, fixed={**fixed, "more": 1})


SCRIPT = """
import sys, time
from engine_runs import slow, LRS
from neuralop_mup.tuning import sweep
if __name__ == "__main__":
    sweep(slow, {{"lr": LRS}}, folder={folder!r}, storage={url!r}, name={name!r}, n_workers=2, seeds=(0, 1), fixed={fixed!r})
"""


def test_postgres_is_read_by_another_process_refuses_a_second_driver_and_goes_on_after_a_kill(
    tmp_path, postgres, fixed, expected
):
    name, folder = f"kill-{tmp_path.name}", str(tmp_path / "s")
    (tmp_path / "script.py").write_text(SCRIPT.format(folder=folder, url=postgres, name=name, fixed=fixed))
    driver = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")], env=environment(), stderr=subprocess.PIPE, text=True
    )
    for line in driver.stderr:
        if line.startswith("[4/12]"):
            break
    Path(fixed["flag"]).touch()
    # Another process, Optuna's own command, reads it while it is written.
    shown = subprocess.run(
        ["optuna", "trials", "--study-name", f"{name}/{name}", "--storage", postgres, "-f", "json"],
        env={**environment(), "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    assert "RUNNING" in shown.stdout
    # From another folder, even another machine, a second driver is refused.
    with pytest.raises(MupError, match=r"Another run is using the study 'kill-.*' in postgresql.psycopg2://mup:…@"):
        quiet(slow, tmp_path / "t", storage=postgres, name=name, n_workers=1, fixed=fixed)
    driver.kill()
    driver.wait()
    driver.stderr.close()
    Path(fixed["flag"]).unlink()
    time.sleep(1.0)
    before = runs(fixed["log"])
    found = quiet(slow, folder, storage=postgres, name=name, n_workers=2, fixed=fixed)
    same(found, expected)
    counts = runs(fixed["log"])
    assert before.total() >= 5 and len(counts) == 12 and counts.total() <= 12 + 2  # two were under way
    states = Counter(t.state.name for t in optuna.load_study(study_name=f"{name}/{name}", storage=postgres).trials)
    assert states["COMPLETE"] == len(LRS) and set(states) <= {"COMPLETE", "FAIL"}


@pytest.mark.parametrize(
    ("storage", "told"),
    [
        ("postgresql+psycopg2://mup:secret@127.0.0.1:9/none", r"psycopg2://mup:…@127.0.0.1:9/none cannot be reached"),
        ("sqlite:////dev/null/o.db", "cannot be reached|Cannot write"),
        ("oracle://x", "cannot be reached|no storage that can be locked"),
    ],
)
def test_a_storage_that_cannot_be_reached_is_told_without_its_password(tmp_path, storage, told):
    with pytest.raises(MupError, match=told) as caught:
        quiet(train, tmp_path / "s", storage=storage, n_workers=1)
    assert "secret" not in str(caught.value)


def test_a_storage_object_of_optuna(tmp_path, expected):
    storage = optuna.storages.InMemoryStorage()
    found = quiet(train, tmp_path / "s", storage=storage, n_workers=1, name="mine")
    same(found, expected)
    assert optuna.load_study(study_name="mine/mine", storage=storage).best_trial.params == found.best


# Samplers and pruners


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sampler_of_the_users_own(tmp_path, fixed):
    """One that always proposes the same point: it is trained once, and Optuna is told the same thing three times."""
    sampler = optuna.samplers.PartialFixedSampler({"lr": 0.125}, optuna.samplers.RandomSampler(seed=0))
    space = {"lr": optuna.distributions.FloatDistribution(0.01, 1.0, log=True)}
    found = quiet(train, tmp_path / "s", space, n_trials=3, sampler=sampler, n_workers=1, fixed=fixed)
    assert [r["params"]["lr"] for r in found.records] == [0.125, 0.125] and runs(fixed["log"]).total() == 2
    assert [t.value for t in trials(tmp_path / "s")] == [found.best_loss] * 3


def staged(config):
    """Loss that falls with epochs, by lr: at 2 of 4 epochs twice as high."""
    mark(config)
    return (abs(math.log2(config["lr"]) + 3) + 1) * (2 if config.get("until") == 2 else 1) + 0.01 * config["seed"]


def test_pruning_over_seeds(tmp_path, fixed):
    """By hand: losses 1, 2, 3, 4, 5, 6 in this order; after three trials, what is above the median of the first reports
    stops."""
    lrs = [2.0**-i for i in (3, 4, 5, 6, 7, 8)]
    pruner = optuna.pruners.MedianPruner(n_startup_trials=0, n_warmup_steps=0)
    found = quiet(staged, tmp_path / "s", {"lr": lrs}, seeds=(0, 1, 2), pruner=pruner, n_workers=1, fixed=fixed)
    states = {t.params["lr"]: t.state.name for t in trials(tmp_path / "s")}
    assert states[lrs[0]] == "COMPLETE" and states[lrs[-1]] == "PRUNED" and found.best == {"lr": lrs[0]}
    counts = Counter(lr for lr, _ in runs(fixed["log"]).elements())
    assert counts[lrs[0]] == 3 and counts[lrs[-1]] == 1
    # Pruned points are settled: the same call runs nothing.
    quiet(staged, tmp_path / "s", {"lr": lrs}, seeds=(0, 1, 2), pruner=pruner, n_workers=1, fixed=fixed)
    assert Counter(lr for lr, _ in runs(fixed["log"]).elements()) == counts


def test_pruning_over_epochs(tmp_path, fixed):
    """Each run is judged at epoch 2; what is pruned there never sees its end."""
    lrs = [2.0**-i for i in (3, 4, 8)]
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)
    found = quiet(staged, tmp_path / "s", {"lr": lrs}, seeds=(0,), pruner=pruner, rungs=(2,), n_workers=1, fixed=fixed)
    outcomes = {r["params"]["lr"]: (r["outcome"], r["loss"]) for r in found.records}
    assert outcomes[lrs[0]] == ("complete", 1.0) and outcomes[lrs[2]] == ("pruned", 12.0)
    assert runs(fixed["log"])[lrs[0], 0] == 2 and runs(fixed["log"])[lrs[2], 0] == 1
    best = next(t for t in trials(tmp_path / "s") if t.params["lr"] == lrs[0])
    assert best.intermediate_values == {0: 2.0, 1: 1.0}


def trials(folder):
    backend = optuna.storages.journal.JournalFileBackend(str(Path(folder).resolve() / "journal.log"))
    return optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(backend)).trials


def test_a_transfer_shares_a_storage_under_the_name_of_its_folder(tmp_path):
    url = f"sqlite:///{tmp_path}/o.db"
    common = {"proxy": {"w": 1}, "target": {"w": 2}, "space": {"lr": LRS}, "storage": url, "n_workers": 1, "progress": False}
    found = [transfer(train, folder=tmp_path / name, **common) for name in ("a", "b")]
    assert set(optuna.get_all_study_names(url)) == {
        f"{name}/{cell}" for name in "ab" for cell in ("proxy/operator-norm", "target/operator-norm", "target/standard")
    }
    assert all(is_complete(r) for f in found for r in f.records)


def test_capacity_of_an_executor_is_what_is_said():
    with ThreadPoolExecutor(2) as pool:
        assert ExecutorEngine(pool, 7).capacity == 7
