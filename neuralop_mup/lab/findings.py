"""What a study showed, in sentences; from its records only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from neuralop_mup.lab import wording as say
from neuralop_mup.lab.outcome import is_complete, mean_and_std
from neuralop_mup.lab.proxy import training_notes
from neuralop_mup.lab.search import edge_of
from neuralop_mup.lab.study import the
from neuralop_mup.lab.summary import Results, seconds

__all__ = ["chosen_by", "mean_metric", "other_losses", "price", "verdict"]

Row = Mapping[str, Any]


def verdict(results: Results) -> list[str]:
    """Say what a study showed, the answer first, also where the rule did not help.

    Parameters
    ----------
    results : Results
        Of a study.

    Returns
    -------
    list of str
        Whole sentences, the most important one first.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> def train(config):
    ...     return 1 + (config["lr"] - 0.5) ** 2
    >>> results = nm.sweep(train, {"lr": [0.25, 0.5, 1.0]}, folder="runs", n_workers=1, progress=False)
    >>> from neuralop_mup.lab import verdict
    >>> verdict(results)[0]
    'The best point is lr 0.5, with loss 1.'
    """
    study, rows = results.study, results.summary()
    at_target = {row["rule"]: row for row in rows if row["size"] == study.target}
    if len(study.sizes) == 1:
        said = _best(rows[0])
    else:
        said = [*_carried(results, at_target), *_price(results), *_searched(results, at_target)]
        said += [*_cost(results, at_target), *_apart(results)]
    said += [*_scored(results), *_level(results, rows), *_edges(results, rows), *training_notes(results)]
    failed = [r for r in results.records if not is_complete(r)]
    if failed:
        said.append(
            f"{len(failed)} of {len(results.records)} runs did not complete; a point with such a seed does not compete."
        )
    if len(study.seeds) == 1:
        said.append("There was one seed only, so none of these numbers has an error bar.")
    return said


def _best(row: Row) -> list[str]:
    if row["best"] is None:
        return ["No point completed with every seed."]
    return [f"The best point is {say.params(row['best'])}, with loss {say.loss_of_row(row, 'best')}."]


def _carried(results: Results, rows: Mapping[str, Row]) -> list[str]:
    """What the base's best values gave at the target, under the rule and as neuralop builds it."""
    study, rule = results.study, results.study.rules[0]
    ours, naive = rows[rule], rows.get("standard") if rule != "standard" else None
    values, base, target = say.params(ours["transferred"] or {}), the(study.base), the(study.target)
    head = (
        f"The best {values} of {base}, carried to {target} under {rule}, gives loss {say.loss_of_row(ours, 'transferred')}"
    )
    if ours["failed"]:
        head = f"Training of {target} failed under {rule} with the best {values} of {base} ({_why(results, ours)})"
    if naive is None or not naive["trials"]:
        return [head + "."]
    if naive["failed"]:
        return [f"{head}; the same values under SP failed ({_why(results, naive)})."]
    head += f"; the same values under SP give {say.loss_of_row(naive, 'transferred')}"
    if ours["failed"]:
        return [head + "."]
    a, b = ours["transferred_loss"], naive["transferred_loss"]
    head += f"{_ratio(results, ours, naive)}."
    if len(study.seeds) > 1 and not _told_apart(results, ours, naive):
        return [head, f"That difference is within the spread over {len(study.seeds)} seeds: it favours neither."]
    return [head, *([f"{rule} did not help here: the same values under SP reached the lower loss."] if b < a else [])]


def chosen_by(results: Results) -> str | None:
    """The score by which values were chosen, in words; None where that was the validation error."""
    names = [(record["metrics"] or {}).get("score") for record in results.records]
    return next((f"the score {name}" for name in names if name), None)


def _scored(results: Results) -> list[str]:
    """What chose, where that was no error, and the validation errors beside it."""
    study, score = results.study, chosen_by(results)
    if score is None:
        return []
    carried = {rule: mean_metric(results.carried(study.target, rule), "validation_error") for rule in study.rules}
    errors = [f"{say.number(error)} under {say.rule_name(rule)}" for rule, error in carried.items() if error is not None]
    beside = f"; the validation error of {the(study.target)} with the base's best values is {say.listed(errors)}"
    return [f"Values were chosen by {score}, which is what loss means here{beside if errors else ''}."]


def _ratio(results: Results, ours: Row, naive: Row) -> str:
    """How many times the rule's loss SP's is, the median over seeds and their range: one that did not train decides a mean.

    Nothing where losses are not positive.
    """
    losses = [[r["loss"] for r in results.carried(row["size"], row["rule"])] for row in (ours, naive)]
    if min(map(min, losses)) <= 0:
        return ""
    ratios = sorted(b / a for a, b in zip(*losses, strict=True))
    by_seed = f" in the median, {ratios[0]:.2f}× to {ratios[-1]:.2f}× by seed" if len(ratios) > 1 else ""
    return f" ({median(ratios):.2f}×{by_seed})"


def _told_apart(results: Results, ours: Row, naive: Row) -> bool:
    """Whether two carried points differ by more than their spreads over seeds together.

    In logarithms where losses are positive: one seed of SP that did not train would widen a spread of the losses themselves
    beyond any difference.
    """
    losses = [[r["loss"] for r in results.carried(row["size"], row["rule"]) if is_complete(r)] for row in (ours, naive)]
    if all(loss > 0 for own in losses for loss in own):
        losses = [[math.log(loss) for loss in own] for own in losses]
    (a, spread_a), (b, spread_b) = map(mean_and_std, losses)
    return abs(a - b) > spread_a + spread_b


