"""A study as a page, Markdown and one HTML file, with its table and figure; from its records only."""

from __future__ import annotations

import base64
import json
import math
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from neuralop_mup._version import __version__
from neuralop_mup.lab import plots
from neuralop_mup.lab import wording as say
from neuralop_mup.lab.files import write_atomically
from neuralop_mup.lab.findings import chosen_by, mean_metric, other_losses, verdict
from neuralop_mup.lab.outcome import is_complete, plain
from neuralop_mup.lab.problems.counting import format_seconds
from neuralop_mup.lab.search import is_number
from neuralop_mup.lab.summary import Results

__all__ = ["aligned_table", "run_table", "table", "verdict", "versions", "write_report"]

#: Distributions whose versions decide what a run gives.
_PACKAGES = ("torch", "neuraloperator", "mup", "optuna")


def table(results: Results, costs: Mapping[Any, float] | None = None) -> list[list[str]]:
    """The summary as rows of text, the header first; columns that would be empty are left out.

    Parameters
    ----------
    results : Results
        Of a study.
    costs : mapping, optional
        Size → operations of a run, for a column of costs.

    Returns
    -------
    list of list of str
        Rows of cells.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> def train(config):
    ...     return 1 + (config["lr"] - 0.5) ** 2
    >>> results = nm.sweep(train, {"lr": [0.25, 0.5, 1.0]}, folder="runs", n_workers=1, progress=False)
    >>> from neuralop_mup.lab.report import table
    >>> table(results)[0]
    ['best', 'its loss', 'fitted', 'runs']
    """
    rows = [_cells(results, row) for row in results.summary(costs.get if costs else None)]
    kept = [name for name in rows[0] if any(row[name] != "–" for row in rows)]
    return [kept, *([row[name] for name in kept] for row in rows)]


def _cells(results: Results, row: Mapping[str, Any]) -> dict[str, str]:
    """A row of the summary as text."""
    records = results.carried(row["size"], row["rule"])
    cells = {
        "rule": say.rule_name(row["rule"]) or "–",
        "size": row["size"] or "–",
        "best": _values(row["best"]) + (" (edge)" if row["at_edge"] else ""),
        "its loss": say.loss_of_row(row, "best"),
        "its test loss": say.number(row["best_test"]),
        "fitted": say.optimum(row["optimum"]),
        "base's best": _values(row["transferred"]),
        "its loss here": say.loss_of_row(row, "transferred"),
        "its test loss here": say.number(row["transferred_test"]),
        "validation error": say.number(mean_metric(records, "validation_error")),  # beside a score
        **{f"test {term}": say.number(mean_metric(records, f"test_{term}_loss")) for term in other_losses(results.records)},
        "drift": "–" if row["drift"] is None else say.factor(row["drift"]),
        "regret": "–" if row["regret"] is None else say.percent_interval(row["regret"]),
        "cost, operations": _times(row["cost_flops"]),
        "cost, time": _times(row["cost_seconds"]),
        "failed": f"{row['failed']}/{row['trials']}",
        "runs": format_seconds(row["seconds"]),
    }
    if row["size"] != results.study.base:
        return cells
    # What is carried there says nothing at the base itself.
    empty = dict.fromkeys(("base's best", "its loss here", "its test loss here", "drift", "regret", "failed"), "–")
    return {**cells, **empty, "runs": format_seconds(row["tuning_seconds"])}


def aligned_table(results: Results) -> str:
    """The table in Markdown, whose columns also line up in a terminal.

    Parameters
    ----------
    results : Results
        Of a study.

    Returns
    -------
    str
        Lines without a newline at the end.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> def train(config):
    ...     return 1 + (config["lr"] - 0.5) ** 2
    >>> results = nm.sweep(train, {"lr": [0.25, 0.5, 1.0]}, folder="runs", n_workers=1, progress=False)
    >>> from neuralop_mup.lab import aligned_table
    >>> print(aligned_table(results).splitlines()[0])
    | best | its loss | fitted | runs |
    """
    return say.aligned(table(results))


def _values(values: Mapping[str, Any] | None) -> str:
    if not values:
        return "–"
    return say.number(next(iter(values.values()))) if len(values) == 1 else say.params(values)


def _times(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.2f}×"


