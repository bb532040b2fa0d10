"""What a model predicts in the units of the data, whatever its processor makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["Predictor", "predicted"]


def predicted(model: nn.Module, processor: Any, batch: Mapping[str, Any]) -> Any:
    """The prediction for a batch, in eval mode; without a ``y`` in it, neither model nor processor know of one."""
    # neuralop's processors ask for a y; in eval mode they only move it. One that uses it would show as no number.
    like = {} if "y" in batch else {"y": torch.full_like(batch["x"][:, :1], torch.nan)}
    sample = {**batch, **like}
    if processor is None:
        return model(**batch)
    sample = processor.preprocess(sample)
    out, _ = processor.postprocess(model(**{k: v for k, v in sample.items() if k not in like}), sample)
    return out


class Predictor(nn.Module):
    """A model, in eval mode, between fields in the units of the data: what normalises them is inside.

    Parameters
    ----------
    model : torch.nn.Module
    processor : neuralop DataProcessor or None
        On whatever device; it goes to the model's.
    """

    def __init__(self, model: nn.Module, processor: Any) -> None:
        super().__init__()
        self.model, self.processor = model, processor
        self.device = next(model.parameters()).device
        if processor is not None:
            processor.to(self.device)
            processor.eval()
        model.eval()

    @torch.no_grad()
    def forward(self, x: Any, **batch: Any) -> Any:
        """The prediction for ``x`` and whatever else a batch has, on the device of ``x``."""
        given = {"x": x, **batch}
        there = {name: v.to(self.device) if torch.is_tensor(v) else v for name, v in given.items()}
        out = predicted(self.model, self.processor, there)
        return out.to(x.device) if torch.is_tensor(x) and torch.is_tensor(out) else out
