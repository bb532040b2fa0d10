"""Which runs each stage of the suite wants, given what is done, and what was found with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from suite_runs import BASE_WIDTH, CHOSEN_ON, CONTENDERS, MAIN, PROBLEMS, REFERENCE, STEPS, Records, task

SEEDS = (0, 1, 2)
LENGTHS = (300, STEPS, 3000)
LONG = ("burgers", "darcy", "korteweg-de-vries", "gray-scott")  # trained for 3,000 steps, too
AROUND = (0.5, 1, 2)

Task = dict[str, Any]


# ------------------------------------------------------------------------------------------------- main: who is ahead


def grid(records: Records, like: Task, lrs: Sequence[float], seeds: Sequence[int] = SEEDS) -> list[Task]:
    """Points at these learning rates, and beyond an edge for as long as the best lies there (twice at most)."""
    lrs = sorted(lrs)
    for _ in range(2):
        best = records.best(({**like, "lr": lr} for lr in lrs), seeds)
        if best is None or best["lr"] not in (lrs[0], lrs[-1]):
            break
        lrs = [lrs[0] / 2, *lrs] if best["lr"] == lrs[0] else [*lrs, 2 * lrs[-1]]
    return [{**like, "lr": lr} for lr in lrs]


def tuning(records: Records, problem: str, name: str) -> list[Task]:
    """A contender's learning rates at 1,000 steps."""
    return grid(records, task(problem, name, 1.0), CONTENDERS[name]["lrs"], seeds=(0,))


def tuned(records: Records, problem: str, name: str) -> Task | None:
    """The best of them; None before all are done."""
    return records.best(tuning(records, problem, name))


def carried(records: Records, best: Task, steps: int) -> list[Task]:
    """The tuned learning rate at another length, and a factor of 2 to either side."""
    return grid(records, {**best, "steps": steps}, [best["lr"] * factor for factor in AROUND], seeds=(0,))


def final(records: Records, problem: str, name: str, steps: int) -> Task | None:
    """What a contender is judged by at one length; None before it was chosen."""
    best = tuned(records, problem, name)
    return best if best is None or steps == STEPS else records.best(carried(records, best, steps))


def main_runs(records: Records) -> Iterator[Task]:
    """Tune at 1,000 steps; carry over to 300 and 3,000, with a factor of 2 to either side."""
    for problem in PROBLEMS:
        for name in MAIN:
            yield from tuning(records, problem, name)
            if (best := tuned(records, problem, name)) is None:
                continue
            for steps in LENGTHS:
                if steps > STEPS and problem not in LONG:
                    continue
                if steps != STEPS:
                    yield from carried(records, best, steps)
                if (chosen_point := final(records, problem, name, steps)) is not None:
                    yield from ({**chosen_point, "seed": seed} for seed in SEEDS)


# --------------------------------------------------------------------------------------- time: as long as the reference


def paced(records: Records, problem: str, name: str) -> Task | None:
    """Measures how long a contender's step takes beside the reference's."""
    best, reference = tuned(records, problem, name), tuned(records, problem, REFERENCE)
    return None if best is None or reference is None else {**best, "paced": reference}


def in_equal_time(records: Records, problem: str, name: str) -> Task | None:
    """A contender's best point with as many steps as take the processor time of the reference's 1,000."""
    measure = paced(records, problem, name)
    if measure is None or (found := records.get(measure)) is None:
        return None
    steps = min(STEPS, round(STEPS / found["ratio"]))
    return {**{key: value for key, value in measure.items() if key != "paced"}, "steps": steps}


def time_runs(records: Records) -> Iterator[Task]:
    """The kernel optimizers again, stopped (and their schedules ended) when the reference would be done."""
    for problem in PROBLEMS:
        for name in ("MuSOAP", "MuMuon"):
            if (measure := paced(records, problem, name)) is not None:
                yield measure
            if (shorter := in_equal_time(records, problem, name)) is not None:
                yield from ({**shorter, "seed": seed} for seed in SEEDS)


# ----------------------------------------------------------------------------------------- transfer: what is carried

# Problem, its proxy and its target.
MOVES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "width 16 → 128": ("korteweg-de-vries", {"width": BASE_WIDTH}, {"width": 128}),
    "K 16 → 64": ("korteweg-de-vries", {}, {"modes": (64,)}),
    "depth 4 → 16": ("korteweg-de-vries", {}, {"depth": 16}),
    "width 16 → 64, 2D": ("gray-scott", {}, {"width": 64}),
    "depth 4 → 16, 2D": ("gray-scott", {}, {"depth": 16}),
    "K 8 → 32": ("burgers", {"modes": (8,)}, {"modes": (32,)}),
}


