"""Run a program in its own process: ``python program_run.py PROGRAM RESULT SEED [ARGUMENT …]``.

The program is executed unchanged. At the end of the training, its model is evaluated with the program's own losses and at
all of its resolutions, because programs report errors only every few epochs.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from neuralop import Trainer


def main() -> None:
    program, result, seed, *arguments = sys.argv[1:]
    sys.path[0] = str(Path(program).parent)  # as if the program were called directly
    torch.set_num_threads(1)
    torch.manual_seed(int(seed))
    seen: dict[str, Any] = {}
    train = Trainer.train

    def observed(self: Any, train_loader: Any, test_loaders: Any, *args: Any, **kwargs: Any) -> Any:
        metrics = train(self, train_loader, test_loaders, *args, **kwargs)
        seen.update(trainer=self, test_loaders=test_loaders, eval_losses=kwargs.get("eval_losses"))
        return metrics

    Trainer.train = observed
    sys.argv = [program, *arguments]
    start = time.process_time()
    namespace = runpy.run_path(program, run_name="__main__")
    metrics = {"seconds": time.process_time() - start, "errors": errors_of(seen, namespace)}
    Path(result).write_text(json.dumps(metrics), encoding="utf-8")


def errors_of(seen: dict[str, Any], namespace: dict[str, Any]) -> dict[str, float]:
    """Return the errors by resolution and loss, such as ``16_l2``.

    A program without a trainer is evaluated by the names ``model`` and ``data_processor``.
    """
    trainer = seen.get("trainer")
    if trainer is None:
        trainer = Trainer(model=namespace["model"], n_epochs=0, data_processor=namespace.get("data_processor"))
    losses = seen.get("eval_losses") or namespace["eval_losses"]
    loaders = seen.get("test_loaders") or namespace["test_loaders"]
    errors = trainer.evaluate_all(0, losses, loaders, eval_modes={})
    return {name: float(value) for name, value in errors.items() if name.rpartition("_")[2] in losses}


if __name__ == "__main__":
    main()
