"""Models of the runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

import torch
from neuralop.models import UNO

import neuralop_mup as nm
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


class _ByName(torch.nn.Module):
    """A model whose input has the name that neuralop's Trainer uses."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, **_: object) -> torch.Tensor:
        return self.net(x)


def _sgno(in_channels: int, out_channels: int, n_dim: int) -> Callable[..., torch.nn.Module]:
    """Return a constructor of SGNO (arXiv:2602.18801v1) with the settings of its authors in 1D.

    It needs their package on the path: the folder ``src`` of https://github.com/lijy32123-cloud/SGNO, at 716ed38.
    """

    def build(n_modes: tuple[int, ...], hidden_channels: int, n_layers: int) -> torch.nn.Module:
        from sgno import build_sgno_from_config
        from sgno.sgno import SpectralETD1d

        kernel = nm.Param("spectral", ("in", "out", "modes_single"), "positive")
        nm.register_layer(SpectralETD1d, {"mix": kernel, "log_decay": nm.Param("vector", ("out", "modes_single"))})
        size = f"width={hidden_channels};modes={n_modes[0] // 2 + 1};n_blocks={n_layers}"
        return _ByName(build_sgno_from_config(f"sgno;{size};filter_type=none", n_dim, 0, in_channels))

    return build


#: Name → function of the numbers of input channels, output channels and axes, which returns a constructor.
NETS = {
    "FNO": FNOs,
    "UNO": _uno,
    "SGNO": _sgno,
}
