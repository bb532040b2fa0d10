"""A study told in words, tables and figures, as Markdown and as one HTML file; from its records only."""

from __future__ import annotations

import base64
import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from neuralop_mup import plots
from neuralop_mup._version import __version__
from neuralop_mup.counting import format_seconds
from neuralop_mup.experiments.proxy import training_notes
from neuralop_mup.files import write_atomically
from neuralop_mup.tuning.optimum import Interval, Optimum
from neuralop_mup.tuning.outcome import Record, is_complete, plain
from neuralop_mup.tuning.study import Study, the
from neuralop_mup.tuning.summary import Results, edge_of

__all__ = [
    "aligned",
    "main_rule",
    "run_cost",
    "size_text",
    "table",
    "target_failures",
    "verdict",
    "versions",
    "write_report",
]

#: Distributions whose versions decide what a run gives.
_PACKAGES = ("torch", "neuraloperator", "mup", "optuna")
_NAMES = {"lr": "learning rate", "batch_size": "batch size", "beta2": "Adam β2"}
_SHORT = {"hidden_channels": "width", "n_modes": "modes"}


def main_rule(study: Study) -> str | None:
    """The rule whose success a study is about: the first that is not the standard parametrization."""
    return next((rule for rule in study.rules if rule != "standard"), study.rules[0])


def run_cost(study: Study) -> Callable[[str | None], float] | None:
    """Operations of one run at a size, for studies of this package's own runs; else None."""
    if "problem" not in study.fixed:
        return None
    from neuralop_mup.experiments.training import estimate_flops

    params = next(iter(study.stand_in().values()))
    known: dict[Any, float] = {}

    def cost(size: str | None) -> float:
        if size not in known:
            known[size] = estimate_flops(study.config(study.point(size, study.rules[0], params), study.seeds[0]))
        return known[size]

    return cost


# In words


def verdict(results: Results) -> list[str]:
    """Say what a study showed, the answer first, also where the rule did not help.

    Returns
    -------
    list of str
        Whole sentences, the most important one first.
    """
    study, rule = results.study, main_rule(results.study)
    said: list[str] = []
    for name in study.walks:
        if len(study.sizes) == 1:
            said += _best(results, name)
        else:
            rows = {r: results.row(r, study.target, name) for r in study.rules}
            said += (
                _carried(results, rows, rule) + _searched(results, rows) + _fitted(results, rows) + _drifts(results, name)
            )
        said += _level(results, name)
    if len(study.sizes) > 1:
        said += _cost(results, rule) + _apart(results, rule)
    said += [*_edges(results), *training_notes(results)]
    failed = [r for r in results.records if not is_complete(r)]
    if failed:
        said.append(
            f"{len(failed)} of {len(results.records)} runs did not complete; a point with such a seed does not compete."
        )
    if len(study.seeds) == 1:
        said.append("There was one seed only, so none of these numbers has an error bar.")
    return said


def _best(results: Results, name: str | None) -> list[str]:
    row = results.row(results.study.rules[0], results.study.base, name)
    if row["best"] is None:
        return ["No point completed with every seed."]
    return [f"The best point is {params(row['best'])}, with loss {_loss(row, 'best')}."]


def _carried(results: Results, rows: Mapping[str, dict], rule: str) -> list[str]:
    """What the base's best values gave at the target, under the rule and as neuralop builds it."""
    ours, naive = rows[rule], rows.get("standard") if rule != "standard" else None
    values = params({ours["walked"]: ours["transferred"][ours["walked"]]} if ours["walked"] else ours["transferred"])
    base, target = the(results.study.base), the(results.study.target)
    good = not ours["failed"]
    if good:
        head = f"The best {values} of {base}, carried to {target} under {rule}, gives loss {_loss(ours, 'transferred')}"
    else:
        head = f"Training of {target} failed under {rule} with the best {values} of {base}"
        head += f" ({_why(target_failures(results, rule, ours['walked']), ours['trials'])})"
    more = []
    if naive is not None and naive["failed"]:
        why = _why(target_failures(results, "standard", naive["walked"]), naive["trials"])
        head += f"; the same values under SP failed ({why})"
    elif naive is not None and naive["trials"]:
        head += f"; the same values under SP give {_loss(naive, 'transferred')}"
        if good:
            a, b = ours["transferred_loss"], naive["transferred_loss"]
            head += f" ({b / a:.2f}×)" if a > 0 and b > 0 else ""
            spread = (ours["transferred_std"] or 0.0) + (naive["transferred_std"] or 0.0)
            if len(results.study.seeds) > 1 and abs(a - b) <= spread:
                more.append(
                    f"That difference is within the spread over {len(results.study.seeds)} seeds: it favours neither."
                )
            elif b < a:
                more.append(f"{rule} did not help here: the same values under SP reached the lower loss.")
    return [head + ".", *more]


