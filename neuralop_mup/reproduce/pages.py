"""An experiment told in words, tables and figures, from its records only."""

from __future__ import annotations

import json
import math
import os
import platform
from pathlib import Path
from typing import Any

from neuralop_mup import plots
from neuralop_mup.report import aligned, versions
from neuralop_mup.reproduce.results import Reproduction, seconds
from neuralop_mup.tuning.progress import format_seconds
from neuralop_mup.tuning.records import plain

__all__ = ["table", "table_of_costs", "verdict", "write_report"]

_NAMES = {"lr": "learning rate", "batch_size": "batch size", "beta2": "Adam β2"}


def verdict(result: Reproduction) -> list[str]:
    """One sentence a hyperparameter and rule: where the optimum goes from the base to the largest size, at what cost.

    Returns
    -------
    list of str
        With warnings of optima at the edge of the grid and of failed runs last.
    """
    said, edges = [], []
    rows = result.rows()
    last = len(result.experiment.models) - 1
    for row in (row for row in rows if row["index"] == last):
        name, rule = row["hyperparameter"], _rule(row["rule"])
        if row["best"] is None:
            said.append(
                f"{rule}: the base's best {_NAMES[name]} {_g(row['transferred'])} gives {_loss(row, 'transferred')}."
            )
            continue
        drifts = [r["drift"] for r in rows if (r["hyperparameter"], r["rule"]) == (name, row["rule"])]
        most = max((abs(d) for d in drifts if d is not None), default=0)
        said.append(
            f"{rule}: the best {_NAMES[name]} goes from {_g(row['transferred'])} to {_g(row['best'])} at {row['size']} "
            f"({_steps(row['drift'])}; at most {most} at any size); carrying it over costs {_percent(row['regret'])}."
        )
    for row in rows:
        if row["at_edge"]:
            edges.append(f"{row['size']}, {_rule(row['rule'])}, {_NAMES[row['hyperparameter']]}")
    if edges:
        said.append(f"At the edge of the grid, so that the optimum may lie outside: {'; '.join(dict.fromkeys(edges))}.")
    failed = sum(r["state"] == "failed" for r in result.records)
    if failed:
        said.append(f"{failed} of {len(result.records)} runs failed; a point with a failed seed does not compete.")
    if len(result.experiment.seeds) == 1:
        said.append("One seed only: none of these numbers has an error bar.")
    return said


def table(result: Reproduction) -> list[list[str]]:
    """One row a hyperparameter, rule and size, the header first; see :meth:`Reproduction.rows`."""
    header = ["hyperparameter", "rule", "size", "best", "its loss (± std)", "its test loss"]
    header += ["loss at the base's best", "drift (steps)", "regret", "cost, FLOPs", "cost, seconds", "failed"]
    body = []
    for row in result.rows():
        body.append(
            [
                _NAMES[row["hyperparameter"]],
                _rule(row["rule"]),
                row["size"],
                _g(row["best"]) + (" (edge)" if row["at_edge"] else ""),
                _loss(row, "best"),
                _g(row["best_test"]),
                _loss(row, "transferred"),
                f"{row['drift']:+d}" if row["drift"] else _g(row["drift"]),
                _percent(row["regret"]),
                _times(row["cost_flops"]),
                _times(row["cost_seconds"]),
                f"{row['failed']}/{row['trials']}",
            ]
        )
    return [header, *body]


def table_of_costs(result: Reproduction) -> list[list[str]]:
    """Table 1 of the paper for the largest size: tuning the full model against carrying the base's best learning rate.

    The cost of muTransfer is the sweep at the base and one run (a seed) at the largest size, relative to the sweep
    under SP at the largest size. None where the learning rate is not walked there: then there are only a header's rows.
    """
    e, last = result.experiment, len(result.experiment.models) - 1
    header = ["way", "learning rate", "loss (± std)", "test loss", "FLOPs", "of tuning", "training time", "of tuning"]
    if "lr" not in e.swept or "standard" not in e.searched:
        return [header]
    rows = {row["rule"]: row for row in result.rows() if (row["hyperparameter"], row["index"]) == ("lr", last)}
    full, tuned = result.sweep(last, "standard", "lr"), rows["standard"]

    def line(way: str, row: dict[str, Any], which: str, spent: list) -> list[str]:
        flops, time = result.flops(spent), seconds(spent)
        return [
            way,
            _g(row[which]),
            _loss(row, which),
            _g(row[f"{which}_test"]),
            f"{flops:.2e}",
            _times(flops / result.flops(full)),
            format_seconds(time),
            _times(time / seconds(full)),
        ]

    body = [line(f"tune the full model ({e.label(last)}, SP)", tuned, "best", full)]
    for rule, row in rows.items():
        point = {**e.defaults, "lr": row["transferred"]}
        spent = [*result.sweep(0, rule, "lr"), *result.select(last, rule, [point])]
        way = "carried naively, SP" if rule == "standard" else f"muTransfer, {rule}"
        body.append(line(f"{way} (tuned at {e.label(0)})", row, "transferred", spent))
    return [header, *body]


