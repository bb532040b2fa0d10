"""The status of a parametrized model's weights, in one place."""

from enum import Enum

from torch import nn

_ATTRIBUTE = "_neuralop_mup_weights"


class WeightsStatus(str, Enum):
    """What happened to the weights of a model.

    It is stored on the model by its value, so copies and pickles keep it, and it outlives the plan: weights that a plan
    scaled stay scaled after ``unparametrize``.
    """

    FRESH = "fresh"  # to be drawn: parametrized on the meta device
    SCALED = "scaled"  # drawn by their constructor, then scaled by the plan
    LOADED = "loaded"  # scaled by the plan, then replaced by load_state_dict
    TRAINED = "trained"  # the plan was attached to weights that exist (init=False, load_plan)


def status_of(model: nn.Module) -> WeightsStatus | None:
    """Return the status of a bare model's weights; None if no plan was ever attached."""
    value = getattr(model, _ATTRIBUTE, None)
    return None if value is None else WeightsStatus(value)


def set_status(model: nn.Module, status: WeightsStatus | None) -> None:
    """Store the status on a bare model; None removes it."""
    if status is None:
        vars(model).pop(_ATTRIBUTE, None)
    else:
        setattr(model, _ATTRIBUTE, status.value)