def run_table(results: Results) -> list[list[str]]:
    """Every run, the header first."""
    names = list(dict.fromkeys(k for r in results.records for k in r["params"]))
    head = ["size", "rule", *names, "seed", "outcome", "loss", "test loss", "seconds", "error"]
    rows = [
        [
            r["size"] or "–",
            r["rule"] or "–",
            *(say.number(r["params"].get(name)) for name in names),
            str(r["seed"]),
            r["outcome"],
            say.number(r["loss"], "%.4g"),
            say.number((r["metrics"] or {}).get("test_loss"), "%.4g"),
            f"{r['seconds']:.2f}",
            say.line(r["error"] or ""),
        ]
        for r in results.records
    ]
    return [head, *rows]


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


def write_report(
    results: Results,
    *,
    command: str,
    title: str | None = None,
    settings: Mapping[str, Any] | None = None,
    costs: Mapping[Any, float] | None = None,
    use: str = "",
) -> Path:
    """Write ``report.md``, ``report.html``, ``run.json`` and the figure into the study's folder.

    Parameters
    ----------
    results : Results
        Of a study.
    command : str
        The command that gives the same study.
    title : str, optional
        First line of the report; the study's name by default.
    settings : mapping, optional
        What the reader should know of how it was made; the study's own settings by default.
    costs : mapping, optional
        Size → operations of a run.
    use : str, default ""
        Lines of Python that load the trained target.

    Returns
    -------
    Path
        The Markdown report. ``report.html`` beside it is one file with the figure in it and a table of all runs that sorts.

    Raises
    ------
    MupError
        If the folder cannot be written.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> def train(config):
    ...     return 1 + (config["lr"] - 0.5) ** 2
    >>> results = nm.sweep(train, {"lr": [0.25, 0.5, 1.0]}, folder="runs", n_workers=1, progress=False)
    >>> from neuralop_mup.lab import write_report
    >>> write_report(results, command="python sweep.py").name
    'report.md'
    """
    import jinja2

    study, folder, title = results.study, results.folder, title or results.study.name
    folder.mkdir(parents=True, exist_ok=True)
    said, settings, where = verdict(results), settings or study.fixed, {**machine(), **versions()}
    failed = [r for r in results.records if not is_complete(r)]
    content = {
        "title": title,
        "verdict": [*said, *study.notes],
        "table": table(results, costs),
        "figures": _figures(results, title),
        "chosen_by": chosen_by(results) or "validation loss",
        "failures": run_table(Results(study, failed, folder)) if failed else None,
        "settings": [["setting", "value"], *([k, say.line(say.cell(v))] for k, v in settings.items())],
        "where": [["what", "value"], *([k, say.line(v)] for k, v in where.items())],
        "command": command,
        "use": use,
        "runs": run_table(results),
    }
    pages = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=jinja2.select_autoescape(("html.jinja",)),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["aligned"] = say.aligned
    pages.filters["embedded"] = lambda path: base64.b64encode((folder / path).read_bytes()).decode()
    for name in ("report.html", "report.md"):
        write_atomically(folder / name, pages.get_template(f"{name}.jinja").render(content))
    run = {"command": command, "seeds": study.seeds, "machine": where, "settings": settings, "verdict": said}
    run["summary"] = results.summary(costs.get if costs else None)
    write_atomically(folder / "run.json", json.dumps(plain(run), indent=2, allow_nan=False) + "\n")
    return folder / "report.md"


def _curve(results: Results, name: str, rule: str | None, size: str | None) -> tuple[str, plots.Curve]:
    arguments = results.study.sizes[size]
    records = results.walk(size, rule) or results.carried(size, rule)
    label = f"{size}\n({say.size_text(arguments)})" if arguments else size or ""
    return label, plots.Curve.of(results.curve(records, name), results.optimum(records, name))


def _figures(results: Results, title: str) -> list[dict[str, str]]:
    """Loss against the learning rate, or what else is a grid of numbers, as PNG and SVG; none without a point to draw."""
    study = results.study
    grids = [k for k, v in study.space.items() if isinstance(v, (list, tuple)) and len(v) > 1 and all(map(is_number, v))]
    drawn, loss = [], (chosen_by(results) or "validation loss").removeprefix("the score ")
    for name in ["lr"] if "lr" in study.space else grids[:1]:
        panels = {rule: [_curve(results, name, rule, size) for size in study.sizes] for rule in study.rules}
        if not any(curve.x for curves in panels.values() for _, curve in curves):
            continue
        for suffix in ("png", "svg"):
            plots.plot_panels(
                panels, results.folder / f"{name}.{suffix}", name=name, loss=loss, seeds=len(study.seeds), title=title
            )
        about = f"Loss against {say.name_of(name)}: one panel a rule, one curve a size"
        drawn.append({"png": f"{name}.png", "svg": f"{name}.svg", "about": about})
    return drawn
