"""Random configurations of FNO, TFNO and UNO with a base for each; ``tests/test_fuzz.py`` says what has to hold."""

from __future__ import annotations

import contextlib
import copy
import io
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from neuralop.models import FNO, TFNO, UNO
from torch import nn

from neuralop_mup.core.rules import ROLES, RULES

MODELS = {"FNO": FNO, "TFNO": TFNO, "UNO": UNO}
FORMS = ("overrides", "model", "callable", "file")


@dataclass(frozen=True)
class Config:
    """A model's constructor arguments, those that differ at base, and how parametrize is called."""

    model: str
    kwargs: dict[str, Any]
    base: dict[str, Any]
    rule: str
    form: str
    init_mult: dict[str, float] = field(default_factory=dict)
    seed: int = 0

    def build(self, **overrides: Any) -> nn.Module:
        """The model at target size, unless overridden; the same weights each time."""
        # Copied, since neuralop keeps (and may change) the lists that it is given.
        kwargs = copy.deepcopy({**self.kwargs, **overrides})
        with torch.random.fork_rng(), contextlib.redirect_stdout(io.StringIO()):  # UNO prints while it is built
            torch.manual_seed(self.seed)
            model = MODELS[self.model](**kwargs)
            for layer in model.modules():  # torch leaves the bias of a layer without inputs as the memory was
                weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
                if isinstance(weight, nn.Parameter) and not weight.numel() and bias is not None:
                    nn.init.zeros_(bias)
            return model

    def build_base(self) -> nn.Module:
        return self.build(**self.base)

    @property
    def n_dim(self) -> int:
        return len(self.kwargs["uno_n_modes"][0] if self.model == "UNO" else self.kwargs["n_modes"])


def _mostly(usual: Any, *rare: Any, of: int = 12) -> st.SearchStrategy:
    """One of ``rare`` once in ``of`` draws."""
    return st.integers(0, of - 1).flatmap(lambda i: st.sampled_from(rare) if i == of - 1 else st.just(usual))


OPTIONS: dict[str, st.SearchStrategy] = {
    "fno_skip": st.sampled_from(["linear", "linear", "soft-gating", "identity", None]),
    "channel_mlp_skip": st.sampled_from(["soft-gating", "linear", "identity", None]),
    "channel_mlp_expansion": st.sampled_from([0.5, 0.25, 1.0, 2.0, 1.3]),
    "implementation": st.sampled_from(["factorized", "reconstructed"]),
    "preactivation": st.sampled_from([False, False, True]),
    "positional_embedding": st.sampled_from(["grid", None]),
    "domain_padding": st.sampled_from([None, None, None, 0.25]),
}
_FNO_OPTIONS: dict[str, st.SearchStrategy] = {
    "lifting_channel_ratio": st.sampled_from([2, 0, 0.5, 1, 1.7]),
    "projection_channel_ratio": st.sampled_from([2, 0.5, 1, 1.7]),
    "use_channel_mlp": st.sampled_from([True, True, True, False]),
    "stabilizer": st.sampled_from([None, None, "tanh"]),
}
_MODES = {1: (4, 2, 6, 8, 12, 20), 2: (4, 2, 6, 8), 3: (4, 2, 6)}
_WIDTHS = {1: (4, 2, 3, 5, 8, 12, 17, 24, 40), 2: (4, 2, 3, 5, 8, 12, 17, 32), 3: (4, 2, 3, 6, 9)}


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """A configuration and its base: sizes are small and arbitrary, base may be the larger one."""
    model = draw(st.sampled_from(["FNO", "FNO", "TFNO", "UNO"]))
    n_dim = draw(st.sampled_from([1, 2, 2, 3]))
    options = OPTIONS if model == "UNO" else {**OPTIONS, **_FNO_OPTIONS}
    kwargs = {key: draw(strategy) for key, strategy in options.items()}
    kwargs |= {"in_channels": draw(st.integers(1, 3)), "out_channels": draw(st.integers(1, 3))}
    # What neuralop refuses (ada_in here; in UNO most kernels and gates with in = out) is drawn, but seldom.
    norms = st.sampled_from([None, None, "group_norm", "instance_norm", "batch_norm"])
    kwargs["norm"] = draw(norms) if draw(st.integers(0, 29)) != 13 else "ada_in"
    kwargs["separable"] = draw(_mostly(False, True) if model == "UNO" else st.sampled_from([False, False, True]))
    for skip in ("fno_skip", "channel_mlp_skip"):
        if model == "UNO" and kwargs[skip] == "soft-gating" and draw(st.integers(0, 7)) < 7:
            kwargs[skip] = "linear"
    kwargs |= draw(_factorization(model, n_dim, kwargs["separable"]))
    base = {}
    if isinstance(kwargs["rank"], float) and draw(st.integers(0, 5)) == 5:
        base["rank"] = draw(st.sampled_from([0.3, 0.7]))
    if model == "UNO":
        sizes, base_sizes = draw(_uno_sizes(n_dim))
    else:
        kwargs["complex_data"] = draw(st.sampled_from([False, False, False, True]))
        if kwargs["complex_data"] and draw(st.integers(0, 3)):
            kwargs["positional_embedding"] = None  # neuralop's grid is real; with it a forward pass is refused
        sizes, base_sizes = draw(_fno_sizes(n_dim))
    kwargs |= sizes
    base |= base_sizes
    if model != "UNO":  # a shallower base is one; UNO's layers have shapes of their own
        base |= draw(_mostly({}, {"n_layers": 1}, of=6))
    # Now and then a base that is no base: it has to be refused.
    wrong = draw(_mostly(None, "in_channels", "n_layers", of=15))
    if wrong and not (wrong == "n_layers" and model == "UNO"):
        base[wrong] = kwargs[wrong] + 1
    init_mult = draw(_mostly({}, *({role: 0.5} for role in ROLES), of=8))
    return Config(
        model,
        kwargs,
        base,
        rule=draw(st.sampled_from(list(RULES))),
        form=draw(st.sampled_from(("model", "callable", "file", *FORMS) if model == "UNO" else FORMS)),
        init_mult=init_mult,
        seed=draw(st.integers(0, 99)),
    )


