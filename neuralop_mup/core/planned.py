"""What is told when a model is given a plan, and what a copy of such a model takes along.

torch copies parameters without their attributes, so the parameters of a deep copy would have no ``infshape``; a pickle keeps
them. A planned model therefore holds a :class:`CopiesShapes`, which is copied and pickled with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["ON_PLAN", "CopiesShapes"]

# Called when a model is given a plan: what is built on the core puts its functions here, as the core imports none of it.
ON_PLAN: list[Callable[[], None]] = []


class CopiesShapes:
    """Gives the parameters of a deep copy the ``infshape`` of those of ``model``, which holds this; to make one tells.

    Parameters
    ----------
    model : torch.nn.Module or None
        The bare model; None where something else was copied with this.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._model = None if model is None else weakref.ref(model)
        for call in ON_PLAN:
            call()

    def __deepcopy__(self, memo: dict[int, Any]) -> CopiesShapes:
        # The memo has the new model, and the new parameters, which a module holds before what was put into it later.
        model = self._of()
        for parameter in () if model is None else model.parameters():
            if id(parameter) in memo and hasattr(parameter, "infshape"):
                memo[id(parameter)].infshape = parameter.infshape
        return CopiesShapes(memo.get(id(model)))

    def __reduce__(self) -> tuple:
        return CopiesShapes, (self._of(),)

    def _of(self) -> nn.Module | None:
        return None if self._model is None else self._model()
