"""Train functions with groups, for the tests of the batched engine: light, so that a worker starts soon."""

import json
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
        configs = config["configs"]
        lrs = [c["lr"] for c in configs]
        if any(c.get("dies") in lrs for c in configs):
            raise RuntimeError("the group dies")
        with Path(configs[0]["log"]).open("a") as file:
            file.write(json.dumps([lrs, config["measure"]]) + "\n")
        # As if it were found that so many at once are best.
        at_once = configs[0].get("best", config["at_once"])
        ends = [execute(self, c) if i < (at_once or len(configs)) else None for i, c in enumerate(configs)]
        return {"loss": 0.0, "ends": ends, "at_once": at_once, "notes": ["a note"]}