def _searched(results: Results, rows: Mapping[str, dict]) -> list[str]:
    """What searching at the target itself found, for each rule that was."""
    target = the(results.study.target)
    found = {rule: row for rule, row in rows.items() if row["best"] is not None}
    if not found:
        what = f"{target[0].upper()}{target[1:]}"
        return [f"{what} itself was not searched (--verify does that), so drift and regret are not known."]
    said = []
    for rule, row in found.items():
        value = params({row["walked"]: row["best"][row["walked"]]} if row["walked"] else row["best"])
        steps = "" if row["drift"] is None else f", {_steps(row['drift'])} from the carried one"
        cost = "" if row["regret"] is None else f"; carrying over costs {_percent(row['regret'])}"
        said.append(f"Searched at {target}, {_rule(rule)} is best at {value} with loss {_loss(row, 'best')}{steps}{cost}.")
    rule = main_rule(results.study)
    ours, tuned = rows[rule], found.get("standard")
    if tuned and rule != "standard" and not ours["failed"] and 0 < tuned["best_loss"] < ours["transferred_loss"]:
        ratio = ours["transferred_loss"] / tuned["best_loss"]
        said.append(
            f"Tuned at {target}, SP reaches {tuned['best_loss']:.3g}: the carried {rule} run is {ratio:.2f}× that, so here "
            "tuning SP at full size gives the lower loss."
        )
    return said


def _fitted(results: Results, rows: Mapping[str, dict]) -> list[str]:
    """Drift and regret between grid points, with their intervals over seeds."""
    said, n = [], len(results.study.seeds)
    for rule, row in rows.items():
        drift, cost = row["drift_log2"], row["regret_paired"]
        if n < 2 or drift is None or drift.level is None:
            continue
        what = "level with the base's" if drift.level else "not the base's"
        regret = "" if cost is None or cost.low is None else f"; carrying over costs {_percent_interval(cost)}"
        if cost is not None and cost.level and cost.value:
            regret += ", level within the seeds"
        name = row["walked"] or "lr"
        said.append(
            f"Fitted between grid points, the best {_NAMES.get(name, name)} under {_rule(rule)} is "
            f"{_optimum(row['optimum'])}, {_factor(drift)} of the base's: {what}{regret} (95 % intervals over {n} seeds)."
        )
    return said


def _optimum(found: Optimum | None) -> str:
    if found is None:
        return "–"
    if found.value is None:
        return f"< {_g(found.high)}" if found.low == 0 else f"> {_g(found.low)}"
    return _g(found.value) if found.low is None else f"{_g(found.value)} ({_g(found.low)} to {_g(found.high)})"


def _factor(drift: Interval) -> str:
    low, high = drift.low, drift.high
    return f"×{2**drift.value:.2f}" + ("" if low is None or high is None else f" ({2**low:.2f} to {2**high:.2f})")


def _percent_interval(value: Interval) -> str:
    low, high = value.low, value.high
    between = "" if low is None or high is None else f" ({100 * low:.1f} to {100 * high:.1f})"
    return _percent(value.value) + between


def _drifts(results: Results, name: str | None) -> list[str]:
    """Where there are sizes between: the largest drift at any of them."""
    study = results.study
    if len(study.sizes) < 3:
        return []
    told = []
    for rule in study.rules:
        drifts = [results.row(rule, size, name)["drift"] for size in study.sizes]
        if any(d is not None for d in drifts[1:]):
            told.append(f"{_rule(rule)} {max(abs(d) for d in drifts if d is not None)}")
    what = _NAMES.get(name or "lr", name)
    return [f"The largest drift of the best {what} over the sizes, in grid steps: {', '.join(told)}."] if told else []


