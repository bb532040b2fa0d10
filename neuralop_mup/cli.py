"""The ``neuralop-mup`` command: options in, calls of the library out; nothing is computed here.

Options with a dot (``--proxy.hidden_channels 16``) are taken apart first, because their names are the arguments of
neuralop's FNO and of the problems and so are not known to argparse. Problems, training and tuning are imported by the
verb that uses them.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralop_mup.errors import MupError, nearest

if TYPE_CHECKING:
    from neuralop_mup.problems import Problem

__all__ = ["main"]

_ABOUT = """Hyperparameter transfer (μP) for Fourier neural operators.

  transfer     tune a small FNO, train a large one with the same hyperparameters, compare with the naive way
  summary      what μP makes of each parameter of a model
  coord-check  do features and their updates keep their size as the model grows?
  data         generate, list and draw the problems' data

neuralop-mup VERB --help tells each one's options."""

#: Groups of dotted options of each verb.
_GROUPS = {
    "transfer": ("proxy", "target", "model", "problem", "search"),
    "summary": ("model", "base"),
    "coord-check": ("model", "base", "problem"),
    "data": ("problem",),
}
#: Arguments of FNO that are Python objects, or that the problem decides.
_NOT_HERE = {"self", "in_channels", "out_channels", "non_linearity", "conv_module", "decomposition_kwargs"}
#: Arguments in which proxy and target may differ.
_SCALED = ("hidden_channels", "n_modes", "max_n_modes")
_CARRYING = ("log-modes", "operator-norm", "none")
#: What a transfer uses where the user says nothing: (problem, preset) → settings.
_DEFAULTS: dict[tuple[str, str], dict[str, Any]] = {
    ("burgers", "cpu"): {"proxy": (16, 8), "target": (64, 32), "epochs": 8, "lr": "1e-3:6.4e-2", "schedule": "cosine"},
    ("darcy", "cpu"): {"proxy": (16, 8), "target": (32, 16), "epochs": 5, "lr": "1e-3:6.4e-2", "schedule": "cosine"},
    # Li, Yoo and Yang (arXiv 2506.19396): width 64, from K = 3 (n_modes counts both signs) to the most they train.
    ("burgers", "paper"): {
        "proxy": (64, 6),
        "target": (64, 1024),
        "epochs": 750,
        "lr": "5e-4:3.2e-2",
        "schedule": "halve:50",
    },
    ("darcy", "paper"): {
        "proxy": (64, 6),
        "target": (64, 48),
        "epochs": 300,
        "lr": "5e-4:3.2e-2",
        "schedule": "halve:100,150,200",
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; those of this process by default.

    Returns
    -------
    int
        0; 1 if the target's training or the coordinate check failed; 2 for something the user can mend, told in one
        line on stderr; 130 after Ctrl-C.
    """
    argv = [str(word) for word in (sys.argv[1:] if argv is None else argv)]
    verb = argv[0] if argv and argv[0] in _VERBS else None
    try:
        if verb is None:
            return _top(argv)
        return _VERBS[verb](argv[1:])
    except MupError as error:
        print(f"neuralop-mup: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = "the same command resumes after the last finished trial" if verb == "transfer" else "run it again"
        print(f"neuralop-mup: interrupted; {again}.", file=sys.stderr)
        return 130
    except SystemExit as stop:  # argparse's --help and --version
        return int(stop.code or 0)
    except BrokenPipeError:
        # The reader (head, less) has gone; Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Parser(argparse.ArgumentParser):
    """argparse that leaves telling of errors to :func:`main`, and takes no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> None:
        raise MupError(f"{message} ({self.prog} --help lists the options).")

    def option(self, name: str, help: str, **options: Any) -> None:
        """An option whose default is shown."""
        default = options.get("default")
        shown = "" if default is None or default is False else f" [{default}]"
        self.add_argument(name, help=help.replace("%", "%%") + shown, **options)


def _top(argv: list[str]) -> int:
    from neuralop_mup import __version__

    parser = _Parser(prog="neuralop-mup", usage="neuralop-mup VERB [options]", description=_ABOUT)
    parser.add_argument("--version", action="version", version=f"neuralop-mup {__version__}")
    if not argv:
        parser.print_help()
        return 0
    if not argv[0].startswith("-"):
        raise MupError(f"There is no verb {argv[0]!r}; {nearest(argv[0], _VERBS)}")
    _, unknown = parser.parse_known_args(argv)
    raise MupError(f"There is no option {unknown[0]!r} before a verb; {nearest(unknown[0], ['--help', '--version'])}")


def _read(parser: _Parser, verb: str, argv: Sequence[str]) -> tuple[argparse.Namespace, dict[str, dict[str, str]]]:
    """Plain options, and the dotted ones as ``{group: {name: text}}``."""
    plain: list[str] = []
    dotted: dict[str, dict[str, str]] = {group: {} for group in _GROUPS[verb]}
    words = iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        group, dot, name = option.removeprefix("--").partition(".")
        if not word.startswith("--") or not dot:
            plain.append(word)
            continue
        if group not in dotted:
            raise MupError(f"There is no option {option!r}; {nearest(option, [f'--{g}.{name}' for g in dotted])}")
        if not equals:
            value = next(words, "")
        if not value or value.startswith("--"):
            raise MupError(f"{option} needs a value, as in {option} VALUE.")
        if name in dotted[group]:
            raise MupError(f"{option} is given twice; give it once.")
        dotted[group][name] = value
    # A dotted help text costs an import of neuralop, so it is made only when it is asked for.
    if {"-h", "--help"} & set(plain):
        parser.epilog = _dotted_help(verb)
    options, rest = parser.parse_known_args(plain)
    unknown = [word for word in rest if word.startswith("-")]
    if unknown:
        option = unknown[0].partition("=")[0]
        valid = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
        raise MupError(f"There is no option {option!r}; {nearest(option, valid)}")
    if rest:
        raise MupError(f"There is an argument too many: {rest[0]!r}.")
    return options, dotted


# ---------------------------------------------------------------------------------------------------- transfer


@dataclasses.dataclass(frozen=True)
class _Study:
    """A transfer that is ready to be started: every setting spelled out."""

    problem: Problem
    arguments: dict[str, Any]  # of neuralop_mup.tuning.plan_transfer


def _transfer(argv: list[str]) -> int:
    parser = _Parser(
        prog="neuralop-mup transfer",
        description="Algorithm 1 of arXiv 2506.19396: search at a small size, carry the best values to a large one.",
    )
    parser.add_argument("problem", nargs="?", default="burgers", help="burgers or darcy [burgers]")
    parser.option("--preset", "sizes, data and epochs: cpu (minutes) or paper (as published)", default="cpu")
    parser.option("--rule", f"μP rule that carries the values: {', '.join(_CARRYING)}", default="log-modes")
    parser.option("--rules", "rules to compare, a comma list; --rule and standard (SP) always are")
    parser.option("--lr", "learning rates: LOW:HIGH in factors of 2, or a comma list [by preset, below]")
    parser.option("--seeds", "number of seeds", type=int, default=3)
    parser.option("--epochs", "epochs of each run [by preset, below]", type=int)
    parser.option("--batch_size", "samples a batch", type=int, default=20)
    parser.option("--optimizer", "adam, adamw, neuralop-adamw or sgd", default="adam")
    parser.option("--weight_decay", "weight decay", type=float, default=0.0)
    parser.option("--beta2", "second beta of Adam", type=float, default=0.999)
    parser.option("--schedule", "of lr: cosine, constant, halve:50 (every 50 epochs), halve:100,150 [by preset]")
    parser.option("--clip_spectral", "clip each gradient entry of the spectral kernels here", type=float)
    parser.option("--verify", "search at the target too, to measure drift and regret", action="store_true")
    parser.option("--workers", "trials at once, each in its own process [all cores]", type=int)
    parser.option("--output", "folder for results; the same command resumes there [runs/PROBLEM-transfer]")
    parser.option("--dry-run", "print the plan and stop", action="store_true")
    options, dotted = _read(parser, "transfer", argv)
    study = _study(options, dotted)
    if options.workers is not None and options.workers < 1:
        raise MupError(f"--workers must be 1 or more, but it is {options.workers}.")
    folder = Path(options.output or f"runs/{study.problem.name}-transfer")
    print(_plan_text(study, folder))
    if options.dry_run:
        return 0

    from neuralop_mup import report, tuning
    from neuralop_mup.training import train_run

    if folder.exists() and not folder.is_dir():
        raise MupError(f"--output {folder} is a file; name a folder.")
    # Here and not in the workers, which would each generate the same data.
    study.problem.load()
    result = tuning.transfer(train_run, folder=folder, n_workers=options.workers, **study.arguments)
    report.write_report(
        result,
        folder,
        settings=_settings(study),
        command=shlex.join(["neuralop-mup", "transfer", *argv]),
        title=f"μTransfer on {study.problem.name}",
    )
    print()
    print("\n".join(report.verdict(result)))
    print()
    print(report.aligned(report.table(result)))
    print(f"\nReport, figures and every trial: {folder}")
    return 1 if report.target_failures(result, result.rule) else 0


def _study(options: argparse.Namespace, dotted: Mapping[str, Mapping[str, str]]) -> _Study:
    """Defaults, preset and options put together and checked: what fails here would fail in every trial."""
    import torch

    from neuralop_mup.rules import check_rule
    from neuralop_mup.training import build_model, estimate_flops

    problem = _problem(options.problem, dotted["problem"], options.preset)
    defaults = _DEFAULTS.get((problem.name, options.preset), _DEFAULTS["burgers", "cpu"])
    if options.rule not in _CARRYING:
        raise MupError(f"--rule {options.rule} carries nothing; {nearest(options.rule, _CARRYING)}")
    compared = [name.strip() for name in (options.rules or "").split(",") if name.strip()]
    rules = tuple(dict.fromkeys([options.rule, *map(check_rule, compared or ["standard"])]))
    if options.seeds < 1:
        raise MupError(f"--seeds must be 1 or more, but it is {options.seeds}.")

    shared = _fno_arguments("model", dotted["model"], problem.n_dim)
    sizes = {}
    for which in ("proxy", "target"):
        width, modes = defaults[which]
        stock = {"hidden_channels": width, "n_modes": (modes,) * problem.n_dim}
        sizes[which] = {**stock, **shared, **_fno_arguments(which, dotted[which], problem.n_dim)}
    _same_otherwise(sizes["proxy"], sizes["target"])
    space = {"lr": _numbers("--lr", options.lr or defaults["lr"]), **_searched(dotted["search"])}
    settings = {
        "epochs": options.epochs if options.epochs is not None else defaults["epochs"],
        "batch_size": options.batch_size,
        "optimizer": options.optimizer,
        "weight_decay": options.weight_decay,
        "beta2": options.beta2,
        "schedule": options.schedule or defaults["schedule"],
        "clip_spectral": options.clip_spectral,
    }
    for name in ("epochs", "batch_size"):
        if settings[name] < 1:
            raise MupError(f"--{name} must be 1 or more, but it is {settings[name]}.")
    if not 0 <= settings["weight_decay"] < math.inf:
        raise MupError(f"--weight_decay must be 0 or more, but it is {settings['weight_decay']}.")
    fixed = {"problem": problem.name, "problem_args": dataclasses.asdict(problem), **settings}
    fixed = {name: value for name, value in fixed.items() if name not in space}

    estimate_flops({**fixed, "model": sizes["proxy"], "base": sizes["proxy"]})  # names an unknown optimizer
    with torch.device("meta"):
        build_model(problem, sizes["proxy"], sizes["proxy"], options.rule)
        for rule in rules:
            build_model(problem, sizes["target"], sizes["proxy"], rule)
    arguments = {
        **sizes,
        "space": space,
        "rule": options.rule,
        "rules": rules,
        "fixed": fixed,
        "seeds": tuple(range(options.seeds)),
        "verify": options.verify,
    }
    return _Study(problem, arguments)


def _same_otherwise(proxy: Mapping[str, Any], target: Mapping[str, Any]) -> None:
    """Refuse sizes that differ in what no rule scales: the base would not be the model that was tuned."""
    stock = _fno_signature()
    for name in dict.fromkeys([*proxy, *target]):
        ends = [size.get(name, stock[name]) for size in (proxy, target)]
        if name not in _SCALED and ends[0] != ends[1]:
            raise MupError(
                f"{name} is {ends[0]} at the proxy and {ends[1]} at the target, but no rule carries hyperparameters "
                f"over that: let only {', '.join(_SCALED)} differ, and set --model.{name} for both."
            )


def _searched(texts: Mapping[str, str]) -> dict[str, list]:
    """Hyperparameters searched besides lr: ``--search.lr_mult.spectral 0.5,1,2``."""
    space: dict[str, list] = {}
    for name, text in texts.items():
        if name not in (valid := _search_names()):
            option = f"--search.{name}"
            raise MupError(f"There is no option {option!r}; {nearest(option, [f'--search.{v}' for v in valid])}")
        values = _numbers(f"--search.{name}", text, low=0 if name == "weight_decay" else None)
        whole = name in ("batch_size", "epochs")
        if whole and any(value != int(value) for value in values):
            raise MupError(f"--search.{name} {text}: give whole numbers.")
        space[name] = [int(value) for value in values] if whole else values
    return space


def _search_names() -> list[str]:
    from neuralop_mup.rules import ROLES

    masters = [f"{kind}.{role}" for kind in ("lr_mult", "init_mult") for role in ROLES]
    return [*masters, "batch_size", "weight_decay", "beta2", "epochs"]


def _plan_text(study: _Study, folder: Path) -> str:
    """What will run: sizes, stages, trials, and their cost in trainings of the target."""
    import torch

    from neuralop_mup import report
    from neuralop_mup.training import build_model, estimate_flops
    from neuralop_mup.tuning import plan_transfer

    arguments, problem = study.arguments, study.problem
    fixed, space = arguments["fixed"], arguments["space"]
    costs: dict[tuple, float] = {}

    def cost(planned: Any) -> float:
        point = planned.params or {name: values[0] for name, values in space.items()}
        key = (planned.size, point.get("epochs"))
        if key not in costs:
            size, base = arguments[planned.size], arguments["proxy"]
            costs[key] = estimate_flops({**fixed, **point, "model": size, "base": base})
        return costs[key]

    trials = plan_transfer(**arguments)
    # The transferred point is one of those that --verify walks; it is trained once.
    again = arguments["rules"] if arguments["verify"] else ()
    once = next((cost(trial) for trial in trials if trial.stage == "target"), 1.0)
    rows, total = [["stage", "trials", "cost (1 = one training of the target)"]], 0.0
    for stage in ("proxy", "target", "verify"):
        run = [trial for trial in trials if trial.stage == stage]
        if not run:
            continue
        spent = sum(map(cost, run))
        note = ""
        if stage == "verify":
            shared = len(again) * len(arguments["seeds"])
            spent -= shared * once
            note = f" ({shared} shared with target)"
        total += spent
        rows.append([stage, f"{len(run)}{note}", f"{spent / once:.2f}"])
    rows.append(["all", str(len(trials)), f"{total / once:.2f}"])

    lines = [f"transfer on {problem.name}: " + _phrase(dataclasses.asdict(problem))]
    for which in ("proxy", "target"):
        with torch.device("meta"):
            model = build_model(problem, arguments[which], arguments[which], "standard")
        count = sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters())
        lines.append(f"  {which:<7} {_phrase(arguments[which])}: {count:,} parameters")
    lines.append(f"  rules   {', '.join(dict.fromkeys([*arguments['rules'], 'standard']))}")
    lines += [f"  search  {name}: {' '.join(f'{value:g}' for value in values)}" for name, values in space.items()]
    lines.append(f"  seeds   {len(arguments['seeds'])}")
    lines.append("  run     " + _phrase({k: v for k, v in fixed.items() if k not in ("problem", "problem_args")}))
    lines += [f"  output  {folder}", "", report.aligned(rows), ""]
    lines.append(f"One training of the target is about {once:.1e} floating-point operations, from its shapes.")
    return "\n".join(lines)


def _settings(study: _Study) -> dict[str, Any]:
    arguments = study.arguments
    fixed = arguments["fixed"]
    return {
        "problem": study.problem.name,
        **{f"problem.{name}": value for name, value in fixed["problem_args"].items()},
        **{f"proxy.{name}": value for name, value in arguments["proxy"].items()},
        **{f"target.{name}": value for name, value in arguments["target"].items()},
        **{f"search.{name}": values for name, values in arguments["space"].items()},
        **{name: arguments[name] for name in ("rule", "rules", "seeds", "verify")},
        **{name: value for name, value in fixed.items() if name not in ("problem", "problem_args")},
    }


# ------------------------------------------------------------------------------------------------- other verbs


def _summary(argv: list[str]) -> int:
    parser = _Parser(
        prog="neuralop-mup summary", description="The plan of a neuralop FNO: one row per parameter. Trains nothing."
    )
    parser.option("--base", "base-shape file, instead of --base.NAME VALUE")
    parser.option("--n_dim", "dimensions of the grid", type=int, default=2)
    parser.option("--in_channels", "input channels", type=int, default=1)
    parser.option("--out_channels", "output channels", type=int, default=1)
    parser.option("--rule", "log-modes, operator-norm, none or standard", default="log-modes")
    parser.option("--format", "text, markdown or json", default="text")
    options, dotted = _read(parser, "summary", argv)
    if options.format not in (formats := ("text", "markdown", "json")):
        raise MupError(f"There is no format {options.format!r}; {nearest(options.format, formats)}")
    for name in ("n_dim", "in_channels", "out_channels"):
        if getattr(options, name) < 1:
            raise MupError(f"--{name} must be 1 or more, but it is {getattr(options, name)}.")
    if options.base and dotted["base"]:
        raise MupError("--base FILE and --base.NAME VALUE are two ways to give the base; use one.")
    n_dim = options.n_dim
    stock = {"hidden_channels": 128, "n_modes": (64,) * n_dim}
    model = {**stock, **_fno_arguments("model", dotted["model"], n_dim)}
    base = {"hidden_channels": 32, "n_modes": (12,) * n_dim, **_fno_arguments("base", dotted["base"], n_dim)}

    import torch

    import neuralop_mup as nm

    channels = {"in_channels": options.in_channels, "out_channels": options.out_channels}
    # On the meta device a plan of a model with 10^9 parameters costs no memory.
    with torch.device("meta"):
        fno = nm.parametrize(_fno({**channels, **model}), base=options.base or base, rule=options.rule)
    plan = nm.summary(fno)
    print({"text": plan.__str__, "markdown": plan.to_markdown, "json": plan.to_json}[options.format]())
    return 0


def _coord_check(argv: list[str]) -> int:
    parser = _Parser(
        prog="neuralop-mup coord-check",
        description="Train a few steps at several sizes; RMS features and updates should not depend on size.",
    )
    parser.add_argument("problem", nargs="?", default="burgers", help="burgers or darcy [burgers]")
    parser.option("--widths", "values of hidden_channels to compare, a comma list [16,32,64,128]")
    parser.option("--modes", "values of n_modes to compare, a comma list, instead of --widths")
    parser.option("--rule", "log-modes, operator-norm, none or standard", default="log-modes")
    parser.option("--steps", "measure after these training steps", default="1,5,10")
    parser.option("--lr", "learning rate at the base size", type=float, default=1e-3)
    parser.option("--seeds", "number of seeds; a few leave slopes noisy", type=int, default=10)
    parser.option("--batch_size", "samples a batch", type=int, default=20)
    parser.option("--tolerance", "largest |slope| of an update that passes", type=float, default=0.25)
    parser.option("--output", "folder for coord_check.md, .json and .png [runs/PROBLEM-coord-check]")
    options, dotted = _read(parser, "coord-check", argv)
    if options.widths and options.modes:
        raise MupError("--widths and --modes cannot both vary; give one of them.")
    problem = _problem(options.problem, dotted["problem"])
    varied = "n_modes" if options.modes else "hidden_channels"
    flag = "--modes" if options.modes else "--widths"
    sizes = sorted(set(_whole(flag, options.modes or options.widths or "16,32,64,128")))
    if len(sizes) < 2:
        raise MupError(f"{flag} {options.modes or options.widths} is one size; a slope needs at least two sizes.")
    steps = _whole("--steps", options.steps)
    for name in ("seeds", "batch_size"):
        if getattr(options, name) < 1:
            raise MupError(f"--{name} must be 1 or more, but it is {getattr(options, name)}.")
    if not 0 < options.lr < math.inf:
        raise MupError(f"--lr must be above 0, but it is {options.lr}.")
    if varied in dotted["model"]:
        raise MupError(f"--model.{varied} is what {flag} varies; leave it out.")

    import neuralop_mup as nm
    from neuralop_mup.training import build_model

    n_dim = problem.n_dim
    model = {"hidden_channels": 32, "n_modes": (16,) * n_dim, **_fno_arguments("model", dotted["model"], n_dim)}

    def sized(size: int) -> dict[str, Any]:
        return {**model, varied: (size,) * n_dim if varied == "n_modes" else size}

    base = {**sized(sizes[0]), **_fno_arguments("base", dotted["base"], n_dim)}

    def build(size: int) -> Any:
        return build_model(problem, sized(size), base, options.rule)

    import torch

    with torch.device("meta"):  # refuse before any data is made
        for size in sizes:
            build(size)
    folder = _made(Path(options.output or f"runs/{problem.name}-coord-check"))
    data = problem.load()
    processor = data.processor()
    processor.train()
    train, _ = data.loaders(batch_size=options.batch_size, seed=0)
    batches = [processor.preprocess(batch) for batch, _ in zip(train, range(max(steps)), strict=False)]
    check = nm.coord_check(build, sizes, batches, lr=options.lr, steps=steps, seeds=options.seeds, size_name=varied)
    passed = check.passed(options.tolerance)

    from neuralop_mup import report
    from neuralop_mup.plots import plot_coord_check

    updates = [row for row in check.slopes if row["kind"] == "update"]
    # NaN, from features that are zero or diverged, is worse than any number.
    worst = max(updates, key=lambda row: math.inf if math.isnan(row["slope"]) else abs(row["slope"]))
    flat = abs(worst["slope"]) <= options.tolerance
    said = (
        f"Coordinate check of {options.rule} over {varied} {', '.join(map(str, sizes))} "
        f"{'passed' if passed else 'did not pass'}: the steepest update has slope {worst['slope']:+.2f} "
        f"({worst['block']}, t = {worst['step']}; |slope| ≤ {options.tolerance:g} passes)"
        + (", but features at init are not flat." if flat and not passed else ".")
    )
    command = shlex.join(["neuralop-mup", "coord-check", *argv])
    record = {
        "command": command,
        "passed": passed,
        "tolerance": options.tolerance,
        "problem": problem.name,
        "problem_args": dataclasses.asdict(problem),
        "model": model,
        "base": base,
        "rule": options.rule,
        "lr": options.lr,
        "varied": varied,
        "sizes": sizes,
        "steps": steps,
        "seeds": options.seeds,
        "versions": report.versions(),
        "slopes": check.slopes,
        "records": check.records,
    }
    (folder / "coord_check.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    lines = [f"# Coordinate check on {problem.name}", f"**{said}**"]
    lines += [f"Log-log slopes against {varied}, [range over seeds]:", check.to_markdown()]
    lines += ["![RMS features and updates against size](coord_check.png)", f"```\n{command}\n```"]
    (folder / "coord_check.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    plot_coord_check(
        check, folder / "coord_check.png", tolerance=options.tolerance, title=f"{problem.name}, rule {options.rule}"
    )
    print(f"{check.to_markdown()}\n\n{said}\nTable, records and figure: {folder}")
    return 0 if passed else 1


def _data(argv: list[str]) -> int:
    parser = _Parser(
        prog="neuralop-mup data",
        description="Generate a problem's data, or find it in the cache (folder: NEURALOP_MUP_CACHE).",
    )
    parser.add_argument("problem", nargs="?", default="burgers", help="burgers or darcy [burgers]")
    parser.option("--preset", "cpu or paper", default="cpu")
    parser.option("--list", "list the cached files and stop", action="store_true")
    parser.option("--plot", "also draw samples into this .png or .svg")
    options, dotted = _read(parser, "data", argv)

    from neuralop_mup.problems.cache import cache_folder

    folder = cache_folder()
    if options.list:
        files = sorted(folder.glob("*.pt")) if folder.is_dir() else []
        for path in files:
            print(f"{path.stat().st_size / 2**20:9.1f} MiB  {path}")
        print(f"{len(files)} cached {'file' if len(files) == 1 else 'files'} in {folder}")
        return 0
    problem = _problem(options.problem, dotted["problem"], options.preset)
    target = _drawable(options.plot) if options.plot else None
    data = problem.load()
    print(f"{problem.name}: {_phrase(dataclasses.asdict(problem))}")
    print(f"file  {folder / f'{problem.name}-{problem.key[:24]}.pt'}\nkey   {problem.key}\n")

    from neuralop_mup import plots, report

    rows = [["part", "shape", "mean", "std", "min", "max"]]
    for split in ("train", "val", "test"):
        for letter, values in zip("xy", getattr(data, split), strict=True):
            numbers = (values.mean(), values.std(), values.min(), values.max())
            shape = "×".join(map(str, values.shape))
            rows.append([f"{split} {letter}", shape, *(f"{float(number):.4g}" for number in numbers)])
    print(report.aligned(rows))
    if target:
        plots.plot_fields(*data.test, target, title=f"{problem.name}, test samples")
        print(f"\nfigure {target}")
    return 0


_VERBS: dict[str, Callable[[list[str]], int]] = {
    "transfer": _transfer,
    "summary": _summary,
    "coord-check": _coord_check,
    "data": _data,
}


# ------------------------------------------------------------------------------------ from text to arguments


def _problem(name: str, texts: Mapping[str, str], preset: str = "cpu") -> Problem:
    """The problem with the preset's arguments and the user's on top."""
    from neuralop_mup.problems import PROBLEMS, get_problem

    if name not in PROBLEMS:
        raise MupError(f"There is no problem {name!r}; {nearest(name, PROBLEMS)}")
    stock = dataclasses.asdict(PROBLEMS[name].preset(preset))
    return get_problem(name, **{**stock, **_values("problem", texts, stock)})


def _fno_signature() -> dict[str, Any]:
    """Arguments of neuralop's FNO that can be written on a command line, with their defaults."""
    from neuralop.models import FNO

    parameters = inspect.signature(FNO.__init__).parameters.values()
    return {
        p.name: 1 if p.default is p.empty else p.default
        for p in parameters
        if p.name not in _NOT_HERE and p.kind is p.POSITIONAL_OR_KEYWORD
    }


def _fno_arguments(group: str, texts: Mapping[str, str], n_dim: int) -> dict[str, Any]:
    """Arguments of FNO from text; one number of modes stands for every axis."""
    valid = _fno_signature()
    for name in texts:
        if name in _NOT_HERE - {"self"}:
            why = "decided by the data" if name.endswith("channels") else "a Python object"
            raise MupError(f"--{group}.{name} is {why}; it cannot be given on the command line, only from Python.")
    modes = {name: texts[name] for name in ("n_modes", "max_n_modes") if name in texts}
    values = _values(group, {name: text for name, text in texts.items() if name not in modes}, valid)
    for name, text in modes.items():
        given = _whole(f"--{group}.{name}", text)
        if len(given) not in (1, n_dim):
            axes = f"{n_dim} {'axis' if n_dim == 1 else 'axes'}"
            raise MupError(
                f"--{group}.{name} {text} gives {len(given)} numbers for a grid of {axes}: give one, or {n_dim}."
            )
        values[name] = tuple(given) if len(given) == n_dim else tuple(given) * n_dim
    for name in ("hidden_channels", "n_layers"):
        if name in values and (not isinstance(values[name], int) or values[name] < 1):
            raise MupError(f"--{group}.{name} must be a whole number of 1 or more, but it is {texts[name]}.")
    return values


def _fno(arguments: Mapping[str, Any]) -> Any:
    from neuralop.models import FNO

    try:
        return FNO(**arguments)
    except Exception as error:  # the constructor's reason is what the user needs
        raise MupError(f"FNO cannot be built from {_phrase(arguments)}: {type(error).__name__}: {error}") from error


def _values(group: str, texts: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Text to values of the kind that the defaults have."""
    valid = [f"--{group}.{name}" for name in defaults]
    values = {}
    for name, text in texts.items():
        option = f"--{group}.{name}"
        if name not in defaults:
            raise MupError(f"There is no option {option!r}; {nearest(option, valid)}")
        values[name] = _value(option, text, defaults[name])
    return values


def _value(option: str, text: str, like: Any) -> Any:
    value = _scalar(text) if "," not in text else tuple(_scalar(part) for part in text.split(",") if part)
    kind = "yes or no (true, false)" if isinstance(like, bool) else None
    if kind and not isinstance(value, bool):
        raise MupError(f"{option} must be {kind}, but it is {text!r}.")
    number = isinstance(like, (int, float)) and not isinstance(like, bool)
    if number and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise MupError(f"{option} must be a number, but it is {text!r}.")
    return value


def _scalar(text: str) -> Any:
    text = text.strip()
    if text.lower() in (words := {"true": True, "yes": True, "false": False, "no": False, "none": None}):
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _numbers(option: str, text: str, low: float | None = None) -> list[float]:
    """``LOW:HIGH`` in factors of 2, or a comma list; positive unless ``low`` says otherwise."""
    from neuralop_mup.tuning import log2_grid

    ends = text.split(":")
    try:
        values = [float(part) for part in (ends if len(ends) == 2 else text.split(","))]
    except ValueError:
        raise MupError(f"{option} {text} is neither LOW:HIGH nor a comma list of numbers.") from None
    if not all(math.isfinite(value) and (value > 0 if low is None else value >= low) for value in values):
        raise MupError(f"{option} {text}: every number must be {'above 0' if low is None else f'{low} or more'}.")
    if len(ends) == 2:
        try:
            return log2_grid(*values)
        except MupError as error:
            raise MupError(f"{option} {text}: {error}") from None
    if len(set(values)) < len(values):
        raise MupError(f"{option} {text} has a number twice; give each once.")
    return values


def _whole(option: str, text: str) -> list[int]:
    """A comma list of whole numbers of 1 or more."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise MupError(f"{option} {text} is no comma list of whole numbers.") from None
    if min(values) < 1:
        raise MupError(f"{option} {text}: every number must be 1 or more.")
    return values


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MupError(f"Cannot make the folder {folder}: {error.strerror or error}. Name another --output.") from error
    return folder


def _drawable(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise MupError(f"--plot {text} must end in .png, .svg or .pdf.")
    _made(path.parent)
    return path


def _phrase(values: Mapping[str, Any]) -> str:
    """``{"grid": 128, "n_modes": (8, 8)}`` as ``grid 128, n_modes 8×8``; what is None is left out."""

    def text(value: Any) -> str:
        if not isinstance(value, (tuple, list)):
            return str(value)
        return ("×" if all(isinstance(part, int) for part in value) else " ").join(map(str, value))

    return ", ".join(f"{name} {text(value)}" for name, value in values.items() if value is not None)


def _dotted_help(verb: str) -> str:
    """The dotted options of a verb with their defaults, from the signatures they stand for."""
    from neuralop_mup.problems import PROBLEMS

    groups = _GROUPS[verb]
    lines = ["options that are named after what they set (--NAME VALUE or --NAME=VALUE):"]
    about = {
        "proxy": "argument of FNO at the proxy",
        "target": "argument of FNO at the target",
        "model": "argument of FNO" if verb != "transfer" else "argument of FNO at both sizes",
        "base": "argument of FNO at the base size",
        "problem": "argument of the problem",
        "search": "also searched: LOW:HIGH in factors of 2, or a comma list",
    }
    lines += [f"  {f'--{group}.NAME':<18}{about[group]}" for group in groups]
    if {"model", "base", "proxy"} & set(groups):
        stock = {name: value for name, value in _fno_signature().items() if name not in ("n_modes", "hidden_channels")}
        lines += ["", "FNO: hidden_channels, n_modes (one number for all axes, or a comma list),", _wrapped(stock)]
    if "search" in groups:
        lines += ["", "search:", _fill(_search_names())]
    if "problem" in groups:
        for name, cls in PROBLEMS.items():
            lines += ["", f"{name}:", _wrapped(dataclasses.asdict(cls.preset("cpu")))]
            if "paper" in cls.presets:
                lines += ["  --preset paper:", _wrapped(cls.presets["paper"])]
    if verb == "transfer":
        lines += ["", "by preset:"]
        for (name, preset), d in _DEFAULTS.items():
            sizes = ", ".join(f"{w} hidden_channels {d[w][0]} n_modes {d[w][1]}" for w in ("proxy", "target"))
            lines.append(f"  {name} {preset}: {sizes}, epochs {d['epochs']}, lr {d['lr']}, schedule {d['schedule']}")
    if verb == "summary":
        lines += ["", "Without options: model hidden_channels 128, n_modes 64; base hidden_channels 32, n_modes 12."]
    if verb == "coord-check":
        lines += ["", "Without options: hidden_channels 32, n_modes 16; the base is the smallest size."]
    return "\n".join(lines).replace("%", "%%")


def _wrapped(values: Mapping[str, Any]) -> str:
    return _fill([f"{name} [{value}]" for name, value in values.items()])


def _fill(parts: Iterable[str]) -> str:
    lines = ["  "]
    for part in parts:
        if len(lines[-1]) + len(part) > 112:
            lines.append("  ")
        lines[-1] += part + ", "
    return "\n".join(line.rstrip() for line in lines).rstrip(",")
