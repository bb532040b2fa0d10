"""Whether a training, and its schedule, are as long as they were said to be when the learning rate was chosen."""

from __future__ import annotations

import warnings

__all__ = ["LengthCheck"]

# Of the learning rate that was chosen: from here on a warm-up is over, and below there the schedule is.
_BEGUN, _ENDED = 0.5, 0.01


class LengthCheck:
    """Warns, once each, of a training that goes on beyond its length, and of a schedule that ends much sooner.

    It sees numbers of Python alone, so that no step waits for the device. How many steps there were is told to it each time:
    it is the optimizer's state that knows, in a resumed run too.
    """

    def __init__(self) -> None:
        self._begun = self._too_long = self._too_soon = False

    def before_step(self, steps: int, taken: int, share: float | None) -> None:
        """Look at the step that is about to be taken.

        Parameters
        ----------
        steps : int
            The length for which the learning rate was chosen.
        taken : int
            Steps that were taken before this one.
        share : float or None
            The learning rate of this step over that which was chosen; None where it cannot be read.
        """
        if taken >= steps and not self._too_long:
            self._too_long = True
            warnings.warn(
                f"This is step {taken + 1:,} of a training whose learning rate was chosen for steps={steps}. A longer "
                "training wants a smaller learning rate: build the optimizer with the number of all its steps, "
                f"MuSOAP(model, steps=…), and end the schedule with them. A loaded state goes on with its own learning rate "
                "and steps. (Said once for each optimizer.)",
                stacklevel=2,
            )
        if share is None:
            return
        self._begun = self._begun or share >= _BEGUN
        if self._begun and share < _ENDED and 2 * taken < steps and not self._too_soon:
            self._too_soon = True
            warnings.warn(
                f"After {taken:,} steps the schedule has brought the learning rate below {_ENDED:.0%} of what was chosen "
                f"for steps={steps}: it is much shorter than that. Give both the number of all optimizer steps: "
                "MuSOAP(model, steps=T) with CosineAnnealingLR(optimizer, T_max=T), stepped after each batch, or with T_max "
                "as the number of epochs, stepped after each epoch. Where the learning rate is to rise again all is well. "
                "(Said once for each optimizer.)",
                stacklevel=2,
            )
