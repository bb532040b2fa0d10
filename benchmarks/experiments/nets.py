"""Models of the runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

import torch
from neuralop.models import UNO

from neuralop_mup.lab.training import FNOs


def _uno(in_channels: int, out_channels: int, n_dim: int) -> Callable[..., torch.nn.Module]:
    """Return a constructor of UNO. All layers except the last have half of the points and of the modes."""

    def build(n_modes: tuple[int, ...], hidden_channels: int, n_layers: int) -> UNO:
        all_modes = [tuple(n // 2 for n in n_modes)] * (n_layers - 1) + [n_modes]
        scalings = [[scale] * n_dim for scale in (0.5, *(1.0,) * (n_layers - 2), 2.0)]
        with redirect_stdout(StringIO()):  # the constructor prints
            return UNO(
                in_channels,
                out_channels,
                hidden_channels,
                n_layers=n_layers,
                uno_out_channels=[hidden_channels] * n_layers,
                uno_n_modes=all_modes,
                uno_scalings=scalings,
                channel_mlp_skip="linear",  # soft gating does not accept the channels that a horizontal skip adds
            )

    return build


#: Name → function of the numbers of input channels, output channels and axes, which returns a constructor.
NETS: dict[str, Callable[[int, int, int], Callable[..., torch.nn.Module]]] = {
    "FNO": FNOs,
    "UNO": _uno,
}
