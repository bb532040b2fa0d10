"""Set the order of the gallery and the font sizes of its figures."""

from __future__ import annotations

ORDER = (
    "plot_first_training",
    "plot_musoap_loop",
    "plot_width_transfer",
    "plot_mode_transfer",
    "plot_own_data",
    "plot_pino_darcy",
    "plot_afno_layer",
    "plot_coordinate_check",
    # Extensions
    "plot_learned_rates",
    "plot_learned_activations",
    "plot_kernels_over_depth",
    "plot_loss_barrier",
    "plot_monitoring",
)


def place(filename: str) -> int:
    """Return the position of a script in the gallery. Scripts that are not listed come last."""
    name = filename.removesuffix(".py")
    return ORDER.index(name) if name in ORDER else len(ORDER)


def letters(gallery_conf: object, script: str) -> None:
    """Set the font sizes before each script: 11 points or more, readable in a figure of 6 inches that is 400 pixels wide."""
    import matplotlib

    matplotlib.rcParams.update({"font.size": 11, "axes.titlesize": 11, "figure.titlesize": 11.5})
