"""Maximal update parametrization (μP) for neural operators: tune small, train large.

>>> from neuralop.models import FNO
>>> import neuralop_mup as nm
>>> model = FNO(n_modes=(16, 16), in_channels=1, out_channels=1, hidden_channels=64)
>>> model = nm.parametrize(model, base={"n_modes": (12, 12), "hidden_channels": 32})
>>> optimizer = nm.MuAdam(model, lr=8e-3)

Names that are not listed here, in ``losses`` or in ``lab`` are private and may change.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from neuralop_mup._version import __version__ as __version__
from neuralop_mup.checkpoint import load_checkpoint, load_plan, save_plan
from neuralop_mup.core import rules
from neuralop_mup.core.initialize import initialize
from neuralop_mup.core.layers.registry import Alias, Param, register_layer
from neuralop_mup.core.parametrize import is_parametrized, parametrize, save_base_shapes, unparametrize
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.diagnostics.coord_check import CoordCheck, coord_check
from neuralop_mup.diagnostics.update_stats import update_stats
from neuralop_mup.errors import MupError
from neuralop_mup.optim.by_name import optimizer
from neuralop_mup.optim.checks import check_optimizer
from neuralop_mup.optim.clip import clip_spectral_grad_value_
from neuralop_mup.optim.groups import MuAdam, MuAdamW, MuSGD, param_groups
from neuralop_mup.optim.lr_hooks import follow_plan
from neuralop_mup.optim.musoap.optimizer import MuSOAP
from neuralop_mup.optim.summary import summary

if TYPE_CHECKING:
    from neuralop_mup.contrib.adaptive_layers import AdaGELU, AdaptiveSkip, activation_optimizer
    from neuralop_mup.contrib.cuda_graphs import capture_steps
    from neuralop_mup.contrib.feature_kernels import Kernels, kernels
    from neuralop_mup.contrib.fsdp import shard
    from neuralop_mup.contrib.learned_rates import LearnedRates
    from neuralop_mup.contrib.monitor import Monitor
    from neuralop_mup.contrib.permutations import Barrier, loss_barrier, match_channels
    from neuralop_mup.contrib.proportional_limit import DepthKernels, ShapedMLP, simulate_kernels
    from neuralop_mup.lab import Tuned, load_tuned, log2_grid, sweep, train, transfer, tune


__all__ = [
    # Parametrize a model, inspect it, and remove the parametrization.
    "parametrize",
    "unparametrize",
    "is_parametrized",
    "summary",
    "save_base_shapes",
    "Plan",
    # Large models: deferred initialisation, sharding, saving and loading.
    "initialize",
    "shard",
    "unwrap",
    "save_plan",
    "load_plan",
    "load_checkpoint",
    # Optimizers.
    "MuAdam",
    "MuAdamW",
    "MuSGD",
    "MuSOAP",
    "optimizer",
    "capture_steps",
    "param_groups",
    "check_optimizer",
    "follow_plan",
    "clip_spectral_grad_value_",
    "LearnedRates",
    # small systems of other sources
    "AdaGELU",
    "AdaptiveSkip",
    "activation_optimizer",
    "match_channels",
    "loss_barrier",
    "Barrier",
    "ShapedMLP",
    "DepthKernels",
    "simulate_kernels",
    # is it right, and what to train with
    "coord_check",
    "Monitor",
    "update_stats",
    "CoordCheck",
    "kernels",
    "Kernels",
    "train",
    "tune",
    "transfer",
    "sweep",
    "Tuned",
    "load_tuned",
    "log2_grid",
    # The rules, including rules.RULES for custom mode rules, and custom layers.
    "rules",
    "register_layer",
    "Param",
    "Alias",
    # Errors.
    "MupError",
]

# Import these names on first use, because training a model does not need plotting, Optuna or the problems.
_LAZY = {
    **dict.fromkeys(("train", "tune", "transfer", "sweep", "Tuned", "load_tuned", "log2_grid"), "lab"),
    **dict.fromkeys(("kernels", "Kernels"), "contrib.feature_kernels"),
    **dict.fromkeys(("AdaGELU", "AdaptiveSkip", "activation_optimizer"), "contrib.adaptive_layers"),
    **dict.fromkeys(("Barrier", "loss_barrier", "match_channels"), "contrib.permutations"),
    **dict.fromkeys(("DepthKernels", "ShapedMLP", "simulate_kernels"), "contrib.proportional_limit"),
    "capture_steps": "contrib.cuda_graphs",
    "shard": "contrib.fsdp",
    "LearnedRates": "contrib.learned_rates",
    "Monitor": "contrib.monitor",
}


def __getattr__(name: str):
    if name in _LAZY:
        try:
            value = getattr(_import_module(f"neuralop_mup.{_LAZY[name]}"), name)
        except ModuleNotFoundError as error:
            raise MupError(
                f'neuralop_mup.{name} needs {error.name}, which is not installed. In a checkout, run: pip install ".[lab]"'
            ) from error
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
