"""Like models as one: their parameters stacked, one forward and one backward for all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from neuralop_mup.experiments.vmap_shims import Shims

__all__ = ["StackedModels", "obstacle"]

Loss = Callable[[Any, dict[str, Any]], torch.Tensor]


class StackedModels:
    """Models of one architecture, whose parameters become slices of stacked tensors; they stay whole models.

    Parameters
    ----------
    models : sequence of torch.nn.Module
        R models, equal but for the numbers in them.

    Attributes
    ----------
    stacks : list of torch.Tensor
        The parameters, each of shape ``(R, *shape)``.
    parameters : list of lists of torch.nn.Parameter
        ``parameters[r][i]`` shares its memory with ``stacks[i][r]``.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._model = models[0]
        self._names = [name for name, _ in models[0].named_parameters()]
        self.parameters = [list(model.parameters()) for model in models]
        self.stacks = []
        for own in zip(*self.parameters, strict=True):
            stack = torch.stack([p.detach() for p in own])
            for p, part in zip(own, stack.unbind(), strict=True):
                p.data = part
            self.stacks.append(stack.requires_grad_(own[0].requires_grad))
        buffers = [dict(model.named_buffers()) for model in models]
        # What a first forward made (SFNO's bases) the others lack; it holds no numbers of the model's own.
        common = [name for name in buffers[0] if all(name in own for own in buffers)]
        self._buffers = {name: torch.stack([own[name] for own in buffers]) for name in common}
        self._warm = False

    def losses(self, samples: Sequence[Mapping[str, Any]], loss: Loss) -> torch.Tensor:
        """The loss of each model on its own batch, shape ``(R,)``.

        Parameters
        ----------
        samples : sequence of dict
            One batch a model; tensors of equal shapes.
        loss : callable
            ``loss(output, sample)`` of one model.
        """
        if not self._warm:  # what a forward keeps for the next ones must not be made of stacked tensors
            with torch.no_grad():
                self._model(**samples[0])
            self._warm = True
        shared = {key: value for key, value in samples[0].items() if not isinstance(value, torch.Tensor)}
        tensors = {key: torch.stack([sample[key] for sample in samples]) for key in samples[0] if key not in shared}

        def one(parameters: dict, buffers: dict, tensors: dict) -> torch.Tensor:
            sample = {**shared, **tensors}
            with Shims(next(iter(tensors.values()))):
                return loss(functional_call(self._model, (parameters, buffers), (), sample), sample)

        parameters = dict(zip(self._names, self.stacks, strict=True))
        return torch.vmap(one, randomness="error")(parameters, self._buffers, tensors)

    def gradients(self, losses: torch.Tensor) -> list[torch.Tensor | None]:
        """The gradient of each model's loss by its own parameters, stacked: that of the sum, since no model sees another."""
        wanted = [stack for stack in self.stacks if stack.requires_grad]
        found = iter(torch.autograd.grad(losses.sum(), wanted, allow_unused=True))
        return [next(found) if stack.requires_grad else None for stack in self.stacks]

    def release(self, r: int) -> None:
        """Give a model memory of its own again, so that what keeps it does not keep the others."""
        for p in self.parameters[r]:
            p.data = p.data.clone()


def obstacle(model: nn.Module, sample: Mapping[str, Any], loss: Loss) -> str | None:
    """Why models like this one cannot be trained as one, in a clause; None if they can.

    One step of the model by itself is compared with the same step as one of a stack of two. The model's weights, its buffers
    and torch's random numbers are what they were.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    random = torch.get_rng_state()
    try:
        alone = loss(model(**sample), dict(sample))
        changed = [name for name, buffer in model.named_buffers() if not _same(buffer, buffers.get(name, buffer))]
        if changed:
            return f"its forward changes the buffer {changed[0]!r}"
        if not torch.equal(random, torch.get_rng_state()):
            drawing = [name for name, part in model.named_modules() if isinstance(part, _DROPPING) and part.p]
            where = f" in {drawing[0]!r}" if drawing else ""
            return f"its forward draws random numbers{where}"
        expected = torch.autograd.grad(alone, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
        return _stacked_differs(model, sample, loss, alone, expected)
    finally:
        torch.set_rng_state(random)
        for name, buffer in model.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])


_DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _stacked_differs(
    model: nn.Module, sample: Mapping[str, Any], loss: Loss, alone: torch.Tensor, expected: Sequence[torch.Tensor | None]
) -> str | None:
    weights = [p.data for p in model.parameters()]
    try:
        stacked = StackedModels([model, model])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the model alone has given its warnings
            losses = stacked.losses([sample, sample], loss)
        found = [g for g, s in zip(stacked.gradients(losses), stacked.stacks, strict=True) if s.requires_grad]
    except Exception as error:  # vmap refuses in many ways: a write in place, a branch on a value, an operator it lacks
        text = " ".join(str(error).split())
        return f"vmap refuses it ({type(error).__name__}: {text[:200]})"
    finally:
        for p, weight in zip(model.parameters(), weights, strict=True):
            p.data = weight
    near = torch.allclose(losses, alone.expand(2), rtol=1e-3)
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None and b is not None]
    # A bias before a norm has no gradient but rounding: so a part of the whole gradient is let pass.
    rounding = 1e-4 * max((float(b.norm()) for _, b in pairs), default=0.0)
    near &= all(float((ours - theirs).norm()) <= 1e-2 * float(theirs.norm()) + rounding for ours, theirs in pairs)
    return None if near or not alone.isfinite() else "as one of a stack it gives other numbers than by itself"
