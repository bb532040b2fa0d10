"""A study as a page: what it showed, in a few sentences, its table and figure, and where its runs were trained. From its
records only.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuralop_mup.lab import plots, wording
from neuralop_mup.lab.files import put
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.statistics import told_apart
from neuralop_mup.lab.study import edge_of, is_number, the

# What a study showed


def verdict(results: Results) -> list[str]:
    """Say what a study showed, the answer first, also where the rule did not help.

    Two ways are compared only where there are three seeds or more, and a difference is called one where a 95 % interval over
    them leaves out none.

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
    study = results.study
    said = _carried(results) if len(study.sizes) > 1 else [_best(results)]
    best = results.row(study.rules[0], study.base)["best"] or {}
    for name, value in best.items():
        if edge := edge_of(value, study.space.get(name)):
            of = f" of {the(study.base)}" if study.base else ""
            said.append(
                f"The best {wording.in_words(name)}{of}, {wording.number(value)}, is the {edge} that was searched, so the "
                f"optimum may lie outside: extend its grid {'downwards' if edge == 'lowest' else 'upwards'}."
            )
    failed = len([r for r in results.records if r["error"]])
    if failed:
        runs = wording.counted(len(results.records), "run")
        said.append(f"{failed} of {runs} did not complete; a point with such a seed does not compete.")
    if len(study.seeds) == 1:
        said.append("There was one seed only, so none of these numbers has an error bar.")
    return said


def _best(results: Results) -> str:
    row = results.row(results.study.rules[0])
    if row["best"] is None:
        return "No point completed with every seed."
    if len(results.study.tuning) == 1:
        return f"Training with {wording.params(row['best'])} gives loss {wording.loss_of_row(row)}."
    return f"The best point is {wording.params(row['best'])}, with loss {wording.loss_of_row(row)}."


def _carried(results: Results) -> list[str]:
    """What the base's best values gave at the target, under the rule and as neuralop builds it."""
    study, rule = results.study, results.study.rules[0]
    ours = results.row(rule)
    values, base, target = wording.params(ours["transferred"] or {}), the(study.base), the(study.target)
    if ours["failed"]:
        head = f"Training of {target} failed under {rule} with the best {values} of {base} ({_why(results, ours)})"
    else:
        head = f"The best {values} of {base}, carried to {target} under {rule}, gives loss {wording.loss_of_row(ours)}"
    if rule == "standard" or "standard" not in study.rules:
        return [head + "."]
    naive = results.row("standard")
    if naive["failed"]:
        return [f"{head}; the same values under SP failed ({_why(results, naive)})."]
    losses = {way: [r["loss"] for r in results.carried(study.target, way) if not r["error"]] for way in study.rules}
    apart = told_apart(losses["standard"], losses[rule])
    return [f"{head}; the same values under SP give {wording.loss_of_row(naive)}{apart}."]


def _why(results: Results, row: Mapping[str, Any]) -> str:
    failed = [r for r in results.carried(row["size"], row["rule"]) if r["error"]]
    why = wording.line(failed[0]["error"] or "no finite loss")[:160]
    return f"{len(failed)} of {wording.counted(row['trials'], 'run')}: {why}"


# Its tables


def aligned_table(results: Results) -> str:
    """The summary as a table in Markdown, whose columns also line up in a terminal: the base, and the target under each
    rule. Columns that would be empty are left out.

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
    | values | loss | seconds |
    """
    study, rows = results.study, []
    for row in results.summary():
        if row["size"] == study.base and row["rule"] != study.rules[0]:
            continue  # which is the first one's
        is_base, records = row["size"] == study.base, results.carried(row["size"], row["rule"])
        values = row["best"] if is_base else row["transferred"]
        cells = {
            "size": row["size"] or "–",
            "rule": "–" if is_base else wording.rule_name(row["rule"]),
            "values": f"{wording.params(values)}{' (edge)' if row['at_edge'] else ''}" if values else "–",
            "loss": wording.loss_of_row(row),
            "test loss": wording.number(row["transferred_test"]),
            "validation error": wording.number(_mean(records, "validation_error")),  # beside a score
        }
        for term in _other_losses(results.records):
            cells[f"test {term}"] = wording.number(_mean(records, f"test_{term}_loss"))
        failed = len([r for r in results.cell(row["size"], row["rule"]) if r["error"]])
        rows.append({**cells, "failed": str(failed or "–"), "seconds": f"{row['seconds']:.1f}"})
    kept = [name for name in rows[0] if any(row[name] != "–" for row in rows)]
    return wording.aligned([kept, *([row[name] for name in kept] for row in rows)])