@st.composite
def _factorization(draw: st.DrawFn, model: str, n_dim: int, separable: bool) -> dict[str, Any]:
    kinds = ["tucker", "cp", "tt", None] if model == "TFNO" else [None, None, "tucker", "cp", "tt"]
    kind = draw(st.sampled_from(kinds))
    order = n_dim + (1 if separable else 2)
    rank: Any = draw(st.sampled_from([0.5, 0.1, 0.3, 0.8, 1.0, "whole"]))
    if rank == "whole":
        whole = st.integers(1, 6)
        # A rank for each dimension; a train has one more, which starts and ends with 1. CP has a single one.
        rank = draw(whole) if kind in (None, "cp") else draw(st.lists(whole, min_size=order, max_size=order))
        if kind == "tt":
            rank = [1, *rank[1:], 1]
    fixed = draw(_mostly(False, True, [order - 1])) if kind == "tucker" else False
    return {"factorization": kind, "rank": rank, "fixed_rank_modes": fixed}


def _modes(n_dim: int) -> st.SearchStrategy:
    """Even numbers, and on some axes odd ones."""
    return st.tuples(*[st.tuples(st.sampled_from(_MODES[n_dim]), _mostly(0, 1, -1, of=5)).map(sum)] * n_dim)


@st.composite
def _fno_sizes(draw: st.DrawFn, n_dim: int) -> tuple[dict, dict]:
    """Arguments at target, and those that differ at base."""
    width, modes = st.sampled_from(_WIDTHS[n_dim]), _modes(n_dim)
    target = {
        "n_modes": draw(modes),
        "hidden_channels": draw(width),
        "n_layers": draw(st.integers(1, 2)),
    }
    base = {"n_modes": draw(modes), "hidden_channels": draw(width)}
    if draw(st.integers(0, 3)) == 3:
        # One maximum for both, now and then below what base asks for; or base stores what it uses.
        spare = draw(st.sampled_from([0, 2, 4]))
        both = zip(target["n_modes"], base["n_modes"], strict=True)
        target["max_n_modes"] = tuple(max(pair) + spare for pair in both)
        below = tuple(n + spare for n in target["n_modes"])
        target["max_n_modes"] = draw(_mostly(target["max_n_modes"], below, of=3))
        if draw(st.integers(0, 3)) == 3:
            base["max_n_modes"] = base["n_modes"]
    return target, {k: v for k, v in base.items() if v != target[k]} if draw(st.booleans()) else base


@st.composite
def _uno_sizes(draw: st.DrawFn, n_dim: int) -> tuple[dict, dict]:
    """Layers of several widths and modes; base scales all widths by one factor and draws its modes anew."""
    n_layers = draw(st.integers(2, 3))
    factors = draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=n_layers, max_size=n_layers))
    halves = draw(st.booleans()) and n_layers > 2
    scaling = [0.5, *[1] * (n_layers - 2), 2] if halves else [1] * n_layers
    hidden = draw(st.sampled_from([1, 2]))

    def sizes(width: int) -> dict[str, Any]:
        return {
            "hidden_channels": hidden * width,
            "uno_out_channels": [f * width for f in factors],
            "uno_n_modes": [list(draw(_modes(n_dim))) for _ in range(n_layers)],
        }

    width = st.sampled_from([w for w in _WIDTHS[n_dim] if w < 9])
    fixed = {
        "n_layers": n_layers,
        "lifting_channels": draw(st.sampled_from([8, 5])),
        "projection_channels": draw(st.sampled_from([8, 6])),
        "uno_scalings": [[s] * n_dim for s in scaling],
        "horizontal_skip": draw(st.sampled_from(["linear", "soft-gating", "identity"])),
    }
    return {**fixed, **sizes(draw(width))}, sizes(draw(width))