def _level(results: Results, name: str | None) -> list[str]:
    """Where an optimum is flat within its seeds."""
    said: dict[tuple, list[str]] = {}
    study, walked = results.study, name or "lr"
    for size in study.sizes:
        for rule in study.rules:
            level = results.level(results.walk(size, rule, name), walked)
            if len(level) > 1:
                where = "" if size is None else the(size) + ("" if size == study.base else f" under {_rule(rule)}")
                places = said.setdefault((level[0], level[-1]), [])
                if where not in places:
                    places.append(where)
    return [
        f"The optimum is flat{f' at {_listed(places)}' if any(places) else ''}: {_NAMES.get(walked, walked)}s from "
        f"{_g(low)} to {_g(high)} are level, since the spread over seeds does not tell their losses apart."
        for (low, high), places in said.items()
    ]


def _cost(results: Results, rule: str) -> list[str]:
    study = results.study
    ratio = results.row(rule, study.target, study.walks[0])["cost_seconds"]
    if ratio is None or not math.isfinite(ratio):
        return []
    return [
        f"Searching at {the(study.base)} and training {the(study.target)} once took {ratio:.2f}× the time of searching "
        f"at {the(study.target)}."
    ]


def _apart(results: Results, rule: str) -> list[str]:
    """The losses of a run that has several, apart: the first alone chose the values."""
    terms, told = other_losses(results.records), []
    for name in dict.fromkeys([rule, "standard"] if terms else []):
        records = results.carried(results.study.target, name, results.study.walks[0])
        parts = {"data": _mean(records, "test_loss"), **{term: _mean(records, f"test_{term}_loss") for term in terms}}
        if parts["data"] is not None:
            told.append(f"{_rule(name)}: " + ", ".join(f"{term} {_g(value)}" for term, value in parts.items()))
    return [f"Errors on the test set, apart ({'; '.join(told)}); the data error chose the values."] if told else []


def _edges(results: Results) -> list[str]:
    """A warning for each optimum that may lie outside what was searched."""
    study, said = results.study, []
    for name in study.walks:
        for size in study.sizes:
            for rule in study.rules if size != study.base else study.rules[:1]:
                best = results.row(rule, size, name)["best"]
                for key in [name] if name else list(best or ()):
                    edge = edge_of(best[key], study.space.get(key)) if best else None
                    if edge:
                        where = f"of {the(size)}" if size else "found"
                        under = "" if size in (None, study.base) else f" under {_rule(rule)}"
                        said.append(
                            f"The best {_NAMES.get(key, key)} {where}{under}, {_g(best[key])}, is the {edge} that was "
                            "searched, so "
                            f"the optimum may lie outside: extend its grid {'downwards' if edge == 'lowest' else 'upwards'}."
                        )
    return said


def target_failures(results: Results, rule: str | None = None, name: str | None = None) -> list[Record]:
    """The runs of the carried point at the target that did not complete."""
    rule, name = main_rule(results.study) if rule is None else rule, name or results.study.walks[0]
    return [r for r in results.carried(results.study.target, rule, name) if not is_complete(r)]


# In tables


