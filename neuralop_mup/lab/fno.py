"""What builds neuralop's FNO, the model of the commands, for data of some channels and axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuralop.models import FNO

from neuralop_mup.errors import MupError


@dataclass(frozen=True)
class FNOs:
    """What builds neuralop's FNO for data of so many channels and axes."""

    in_channels: int
    out_channels: int
    n_dim: int

    name = "FNO"

    def fingerprint_content(self) -> Any:
        """neuralop's class with its version; the rest is checks."""
        return FNO, self.in_channels, self.out_channels

    def __call__(self, **size: Any) -> FNO:
        """The model of that size.

        Raises
        ------
        MupError
            If the constructor refuses the arguments.
        """
        kwargs = {"in_channels": self.in_channels, "out_channels": self.out_channels, **size}
        n_modes = kwargs.get("n_modes")
        if not isinstance(n_modes, (tuple, list)) or len(n_modes) != self.n_dim:
            raise MupError(f"n_modes = {n_modes!r}, but the data has {self.n_dim} axes: give one number of modes an axis.")
        try:
            return FNO(**kwargs)
        except Exception as error:  # the constructor's reason is what the user needs
            raise MupError(f"FNO cannot be built from {kwargs}: {type(error).__name__}: {error}") from error
