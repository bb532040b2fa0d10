"""Train functions for tests of sweeps and engines, in a module that workers can import."""

import json
import math
import os
import signal
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from neuralop_mup.errors import Diverged, MupError
from neuralop_mup.lab import sweep

LRS = [2.0**-i for i in range(1, 7)]


def quiet_sweep(train, folder, space=None, **arguments):
    """Sweep over the learning rates, in this process and without progress unless the arguments say otherwise."""
    return sweep(train, space or {"lr": LRS}, folder=folder, **{"n_workers": 1, "progress": False, **arguments})


def mark(config):
    """Write down that a run begins."""
    if "log" in config:
        with open(config["log"], "a") as file:
            file.write(json.dumps([config.get("how", config.get("lr")), config["seed"]]) + "\n")


def executions(fixed):
    """How often each learning rate, or each way to end, was trained with each seed."""
    path = Path(fixed["log"])
    return Counter(tuple(json.loads(line)) for line in path.read_text().splitlines()) if path.exists() else Counter()


def train(config):
    """Return the distance of the learning rate from 1/8."""
    mark(config)
    return {"loss": abs(math.log2(config["lr"]) + 3) + 0.1 * config["seed"]}


def slow(config):
    """Train for 0.1 s, and for as long as the flag exists."""
    time.sleep(0.1)
    loss = train(config)
    while os.path.exists(config["flag"]):
        time.sleep(0.02)
    return loss


def bowl(config):
    """A parabola in log2 lr. The optimum: -4 at the proxy; at the target -5 under operator-norm and -6 under standard."""
    mark(config)
    optimum, floor = -4, 2.0
    if config.get("model", {}).get("width") == 64:
        optimum, floor = {"operator-norm": -5, "standard": -6, "none": -3}[config["rule"]], 0.5
    return {"loss": floor + 0.1 * (math.log2(config["lr"]) - optimum) ** 2 + 0.01 * (-1) ** config["seed"]}


def ends(config):
    """End as ``how`` says."""
    mark(config)
    full = OSError(28, "No space left on device")
    errors = {
        "refused": MupError("no"),
        "diverged": Diverged("inf"),
        "bug": ValueError("oops"),
        "exits": SystemExit(3),
        "no space": full,
        "no memory": MemoryError("1 TB"),
        "no module": ModuleNotFoundError("No module named 'h5py'"),
    }
    if config["how"] == "cannot write":
        raise MupError("Cannot write the data") from full
    if config["how"] in errors:
        raise errors[config["how"]]
    return math.inf if config["how"] == "inf" else {"loss": 1.0, "train_loss": math.nan}


def killed(config):
    """Draw a number, unless the process is killed: once, always, or once while it sends the result."""
    mark(config)
    flag = Path(f"{config.get('flag')} {config['how']} {config['seed']}")
    if config["how"] == "always" or (config["how"].startswith("once") and not flag.exists()):
        flag.touch()
        if config["how"] == "once while sending":
            Connection._send = _send_half
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    torch.manual_seed(config["seed"])
    loss = torch.randn(8, 8).double().sum().item()
    return {"loss": loss, "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), "threads": torch.get_num_threads()}


def _send_half(connection, content):
    """Kill this process when it has sent half of its answer."""
    os.write(connection.fileno(), content[: len(content) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
