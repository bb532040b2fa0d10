"""Problems for comparisons of optimizers, each with a model and a training length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from neuralop_mup.core.rebuild import MODES, WIDTH
from neuralop_mup.optim.musoap.optimizer import default_lr
from problems.apebench import scenarios

LAYERS = 4
#: APEBench scenarios with all optimizers tuned, selected in advance. On the others, Adam and SOAP are tuned.
TUNED_SCENARIOS = ("diff_burgers 1D", "diff_kdv 1D", "phy_gs_type 2D", "phy_decay_turb 2D")
#: APEBench scenarios with a linear equation. Their solution operator is a multiplier for each mode.
LINEAR = (
    *("diff_disp 1D", "diff_hyp_diff 1D", "diff_adv 2D"),
    *(f"{name} 1D" for name in ("norm_lin", "norm_four", "phy_diff", "phy_adv_diff", "diff_diff", "diff_four")),
    *("norm_four 2D", "phy_mix_disp 2D"),
)


@dataclass(frozen=True)
class Task:
    """A problem with a model and a training length.

    Attributes
    ----------
    config : mapping
        Entries of a run about the problem: ``problem``, ``data`` and more.
    modes : tuple of int
    width : int
    steps : int
    batch : int
    model : mapping
        Further arguments of the model.
    """

    config: Mapping[str, Any]
    modes: tuple[int, ...]
    width: int
    steps: int
    batch: int = 20
    model: Mapping[str, Any] = field(default_factory=dict)

    def run_config(self, settings: Mapping[str, Any], steps: int | None = None, **others: Any) -> dict[str, Any]:
        """Return a run with settings of an optimizer, by default at MuSOAP's learning rate and for all steps."""
        steps, size = steps or self.steps, {"n_layers": LAYERS, "n_modes": self.modes, **self.model}
        return {
            **self.config,
            "steps": steps,
            "batch_size": self.batch,
            "model": {**size, "hidden_channels": self.width},
            "base": {**size, "n_modes": (MODES,) * len(self.modes), "hidden_channels": WIDTH},
            "lr": default_lr(steps),
            **settings,
            **others,
        }


#: For ``--tiny``.
TINY = Task({"problem": "burgers", "data": {"n_train": 8, "n_val": 2, "n_test": 2, "grid": 16}}, (4,), 8, 50, 4)
_SUITE = {
    "burgers": ({"n_train": 800, "grid": 64}, (24,), 24, 10),
    "darcy": ({"n_train": 400, "grid": 20}, (10, 10), 16, 10),
    "allen-cahn": ({"n_train": 400, "grid": 20}, (10, 10), 16, 10),
    "korteweg-de-vries": ({"n_train": 800}, (32,), 24, 10),
    "gray-scott": ({"n_train": 400, "grid": 20}, (10, 10), 16, 10),
    "darcy-pino": ({"n_train": 200, "grid": 20}, (10, 10), 16, 10),
    "burgers-pino": ({"n_train": 200, "grid": 32, "time_points": 16}, (8, 16), 16, 10),
    "navier-stokes": ({"n_train": 100, "grid": 12, "time_points": 8}, (6, 8, 8), 12, 5),
    "gray-scott, 4 times the samples": ({"n_train": 1600, "grid": 20}, (10, 10), 16, 10),
    "gray-scott, 16 times the samples": ({"n_train": 6400, "grid": 20}, (10, 10), 16, 10),
    "interface": ({"n_train": 200, "grid": 16}, (8, 8, 8), 12, 5),
}
SUITE = {
    name: Task({"problem": name.partition(",")[0], "data": data}, modes, width, 1000, batch)
    for name, (data, modes, width, batch) in _SUITE.items()
}
_SCENARIOS = {
    name: Task(
        {"problem": "apebench", "data": {"scenario": name}, "rollout": scenarios.ROLLOUT},
        {1: (22,), 2: (14, 14)}[scenarios.dimensions(name)],
        18,
        scenarios.steps(name),
    )
    for name in scenarios.SCENARIOS
}
#: Layout → further entries of a run, and further arguments of the model. Ranks are relative to the size of dense kernels.
_LAYOUTS = {
    "Tucker": ({}, {"factorization": "tucker", "rank": 0.1}),
    "CP": ({}, {"factorization": "cp", "rank": 0.1}),
    "tensor train": ({}, {"factorization": "tt", "rank": 0.1}),
    "separable": ({}, {"separable": True}),
    "no channel MLP": ({}, {"use_channel_mlp": False}),
    "group norm": ({}, {"norm": "group_norm"}),
    "UNO": ({"net": "UNO"}, {}),
}
#: Other kernels and models, on two held-out problems.
LAYOUTS = {
    f"{name}, {layout}": replace(SUITE[name], config={**SUITE[name].config, **entries}, model=model)
    for name in ("korteweg-de-vries", "gray-scott")
    for layout, (entries, model) in _LAYOUTS.items()
}
ROLLOUT_RATES, FURTHER = ({name: _SCENARIOS[name] for name in names} for names in (scenarios.CHOSEN_ON, scenarios.FURTHER))
APEBENCH = {name: own for name, own in _SCENARIOS.items() if name not in {**ROLLOUT_RATES, **FURTHER}}
#: Scenarios with APEBench's own loss: those of :data:`APEBENCH` in 1D, and three further ones whose states decay.
OWN_LOSS = {
    name: replace(own, steps=2500, config={**own.config, "data": {"scenario": name, "part": "report"}, "loss": "mse"})
    for name, own in _SCENARIOS.items()
    if (name in APEBENCH and name.endswith("1D")) or name in ("norm_four 1D", "phy_diff 1D", "phy_adv_diff 1D")
}
#: Held-out problems with different numbers of steps.
LENGTHS = {
    f"{name}, {steps} steps": replace(SUITE[name], steps=steps)
    for steps in (250, 500, 1000)
    for name in ("korteweg-de-vries", "gray-scott", "navier-stokes", "darcy-pino", "burgers-pino", "interface")
}
#: Problems with different numbers of samples, or of trajectories with 20 states. Remedies were chosen on the first two.
FEW_SAMPLES = {
    **{
        f"{name}, {samples} samples": replace(
            SUITE[name], config={"problem": name, "data": {**SUITE[name].config["data"], "n_train": samples}}
        )
        for name in ("burgers", "darcy", "korteweg-de-vries", "gray-scott")
        for samples in (25, 100, 400)
    },
    **{
        f"{name}, {trajectories} trajectories": Task(
            {"problem": name, "data": {"n_train": trajectories, "every": 3, **data}, "loss": "floored-l2"},
            modes,
            width,
            1000,
        )
        for name, data, modes, width in (
            ("korteweg-de-vries-in-time", {"grid": 64}, (32,), 24),
            ("navier-stokes-in-time", {"grid": 16}, (8, 8), 16),
        )
        for trajectories in (5, 15, 50)
    },
}
FEWEST_SAMPLES = {name: own for name, own in FEW_SAMPLES.items() if own.config["data"]["n_train"] in (5, 25)}
