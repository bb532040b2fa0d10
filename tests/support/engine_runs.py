"""Train functions for the tests of sweeps and engines, in a file of its own, so that workers import little."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections import Counter
from pathlib import Path

from neuralop_mup.errors import Diverged, MupError

LRS = [2.0**-i for i in range(1, 7)]


def mark(config):
    """Each run leaves a mark."""
    if "log" in config:
        descriptor = os.open(config["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(descriptor, (json.dumps([config.get("rule"), config.get("lr"), config["seed"]]) + "\n").encode())
        os.close(descriptor)


def executions(fixed):
    """How often each learning rate and seed was trained."""
    path = Path(fixed["log"])
    return Counter(tuple(json.loads(line)[1:]) for line in path.read_text().splitlines()) if path.exists() else Counter()


def train(config):
    """A bowl around lr = 1/8."""
    mark(config)
    return {"loss": abs(math.log2(config["lr"]) + 3) + 0.1 * config["seed"], "pid": os.getpid()}


def bowl(config):
    """A parabola in log2 lr. The optimum: -4 at the proxy; at the target -5 under operator-norm and -6 under standard."""
    mark(config)
    optimum, floor = -4, 2.0
    if config.get("model", {}).get("width") == 64:
        optimum, floor = {"operator-norm": -5, "standard": -6, "none": -3}[config["rule"]], 0.5
    return {"loss": floor + 0.1 * (math.log2(config["lr"]) - optimum) ** 2 + 0.01 * (-1) ** config["seed"]}


def slow(config):
    """As train; it takes a while, and as long as the flag is there."""
    mark(config)
    time.sleep(0.1)
    while os.path.exists(config["flag"]):
        time.sleep(0.02)
    return {"loss": abs(math.log2(config["lr"]) + 3) + 0.1 * config["seed"]}


def kinds(config):
    """Every way to end."""
    mark(config)
    how = config["how"]
    if how == "dies":
        os._exit(3)
    if how == "killed once" and not os.path.exists(config["flag"]):
        Path(config["flag"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    errors = {
        "refused": MupError("no"),
        "diverged": Diverged("inf"),
        "bug": ValueError("oops"),
        "exits": SystemExit(3),
        "no space": OSError(28, "No space left on device"),
        "no memory": MemoryError("1 TB"),
        "no module": ModuleNotFoundError("No module named 'h5py'"),
    }
    if how == "told of the disk":
        raise MupError("Cannot write the data") from errors["no space"]
    if how in errors:
        raise errors[how]
    return math.inf if how == "inf" else {"loss": 1.0, "train_loss": math.nan}


def trips(config):
    """Raises as long as the flag is not there, at the size that is said."""
    mark(config)
    if config.get("model", {"width": 8})["width"] == config.get("where", 8) and not os.path.exists(config["flag"]):
        raise {"KeyError": KeyError("loss"), "OSError": OSError(28, "full")}[config["error"]]
    return config["lr"]


def killed_once(config):
    """Its process is killed in the run of lr 1/4, the first time."""
    if config["lr"] == 0.25 and not os.path.exists(config["flag"]):
        Path(config["flag"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return train(config)


def killed_while_sending(config):
    """Its process is killed, the first time, when it has sent half of what the run gave."""
    from multiprocessing.connection import Connection

    def half(self, content):
        os.write(self.fileno(), content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    if config["lr"] == 0.25 and not os.path.exists(config["flag"]):
        Path(config["flag"]).touch()
        Connection._send = half
    return train(config)


def always_killed(config):
    if config["lr"] == 0.25:
        os.kill(os.getpid(), signal.SIGKILL)
    return train(config)


def surroundings(config):
    """What a process sees."""
    import torch

    return {"loss": 1.0, "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), "threads": torch.get_num_threads()}


def drawn(config):
    """A small training by torch, whose every bit counts."""
    import torch

    torch.manual_seed(config["seed"])
    weights = torch.randn(64, 64)
    for _ in range(20):
        weights = torch.tanh(weights @ torch.randn(64, 64) * config["lr"])
        time.sleep(0.001)
    return {"loss": weights.double().sum().item()}
