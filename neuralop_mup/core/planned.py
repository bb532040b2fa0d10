"""Which models of this process have a plan, copies among them.

The parameters of a copy, and those that ``to_empty`` or ``load_state_dict(assign=True)`` make, are new tensors that carry no
``infshape``, and a tensor does not know its model. A planned model therefore carries a note that is copied with it and then
tells here of the copy. Models are held weakly.
"""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

from torch import nn

__all__ = ["Planned", "planned_models"]

# By id, since a module's class may define an equality and no hash.
_MODELS: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()


def planned_models() -> list[nn.Module]:
    """The living models that were given a plan, those among them that lost it since included."""
    return list(_MODELS.values())


class Planned:
    """The note on a planned model; to make one tells of the model.

    Parameters
    ----------
    model : torch.nn.Module or None
        The bare model that carries the note; None where only a part of it was copied.

    Attributes
    ----------
    made : int
        How often a model of this process was given a plan: whoever asks again sees whether there is another one since.
    """

    made: ClassVar[int] = 0

    def __init__(self, model: nn.Module | None) -> None:
        self._model = None if model is None else weakref.ref(model)
        if model is not None:
            _MODELS[id(model)] = model
            Planned.made += 1

    def __deepcopy__(self, memo: dict[int, Any]) -> Planned:
        # copy.deepcopy makes the new model, and says so in its memo, before it copies what the model holds.
        return Planned(memo.get(id(self._carrier())))

    def __reduce__(self) -> tuple:
        return Planned, (self._carrier(),)

    def _carrier(self) -> nn.Module | None:
        return None if self._model is None else self._model()
