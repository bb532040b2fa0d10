"""A transfer told in words, a table and a figure, from its records and summary only."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from neuralop_mup import __version__, plots

__all__ = ["at_edge", "aligned", "table", "target_failures", "verdict", "versions", "write_report"]

#: Distributions whose versions decide what a run gives.
_PACKAGES = ("torch", "neuraloperator", "mup", "optuna")


def verdict(transfer: Any) -> list[str]:
    """Say what a transfer showed, the answer first, also where the rule did not help.

    Parameters
    ----------
    transfer : Transfer
        What :func:`neuralop_mup.transfer` returned; only ``records``, ``rule``, ``space``, ``seeds``, ``best`` and
        ``summary()`` are read.

    Returns
    -------
    list of str
        Sentences, the most important one first.
    """
    rows = {row["rule"]: row for row in transfer.summary()}
    rule, seeds = transfer.rule, len(transfer.seeds)
    carried = params(transfer.best)
    failures = {name: target_failures(transfer, name) for name in rows}
    ours, plain = rows.get(rule, {}), rows.get("standard")
    said: list[str] = []

    good = _number(ours.get("transferred_loss")) and not failures.get(rule)
    if good:
        head = f"The proxy's best {carried} carried to the target under {rule}: loss {_loss(ours)}"
    else:
        head = f"Target training failed under {rule} with the proxy's best {carried}"
        head += f" ({_failed(failures.get(rule, []), seeds)})"
    compared = False
    if plain is not None and rule != "standard":
        if failures["standard"] or not _number(plain.get("transferred_loss")):
            head += f"; the same values under SP failed ({_failed(failures['standard'], seeds)})"
        else:
            head += f"; the same values under SP: {_loss(plain)}"
            if good:
                compared = True
                head += f" ({plain['transferred_loss'] / ours['transferred_loss']:.2f}×)"
    said.append(head + ".")
    if compared:
        said += _comparison(ours, plain, seeds)

    searched = [row for row in rows.values() if row.get("best_params") is not None]
    if searched:
        told = "; ".join(_searched(row) for row in searched)
        said.append(f"Searched at the target itself: {told}.")
        tuned = plain if plain in searched else None
        if good and tuned is not None and rule != "standard" and tuned["best_loss"] < ours["transferred_loss"]:
            ratio = ours["transferred_loss"] / tuned["best_loss"]
            said.append(
                f"Tuned at the target, SP reaches {tuned['best_loss']:.3g}: the transferred {rule} run is "
                f"{ratio:.2f}× that, so here direct tuning of SP gives the lower loss."
            )
        cost = _relative_cost(transfer, rule)
        if cost is not None:
            said.append(f"The proxy's search and one target training took {cost:.2f}× the time of searching at the target.")
    elif rule in rows:
        said.append("The target itself was not searched (--verify does), so drift and regret are not known.")

    said += _apart(transfer, [rule, "standard"] if good else [])
    said += _edges(transfer, searched)
    if seeds == 1:
        said.append("One seed only: none of these numbers has an error bar.")
    return said


def table(transfer: Any) -> list[list[str]]:
    """The summary as rows of text, the header first.

    Parameters
    ----------
    transfer : Transfer
        See :func:`verdict`.

    Returns
    -------
    list of list of str
        One row per rule: loss at the transferred values, spread, test loss, and with ``verify`` the best values found
        at the target, drift in grid steps of lr and regret.
    """
    rows = transfer.summary()
    verified = any(row.get("best_params") is not None for row in rows)
    terms = other_losses(transfer.records)
    header = [
        "rule",
        "transferred",
        "loss at target",
        "± over seeds",
        "test loss",
        *(f"test {term}" for term in terms),
        "failed",
    ]
    header += ["best at target", "its loss", "drift (steps)", "regret"] if verified else []
    header += ["tuning time", "target time"]
    body = []
    for row in rows:
        rule = row["rule"]
        records = _select(transfer, "target", rule)
        line = [
            rule,
            params(row["transferred_params"]),
            _g(row["transferred_loss"]),
            _g(row["transferred_std"], "%.2g") if len(transfer.seeds) > 1 else "–",
            _g(_mean(records, "test_loss")),
            *(_g(_mean(records, f"test_{term}_loss")) for term in terms),
            f"{len(target_failures(transfer, rule))}/{len(records)}",
        ]
        if verified:
            line += [
                params(row["best_params"]) if row.get("best_params") else "–",
                _g(row.get("best_loss")),
                _drift(row.get("drift_steps")),
                f"{100 * row['regret']:.1f} %" if _number(row.get("regret")) else "–",
            ]
        body.append([*line, _seconds(row.get("tuning_seconds")), _seconds(row.get("target_seconds"))])
    return [header, *body]


def other_losses(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of what the runs were also trained on, besides the data: ``["equation"]`` for physics-informed training."""
    keys = {key for record in records for key in (record["metrics"] or {})}
    return sorted(key[5:-5] for key in keys if key.startswith("test_") and key.endswith("_loss") and key != "test_loss")


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A markdown table whose columns also line up in a terminal, the header first."""
    widths = [max(3, *(len(row[i]) for row in rows)) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def target_failures(transfer: Any, rule: str) -> list[Mapping[str, Any]]:
    """The records of target trainings at the transferred values that ended without a finite loss."""
    return [record for record in _select(transfer, "target", rule) if not plots.finished(record)]


def at_edge(params: Mapping[str, Any], space: Mapping[str, Sequence[float]]) -> str | None:
    """Whether the best lr is the lowest or the highest one searched.

    Parameters
    ----------
    params : dict
        Hyperparameters with ``"lr"``.
    space : dict
        What was searched: a list of values for each name.

    Returns
    -------
    {"lowest", "highest", None}
        None also where lr was not searched over a grid of at least two values.
    """
    grid = space.get("lr")
    if "lr" not in params or not isinstance(grid, (list, tuple)) or len(grid) < 2:
        return None
    lr = params["lr"]
    return "lowest" if lr <= min(grid) else "highest" if lr >= max(grid) else None


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


def write_report(
    transfer: Any, folder: str | Path, *, settings: Mapping[str, Any], command: str, title: str = "μTransfer"
) -> Path:
    """Write ``report.md``, ``run.json``, ``transfer.png`` and ``transfer.svg`` into the folder of a transfer.

    Parameters
    ----------
    transfer : Transfer
        See :func:`verdict`; ``proxy`` and ``target`` are read for the labels.
    folder : str or Path
        Where to write.
    settings : dict
        Everything that the run was given, JSON-serialisable.
    command : str
        The command that gives the same run.
    title : str
        First line of the report.

    Returns
    -------
    Path
        The report.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    said, rows, used = verdict(transfer), table(transfer), versions()
    labels = {"proxy": f"proxy ({_size(transfer.proxy)})", "target": "target"}
    figure_title = f"{title}: target {_size(transfer.target)}"
    drawn = "lr" in transfer.space
    if drawn:
        for suffix in ("png", "svg"):
            plots.plot_transfer(
                transfer.records,
                folder / f"transfer.{suffix}",
                rule=transfer.rule,
                best=transfer.best,
                labels=labels,
                title=figure_title,
            )
    run = {
        "command": command,
        "seeds": list(transfer.seeds),
        "versions": used,
        "settings": dict(settings),
        "verdict": said,
        "summary": transfer.summary(),
    }
    (folder / "run.json").write_text(json.dumps(run, indent=2, default=str) + "\n", encoding="utf-8")
    failed = [record for record in transfer.records if not plots.finished(record)]
    lines = [f"# {title}", "", f"**{said[0]}**", "", *(f"- {sentence}" for sentence in said[1:]), ""]
    lines += [aligned(rows), ""]
    if drawn:
        lines += ["![Loss against learning rate at the proxy and at the target](transfer.svg)", ""]
    if failed:
        lines += ["## Trials that failed", ""]
        lines += [aligned([["stage", "rule", "values", "seed", "error"], *map(_failure_row, failed)]), ""]
    lines += [
        "## Settings",
        "",
        aligned([["setting", "value"], *([k, _cell(v)] for k, v in settings.items())]),
        "",
    ]
    lines += ["## Versions", "", aligned([["package", "version"], *([k, v] for k, v in used.items())]), ""]
    lines += ["## Again", "", "```", command, "```", ""]
    lines += ["Every trial is one line of `results.jsonl`; `run.json` has this page's numbers.", ""]
    path = folder / "report.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def params(values: Mapping[str, Any]) -> str:
    """Hyperparameters in one phrase: ``"lr 0.016, lr_mult.spectral 2"``."""
    return ", ".join(f"{name} {_g(value)}" for name, value in values.items())


