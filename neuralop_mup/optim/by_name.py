"""Build optimizers by name, for configuration files and for the coordinate check."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.parametrize import is_parametrized
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.optim.groups import Builder, MuAdam, MuAdamW, MuSGD
from neuralop_mup.optim.musoap.optimizer import MuSOAP
from neuralop_mup.optim.resolved_model import needs_model

_BUILDERS: dict[str, Builder] = {"musoap": MuSOAP, "adam": MuAdam, "adamw": MuAdamW, "sgd": MuSGD}
_PLAIN: dict[Builder, Builder] = {MuAdam: torch.optim.Adam, MuAdamW: torch.optim.AdamW, MuSGD: torch.optim.SGD}


@needs_model
def optimizer(model: nn.Module, name: str = "musoap", **settings: Any) -> torch.optim.Optimizer:
    """Build one of this package's optimizers by its name.

    It is meant for configuration files, e.g. of Hydra (``_target_: neuralop_mup.optimizer``) or LightningCLI.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    name : {"musoap", "adam", "adamw", "sgd"}, default "musoap"
        Name of the optimizer: :class:`MuSOAP`, :func:`MuAdam`, :func:`MuAdamW` or :func:`MuSGD`.
    **settings
        Arguments of the optimizer, such as ``lr``, ``steps`` or ``weight_decay``.

    Returns
    -------
    torch.optim.Optimizer
        The optimizer.

    Raises
    ------
    MupError
        If the name is unknown, if ``model`` is not a parametrized model, or if the optimizer does not accept a setting.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32))
    >>> config = {"name": "musoap", "steps": 3000}
    >>> optimizer = nm.optimizer(model, **config)
    """
    return _builder_named(name)(model, **settings)


def _builder_named(name: Any) -> Builder:
    if str(name).lower() not in _BUILDERS:
        raise MupError(f"Unknown optimizer {name!r}: {nearest(str(name), _BUILDERS)}")
    return _BUILDERS[str(name).lower()]


def builder_of(given: Any) -> Callable[[nn.Module, float], torch.optim.Optimizer]:
    """Return ``build(model, lr)`` for a name, an optimizer class, or a function ``(model, lr)``.

    For a name or a class, the function builds an optimizer with μP learning rates if the model is parametrized, and the
    plain optimizer otherwise.
    """
    in_mup: Builder = given if callable(given) else _builder_named(given)
    plain = _PLAIN.get(in_mup)
    if isinstance(given, type) and issubclass(given, torch.optim.Optimizer) and not issubclass(given, MuSOAP):
        family = MuSGD if issubclass(given, (torch.optim.SGD, torch.optim.ASGD)) else MuAdam
        in_mup, plain = partial(MuAdamW if issubclass(given, torch.optim.AdamW) else family, impl=given), given

    def build(model: nn.Module, lr: float) -> torch.optim.Optimizer:
        if plain is None or is_parametrized(model):
            return in_mup(model, lr)
        return plain(model.parameters(), lr=lr)

    return build
