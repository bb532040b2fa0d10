"""One program of others in a process of its own: ``python program_run.py PROGRAM RESULT SEED [ARGUMENT …]``.

The program is executed as it stands. What it trained is evaluated once more when its training ends, with its own losses and
at all of its resolutions, since programs report only every few epochs.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    program, result, seed, *arguments = sys.argv[1:]
    sys.path[0] = str(Path(program).parent)  # as where the program is called
    torch.set_num_threads(1)
    torch.manual_seed(int(seed))
    import matplotlib
    from neuralop import Trainer

    matplotlib.use("Agg")
    seen: dict[str, Any] = {}
    train = Trainer.train

    def watched(self: Any, train_loader: Any, test_loaders: Any, *args: Any, **kwargs: Any) -> Any:
        metrics = train(self, train_loader, test_loaders, *args, **kwargs)
        seen.update(trainer=self, test_loaders=test_loaders, eval_losses=kwargs.get("eval_losses"))
        return metrics

    Trainer.train = watched
    sys.argv = [program, *arguments]
    begun = time.process_time()
    namespace = runpy.run_path(program, run_name="__main__")
    told = {"seconds": time.process_time() - begun, "errors": errors_of(seen, namespace)}
    Path(result).write_text(json.dumps(told), encoding="utf-8")


def errors_of(seen: dict[str, Any], namespace: dict[str, Any]) -> dict[str, float]:
    """The errors that the program's own losses give at its resolutions, ``16_l2`` and so on; a loop without a trainer has
    left its model in the program's names.
    """
    from neuralop import Trainer

    trainer = seen.get("trainer")
    if trainer is None:
        trainer = Trainer(model=namespace["model"], n_epochs=0, data_processor=namespace.get("data_processor"))
    losses = seen.get("eval_losses") or namespace["eval_losses"]
    loaders = seen.get("test_loaders") or namespace["test_loaders"]
    found = trainer.evaluate_all(0, losses, loaders, eval_modes={})
    return {name: float(value) for name, value in found.items() if name.rpartition("_")[2] in losses}


if __name__ == "__main__":
    main()