def table(results: Results) -> list[list[str]]:
    """The summary as rows of text, the header first; columns that would be empty are left out."""
    terms = other_losses(results.records)
    head = [
        "walked",
        "rule",
        "size",
        "best",
        "its loss",
        "its test loss",
        "fitted",
        "base's best",
        "its loss here",
        "its test loss here",
    ]
    head += [
        *(f"test {term}" for term in terms),
        "drift (steps)",
        "drift, fitted",
        "regret",
        "cost, operations",
        "cost, time",
        "failed",
        "runs",
    ]
    rows = [head]
    for row in results.summary(run_cost(results.study)):
        name, size = row["walked"], row["size"]
        carried = results.carried(size, row["rule"], name)
        point = {key: row[key] and ({name: row[key][name]} if name else row[key]) for key in ("best", "transferred")}
        here = size != results.study.base
        rows.append(
            [
                _NAMES.get(name, name) if len(results.study.walks) > 1 else "–",
                _rule(row["rule"]) or "–",
                size or "–",
                _values(point["best"]) + (" (edge)" if row["at_edge"] else ""),
                _loss(row, "best"),
                _g(row["best_test"]),
                _optimum(row["optimum"]),
                _values(point["transferred"]) if here else "–",
                _loss(row, "transferred") if here else "–",
                _g(row["transferred_test"]) if here else "–",
                *(_g(_mean(carried, f"test_{term}_loss")) for term in terms),
                (f"{row['drift']:+d}" if row["drift"] else _g(row["drift"])) if here else "–",
                _factor(row["drift_log2"]) if here and row["drift_log2"] is not None else "–",
                _regret(row) if here and row["regret"] is not None else "–",
                _times(row["cost_flops"]),
                _times(row["cost_seconds"]),
                f"{row['failed']}/{row['trials']}" if here else "–",
                format_seconds(row["seconds"] if here else row["tuning_seconds"]),
            ]
        )
    kept = [i for i in range(len(head)) if any(row[i] != "–" for row in rows[1:])]
    return [[row[i] for i in kept] for row in rows]


def _regret(row: Mapping[str, Any]) -> str:
    paired = row["regret_paired"]
    return _percent(row["regret"]) if paired is None or not paired.value else _percent_interval(paired)


def run_table(results: Results) -> list[list[str]]:
    """Every run, the header first."""
    names = list(dict.fromkeys(k for r in results.records for k in r["params"]))
    head = ["size", "rule", *names, "seed", "outcome", "loss", "test loss", "seconds", "error"]
    rows = [
        [
            r["size"] or "–",
            r["rule"] or "–",
            *(_g(r["params"].get(name)) for name in names),
            str(r["seed"]),
            r["outcome"],
            _g(r["loss"], "%.4g"),
            _g((r["metrics"] or {}).get("test_loss"), "%.4g"),
            f"{r['seconds']:.2f}",
            _line(r["error"] or ""),
        ]
        for r in results.records
    ]
    return [head, *rows]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A markdown table whose columns also line up in a terminal, the header first."""
    widths = [max(3, *(len(row[i]) for row in rows)) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def other_losses(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of what the runs were also trained on, besides the data: ``["equation"]`` for physics-informed training."""
    keys = {key for record in records for key in (record["metrics"] or {})}
    return sorted(key[5:-5] for key in keys if key.startswith("test_") and key.endswith("_loss") and key != "test_loss")


