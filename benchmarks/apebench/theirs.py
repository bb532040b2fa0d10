"""Programs for APEBench's environment: generate the data, train APEBench's own FNO, and check our rollout error.

    python3 -m venv apebench-env && apebench-env/bin/pip install apebench==0.1.1
    apebench-env/bin/python benchmarks/apebench/theirs.py data     # benchmarks/apebench/data, 10 s a scenario in 1D
    apebench-env/bin/python benchmarks/apebench/theirs.py own      # benchmarks/apebench/own.jsonl
    apebench-env/bin/python benchmarks/apebench/theirs.py check    # compare our rollout error with APEBench's

Further arguments are names of scenarios; by default all. Existing results are kept.
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
#: Number of axes → APEBench's FNO with its modes, channels and blocks.
NETWORKS = {1: "FNO;12;18;4;gelu", 2: "FNO;8;18;4;gelu"}
SEEDS = 3


def scenario(name: str, **more: Any) -> Any:
    """Return APEBench's object for a scenario."""
    key, arguments = SCENARIOS[name]
    return apebench.scenarios.scenario_dict[key](**{**arguments, "test_temporal_horizon": ROLLOUT, **more})


def data(name: str) -> None:
    """Write training and test trajectories of shape ``(samples, states, channels, *grid)``."""
    path = DATA / file_name(name)
    if path.exists():
        return
    built = scenario(name)
    fields = {"train": np.asarray(built.get_train_data()), "test": np.asarray(built.get_test_data())}
    if not all(np.isfinite(values).all() for values in fields.values()):
        raise SystemExit(f"{name}: the solution contains values that are not finite.")
    DATA.mkdir(exist_ok=True)
    np.savez(path, **fields)
    print(name, {split: values.shape for split, values in fields.items()}, flush=True)


def own(name: str) -> None:
    """Train all seeds of APEBench's FNO with its optimizer and schedule, and write their rollout errors."""
    done = [json.loads(line)["size"] for line in OWN.read_text().splitlines()] if OWN.exists() else []
    if name in done:
        return
    length = steps(name)
    built = scenario(name, optim_config=f"adam;{length};warmup_cosine;0.0;1e-3;{length // 5}")
    begun = time.perf_counter()
    table = built(task_config="predict", network_config=NETWORKS[dimensions(name)], train_config="one", num_seeds=SEEDS)[0]
    errors = np.asarray(table[[c for c in table.columns if c.startswith("mean_nRMSE")]], dtype=float)
    assert errors.shape == (SEEDS, ROLLOUT), errors.shape
    with OWN.open("a") as file:
        for seed, loss in enumerate(np.exp(np.log(errors).mean(axis=1))):
            seconds = round((time.perf_counter() - begun) / SEEDS, 1)
            file.write(json.dumps({"size": name, "seed": seed, "loss": float(f"{loss:.5g}"), "seconds": seconds}) + "\n")
            print(name, seed, f"{loss:.4g}", flush=True)


def check(name: str) -> None:
    """Compare APEBench's rollout error with that of our runs, the sum of the relative L2 errors of the channels."""
    built = scenario(name)
    test = np.load(DATA / file_name(name))["test"]
    noise = np.random.default_rng(0).normal(size=test[:, 1:].shape) * test.std()
    wrong, right = jnp.asarray(test[:, 1:] + 0.1 * noise), jnp.asarray(test[:, 1:])
    metric = built.get_metric_fns()["mean_nRMSE"]
    theirs = np.asarray(jax.vmap(metric, in_axes=1)(wrong, right))
    error, size = (np.linalg.norm(x.reshape(*x.shape[:3], -1), axis=-1) for x in (wrong - right, right))
    ours = (error / size).sum(axis=2).mean(axis=0)
    print(f"{name}: theirs over ours {np.min(theirs / ours):.6f} to {np.max(theirs / ours):.6f}", flush=True)


if __name__ == "__main__":
    for argument in sys.argv[2:] or SCENARIOS:
        {"data": data, "own": own, "check": check}[sys.argv[1]](argument)
