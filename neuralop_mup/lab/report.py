"""The report of a study, computed from its records: findings, table, figure, settings, machines and versions."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuralop_mup.lab import plots, wording
from neuralop_mup.lab.files import put
from neuralop_mup.lab.results import Results, mean_metric
from neuralop_mup.lab.statistics import difference
from neuralop_mup.lab.study import edge_of, is_number, the

# Sentences


def verdict(results: Results) -> list[str]:
    """Return the findings of a study as sentences, starting with the result.

    With three seeds or more, rules are compared by a 95 % confidence interval.

    Parameters
    ----------
    results : Results
        Study and records.

    Returns
    -------
    list of str
        Sentences, with the most important one first.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> def train(config):
    ...     return 1 + (config["lr"] - 0.5) ** 2
    >>> results = nm.sweep(train, {"lr": [0.25, 0.5, 1.0]}, folder="runs", n_workers=1, progress=False)
    >>> from neuralop_mup.lab import verdict
    >>> verdict(results)[0]
    'With lr 0.5, the loss is 1.'
    """
    study, rules = results.study, results.study.rules
    compared = rules if len(study.sizes) > 1 else rules[:1]
    sentences = [_loss_under(results, rule) for rule in compared]
    if "standard" in compared[1:]:
        losses = {rule: [r["loss"] for r in results.carried(study.target, rule) if not r["error"]] for rule in compared}
        if found := difference(losses[rules[0]], losses["standard"]):
            sentences.append(f"The loss under {rules[0]}, relative to SP: {found}.")
    lr = (results.row(rules[0])["transferred"] or {}).get("lr")
    if study.interpolate and lr not in (None, *study.space.get("lr", ())):
        sentences.append(f"The lr {wording.number(lr)} is the minimum of a parabola through the losses on the grid.")
    for name, value in (results.row(rules[0], study.base)["best"] or {}).items():
        if edge := edge_of(value, study.space.get(name)):
            sentences.append(
                f"The best {wording.in_words(name)}, {wording.number(value)}, is the {edge} value of the grid, so the "
                f"optimum may lie outside it. Extend the grid {'downwards' if edge == 'lowest' else 'upwards'}."
            )
    if failed := len([r for r in results.records if r["error"]]):
        runs = wording.counted(len(results.records), "run")
        sentences.append(f"{failed} of {runs} did not complete. A configuration with such a run is not selected.")
    if len(study.seeds) == 1:
        more = "three seeds" if len(study.sizes) > 1 else "three calls with different seeds and folders"
        sentences.append(f"A single seed does not show how much the loss varies. Use at least {more}.")
    return sentences


def _loss_under(results: Results, rule: str | None) -> str:
    """Return a sentence about the loss at the last size with the best hyperparameters."""
    row, target = results.row(rule), the(results.study.target)
    if row["transferred"] is None:
        return "No configuration completed for every seed."
    values = f"With {wording.params(row['transferred'])}"
    where = f" of {target} under {wording.rule_name(rule)}" if len(results.study.sizes) > 1 else ""
    if row["failed"]:
        why = next(r["error"] for r in results.carried(row["size"], rule) if r["error"])
        runs = wording.counted(row["trials"], "run")
        return f"{values}, the training{where} failed ({row['failed']} of {runs}: {wording.line(why)[:160]})."
    named, key = _error(results)
    test = wording.number(mean_metric(results.carried(row["size"], rule), key))
    on = f"{' on the validation data' if key else ''}{'' if test == '–' else f' and {test} on the test data'}"
    return f"{values}, the {named}{where} is {wording.loss_of_row(row)}{on}."


# Tables


def aligned_table(results: Results) -> str:
    """Return a summary of the base and of the target under each rule as a Markdown table. Empty columns are omitted.

    Parameters
    ----------
    results : Results
        Study and records.

    Returns
    -------
    str
        The table, without a trailing newline.

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
    study, rows, (name, key) = results.study, [], _error(results)
    name = name if key == "test_score" else "loss"
    metrics = {metric for record in results.records for metric in record["metrics"]}
    terms = sorted(metric for metric in metrics if re.fullmatch("test_.+_loss", metric))  # such as test_equation_loss
    for row in results.summary():
        size, rule, is_base = row["size"], row["rule"], row["size"] == study.base
        if is_base and rule != study.rules[0]:
            continue  # the base is the same under all rules
        records, values = results.carried(size, rule), row["best"] if is_base else row["transferred"]
        failed = len([r for r in results.cell(size, rule) if r["error"]])
        cells = {
            "size": size or "–",
            "rule": "–" if is_base else wording.rule_name(rule),
            "values": f"{wording.params(values)}{' (edge)' if row['at_edge'] else ''}" if values else "–",
            name: wording.loss_of_row(row),
            f"test {name}": wording.number(mean_metric(records, key)),
            "validation loss": wording.number(mean_metric(records, "validation_error")),  # if selected by a score
            "test loss": wording.number(row["transferred_test"]),
            **{f"test {term[5:-5]}": wording.number(mean_metric(records, term)) for term in terms},
            "failed": str(failed or "–"),
            "seconds": f"{row['seconds']:.1f}",
        }
        rows.append(cells)
    kept = [name for name in rows[0] if any(row[name] != "–" for row in rows)]
    return wording.aligned([kept, *([row[name] for name in kept] for row in rows)])


