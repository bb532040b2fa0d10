"""What tells that a proxy does not stand for its target, each with what to do about it."""

from __future__ import annotations

from statistics import fmean

from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.summary import Results

HARDLY = 0.9  # of the error of predicting the mean: what has learned less than a tenth tells little of learning
# At 80 to 180 steps optimizers and rates rank otherwise than at 700 and more (benchmarks/suite.py of commit b7062af).
FEW_STEPS = 100


def training_notes(results: Results) -> list[str]:
    """What the base's runs say against it: little learned, few steps, an optimum that is flat.

    An optimum at the edge of its grid is told of by the report, at every size.
    """
    study, rule = results.study, results.study.rules[0]
    best = results.carried(study.base, rule)
    if not best or not all(map(is_complete, best)):
        return []
    what, said = f"The {study.base}" if study.base else "The model", []
    of_mean = [r["metrics"]["mean_loss"] for r in best if r["metrics"].get("mean_loss")]
    loss = fmean(r["metrics"].get("validation_error", r["loss"]) for r in best)  # a score is of another kind
    if of_mean and loss >= HARDLY * fmean(of_mean):
        how = "is worse than" if loss >= fmean(of_mean) else "is hardly better than"
        said.append(
            f"{what} {how} predicting the mean, at its best ({loss:.3g} against {fmean(of_mean):.3g}), so its best values "
            "say little: train it longer, on more samples, or make it larger."
        )
    steps = [r["metrics"]["steps"] for r in best if r["metrics"].get("steps")]
    if steps and max(steps) < FEW_STEPS:
        said.append(
            f"{what} was trained for {max(steps)} steps; below {FEW_STEPS} the best learning rate is that of the first "
            "steps: give it more epochs or smaller batches."
        )
    level = results.level(results.walk(study.base, rule))
    if level and level[-1] >= 4 * level[0] > 0:
        said.append(
            f"At {what[0].lower()}{what[1:]} values of lr from {level[0]:.3g} to {level[-1]:.3g} cannot be told apart: "
            "more seeds or more steps would choose between them, and until then one in the middle is the safest."
        )
    return said
