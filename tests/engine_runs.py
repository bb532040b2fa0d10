"""What the sweeps of test_engines.py train; a file of its own, so that workers import little."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from pathlib import Path

LRS = [2.0**-i for i in range(1, 7)]


def train(config):
    """A bowl around lr = 1/8; each run leaves a mark."""
    mark(config)
    return {"loss": abs(math.log2(config["lr"]) + 3) + 0.1 * config["seed"], "pid": os.getpid()}


def mark(config):
    if "log" in config:
        descriptor = os.open(config["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(descriptor, (json.dumps([config["lr"], config["seed"]]) + "\n").encode())
        os.close(descriptor)


def killed_once(config):
    """Its process is killed in the run of lr 1/4, the first time."""
    if config["lr"] == 0.25 and not os.path.exists(config["flag"]):
        Path(config["flag"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return train(config)


def always_killed(config):
    if config["lr"] == 0.25:
        os.kill(os.getpid(), signal.SIGKILL)
    return train(config)


def visible(config):
    return {"loss": 1.0, "sees": os.environ.get("CUDA_VISIBLE_DEVICES"), "torch": "torch" in sys.modules}


def slow_on_ray(config):
    mark(config)
    time.sleep(0.5)
    return {"loss": abs(math.log2(config["lr"]) + 3) + 0.1 * config["seed"]}


def slow(config):
    """As train, but it waits as long as the flag is there."""
    mark(config)
    time.sleep(0.1)
    while os.path.exists(config["flag"]):
        time.sleep(0.05)
    return {"loss": abs(math.log2(config["lr"]) + 3) + 0.1 * config["seed"]}