def write_report(result: Reproduction, *, command: str) -> Path:
    """Write ``report.md``, ``run.json`` and a figure for each hyperparameter into the experiment's folder.

    Parameters
    ----------
    result : Reproduction
    command : str
        The command that gives the same run.

    Returns
    -------
    Path
        The report.
    """
    e, folder = result.experiment, result.folder
    folder.mkdir(parents=True, exist_ok=True)
    said, costs = verdict(result), table_of_costs(result)
    lines = [f"# {e.name}, size {e.size}", "", f"{e.shows[0].upper()}{e.shows[1:]}.", ""]
    lines += [*(f"- {sentence}" for sentence in [*said, *e.notes]), "", aligned(table(result)), ""]
    lines += [
        "Chosen by validation loss, mean over seeds. Drift: grid steps from the base's best value. Regret: loss at that "
        "value / best loss − 1. Cost: (sweep at the base + one run here) / sweep here; FLOPs counted from shapes, "
        "seconds of training measured.",
        "",
    ]
    for name in e.swept:
        drawn = _figure(result, name)
        lines += [f"![Loss against {_NAMES[name]}, one curve a size, one panel a rule]({drawn.name})", ""]
    if len(costs) > 1:
        lines += ["## Tuning the full model against muTransfer", "", aligned(costs), ""]
    failures = [r for r in result.records if r["state"] == "failed"]
    if failures:
        rows = [[r["size"], r["rule"] or "", _params(r["params"]), str(r["seed"]), _line(r["error"])] for r in failures]
        lines += ["## Runs that failed", "", aligned([["size", "rule", "values", "seed", "error"], *rows]), ""]
    settings = [[key, _line(json.dumps(value, ensure_ascii=False))] for key, value in e.settings.items()]
    lines += ["## Settings", "", aligned([["setting", "value"], *settings]), ""]
    where = {**machine(), **versions()}
    lines += ["## Machine and versions", "", aligned([["what", "value"], *([k, _line(v)] for k, v in where.items())]), ""]
    lines += ["## Again", "", "```", command, "```", "", "Every run is one line of `results.jsonl`.", ""]
    run = {"command": command, "machine": where, "settings": e.settings, "verdict": said, "rows": result.rows()}
    run["costs"] = costs
    (folder / "run.json").write_text(json.dumps(plain(run), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    path = folder / "report.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def machine() -> dict[str, str]:
    """What the runs ran on."""
    import torch

    found = {"system": platform.platform(), "processor": _processor(), "cores": str(os.cpu_count())}
    if torch.cuda.is_available():
        found["GPU"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _figure(result: Reproduction, name: str) -> Path:
    """``NAME.png`` and ``NAME.svg``."""
    e = result.experiment
    panels = {}
    for rule in e.rules:
        curves = []
        for index in range(len(e.models)):
            records = result.sweep(index, rule, name) or result.carried(index, rule, name)
            curves.append((e.label(index), plots.loss_curve(records, e.label(index), name=name)))
        panels[rule] = curves
    for suffix in ("png", "svg"):
        path = plots.plot_experiment(
            panels, result.folder / f"{name}.{suffix}", hyperparameter=name, seeds=len(e.seeds), title=f"{e.name}, {e.size}"
        )
    return path


def _rule(rule: str) -> str:
    return "SP" if rule == "standard" else f"μP {rule}"


def _loss(row: dict[str, Any], which: str) -> str:
    loss, std = row[f"{which}_loss"], row[f"{which}_std"]
    if loss is None or not math.isfinite(loss):
        return "–"
    return _g(loss) + (f" ± {std:.1g}" if std else "")


def _g(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _percent(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if math.isfinite(value) else "∞ (a run failed)"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def _steps(drift: int | None) -> str:
    return "–" if drift is None else f"{drift:+d} {'step' if abs(drift) == 1 else 'steps'}" if drift else "no step"


def _params(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_g(value)}" for name, value in values.items())


def _line(text: Any) -> str:
    return " ".join(str(text).split())[:600].replace("|", "\\|")
