"""Training runs of the user's own model on the user's own data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.parametrize import parametrize
from neuralop_mup.errors import MupError
from neuralop_mup.experiments.loaders import first_batch, loaders_of, read_data
from neuralop_mup.experiments.settings import Settings
from neuralop_mup.experiments.together import GroupedRuns
from neuralop_mup.experiments.training import Job, Losses, run_losses
from neuralop_mup.tuning.space import params_key

__all__ = ["OwnRuns", "own_losses", "own_settings"]


class OwnRuns(GroupedRuns):
    """Training runs of the user's model on the user's data; sent to worker processes as it is."""

    def __init__(self, build: Any, data: Any, loss: Any, processor: Any, weights: Path, target: Mapping[str, Any]) -> None:
        self.build, self.data, self.loss, self.processor = build, data, loss, processor
        self.weights, self.target = weights, target

    def model(self, config: Mapping[str, Any], settings: Settings) -> nn.Module:
        return parametrize(
            self.build(**config["model"]),
            base=lambda: self.build(**config["base"]),
            rule=config["rule"],
            init_mult=dict(settings.init_mult) or None,
            kernel_init=settings.kernel_init,
        )

    def path(self, config: Mapping[str, Any]) -> Path:
        """Where the weights of the target's run with this configuration are kept."""
        return self.weights / f"target-{hashlib.sha256(params_key(config).encode()).hexdigest()[:16]}.pt"

    def job(self, config: Mapping[str, Any], shared: dict) -> Job:
        s = own_settings(config)
        torch.manual_seed(s.seed)
        model = self.model(config, s)
        if "data" not in shared:  # read once for a group of runs
            shared["data"] = read_data(self.data)
        train, evals, processor = loaders_of(shared["data"], s.batch_size, s.seed)
        losses = shared.setdefault("losses", own_losses(self.loss, first_batch(train)["x"].ndim - 2))
        return Job(model, train, evals, self.processor or processor, losses, s, self.weights / "checkpoints")

    def keep(self, config: Mapping[str, Any], job: Job) -> None:
        s = job.settings
        if dict(config["model"]) == dict(self.target) and s.until is None:
            self.weights.mkdir(parents=True, exist_ok=True)
            state = job.model.state_dict()  # changed in place: a plain dict of its tensors would lose the plan
            for key, value in list(state.items()):
                if isinstance(value, torch.Tensor):
                    state[key] = value.cpu()
                else:
                    del state[key]
            torch.save(state, self.path(config))


def own_settings(config: Mapping[str, Any]) -> Settings:
    """What a run's configuration says besides the model, whose arguments are the user's."""
    return Settings.of({k: v for k, v in config.items() if k not in ("model", "base")})


def own_losses(loss: Any, n_dim: int) -> Losses:
    """What a run minimises, from :func:`tune`'s ``loss``."""
    if isinstance(loss, str):
        return run_losses(n_dim, loss)
    if callable(loss):
        return {"data": (1.0, loss)}
    if isinstance(loss, Mapping) and loss:
        named = {k: v if isinstance(v, tuple) else (1.0, v) for k, v in loss.items()}
        first = next(iter(named))
        return {"data" if k == first else k: v for k, v in named.items()}
    raise MupError(f"loss={loss!r} must be 'l2', 'h1', 'l2,h1', a function loss(y_pred, y, **batch), or a dict of such.")
