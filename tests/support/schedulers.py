"""Torch's schedulers, each as a function of an optimizer, that keep the ratio between groups."""

from torch.optim import lr_scheduler as S
from torch.optim import swa_utils

STEPS = 25


def per_group(optimizer, value):
    """What may be passed where torch wants an absolute value: one a group."""
    return [value * g.get("lr_mult", 1.0) * g.get("base_lr", 1.0) for g in optimizer.param_groups]


FOLLOWING = {
    "LambdaLR": lambda o: S.LambdaLR(o, lambda t: min(1.0, (t + 1) / 5)),  # warm-up
    "MultiplicativeLR": lambda o: S.MultiplicativeLR(o, lambda t: 0.9),
    "StepLR": lambda o: S.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: S.MultiStepLR(o, [2, 7], 0.5),
    "ConstantLR": lambda o: S.ConstantLR(o, 0.3, 4),
    "LinearLR": lambda o: S.LinearLR(o, 0.1, 1.0, 6),
    "ExponentialLR": lambda o: S.ExponentialLR(o, 0.8),
    "SequentialLR": lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1, 5), S.CosineAnnealingLR(o, 20)], [5]),
    "PolynomialLR": lambda o: S.PolynomialLR(o, 20, 2.0),
    "CosineAnnealingLR": lambda o: S.CosineAnnealingLR(o, 10),
    "ChainedScheduler": lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 3), S.ExponentialLR(o, 0.9)]),
    "ReduceLROnPlateau": lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=1),
    "CyclicLR": lambda o: S.CyclicLR(o, per_group(o, 1e-3), per_group(o, 1e-1), 4),
    "CosineAnnealingWarmRestarts": lambda o: S.CosineAnnealingWarmRestarts(o, 5, 2),
    "OneCycleLR": lambda o: S.OneCycleLR(o, per_group(o, 1e-1), STEPS + 1),
    "SWALR": lambda o: swa_utils.SWALR(o, per_group(o, 1e-3), anneal_epochs=5),
}