def versions() -> dict[str, str]:
    """Versions of Python and of every package that decides the numbers."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    # From the code that runs, which need not be an installed distribution.
    return {**found, "neuralop-mup": __version__}


def machine() -> dict[str, str]:
    """What the report was written on."""
    import torch

    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            processor = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    found = {"system": platform.platform(), "processor": processor, "cores": str(os.cpu_count())}
    return found | ({"GPU": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


# On pages


def write_report(
    results: Results, *, command: str, settings: Mapping[str, Any] | None = None, title: str | None = None
) -> Path:
    """Write ``report.md``, ``report.html``, ``run.json`` and a figure for each hyperparameter into the study's folder.

    Parameters
    ----------
    results : Results
    command : str
        The command that gives the same study.
    settings : mapping, optional
        What the reader should know of how it was made; the study's own settings by default.
    title : str, optional
        First line of the report; the study's name by default.

    Returns
    -------
    Path
        The Markdown report. ``report.html`` beside it is one file with the figures in it and a table of all runs that sorts.
    """
    import jinja2

    study, folder = results.study, results.folder
    folder.mkdir(parents=True, exist_ok=True)
    title, said = title or study.name, verdict(results)
    figures = _figures(results, title)
    settings = settings or study.settings
    where = {**machine(), **versions()}
    failed = [r for r in results.records if not is_complete(r)]
    content = {
        "title": title,
        "about": study.about,
        "verdict": [*said, *study.notes],
        "table": table(results),
        "figures": figures,
        "failures": run_table(Results(study, failed, folder)) if failed else None,
        "settings": [["setting", "value"], *([k, _line(_cell(v))] for k, v in settings.items())],
        "where": [["what", "value"], *([k, _line(v)] for k, v in where.items())],
        "command": command,
        "runs": run_table(results),
    }
    loader = jinja2.PackageLoader("neuralop_mup.experiments")
    pages = jinja2.Environment(
        loader=loader, autoescape=jinja2.select_autoescape(("html.jinja",)), trim_blocks=True, lstrip_blocks=True
    )
    pages.filters |= {"aligned": aligned, "embedded": lambda path: base64.b64encode((folder / path).read_bytes()).decode()}
    for name in ("report.html", "report.md"):
        write_atomically(folder / name, pages.get_template(f"{name}.jinja").render(content))
    run = {"command": command, "seeds": study.seeds, "machine": where, "versions": versions(), "settings": settings}
    run |= {"verdict": said, "summary": results.summary(run_cost(study))}
    write_atomically(folder / "run.json", json.dumps(plain(run), indent=2, allow_nan=False) + "\n")
    return folder / "report.md"


def _figures(results: Results, title: str) -> list[dict[str, str]]:
    """A figure for each hyperparameter that was walked, as PNG and SVG; none where no point has every seed."""
    study, drawn = results.study, []
    labels = {size: size if len(study.sizes) > 2 else f"{size}\n({size_text(a)})" for size, a in study.sizes.items() if a}
    names = ["lr"] if study.swept is None else study.swept
    for name in [n for n in names if n in study.space]:
        panels = plots.panels_of(results, name, labels)
        if not any(curve.x for curves in panels.values() for _, curve in curves):
            continue
        for suffix in ("png", "svg"):
            path = results.folder / f"{name}.{suffix}"
            plots.plot_panels(panels, path, name=name, seeds=len(study.seeds), title=title)
        about = f"Loss against {_NAMES.get(name, name)}: one panel a rule, one curve a size"
        drawn.append({"png": f"{name}.png", "svg": f"{name}.svg", "about": about})
    return drawn


def size_text(size: Mapping[str, Any]) -> str:
    """``width 64, modes 32×32`` of a model's arguments."""
    known = [f"{_SHORT[name]} {_cell(size[name], '×')}" for name in _SHORT if name in size]
    return ", ".join(known) or ", ".join(f"{name} {_cell(value)}" for name, value in size.items())


def params(values: Mapping[str, Any]) -> str:
    """Hyperparameters in one phrase: ``"lr 0.016, lr_mult.spectral 2"``."""
    return ", ".join(f"{_NAMES.get(name, name) if name != 'lr' else 'lr'} {_g(value)}" for name, value in values.items())


def _values(values: Mapping[str, Any] | None) -> str:
    if not values:
        return "–"
    return _g(next(iter(values.values()))) if len(values) == 1 else params(values)


def _rule(rule: str | None) -> str:
    return "" if rule is None else "SP" if rule == "standard" else rule


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _why(records: Sequence[Record], trials: int) -> str:
    errors = list(dict.fromkeys(_line(record["error"] or "no finite loss") for record in records))
    return f"{len(records)} of {trials} runs" + (f": {errors[0][:160]}" if errors else "")


def _mean(records: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    """Mean of a metric over the records that completed; None if one of them lacks it."""
    values = [record["metrics"].get(metric) for record in records if is_complete(record)]
    return sum(values) / len(values) if values and None not in values else None


def _loss(row: Mapping[str, Any], which: str) -> str:
    loss, std = row[f"{which}_loss"], row[f"{which}_std"]
    return "–" if loss is None or not math.isfinite(loss) else _g(loss) + (f" ± {std:.1g}" if std else "")


def _g(value: Any, form: str = "%.3g") -> str:
    if isinstance(value, float):
        return form % value if math.isfinite(value) else "–"
    return "–" if value is None else str(value)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if math.isfinite(value) else "∞ (a run failed)"


def _times(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.2f}×"


def _steps(drift: int) -> str:
    return f"{drift:+d} {'step' if abs(drift) == 1 else 'steps'}" if drift else "no step"


def _cell(value: Any, joined: str = " ") -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(inner)}" for name, inner in value.items()) or "–"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return joined.join(_cell(inner) for inner in value) or "–"
    return _g(value) if isinstance(value, float) else str(value)


def _line(text: Any) -> str:
    return " ".join(str(text).split())[:600].replace("|", "\\|")