def _other_losses(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of what the runs were also trained on, besides the data: ``["equation"]`` for physics-informed training."""
    keys = {key for record in records for key in record["metrics"]}
    return sorted(key[5:-5] for key in keys if key.startswith("test_") and key.endswith("_loss") and key != "test_loss")


def _mean(records: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    """Mean of a metric over the records that completed; None if one of them lacks it."""
    values = [record["metrics"].get(metric) for record in records if not record["error"]]
    return sum(values) / len(values) if values and None not in values else None


def _score(results: Results) -> str:
    """What values were chosen by."""
    return next((str(r["metrics"]["score"]) for r in results.records if r["metrics"].get("score")), "validation loss")


# Where its runs were trained


def surroundings(records: Sequence[Mapping[str, Any]]) -> str:
    """Versions and hosts of runs, and their first and last date, as their records have them: a line for each that differs.

    Parameters
    ----------
    records : sequence of dict
        With ``versions`` by name, ``host`` and ``date``, where they have them.

    Returns
    -------
    str
    """
    dates: dict[str, list[str]] = {}
    for record in records:
        where = {**record.get("versions", {}), "host": record.get("host", "not recorded")}
        dates.setdefault(", ".join(f"{name} {value}" for name, value in where.items()), []).append(record.get("date", "–"))
    return "\n".join(
        f"- {wording.counted(len(own), 'run')}: {where}; {min(own)} to {max(own)}" for where, own in dates.items()
    )


# The page


def write_report(
    results: Results,
    *,
    command: str,
    title: str | None = None,
    settings: Mapping[str, Any] | None = None,
    errors: str = "",
    findings: Sequence[str] = (),
    use: str = "",
) -> Path:
    """Write ``report.md`` and its figure into the study's folder.

    Parameters
    ----------
    results : Results
        Of a study.
    command : str
        The command that gives the same study.
    title : str, optional
        First line of the report; the study's name by default.
    settings : mapping, optional
        What the reader should know of how it was made; what every run had by default.
    errors : str, default ""
        Markdown about the errors of the trained target.
    findings : sequence of str, default ()
        Sentences about these errors for the beginning of the report.
    use : str, default ""
        Lines of Python that load the trained target.

    Returns
    -------
    Path
        The report.

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
    study, folder, title = results.study, results.folder, title or results.study.name
    first, *rest = verdict(results)
    sizes = {label: size for label, size in study.sizes.items() if size}
    settings = settings or {**sizes, "space": study.space, "seeds": study.seeds, **study.fixed}
    parts = [
        f"# {title}",
        f"**{first}**",
        "\n".join(f"- {sentence}" for sentence in [*findings, *rest, *study.notes]),
        aligned_table(results),
        f"Values are chosen by the mean of the {_score(results)} over seeds; ± is its standard deviation over seeds."
        if len(study.tuning) > 1
        else f"The loss is the {_score(results)}.",
        _figure(results, title),
    ]
    parts += ["## Errors", errors] if errors else []
    if failed := [r for r in results.records if r["error"]]:
        rows = [
            [r["size"], r["rule"], wording.params(r["params"]), r["seed"], r["outcome"], wording.line(r["error"])]
            for r in failed
        ]
        parts += [
            "## Runs that did not complete",
            wording.aligned([["size", "rule", "values", "seed", "outcome", "error"], *rows]),
        ]
    rows = [["setting", "value"], *([name, wording.line(wording.cell(value))] for name, value in settings.items())]
    parts += ["## Settings", wording.aligned(rows), "## Where the runs were trained", surroundings(results.records)]
    if use:
        parts += ["## Use the target", f"```python\n{use}\n```"]
    parts += ["## Again", f"```\n{command}\n```", "Every run is one line of `results.jsonl`."]
    put(folder, folder / "report.md", "\n\n".join(filter(None, parts)) + "\n")
    return folder / "report.md"


def _figure(results: Results, title: str) -> str:
    """Loss against the learning rate, or what else is a grid of numbers, as the page shows it; empty without a point."""
    study = results.study
    grids = [k for k, v in study.space.items() if isinstance(v, (list, tuple)) and len(v) > 1 and all(map(is_number, v))]
    name = "lr" if "lr" in study.space else next(iter(grids), None)
    if name is None or len(study.sizes) == len(study.tuning) == 1 or not results.curve(name):
        return ""
    labels = {
        label: f"{label}\n({wording.size_text(size)})" if size else "each point" for label, size in study.sizes.items()
    }
    curves = [(labels[study.base], None, results.curve(name))]
    for rule in study.rules if len(study.sizes) > 1 else ():
        losses = [r["loss"] for r in results.carried(study.target, rule)]
        value = results.row(rule)["transferred"][name]
        label = f"{labels[study.target]}\n{wording.rule_name(rule)}"
        curves.append((label, rule, {value: losses} if losses else {}))
    plots.plot_curves(curves, results.folder / f"{name}.png", name=name, loss=_score(results), title=title)
    return f"![Loss against {wording.in_words(name)}: the base's curve, and what was trained with its best]({name}.png)"
