"""What runs in APEBench's environment: it makes the data, trains APEBench's own FNO, and checks our score.

    python3 -m venv apebench-env && apebench-env/bin/pip install apebench==0.1.1
    apebench-env/bin/python benchmarks/apebench/theirs.py data     # benchmarks/apebench/data, 10 s a scenario in 1D
    apebench-env/bin/python benchmarks/apebench/theirs.py own      # benchmarks/apebench/own.jsonl, as it is trained there
    apebench-env/bin/python benchmarks/apebench/theirs.py check    # our error of a rollout is its own

Further words are names of scenarios; without any, all are meant. What is there already is not made again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scenarios import ROLLOUT, SCENARIOS, dimensions, file_name, steps

import apebench

HERE = Path(__file__).parent
DATA = HERE / "data"
OWN = HERE / "own.jsonl"
#: APEBench's FNO by dimensions: modes, channels, blocks.
NETWORKS = {1: "FNO;12;18;4;gelu", 2: "FNO;8;18;4;gelu"}
SEEDS = 3


def scenario(name: str, **more: Any) -> Any:
    """APEBench's object."""
    theirs, arguments = SCENARIOS[name]
    return apebench.scenarios.scenario_dict[theirs](**{**arguments, "test_temporal_horizon": ROLLOUT, **more})


def data(name: str) -> None:
    """Write training and test trajectories, ``(samples, states, channels, *grid)``."""
    path = DATA / file_name(name)
    if path.exists():
        return
    made = scenario(name)
    fields = {"train": np.asarray(made.get_train_data()), "test": np.asarray(made.get_test_data())}
    if not all(np.isfinite(values).all() for values in fields.values()):
        raise SystemExit(f"{name}: the solver left the finite numbers.")
    DATA.mkdir(exist_ok=True)
    np.savez(path, **fields)
    print(name, {split: values.shape for split, values in fields.items()}, flush=True)


def own(name: str) -> None:
    """Train APEBench's own FNO with its own optimizer and schedule, all seeds at once, and score it as it does."""
    done = [json.loads(line)["size"] for line in OWN.read_text().splitlines()] if OWN.exists() else []
    if name in done:
        return
    length = steps(name)
    made = scenario(name, optim_config=f"adam;{length};warmup_cosine;0.0;1e-3;{length // 5}")
    begun = time.perf_counter()
    table = made(task_config="predict", network_config=NETWORKS[dimensions(name)], train_config="one", num_seeds=SEEDS)[0]
    errors = np.asarray(table[[c for c in table.columns if c.startswith("mean_nRMSE")]], dtype=float)
    assert errors.shape == (SEEDS, ROLLOUT), errors.shape
    with OWN.open("a") as file:
        for seed, loss in enumerate(np.exp(np.log(errors).mean(axis=1))):
            seconds = round((time.perf_counter() - begun) / SEEDS, 1)
            file.write(json.dumps({"size": name, "seed": seed, "loss": float(f"{loss:.5g}"), "seconds": seconds}) + "\n")
            print(name, seed, f"{loss:.4g}", flush=True)


def check(name: str) -> None:
    """Compare APEBench's error of a rollout with that of our runs: relative L2 errors of the channels, added up."""
    made = scenario(name)
    test = np.load(DATA / file_name(name))["test"]
    noise = np.random.default_rng(0).normal(size=test[:, 1:].shape) * test.std()
    wrong, right = jnp.asarray(test[:, 1:] + 0.1 * noise), jnp.asarray(test[:, 1:])
    metric = made.get_metric_fns()["mean_nRMSE"]
    theirs = np.asarray(jax.vmap(metric, in_axes=1)(wrong, right))
    off, size = (np.linalg.norm(x.reshape(*x.shape[:3], -1), axis=-1) for x in (wrong - right, right))
    ours = (off / size).sum(axis=2).mean(axis=0)
    print(f"{name}: theirs over ours {np.min(theirs / ours):.6f} to {np.max(theirs / ours):.6f}", flush=True)


if __name__ == "__main__":
    for asked in sys.argv[2:] or SCENARIOS:
        {"data": data, "own": own, "check": check}[sys.argv[1]](asked)
