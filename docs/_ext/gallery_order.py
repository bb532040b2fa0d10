"""The gallery: the order of its scripts (what to read first, then what is wanted more often), and its letters."""

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
    "plot_learned_rates",
    "plot_learned_activations",
    "plot_kernels_over_depth",
    "plot_loss_barrier",
    "plot_monitoring",
)


def place(filename: str) -> int:
    """Where a script stands; one that is not listed stands last."""
    name = filename.removesuffix(".py")
    return ORDER.index(name) if name in ORDER else len(ORDER)


def letters(gallery_conf: object, script: str) -> None:
    """Before each script. At a width of 6 inches, letters of 11 points are 9 px high where a telephone shows 400 px."""
    import matplotlib

    matplotlib.rcParams.update({"font.size": 11, "axes.titlesize": 11, "figure.titlesize": 11.5})
