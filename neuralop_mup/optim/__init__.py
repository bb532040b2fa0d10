"""Optimizers that follow a model's plan.

``param_groups`` is all that they are made of; ``optimizers`` has the usual three, ``muon`` and ``soap`` the two of the
second order, on the ``kernels`` that they share. ``step_hooks`` holds an optimizer to its plan while it trains: to the
modes that are active (``incremental_modes``) and to the plan's ratios (``lr_ratios``); ``step_settings`` is how a step is
made with learning rates other than the groups'. ``check_optimizer`` and
``plain_optimizers`` find optimizers that do not follow a plan.
"""

from neuralop_mup.optim import plain_optimizers  # it watches from now on

__all__ = ["plain_optimizers"]
