"""A study as a page, Markdown and one HTML file, with its tables and figures; from its records only."""

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
from neuralop_mup.experiments import wording as say
from neuralop_mup.experiments.findings import mean_metric, other_losses, verdict
from neuralop_mup.files import write_atomically
from neuralop_mup.tuning.outcome import is_complete, plain
from neuralop_mup.tuning.study import Study
from neuralop_mup.tuning.summary import Results

__all__ = ["run_cost", "run_table", "table", "versions", "write_report"]

#: Distributions whose versions decide what a run gives.
_PACKAGES = ("torch", "neuraloperator", "mup", "optuna")


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


def table(results: Results) -> list[list[str]]:
    """The summary as rows of text, the header first; columns that would be empty are left out."""
    study, terms = results.study, other_losses(results.records)
    columns: dict[str, list[str]] = {}
    for row in results.summary(run_cost(study)):
        here = row["size"] != study.base  # what is carried there says nothing at the base itself
        drift = row["drift"]
        carried = {
            "base's best": _values(say.point(row, "transferred")),
            "its loss here": say.loss_of_row(row, "transferred"),
            "its test loss here": say.number(row["transferred_test"]),
        }
        records = results.carried(row["size"], row["rule"], row["walked"])
        moved = {
            "drift (steps)": f"{drift:+d}" if drift else say.number(drift),
            "drift, fitted": "–" if row["drift_log2"] is None else say.factor(row["drift_log2"]),
            "regret": "–" if row["regret"] is None else _regret(row),
        }
        cells = {
            "walked": say.name_of(row["walked"]) if len(study.walks) > 1 else "–",
            "rule": say.rule_name(row["rule"]) or "–",
            "size": row["size"] or "–",
            "best": _values(say.point(row, "best")) + (" (edge)" if row["at_edge"] else ""),
            "its loss": say.loss_of_row(row, "best"),
            "its test loss": say.number(row["best_test"]),
            "fitted": say.optimum(row["optimum"]),
            **(carried if here else dict.fromkeys(carried, "–")),
            **{f"test {term}": say.number(mean_metric(records, f"test_{term}_loss")) for term in terms},
            **(moved if here else dict.fromkeys(moved, "–")),
            "cost, operations": _times(row["cost_flops"]),
            "cost, time": _times(row["cost_seconds"]),
            "failed": f"{row['failed']}/{row['trials']}" if here else "–",
            "runs": format_seconds(row["seconds"] if here else row["tuning_seconds"]),
        }
        for name, text in cells.items():
            columns.setdefault(name, []).append(text)
    kept = {name: texts for name, texts in columns.items() if set(texts) != {"–"}}
    return [list(kept), *map(list, zip(*kept.values(), strict=True))]


def _regret(row: Mapping[str, Any]) -> str:
    paired = row["regret_paired"]
    return say.percent_interval(paired) if paired is not None and paired.value else say.percent(row["regret"])


def _values(values: Mapping[str, Any]) -> str:
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
    settings: Mapping[str, Any] | None = None,
    title: str | None = None,
    use: Sequence[str] = (),
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
    use : sequence of str
        Lines of Python that load the trained target.

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
        "settings": [["setting", "value"], *([k, say.line(say.cell(v))] for k, v in settings.items())],
        "where": [["what", "value"], *([k, say.line(v)] for k, v in where.items())],
        "command": command,
        "use": "\n".join(use),
        "runs": run_table(results),
    }
    loader = jinja2.PackageLoader("neuralop_mup.experiments")
    pages = jinja2.Environment(
        loader=loader, autoescape=jinja2.select_autoescape(("html.jinja",)), trim_blocks=True, lstrip_blocks=True
    )
    pages.filters |= {
        "aligned": say.aligned,
        "embedded": lambda path: base64.b64encode((folder / path).read_bytes()).decode(),
    }
    for name in ("report.html", "report.md"):
        write_atomically(folder / name, pages.get_template(f"{name}.jinja").render(content))
    run = {"command": command, "seeds": study.seeds, "machine": where, "versions": versions(), "settings": settings}
    run |= {"verdict": said, "summary": results.summary(run_cost(study))}
    write_atomically(folder / "run.json", json.dumps(plain(run), indent=2, allow_nan=False) + "\n")
    return folder / "report.md"


def _figures(results: Results, title: str) -> list[dict[str, str]]:
    """A figure for each hyperparameter that was walked, as PNG and SVG; none where no point has every seed."""
    study, drawn = results.study, []
    labels = {
        size: size if len(study.sizes) > 2 else f"{size}\n({say.size_text(a)})" for size, a in study.sizes.items() if a
    }
    names = ["lr"] if study.swept is None else study.swept
    for name in [n for n in names if n in study.space]:
        panels = plots.panels_of(results, name, labels)
        if not any(curve.x for curves in panels.values() for _, curve in curves):
            continue
        for suffix in ("png", "svg"):
            path = results.folder / f"{name}.{suffix}"
            plots.plot_panels(panels, path, name=name, seeds=len(study.seeds), title=title)
        about = f"Loss against {say.name_of(name)}: one panel a rule, one curve a size"
        drawn.append({"png": f"{name}.png", "svg": f"{name}.svg", "about": about})
    return drawn