def _error(results: Results) -> tuple[str, str]:
    """Return the name of the error that is used for selection, and the key of its value on the test data, if known."""
    metrics = next((r["metrics"] for r in results.records if r["metrics"]), {})
    if "score" in metrics:
        return str(metrics["score"]), "test_score"
    return (metrics["error_name"], "test_loss") if "error_name" in metrics else ("loss", "")


# Machines and versions


def surroundings(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the versions, hosts and dates of the runs, with one line per combination of versions and host.

    Parameters
    ----------
    records : sequence of dict
        Records with ``versions``, ``host`` and ``date``, if these are known.

    Returns
    -------
    str
        A Markdown list.
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
        Study and records.
    command : str
        Sentence or command that reproduces the study, as Markdown.
    title : str, optional
        Title of the report. Default: the name of the study.
    settings : mapping, optional
        Settings to list. Default: the settings that are shared by all runs.
    errors : str, default ""
        Markdown text about the errors of the trained target.
    findings : sequence of str, default ()
        Sentences about these errors, which are shown at the beginning of the report.
    use : str, default ""
        Python code that loads the trained target.

    Returns
    -------
    Path
        Path of the report.

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
    >>> write_report(results, command="Run `python sweep.py`.").name
    'report.md'
    """
    study, title, path = results.study, title or results.study.name, results.folder / "report.md"
    first, *rest = verdict(results)
    sizes = {label: size for label, size in study.sizes.items() if size}
    settings = settings or {**sizes, "space": study.space, "seeds": study.seeds, **study.fixed}
    chosen = f"The best values minimize the mean of the {_error(results)[0]} over seeds. ± is its standard deviation. "
    names = {r["metrics"].get("error_name", "loss") for r in results.records} - {"loss"}
    failed = [
        [r["size"], r["rule"], wording.params(r["params"]), r["seed"], r["outcome"], wording.line(r["error"])]
        for r in results.records
        if r["error"]
    ]
    sections = {
        "Errors": errors,
        "Runs that did not complete": failed
        and wording.aligned([["size", "rule", "values", "seed", "outcome", "error"], *failed]),
        "Settings": wording.aligned(
            [["setting", "value"], *([name, wording.line(wording.cell(value))] for name, value in settings.items())]
        ),
        "Machines and versions": surroundings(results.records),
        "Use the target": use and f"```python\n{use}\n```",
        "Reproduce": f"{command}\n\nEach run is one line in `results.jsonl`.",
    }
    page = [
        f"# {title}",
        f"**{first}**",
        "\n".join(f"- {sentence}" for sentence in [*findings, *rest, *study.notes]),
        aligned_table(results),
        chosen * (len(study.tuning) > 1) + "".join(f"In this report, the loss is the {name}." for name in names),
        _figure(results, title),
        *(f"## {name}\n\n{text}" for name, text in sections.items() if text),
    ]
    put(results.folder, path, "\n\n".join(filter(None, page)) + "\n")
    return path


def _figure(results: Results, title: str) -> str:
    """Plot losses against the learning rate or another grid and return the Markdown image, or "" if there are no points."""
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
    plots.plot_curves(curves, results.folder / f"{name}.png", name=name, loss=_error(results)[0], title=title)
    return f"![Loss against {wording.in_words(name)}: curve of the base, and the target with the best value]({name}.png)"