def moved(records: Records, move: str, name: str) -> tuple[list[Task], list[Task]]:
    """The proxy's points and, once its best is known, the target's around it."""
    problem, proxy, target = MOVES[move]
    small = grid(records, task(problem, name, 1.0, **proxy), CONTENDERS[name]["lrs"])
    best = records.best(small, SEEDS)
    if best is None:
        return small, []
    return small, grid(records, task(problem, name, 1.0, **target), [best["lr"] * factor for factor in AROUND])


def transfer_runs(records: Records) -> Iterator[Task]:
    """Learning rates at proxy and target, three seeds each."""
    for name in ("MuSOAP", "MuSOAP, rms", "MuAdam", "MuMuon"):
        for move in MOVES:
            for points in moved(records, move, name):
                yield from ({**t, "seed": seed} for t in points for seed in SEEDS)


# --------------------------------------------------------------------- joint: width and modes at once, by the default rule

# Problem, K of a proxy that keeps 99.9 % of the data's energy and of one that does not, and the target's width and K.
JOINT: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None, int, tuple[int, ...]]] = {
    "korteweg-de-vries": ((16,), (4,), 64, (48,)),
    "gray-scott": ((7, 6), (2, 2), 32, (9, 9)),
    "darcy-pino": ((6, 5), None, 32, (9, 9)),
}
JOINT_SEEDS = (0, 1)


def at_proxy(records: Records, problem: str, name: str, modes: tuple[int, ...]) -> list[Task]:
    """A contender's points at width 16 with these modes."""
    more = {} if name == REFERENCE else {"rule": "operator-norm", "base_modes": modes}
    like = task(problem, name, 1.0, width=BASE_WIDTH, modes=modes, **more)
    return grid(records, like, CONTENDERS[name]["lrs"], JOINT_SEEDS)


def at_target(records: Records, problem: str, name: str, modes: tuple[int, ...]) -> list[Task]:
    """Its points at the target around the proxy's best, whose shapes are base's; none before that is known."""
    best = records.best(at_proxy(records, problem, name, modes), JOINT_SEEDS)
    if best is None:
        return []
    *_, width, large = JOINT[problem]
    like = {**best, "width": width, "modes": list(large)}
    return grid(records, like, [best["lr"] * factor for factor in AROUND], JOINT_SEEDS)


def joint_runs(records: Records) -> Iterator[Task]:
    """Both proxies and the target of each; SP's target as the naive baseline."""
    for problem, (enough, few, *_) in JOINT.items():
        for name in ("MuSOAP", "MuAdam", REFERENCE):
            for modes in (enough, few) if few and name == "MuAdam" else (enough,):
                for points in (at_proxy(records, problem, name, modes), at_target(records, problem, name, modes)):
                    yield from ({**t, "seed": seed} for t in points for seed in JOINT_SEEDS)


# ------------------------------------------------------------------------------------- init: how large kernels start

INITS = (1.0, 0.3, 0.1, 0.03, 0.0)
WIDTHS = (("korteweg-de-vries", 128), ("burgers", 64), ("gray-scott", 64))


def initialized(like: Task, init: float) -> list[Task]:
    """A tuned point with another initialization; neuralop's own also at half and twice the learning rate."""
    factors = AROUND if init == 1 else (1,)
    return [{**like, "init": init, "lr": like["lr"] * factor} for factor in factors]


def init_points(records: Records) -> Iterator[tuple[str, int, Task]]:
    """Problem, width and the tuned point of each contender."""
    for problem, width in (*((p, PROBLEMS[p][2]) for p in PROBLEMS), *WIDTHS):
        for name in (*MAIN, "MuSOAP, rms"):
            if (best := tuned(records, problem, name)) is not None:
                yield problem, width, {**best, "width": width}


def init_runs(records: Records) -> Iterator[Task]:
    """Every contender at its best learning rate from kernels of several sizes, first those that bracket the answer."""
    for inits in ((1.0, 0.1, 0.0), (0.3, 0.03)):
        for problem, width, like in init_points(records):
            if width == PROBLEMS[problem][2] or inits[0] == 1.0:
                yield from (t for init in inits for t in initialized(like, init))


# ------------------------------------------------------------------------------------------- layouts: other kernels

LAYOUTS: dict[str, dict[str, Any]] = {
    "dense": {},
    "Tucker, rank 0.4": {"factorization": "tucker", "rank": 0.4, "implementation": "factorized"},
    "CP, rank 0.2": {"factorization": "cp", "rank": 0.2, "implementation": "factorized"},
    "tensor train, rank 0.4": {"factorization": "tt", "rank": 0.4, "implementation": "factorized"},
    "separable": {"separable": True},
    "no channel MLP": {"use_channel_mlp": False},
}
LAYOUTS_ON = ("korteweg-de-vries", "gray-scott")
LAYOUT_NAMES = (REFERENCE, "MuSOAP")
CHOICE_LRS = (2e-2, 4e-2)


