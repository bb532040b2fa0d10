"""Store and read the status of a parametrized model's weights."""

from enum import Enum

from torch import nn

_ATTRIBUTE = "_neuralop_mup_weights"


class WeightsStatus(str, Enum):
    """Origin of the weights of a parametrized model.

    The status is stored on the model by value, so that copies and pickles keep it. It is kept when the plan is removed,
    because the weights remain scaled after ``unparametrize``.
    """

    FRESH = "fresh"  # parametrized on the meta device and not drawn yet
    SCALED = "scaled"  # drawn by the constructor, then scaled by the plan
    LOADED = "loaded"  # scaled by the plan, then replaced by load_state_dict
    TRAINED = "trained"  # kept when the plan was attached (init=False, load_plan)


def status_of(model: nn.Module) -> WeightsStatus | None:
    """Return the status of an unwrapped model's weights, or None if no plan was ever attached."""
    value = getattr(model, _ATTRIBUTE, None)
    return None if value is None else WeightsStatus(value)


def set_status(model: nn.Module, status: WeightsStatus | None) -> None:
    """Store the status on an unwrapped model, or remove it if ``status`` is None."""
    if status is None:
        vars(model).pop(_ATTRIBUTE, None)
    else:
        setattr(model, _ATTRIBUTE, status.value)