def _comparison(ours: Mapping[str, Any], plain: Mapping[str, Any], seeds: int) -> list[str]:
    """Whether the difference between the rule and SP means something, and in whose favour."""
    mup_loss, sp_loss = ours["transferred_loss"], plain["transferred_loss"]
    spread = (ours.get("transferred_std") or 0.0) + (plain.get("transferred_std") or 0.0)
    if seeds > 1 and abs(mup_loss - sp_loss) <= spread:
        return [f"That difference is within the spread over {seeds} seeds: it favours neither."]
    if sp_loss < mup_loss:
        return [f"{ours['rule']} did not help here: the same values under SP reached the lower loss."]
    return []


def _searched(row: Mapping[str, Any]) -> str:
    name = "SP" if row["rule"] == "standard" else row["rule"]
    text = f"{name} is best at {params(row['best_params'])} with loss {_g(row['best_loss'])}"
    details = []
    if _number(row.get("drift_steps")):
        steps = row["drift_steps"]
        details.append(f"drift {_drift(steps)} {'step' if abs(steps) == 1 else 'steps'}")
    if _number(row.get("regret")):
        details.append(f"regret {100 * row['regret']:.1f} %")
    return f"{text} ({', '.join(details)})" if details else text


def _mean(records: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    """Mean of a metric over the records that finished; None if one of them lacks it."""
    values = [record["metrics"].get(metric) for record in records if plots.finished(record)]
    return sum(values) / len(values) if values and all(_number(value) for value in values) else None


def _apart(transfer: Any, rules: Sequence[str]) -> list[str]:
    """Error and residual of physics-informed training, apart: the data error alone chose the values."""
    terms = other_losses(transfer.records)
    told = []
    for rule in dict.fromkeys(rules if terms else []):
        records = _select(transfer, "target", rule)
        parts = {"data": _mean(records, "test_loss"), **{term: _mean(records, f"test_{term}_loss") for term in terms}}
        if _number(parts["data"]):
            shown = ", ".join(f"{term} {_g(value)}" for term, value in parts.items())
            told.append(f"{'SP' if rule == 'standard' else rule}: {shown}")
    return [f"Relative errors on the test set, apart ({'; '.join(told)}); the data error chose the values."] if told else []


def _edges(transfer: Any, searched: Sequence[Mapping[str, Any]]) -> list[str]:
    """A warning for each optimum that may lie outside what was searched."""
    said = []
    edge = at_edge(transfer.best, transfer.space)
    if edge:
        said.append(
            f"The proxy's best lr is the {edge} one searched, so its optimum may lie outside the grid: "
            f"widen --lr {'downwards' if edge == 'lowest' else 'upwards'} before trusting the transfer."
        )
    for row in searched:
        edge = at_edge(row["best_params"], transfer.space)
        if edge:
            name = "SP" if row["rule"] == "standard" else row["rule"]
            said.append(
                f"At the target, {name}'s best lr is the {edge} one searched: its drift and regret are lower bounds."
            )
    return said


def _relative_cost(transfer: Any, rule: str) -> float | None:
    """(proxy search + target training) / search at the target, in measured seconds."""
    search = sum(record["seconds"] or 0.0 for record in _select(transfer, "verify", rule))
    if not search:
        return None
    spent = sum(record["seconds"] or 0.0 for record in transfer.records if record["stage"] == "proxy")
    return (spent + sum(record["seconds"] or 0.0 for record in _select(transfer, "target", rule))) / search


def _select(transfer: Any, stage: str, rule: str) -> list[Mapping[str, Any]]:
    return [record for record in transfer.records if record["stage"] == stage and record["rule"] == rule]


def _failed(records: Sequence[Mapping[str, Any]], seeds: int) -> str:
    errors = list(dict.fromkeys(" ".join(str(record.get("error") or "no finite loss").split()) for record in records))
    return f"{len(records)} of {seeds} seeds" + (f": {errors[0][:160]}" if errors else "")


def _failure_row(record: Mapping[str, Any]) -> list[str]:
    error = " ".join(str(record.get("error") or "no finite loss").split())[:160].replace("|", "\\|")
    return [record["stage"], record["rule"], params(record["params"]), str(record["seed"]), error]


def _loss(row: Mapping[str, Any]) -> str:
    spread = row.get("transferred_std")
    return _g(row["transferred_loss"]) + (f" ± {spread:.1g}" if _number(spread) and spread > 0 else "")


def _size(size: Mapping[str, Any]) -> str:
    short = {"hidden_channels": "width", "n_modes": "modes"}
    known = [f"{short[name]} {_modes(size[name])}" for name in short if name in size]
    return ", ".join(known) or ", ".join(f"{name} {value}" for name, value in size.items())


def _modes(value: Any) -> str:
    return "×".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(inner)}" for name, inner in value.items()) or "–"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(_cell(inner) for inner in value) or "–"
    return _g(value) if isinstance(value, float) else str(value)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _g(value: Any, form: str = "%.3g") -> str:
    if isinstance(value, float):
        return form % value if math.isfinite(value) else "–"
    return "–" if value is None else str(value)


def _drift(steps: Any) -> str:
    return f"{steps:+g}" if _number(steps) and steps else "0" if steps == 0 else "–"


def _seconds(value: Any) -> str:
    return "–" if not _number(value) else f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
