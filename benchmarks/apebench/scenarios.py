"""Scenarios of APEBench that we measure. APEBench's environment and ours both use this module, so it imports nothing.

Each scenario has APEBench's defaults, except for fewer points in 2D, so that a CPU can train on it. The box of
``phy_gs_type`` shrinks with the number of points: its spots have the width of a cell of 160 points, and disappear if cells
are wider.
"""

from __future__ import annotations

#: Version of APEBench that generated the data.
VERSION = "0.1.1"
_BOX = dict.fromkeys(("phy_gs", "phy_gs_type"), {"domain_extent": 0.5})  # 2.5 over 160 points is 0.5 over 32
_IN_1D = ("diff_burgers", "diff_kdv", "diff_fisher", "diff_disp", "diff_hyp_diff")
_IN_2D = ("diff_burgers", "diff_adv", "phy_gs_type", "phy_decay_turb", "phy_kolm_flow")
#: Selected by a rule that was fixed in advance: every sixth scenario of APEBench's list from the first in 1D, and every
#: twelfth from the seventh in 2D. If a scenario is already measured, does not exist in this dimension or has the data of an
#: earlier one, the next scenario is used. The last condition was added when we saw the data: norm_lin, phy_lin, phy_adv and
#: diff_lin are the same by default.
_FURTHER = {
    1: (
        *("norm_lin", "norm_four", "norm_ks_cons", "phy_diff", "phy_adv_diff"),
        *("phy_nonlin", "phy_ks_cons", "diff_diff", "diff_four", "diff_ks"),
    ),
    2: ("norm_four", "phy_gs", "phy_nonlin", "phy_mix_disp"),
}
FURTHER = tuple(f"{name} {axes}D" for axes, names in _FURTHER.items() for name in names)
#: Scenarios on which we only searched the learning rate for rollouts.
CHOSEN_ON = ("diff_adv_diff 1D", "diff_ks_cons 1D", "diff_kdv 2D", "diff_fisher 2D")
#: Name → APEBench's name, and its arguments.
SCENARIOS = {
    f"{name} {axes}D": (name, {} if axes == 1 else {"num_spatial_dims": 2, "num_points": 32, **_BOX.get(name, {})})
    for axes, names in {
        1: (*_IN_1D, "diff_adv_diff", "diff_ks_cons", *_FURTHER[1]),
        2: (*_IN_2D, "diff_kdv", "diff_fisher", *_FURTHER[2]),
    }.items()
    for name in names
}
#: Number of steps of a rollout.
ROLLOUT = 100


def steps(name: str) -> int:
    """Return the number of training steps, with batches of 20 pairs.

    It is APEBench's default in 1D and on the further scenarios in 2D.
    """
    return 10_000 if dimensions(name) == 1 or name in FURTHER else 2_000


def dimensions(name: str) -> int:
    """Return the number of spatial axes."""
    return SCENARIOS[name][1].get("num_spatial_dims", 1)


def file_name(name: str) -> str:
    """Return the name of the data file, which contains all arguments and the version."""
    scenario, arguments = SCENARIOS[name]
    return "-".join([scenario, *(f"{key}={value}" for key, value in arguments.items()), VERSION]) + ".npz"
