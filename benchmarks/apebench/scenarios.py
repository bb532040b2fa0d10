"""Scenarios of APEBench that are measured, for its own environment and for ours; nothing is imported here.

Each is APEBench's own (its defaults, where nothing else is said), with fewer points in 2D, so that a CPU can train on them.
The box of ``phy_gs_type`` shrinks with its points: its spots are as wide as a cell of 160 points,
and die where cells are wider.
"""

from __future__ import annotations

from typing import Any

#: The version that made the data.
VERSION = "0.1.1"
_BOX = dict.fromkeys(("phy_gs", "phy_gs_type"), {"domain_extent": 0.5})  # 2.5 over 160 points is 0.5 over 32
_IN_1D = ("diff_burgers", "diff_kdv", "diff_fisher", "diff_disp", "diff_hyp_diff")
_IN_2D = ("diff_burgers", "diff_adv", "phy_gs_type", "phy_decay_turb", "phy_kolm_flow")
#: By a rule that was written down before: every sixth of APEBench's list from its first, and in 2D every twelfth from its
#: seventh. Where one is measured above already, has no such dimension, or has the data of an earlier one, the next one.
#: The last was added when the data was seen: norm_lin, phy_lin, phy_adv and diff_lin, by their defaults, are one.
_FURTHER = {
    1: (
        *("norm_lin", "norm_four", "norm_ks_cons", "phy_diff", "phy_adv_diff"),
        *("phy_nonlin", "phy_ks_cons", "diff_diff", "diff_four", "diff_ks"),
    ),
    2: ("norm_four", "phy_gs", "phy_nonlin", "phy_mix_disp"),
}
FURTHER = tuple(f"{name} {axes}D" for axes, names in _FURTHER.items() for name in names)
#: Those on which MuSOAP is worse than AdamW, with four times the training trajectories, of which the first are the same.
_LOST = ("norm_four 1D", "phy_diff 1D", "phy_adv_diff 1D", "phy_ks_cons 1D", "phy_nonlin 2D")
MORE = {f"{name}, 200 trajectories": name for name in _LOST}
#: On which the learning rate of rollouts was looked for. Nothing is reported on them.
CHOSEN_ON = ("diff_adv_diff 1D", "diff_ks_cons 1D", "diff_kdv 2D", "diff_fisher 2D")
#: Name → APEBench's name of it, and its arguments.
SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name} {axes}D": (name, {} if axes == 1 else {"num_spatial_dims": 2, "num_points": 32, **_BOX.get(name, {})})
    for axes, names in {
        1: (*_IN_1D, "diff_adv_diff", "diff_ks_cons", *_FURTHER[1]),
        2: (*_IN_2D, "diff_kdv", "diff_fisher", *_FURTHER[2]),
    }.items()
    for name in names
}
SCENARIOS |= {name: (SCENARIOS[own][0], {**SCENARIOS[own][1], "num_train_samples": 200}) for name, own in MORE.items()}
#: Steps of a rollout that count.
ROLLOUT = 100


def steps(name: str) -> int:
    """Of the optimizer, with batches of 20 pairs: APEBench's own number in 1D, and on the further scenarios in 2D."""
    return 10_000 if dimensions(name) == 1 or name in {*FURTHER, *MORE} else 2_000


def dimensions(name: str) -> int:
    """Axes of space."""
    return SCENARIOS[name][1].get("num_spatial_dims", 1)


def file_name(name: str) -> str:
    """Of the data, in the folder ``data``; it names what made them, so that none are taken for others."""
    theirs, arguments = SCENARIOS[name]
    return "-".join([theirs, *(f"{key}={value}" for key, value in arguments.items()), VERSION]) + ".npz"
