"""torch's schedulers, each as a function of an optimizer, that keep the ratio between groups."""

from torch.optim import lr_scheduler as S
from torch.optim import swa_utils

STEPS = 12


def per_group(optimizer, value):
    """Return one value for each group, where torch wants an absolute one."""
    return [value * g.get("lr_mult", 1.0) * g.get("base_lr", 1.0) for g in optimizer.param_groups]


def advance(scheduler: S.LRScheduler) -> None:
    """Take a step of the scheduler; a plateau's has a loss that does not change."""
    scheduler.step(*(1.0,) * isinstance(scheduler, S.ReduceLROnPlateau))


FOLLOWING = {
    "LambdaLR": lambda o: S.LambdaLR(o, lambda t: min(1.0, (t + 1) / 5)),  # warm-up
    "MultiplicativeLR": lambda o: S.MultiplicativeLR(o, lambda t: 0.9),
    "StepLR": lambda o: S.StepLR(o, 3, 0.5),
    "SequentialLR": lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1, 5), S.CosineAnnealingLR(o, 20)], [5]),
    "CosineAnnealingLR": lambda o: S.CosineAnnealingLR(o, 10),
    "ChainedScheduler": lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 3), S.ExponentialLR(o, 0.9)]),
    "ReduceLROnPlateau": lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=1),
    "CyclicLR": lambda o: S.CyclicLR(o, per_group(o, 1e-3), per_group(o, 1e-1), 4),
    "CosineAnnealingWarmRestarts": lambda o: S.CosineAnnealingWarmRestarts(o, 5, 2),
    "OneCycleLR": lambda o: S.OneCycleLR(o, per_group(o, 1e-1), STEPS + 1),
    "SWALR": lambda o: swa_utils.SWALR(o, per_group(o, 1e-3), anneal_epochs=5),
}
