"""The table of models that every test walks: lazily built, small, one row a configuration of neuralop's FNO."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from neuralop.models import FNO


@dataclass(frozen=True)
class Case:
    """FNO keyword arguments at target size, and what makes the base of them."""

    name: str
    n_modes: tuple[int, ...]
    base_modes: tuple[int, ...]
    kwargs: dict = field(default_factory=dict)
    width: int = 24
    base_width: int = 8

    @property
    def base(self) -> dict:
        return {"n_modes": self.base_modes, "hidden_channels": self.base_width}

    def build(self, seed: int = 0, **overrides) -> FNO:
        torch.manual_seed(seed)
        kwargs = {
            "n_modes": self.n_modes,
            "hidden_channels": self.width,
            "in_channels": 2,
            "out_channels": 3,
            "n_layers": 2,
            **self.kwargs,
            **overrides,
        }
        return FNO(**kwargs)

    def build_base(self, seed: int = 0) -> FNO:
        return self.build(seed, **self.base)

    def batch(self, seed: int = 0, size: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
        """Input and target on a grid that resolves the target's modes."""
        g = torch.Generator().manual_seed(seed)
        grid = tuple(2 * n for n in self.n_modes)
        return torch.randn(size, 2, *grid, generator=g), torch.randn(size, 3, *grid, generator=g)


def _case(name: str, **kwargs) -> Case:
    return Case(name, n_modes=(8, 6), base_modes=(4, 4), kwargs=kwargs)


CASES = [
    Case("1d", (16,), (4,)),
    Case("2d", (8, 6), (4, 4)),
    Case("3d", (4, 4, 6), (4, 4, 4), {"n_layers": 1}),
    *[_case(f"fno_skip={s}", fno_skip=s) for s in ("soft-gating", "identity", None)],
    *[_case(f"channel_mlp_skip={s}", channel_mlp_skip=s) for s in ("linear", "identity", None)],
    _case("no_channel_mlp", use_channel_mlp=False),
    *[_case(n, norm=n) for n in ("group_norm", "batch_norm", "instance_norm")],
    _case("lifting_ratio=0", lifting_channel_ratio=0),
    _case("ratios=1", lifting_channel_ratio=1, projection_channel_ratio=1),
    _case("no_embedding", positional_embedding=None),
    _case("domain_padding", domain_padding=0.25),
    _case("preactivation", preactivation=True),
    _case("stabilizer", stabilizer="tanh"),
    _case("max_n_modes", max_n_modes=(10, 10)),
    _case("separable", separable=True),
    Case("separable_1d", (16,), (4,), {"separable": True}),
]
NAMES = [case.name for case in CASES]
BY_NAME = {case.name: case for case in CASES}