def _searched(results: Results, rows: Mapping[str, Row]) -> list[str]:
    """What searching at the target itself found, for each rule that was; drift and regret with their intervals."""
    study, rule, target = results.study, results.study.rules[0], the(results.study.target)
    found = {rule: row for rule, row in rows.items() if row["best"] is not None}
    if not found:
        what = f"{target[0].upper()}{target[1:]}"
        return [
            f"{what} itself was not searched (verify=True, or --verify of the command, does that), so drift and regret are "
            "not known."
        ]
    said = []
    for name, row in found.items():
        value, loss, drift, cost = say.params(row["best"]), say.loss_of_row(row, "best"), row["drift"], row["regret"]
        text = f"Searched at {target}, {say.rule_name(name)} is best at {value} with loss {loss}"
        if drift is not None:
            level = "" if drift.level is None else ", level with the base's" if drift.level else ", not the base's"
            text += f"; fitted between grid points the best learning rate is {say.factor(drift)} of the base's{level}"
        if cost is not None:
            level = ", level within the seeds" if cost.level and cost.value else ""
            text += f"; carrying over costs {say.percent_interval(cost)}{level}"
        said.append(text + ".")
    if len(study.seeds) > 1:
        said[-1] += f" Intervals are 95 % ones over {len(study.seeds)} seeds."
    ours, tuned = rows[rule], found.get("standard")
    if tuned and rule != "standard" and not ours["failed"] and 0 < tuned["best_loss"] < ours["transferred_loss"]:
        ratio = ours["transferred_loss"] / tuned["best_loss"]
        said.append(
            f"Tuned at {target}, SP reaches {tuned['best_loss']:.3g}: the carried {rule} run is {ratio:.2f}× that, so here "
            "tuning SP at full size gives the lower loss."
        )
    return said


def _level(results: Results, rows: Sequence[Row]) -> list[str]:
    """Where an optimum is flat within its seeds."""
    flat: dict[tuple, dict[str, None]] = {}
    for row in rows:
        if level := row["level"]:
            flat.setdefault((level[0], level[-1]), {})[_place(results, row)] = None
    return [
        f"The optimum is flat{f' at {say.listed(list(places))}' if any(places) else ''}: learning rates from "
        f"{say.number(low)} to {say.number(high)} are level, since the spread over seeds does not tell their losses apart."
        for (low, high), places in flat.items()
    ]


def _place(results: Results, row: Row) -> str:
    """``the target under SP``; at the base every rule is the same."""
    under = "" if row["size"] == results.study.base else f" under {say.rule_name(row['rule'])}"
    return "" if row["size"] is None else the(row["size"]) + under


def price(results: Results) -> tuple[float, int] | None:
    """What tuning took: its time over that of one training of the target, and its runs; None where a time is not known."""
    study, rule = results.study, results.study.rules[0]
    tuned, trained = results.walk(study.base, rule), [r for r in results.carried(study.target, rule) if is_complete(r)]
    once = seconds(trained) / len(trained) if trained else 0.0
    return (seconds(tuned) / once, len(tuned)) if once > 0 else None


def _price(results: Results) -> list[str]:
    found, study = price(results), results.study
    if found is None:
        return []
    return [f"Tuning took {found[0]:.2f} of one training of {the(study.target)} ({found[1]} runs of {the(study.base)})."]


def _cost(results: Results, rows: Mapping[str, Row]) -> list[str]:
    study, cost = results.study, rows[results.study.rules[0]]["cost_seconds"]
    if cost is None or not math.isfinite(cost):
        return []
    return [
        f"Searching at {the(study.base)} and training {the(study.target)} once took {cost:.2f}× the time of searching at "
        f"{the(study.target)}."
    ]


def _apart(results: Results) -> list[str]:
    """The losses of a run that has several, apart: the first alone, or a score, chose the values."""
    terms, told, chose = other_losses(results.records), [], chosen_by(results) or "the data error"
    for rule in dict.fromkeys([results.study.rules[0], "standard"] if terms else []):
        records = results.carried(results.study.target, rule)
        parts = {"data": mean_metric(records, "test_loss")}
        parts |= {term: mean_metric(records, f"test_{term}_loss") for term in terms}
        if parts["data"] is not None:
            told.append(f"{say.rule_name(rule)}: " + ", ".join(f"{t} {say.number(value)}" for t, value in parts.items()))
    return [f"Errors on the test set, apart ({'; '.join(told)}); {chose} chose the values."] if told else []


def _edges(results: Results, rows: Sequence[Row]) -> list[str]:
    """A warning for each optimum that may lie outside what was searched."""
    study, said = results.study, {}
    for row in rows:
        for key, value in (row["best"] or {}).items():
            if edge := edge_of(value, study.space.get(key)):
                where = f"of {place}" if (place := _place(results, row)) else "found"
                way = "downwards" if edge == "lowest" else "upwards"
                said[
                    f"The best {say.name_of(key)} {where}, {say.number(value)}, is the {edge} that was searched, so the "
                    f"optimum may lie outside: extend its grid {way}."
                ] = None
    return list(said)


def other_losses(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of what the runs were also trained on, besides the data: ``["equation"]`` for physics-informed training."""
    keys = {key for record in records for key in (record["metrics"] or {})}
    return sorted(key[5:-5] for key in keys if key.startswith("test_") and key.endswith("_loss") and key != "test_loss")


def _why(results: Results, row: Row) -> str:
    failed = [r for r in results.carried(row["size"], row["rule"]) if not is_complete(r)]
    return f"{len(failed)} of {row['trials']} runs: {say.line(failed[0]['error'] or 'no finite loss')[:160]}"


def mean_metric(records: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    """Mean of a metric over the records that completed; None if one of them lacks it."""
    values = [record["metrics"].get(metric) for record in records if is_complete(record)]
    return sum(values) / len(values) if values and None not in values else None
