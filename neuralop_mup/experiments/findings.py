"""What a study showed, in sentences; from its records only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from neuralop_mup.experiments import wording as say
from neuralop_mup.experiments.proxy import training_notes
from neuralop_mup.tuning.outcome import Record, is_complete, mean_and_std
from neuralop_mup.tuning.study import Study, the
from neuralop_mup.tuning.summary import Results, edge_of

__all__ = ["main_rule", "mean_metric", "other_losses", "target_failures", "verdict"]


def main_rule(study: Study) -> str | None:
    """The rule whose success a study is about: the first that is not the standard parametrization."""
    return next((rule for rule in study.rules if rule != "standard"), study.rules[0])


def verdict(results: Results) -> list[str]:
    """Say what a study showed, the answer first, also where the rule did not help.

    Returns
    -------
    list of str
        Whole sentences, the most important one first.
    """
    study, rule = results.study, main_rule(results.study)
    rows = results.summary()
    said: list[str] = []
    for name in study.walks:
        walked = [row for row in rows if row["walked"] == name]
        at_target = {row["rule"]: row for row in walked if row["size"] == study.target}
        if len(study.sizes) == 1:
            said += _best(walked[0])
        else:
            said += _carried(results, at_target, rule) + _searched(study, at_target) + _fitted(study, at_target)
            said += _drifts(study, walked)
        said += _level(study, walked)
    if len(study.sizes) > 1:
        said += _cost(study, rows, rule) + _apart(results, rule)
    said += [*_edges(study, rows), *training_notes(results)]
    failed = [r for r in results.records if not is_complete(r)]
    if failed:
        said.append(
            f"{len(failed)} of {len(results.records)} runs did not complete; a point with such a seed does not compete."
        )
    if len(study.seeds) == 1:
        said.append("There was one seed only, so none of these numbers has an error bar.")
    return said


def _best(row: Mapping[str, Any]) -> list[str]:
    if row["best"] is None:
        return ["No point completed with every seed."]
    return [f"The best point is {say.params(row['best'])}, with loss {say.loss_of_row(row, 'best')}."]


def _told_apart(results: Results, ours: Mapping[str, Any], naive: Mapping[str, Any]) -> bool:
    """Whether two carried points differ by more than their spreads over seeds together.

    In logarithms where losses are positive: one seed of SP that did not train would widen a spread of the losses themselves
    beyond any difference.
    """
    losses = [
        [r["loss"] for r in results.carried(row["size"], row["rule"], row["walked"]) if is_complete(r)]
        for row in (ours, naive)
    ]
    if all(loss > 0 for own in losses for loss in own):
        losses = [[math.log(loss) for loss in own] for own in losses]
    (a, spread_a), (b, spread_b) = map(mean_and_std, losses)
    return abs(a - b) > spread_a + spread_b


def _carried(results: Results, rows: Mapping[str, dict], rule: str) -> list[str]:
    """What the base's best values gave at the target, under the rule and as neuralop builds it."""
    ours, naive = rows[rule], rows.get("standard") if rule != "standard" else None
    values = say.params(say.point(ours, "transferred"))
    base, target = the(results.study.base), the(results.study.target)
    good = not ours["failed"]
    if good:
        head = f"The best {values} of {base}, carried to {target} under {rule}, gives loss "
        head += say.loss_of_row(ours, "transferred")
    else:
        head = f"Training of {target} failed under {rule} with the best {values} of {base}"
        head += f" ({_why(target_failures(results, rule, ours['walked']), ours['trials'])})"
    more = []
    if naive is not None and naive["failed"]:
        why = _why(target_failures(results, "standard", naive["walked"]), naive["trials"])
        head += f"; the same values under SP failed ({why})"
    elif naive is not None and naive["trials"]:
        head += f"; the same values under SP give {say.loss_of_row(naive, 'transferred')}"
        if good:
            a, b = ours["transferred_loss"], naive["transferred_loss"]
            head += f" ({b / a:.2f}×)" if a > 0 and b > 0 else ""
            if len(results.study.seeds) > 1 and not _told_apart(results, ours, naive):
                more.append(
                    f"That difference is within the spread over {len(results.study.seeds)} seeds: it favours neither."
                )
            elif b < a:
                more.append(f"{rule} did not help here: the same values under SP reached the lower loss.")
    return [head + ".", *more]


def _searched(study: Study, rows: Mapping[str, dict]) -> list[str]:
    """What searching at the target itself found, for each rule that was."""
    target = the(study.target)
    found = {rule: row for rule, row in rows.items() if row["best"] is not None}
    if not found:
        what = f"{target[0].upper()}{target[1:]}"
        return [f"{what} itself was not searched (--verify does that), so drift and regret are not known."]
    said = []
    for rule, row in found.items():
        value, loss = say.params(say.point(row, "best")), say.loss_of_row(row, "best")
        away = "" if row["drift"] is None else f", {say.steps(row['drift'])} from the carried one"
        cost = "" if row["regret"] is None else f"; carrying over costs {say.percent(row['regret'])}"
        said.append(f"Searched at {target}, {say.rule_name(rule)} is best at {value} with loss {loss}{away}{cost}.")
    rule = main_rule(study)
    ours, tuned = rows[rule], found.get("standard")
    if tuned and rule != "standard" and not ours["failed"] and 0 < tuned["best_loss"] < ours["transferred_loss"]:
        ratio = ours["transferred_loss"] / tuned["best_loss"]
        said.append(
            f"Tuned at {target}, SP reaches {tuned['best_loss']:.3g}: the carried {rule} run is {ratio:.2f}× that, so here "
            "tuning SP at full size gives the lower loss."
        )
    return said


