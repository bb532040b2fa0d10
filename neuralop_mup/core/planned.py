"""What a copy of a planned model takes along, and how many models of this process were given a plan.

torch copies parameters without their attributes, so the parameters of a deep copy would have no ``infshape``; a pickle keeps
them. A planned model therefore holds a :class:`CopiesShapes`, which is copied and pickled with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from torch import nn

# What is called when a model is given a plan, for those above this folder whose work begins then.
on_first_plan: list[Callable[[], None]] = []


class CopiesShapes:
    """Gives the parameters of a deep copy the ``infshape`` of those of ``model``, which holds this.

    Parameters
    ----------
    model : torch.nn.Module or None
        The bare model; None where something else was copied with this.

    Attributes
    ----------
    made : int
        How often a model of this process was given a plan: whoever asks again sees whether there is another one since.
    """

    made: ClassVar[int] = 0

    def __init__(self, model: nn.Module | None) -> None:
        self._model = None if model is None else weakref.ref(model)
        CopiesShapes.made += 1
        while on_first_plan:
            on_first_plan.pop()()

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
