"""Train functions with groups, for the tests of the batched engine: light, so that a worker starts soon."""

import json
import os
import signal
from pathlib import Path

from neuralop_mup.tuning.outcome import execute


class Bowl:
    """Every other seed is of another group."""

    def __call__(self, config):
        if config.get("dies") == config["lr"]:
            raise RuntimeError("alone, too")
        return {"loss": (config["lr"] - 3) ** 2 + config["seed"]}

    def group(self, config):
        return str(config["seed"] % 2)

    def many(self, config):
        lrs = [c["lr"] for c in config["configs"]]
        if any(c.get("dies") in lrs for c in config["configs"]):
            raise RuntimeError("the group dies")
        with Path(config["configs"][0]["log"]).open("a") as file:
            file.write(json.dumps([lrs, config["measure"]]) + "\n")
        return {"loss": 0.0, "ends": [execute(self, c) for c in config["configs"]], "notes": ["a note"]}


class Kills(Bowl):
    """A group kills its process."""

    def many(self, config):
        os.kill(os.getpid(), signal.SIGKILL)