def _fitted(study: Study, rows: Mapping[str, dict]) -> list[str]:
    """Drift and regret between grid points, with their intervals over seeds."""
    said, n = [], len(study.seeds)
    for rule, row in rows.items():
        drift, cost = row["drift_log2"], row["regret_paired"]
        if n < 2 or drift is None or drift.level is None:
            continue
        what = "level with the base's" if drift.level else "not the base's"
        regret = "" if cost is None or cost.low is None else f"; carrying over costs {say.percent_interval(cost)}"
        if cost is not None and cost.level and cost.value:
            regret += ", level within the seeds"
        name = row["walked"] or "lr"
        said.append(
            f"Fitted between grid points, the best {say.name_of(name)} under {say.rule_name(rule)} is "
            f"{say.optimum(row['optimum'])}, {say.factor(drift)} of the base's: {what}{regret} (95 % intervals over {n} "
            "seeds)."
        )
    return said


def _drifts(study: Study, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where there are sizes between: the largest drift at any of them."""
    if len(study.sizes) < 3:
        return []
    told = []
    for rule in study.rules:
        drifts = [abs(r["drift"]) for r in rows if r["rule"] == rule and r["size"] != study.base and r["drift"] is not None]
        if drifts:
            told.append(f"{say.rule_name(rule)} {max(drifts)}")
    what = say.name_of(rows[0]["walked"] or "lr")
    return [f"The largest drift of the best {what} over the sizes, in grid steps: {', '.join(told)}."] if told else []


def _level(study: Study, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where an optimum is flat within its seeds."""
    flat: dict[tuple, dict[str, None]] = {}
    for row in sorted(rows, key=lambda row: list(study.sizes).index(row["size"])):
        if level := row["level"]:
            flat.setdefault((level[0], level[-1]), {})[_place(study, row)] = None
    said, name = [], say.name_of(rows[0]["walked"] or "lr")
    for (low, high), places in flat.items():
        at = f" at {say.listed(list(places))}" if any(places) else ""
        said.append(
            f"The optimum is flat{at}: {name}s from {say.number(low)} to {say.number(high)} are level, "
            "since the spread over seeds does not tell their losses apart."
        )
    return said


def _place(study: Study, row: Mapping[str, Any]) -> str:
    """``the target under SP``; at the base every rule is the same."""
    size = row["size"]
    return "" if size is None else the(size) if size == study.base else f"{the(size)} under {say.rule_name(row['rule'])}"


def _cost(study: Study, rows: Sequence[Mapping[str, Any]], rule: str | None) -> list[str]:
    row = next(r for r in rows if (r["walked"], r["rule"], r["size"]) == (study.walks[0], rule, study.target))
    if row["cost_seconds"] is None or not math.isfinite(row["cost_seconds"]):
        return []
    return [
        f"Searching at {the(study.base)} and training {the(study.target)} once took {row['cost_seconds']:.2f}× the time of "
        f"searching at {the(study.target)}."
    ]


def _apart(results: Results, rule: str) -> list[str]:
    """The losses of a run that has several, apart: the first alone chose the values."""
    terms, told = other_losses(results.records), []
    for name in dict.fromkeys([rule, "standard"] if terms else []):
        records = results.carried(results.study.target, name, results.study.walks[0])
        parts = {"data": mean_metric(records, "test_loss")}
        parts |= {term: mean_metric(records, f"test_{term}_loss") for term in terms}
        if parts["data"] is not None:
            told.append(
                f"{say.rule_name(name)}: " + ", ".join(f"{term} {say.number(value)}" for term, value in parts.items())
            )
    return [f"Errors on the test set, apart ({'; '.join(told)}); the data error chose the values."] if told else []


def _edges(study: Study, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A warning for each optimum that may lie outside what was searched."""
    said = []
    for row in sorted(rows, key=lambda row: (study.walks.index(row["walked"]), list(study.sizes).index(row["size"]))):
        if row["size"] == study.base and row["rule"] != study.rules[0]:
            continue
        for key, value in say.point(row, "best").items():
            if edge := edge_of(value, study.space.get(key)):
                where = f"of {_place(study, row)}" if row["size"] else "found"
                way = "downwards" if edge == "lowest" else "upwards"
                said.append(
                    f"The best {say.name_of(key)} {where}, {say.number(value)}, is the {edge} that was searched, so the "
                    f"optimum may lie outside: extend its grid {way}."
                )
    return said


def target_failures(results: Results, rule: str | None = None, name: str | None = None) -> list[Record]:
    """The runs of the carried point at the target that did not complete."""
    rule, name = main_rule(results.study) if rule is None else rule, name or results.study.walks[0]
    return [r for r in results.carried(results.study.target, rule, name) if not is_complete(r)]


def other_losses(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of what the runs were also trained on, besides the data: ``["equation"]`` for physics-informed training."""
    keys = {key for record in records for key in (record["metrics"] or {})}
    return sorted(key[5:-5] for key in keys if key.startswith("test_") and key.endswith("_loss") and key != "test_loss")


def _why(records: Sequence[Record], trials: int) -> str:
    errors = list(dict.fromkeys(say.line(record["error"] or "no finite loss") for record in records))
    return f"{len(records)} of {trials} runs" + (f": {errors[0][:160]}" if errors else "")


def mean_metric(records: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    """Mean of a metric over the records that completed; None if one of them lacks it."""
    values = [record["metrics"].get(metric) for record in records if is_complete(record)]
    return sum(values) / len(values) if values and None not in values else None
