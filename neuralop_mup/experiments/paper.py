"""The source paper's experiments (Li, Yoo and Yang, ICML 2025, arXiv 2506.19396), and joint moves of width and modes: as
studies.

How a problem is trained stands in ``presets``; here is what varies. The paper does not print
its grids; the learning rates that it names (7.4e-4, 1.8e-3, 4.2e-3, 5.6e-3) lie on 10^(-n/8), which is taken here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.experiments.presets import _CLIP, SIZES, Modes, on_even_grid, preset_of, problem_with
from neuralop_mup.problems import Problem
from neuralop_mup.tuning import Study, log2_grid

__all__ = ["NAMES", "SHOWS", "experiment_study", "get_experiment"]

#: Name → (problem, what it shows).
_EXPERIMENTS = {
    "burgers-modes": ("burgers", "best learning rate of FNO-1D on Burgers' equation over K (figure 2a)"),
    "darcy-modes": ("darcy", "best learning rate of FNO-2D on Darcy flow over K (figure 2b)"),
    "pino-darcy-modes": ("darcy-pino", "best learning rate of PINO-2D on Darcy flow over K (figure 2c)"),
    "navier-stokes-modes": ("navier-stokes", "best learning rate of FNO-3D on the Navier–Stokes equation over K (figure 1)"),
    "darcy-batch-beta2": ("darcy", "best batch size and Adam β2 of FNO-2D on Darcy flow over K (figure 3)"),
    "cost-darcy": ("darcy", "error and cost of tuning the full model and of muTransfer, Darcy flow (table 1)"),
    "cost-navier-stokes": (
        "navier-stokes",
        "error and cost of tuning the full model and of muTransfer, Navier–Stokes (table 1)",
    ),
    "joint-burgers": ("burgers", "width ×8 and modes ×8 at once, Burgers' equation (not in the paper)"),
    "joint-darcy": ("darcy", "width ×8 and modes ×8 at once, Darcy flow (not in the paper)"),
    "joint-pino-darcy": ("darcy-pino", "width ×8 and modes ×8 at once, Darcy flow with its equation (not in the paper)"),
    "joint-pino-burgers": (
        "burgers-pino",
        "width ×8 and modes ×8 at once, Burgers in space-time with its equation (not in the paper)",
    ),
    "joint-navier-stokes": ("navier-stokes", "width ×8 and modes ×8 at once, Navier–Stokes (not in the paper)"),
}
SHOWS = {name: shows for name, (_, shows) in _EXPERIMENTS.items()}
NAMES = tuple(SHOWS)

# With the width fixed "none" is "standard"; where the width moves it is the width rule alone.
_MODE_RULES = ("standard", "log-modes", "operator-norm")
_JOINT_RULES = ("standard", "none", "log-modes")
_PAPER_LR = tuple(float(f"{10 ** (-n / 8):.3g}") for n in range(30, 11, -1))  # 1.78e-4 … 3.16e-2
_BATCH_BETA2 = {"batch_size": (5, 10, 20, 40, 80), "beta2": (0.9, 0.95, 0.98, 0.99, 0.999)}
_TIME_NOTE = "The modes in time stay at K = 2; those in space grow eightfold."
_BURGERS_NOTE = "Of the values of K between 3 and 512 the paper's text names none; 8, 32 and 128 are taken here."


def _width(width: int, *modes: int) -> tuple[tuple[int, Modes], ...]:
    return tuple((width, k) for k in modes)


#: (experiment, size) → (width, K) of each model, ends of the learning rates, and what is unusual. K counts one sign:
#: n_modes / 2.
_MODELS: dict[tuple[str, str], tuple] = {
    ("burgers-modes", "cpu"): (_width(32, 4, 16, 64), (5e-4, 6.4e-2)),
    ("burgers-modes", "gpu"): (_width(64, 3, 16, 64, 256), (5e-4, 3.2e-2)),
    ("burgers-modes", "paper"): (_width(64, 3, 8, 32, 128, 512), None, {"notes": (_BURGERS_NOTE,)}),
    ("darcy-modes", "cpu"): (_width(24, 2, 4, 16), (2e-3, 6.4e-2)),
    ("pino-darcy-modes", "cpu"): (_width(16, 2, 4, 16), (2e-3, 6.4e-2)),
    ("navier-stokes-modes", "cpu"): (_width(16, 2, 4, 8), (1e-3, 6.4e-2)),
    ("navier-stokes-modes", "gpu"): (_width(64, 3, 6, 12, 24), (5e-4, 1.6e-2)),
    ("darcy-batch-beta2", "cpu"): (_width(16, 2, 4, 16), (2e-3, 6.4e-2)),
    **{(name, "gpu"): (_width(64, 3, 6, 12, 24), (5e-4, 3.2e-2)) for name in ("darcy-modes", "pino-darcy-modes")},
    ("darcy-batch-beta2", "gpu"): (_width(64, 3, 6, 12, 24), (5e-4, 3.2e-2)),
    **{
        (name, "paper"): (_width(64, 3, 6, 12, 24), None)
        for name in ("darcy-modes", "pino-darcy-modes", "navier-stokes-modes", "darcy-batch-beta2")
    },
    ("cost-darcy", "cpu"): (_width(24, 2, 16), (2e-3, 6.4e-2)),
    ("cost-darcy", "gpu"): (_width(64, 3, 24), (5e-4, 3.2e-2)),
    ("cost-navier-stokes", "cpu"): (_width(16, 2, 8), (1e-3, 6.4e-2)),
    ("cost-navier-stokes", "gpu"): (_width(64, 3, 24), (5e-4, 1.6e-2)),
    **{(name, "paper"): (_width(64, 3, 24), None) for name in ("cost-darcy", "cost-navier-stokes")},
    # Targets that take half a minute a run train the transferred point alone under the paper's rule.
    ("joint-burgers", "cpu"): (((8, 4), (64, 32)), (1e-3, 1.28e-1)),
    **{
        (name, "cpu"): (((8, 2), (64, 16)), (2e-3, 1.28e-1), {"epochs": 6, "searched": ("standard", "none")})
        for name in ("joint-darcy", "joint-pino-darcy")
    },
    ("joint-pino-burgers", "cpu"): (((4, 2), (32, 16)), (2e-3, 1.28e-1), {"searched": ("standard", "none")}),
    ("joint-navier-stokes", "cpu"): (
        ((4, (2, 1, 1)), (32, (2, 8, 8))),
        (4e-3, 2.56e-1),
        {"searched": ("standard", "none"), "notes": (_TIME_NOTE,)},
    ),
    ("joint-burgers", "gpu"): (((16, 16), (128, 128)), (5e-4, 6.4e-2)),
    ("joint-burgers", "paper"): (((16, 32), (128, 256)), None),
    **{
        (name, size): (((16, 3), (128, 24)), (5e-4, 6.4e-2) if size == "gpu" else None)
        for name in ("joint-darcy", "joint-pino-darcy")
        for size in ("gpu", "paper")
    },
    ("joint-pino-burgers", "gpu"): (((16, 4), (128, 32)), (5e-4, 6.4e-2)),
    ("joint-pino-burgers", "paper"): (((16, 4), (128, 32)), None),
    ("joint-navier-stokes", "gpu"): (((8, 3), (64, 24)), (5e-4, 3.2e-2)),
    ("joint-navier-stokes", "paper"): (((8, 3), (64, 24)), None),
}


def experiment_study(
    name: str,
    problem: Problem,
    models: Sequence[tuple[int, Modes]],
    grids: Mapping[str, Sequence[float]],
    *,
    rules: Sequence[str],
    searched: Sequence[str],
    epochs: int,
    swept: Sequence[str] = ("lr",),
    seeds: Sequence[int] = (0, 1, 2),
    batch_size: int = 20,
    beta2: float = 0.999,
    schedule: str = "cosine",
    under_mup: Mapping[str, Any] | None = None,
    device: str = "cpu",
    notes: Sequence[str] = (),
    about: str = "",
) -> Study:
    """A study of FNOs of several sizes on a problem.

    Parameters
    ----------
    models : sequence of (hidden_channels, K)
        K modes per sign on each axis (or one number an axis), so ``n_modes = 2 K``. The first is the base.
    grids : mapping of str to sequence
        Values of each hyperparameter, in ascending order.
    swept : sequence of str
        Hyperparameters that are walked at every size, one at a time.
    rules, searched, seeds, notes, about
        See :class:`~neuralop_mup.tuning.Study`.
    under_mup : mapping, optional
        Settings of a run that hold for every rule but "standard".
    epochs, batch_size, beta2, schedule, device
        See ``Settings``.
    """
    one_width = len({width for width, _ in models}) == 1
    sizes = {}
    for width, k in models:
        label = f"K = {k if isinstance(k, int) else '×'.join(map(str, k))}"
        n_modes = tuple(2 * m for m in ((k,) * problem.n_dim if isinstance(k, int) else k))
        size = {"hidden_channels": width, "n_modes": n_modes, "n_layers": 4}
        sizes[label if one_width else f"width {width}, {label}"] = size
    run = {"epochs": epochs, "batch_size": batch_size, "beta2": beta2, "schedule": schedule, "device": device}
    others = [rule for rule in rules if rule != "standard"]
    # At the base every rule is the standard parametrization bit for bit: one set of runs serves all with the same settings.
    base_rules = dict.fromkeys(others, others[0] if under_mup else "standard")
    return Study(
        name=name,
        about=about,
        sizes=sizes,
        rules=tuple(rules),
        searched=tuple(searched),
        base_rules=base_rules,
        space={key: tuple(values) for key, values in grids.items()},
        swept=tuple(swept),
        defaults={key: run[key] for key in grids if key != "lr"},
        seeds=tuple(seeds),
        fixed={
            "problem": problem.name,
            "problem_args": asdict(problem),
            **{key: value for key, value in run.items() if key not in grids},
        },
        under=dict.fromkeys(others, dict(under_mup)) if under_mup else {},
        notes=tuple(notes),
    )


def get_experiment(name: str, size: str = "cpu") -> Study:
    """The experiment of that name at a size, on a grid that the installed neuralop can be trusted on.

    Parameters
    ----------
    name : str
        One of ``NAMES``.
    size : {"cpu", "gpu", "paper"}

    Returns
    -------
    Study

    Raises
    ------
    MupError
        For an unknown name or size.
    """
    if name not in NAMES:
        raise MupError(f"There is no experiment {name!r}: {nearest(str(name), NAMES)}")
    if size not in SIZES:
        raise MupError(f"There is no size {size!r}: {nearest(str(size), SIZES)}")
    problem, note = on_even_grid(problem_with(_EXPERIMENTS[name][0], size, {}))
    preset = preset_of(problem, size)
    models, ends, *more = _MODELS[name, size]
    lrs = _PAPER_LR if ends is None else tuple(log2_grid(*ends))
    more = {"device": "cpu" if size == "cpu" else "auto", **(more[0] if more else {})}
    rules = _JOINT_RULES if name.startswith("joint") else _MODE_RULES
    if name.startswith("cost"):
        more["searched"] = ("standard",)
    if problem.name == "navier-stokes" and not name.startswith("joint"):
        more["under_mup"] = _CLIP
    grids = {"lr": lrs, **(_BATCH_BETA2 if name == "darcy-batch-beta2" else {})}
    fields = {
        "rules": rules,
        "searched": rules,
        "swept": tuple(key for key in grids if key != "lr") or ("lr",),
        "epochs": preset.epochs,
        "batch_size": preset.batch_size,
        "schedule": preset.schedule,
        **more,
    }
    fields["notes"] = (*fields.get("notes", ()), *filter(None, [note]))
    return experiment_study(f"{name}, {size}", problem, models, grids, about=SHOWS[name], **fields)
