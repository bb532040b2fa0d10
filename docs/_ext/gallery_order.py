"""The order of the gallery's scripts: what to read first, then what is wanted more often."""

from __future__ import annotations

ORDER = (
    "plot_first_training",
    "plot_own_data",
    "plot_width_transfer",
    "plot_coordinate_check",
    "plot_proxy_advice",
    "plot_monitoring",
    "plot_tfno",
    "plot_pino_darcy",
    "plot_afno_layer",
    "plot_learned_rates",
    "plot_learned_activations",
    "plot_kernels_over_depth",
)


def place(filename: str) -> int:
    """Where a script stands; one that is not listed stands last."""
    name = filename.removesuffix(".py")
    return ORDER.index(name) if name in ORDER else len(ORDER)