def _lrs(name: str) -> Sequence[float]:
    return CHOICE_LRS if name == "MuSOAP" else CONTENDERS[name]["lrs"]


def laid_out(records: Records, problem: str, layout: str, name: str) -> list[Task]:
    """A contender's learning rates at 1,000 steps with other kernels; MuSOAP's are those around its default."""
    return grid(records, task(problem, name, 1.0, model=LAYOUTS[layout]), _lrs(name), seeds=(0,))


def layout_runs(records: Records) -> Iterator[Task]:
    """Tuned Adam and MuSOAP on models whose kernels are factorized, or that lack a part."""
    for problem in LAYOUTS_ON:
        for layout in LAYOUTS:
            for name in LAYOUT_NAMES:
                yield from laid_out(records, problem, layout, name)


# ------------------------------------------------------------------------------------- samples: is it data that limits?

MORE_SAMPLES = ("gray-scott", 1600)


def with_samples(records: Records, name: str, more: bool) -> list[Task]:
    """A contender's learning rates at 1,000 steps, with the problem's own samples or four times as many."""
    problem, samples = MORE_SAMPLES
    like = task(problem, name, 1.0, data={"n_train": samples} if more else None)
    return grid(records, like, _lrs(name), seeds=(0,))


def sample_runs(records: Records) -> Iterator[Task]:
    """Tuned Adam and MuSOAP with both numbers of samples."""
    for name in LAYOUT_NAMES:
        for more in (False, True):
            yield from with_samples(records, name, more)


# ------------------------------------------------------------------------------------------ choices, one at a time

# Those after the second were tried with its size, the default at that time.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "MuSOAP": ("MuSOAP", {}),
    "size: root mean square": ("MuSOAP, rms", {}),
    "period 1": ("MuSOAP, rms", {"period": 1}),
    "period 2": ("MuSOAP, rms", {"period": 2}),
    "period 4": ("MuSOAP, rms", {"period": 4}),
    "no Nesterov": ("MuSOAP, rms", {"nesterov": False}),
    "momentum 0.9": ("MuSOAP, rms", {"momentum": 0.9}),
    "beta2 0.99": ("MuSOAP, rms", {"beta2": 0.99}),
    "basis_beta 0.99": ("MuSOAP, rms", {"basis_beta": 0.99}),
    "refresh 5": ("MuSOAP, rms", {"refresh": 5}),
    "refresh 20": ("MuSOAP, rms", {"refresh": 20}),
    "aux_lr 0.002": ("MuSOAP, rms", {"aux_lr": 2e-3}),
    "aux_lr 0.008": ("MuSOAP, rms", {"aux_lr": 8e-3}),
    "aux_lr 0.016": ("MuSOAP, rms", {"aux_lr": 1.6e-2}),
    "weight_decay 0.1": ("MuSOAP, rms", {"weight_decay": 0.1}),
    "linear layers × 0.5": ("MuSOAP, rms", {"lr_mult": {"hidden": 0.5}}),
    "linear layers × 2": ("MuSOAP, rms", {"lr_mult": {"hidden": 2.0}}),
    "MuMuon": ("MuMuon", {}),
    "MuMuon, period 2": ("MuMuon", {"period": 2}),
    "MuMuon, period 4": ("MuMuon", {"period": 4}),
    "MuMuon, no damping": ("MuMuon", {"damping": 0.0}),
    "MuMuon, period 4, no damping": ("MuMuon", {"period": 4, "damping": 0.0}),
}
CHOICE_LENGTHS = (300, STEPS)


def varied(problem: str, variant: str, steps: int) -> list[Task]:
    """The runs of one variant."""
    name, kwargs = VARIANTS[variant]
    return [task(problem, name, lr, steps, kwargs=kwargs) for lr in CHOICE_LRS]


def choice_runs(records: Records) -> Iterator[Task]:
    """One choice at a time, on the problems for choosing, at two lengths and two learning rates."""
    for steps in CHOICE_LENGTHS:
        for variant in VARIANTS:
            for problem in CHOSEN_ON:
                yield from varied(problem, variant, steps)


STAGES = {
    "main": main_runs,
    "time": time_runs,
    "transfer": transfer_runs,
    "joint": joint_runs,
    "init": init_runs,
    "layouts": layout_runs,
    "samples": sample_runs,
    "choices": choice_runs,
}
