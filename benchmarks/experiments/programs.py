"""Whole programs of others: neuralop's own scripts and examples, the two lines put in by a program, nothing else changed.

Each is run as written, with the two lines, and with its own optimizer at once and twice its learning rate, and further until
the best lies between two that are worse, under its own schedule and under a cosine that ends with the training. The test
error says which of these is best, which favours the tuned ones. Programs of many epochs are run for fewer, all alike.

The programs, and the data that they train on, are those of a checkout of neuraloperator's repository at :data:`COMMIT`, of
which the environment variable ``NEURALOP_CHECKOUT`` tells the folder; nothing is downloaded. Its scripts need ``zencfg<1``.
Each is run with the checkout's neuralop: Darcy's data set of release 2.0.0 asks the network although its files are there.
The data of Burgers' equation are double, of which the checkout no longer makes floats: they are written anew as such.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import torch

import neuralop_mup as nm
from experiments.kept import loss_of, missing
from experiments.pages import table
from experiments.training import remembered
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.lab.records import Run

CHECKOUT = "NEURALOP_CHECKOUT"
COMMIT = "93d3f0633e048c915004cd782cb339acf06e1157"
_DATA = Path("neuralop", "data", "datasets", "data")
# Darcy's loader asks the network unless a file of this name is there, which it never reads.
_NEVER_READ = "darcy_train_32.pt"
# Checkpoints of neuralop's Trainer hold what torch.load has refused since 2.6, unless it is told that they are trusted.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
# What runs replace: the number of epochs, and assignments of the optimizer and of the scheduler.
_CALL = r"\((?:[^()]|\([^()]*\))*\)"
_EPOCHS = re.compile(r"(?<=n_epochs=)[\w.]+|(?<=range\()config\.opt\.n_epochs")
_OPTIMIZER = re.compile(rf"^( *)optimizer = AdamW{_CALL}", re.MULTILINE)
_SCHEDULER = re.compile(rf"scheduler = torch\.optim\.lr_scheduler\.\w+{_CALL}")


@dataclass(frozen=True)
class Other:
    """A program: where it is in the checkout, the beginning of its text's SHA-256, and what it is called with.

    ``epochs`` replaces its own number; None leaves it.
    """

    path: str
    sha256: str
    epochs: int | None = None
    arguments: tuple[str, ...] = ()


#: The quickest first.
PROGRAMS: dict[str, Other] = {
    "plot_incremental_FNO_darcy": Other("examples/training/plot_incremental_FNO_darcy.py", "d44cd6989bda"),
    "plot_OTNO_car_cfd": Other("examples/models/plot_OTNO_car_cfd.py", "f87cd96e5615"),
    "plot_FNO_darcy": Other("examples/models/plot_FNO_darcy.py", "addd72837ed2"),
    "train_burgers": Other("scripts/train_burgers.py", "ed233cf0de73", 12),
    "train_burgers_pino": Other("scripts/train_burgers_pino.py", "a3b0fa29eb7f", 12),
    "train_darcy": Other("scripts/train_darcy.py", "3e9ec125a09a", 10, ("--data.folder", f"../{_DATA.as_posix()}")),
    "plot_UNO_darcy": Other("examples/models/plot_UNO_darcy.py", "fec7e120fb92", 8),
    "checkpoint_FNO_darcy": Other("examples/training/checkpoint_FNO_darcy.py", "64c0cff456cc"),
    "plot_SFNO_swe": Other("examples/models/plot_SFNO_swe.py", "fcf08a75e4a8", 10),
    "train_burgers_rno": Other("scripts/train_burgers_rno.py", "27f2b738c1a4", 4),
}
#: At how many times its learning rate a program's own optimizer is tried, before the best is known; and at most, at least.
TIMES = (1.0, 2.0)
_MOST, _LEAST = 256.0, 1 / 32
SCHEDULES = ("own", "cosine")


@dataclass(frozen=True)
class Programs:
    """The experiment.

    Attributes
    ----------
    names : tuple of str
        Keys of :data:`PROGRAMS`.
    seeds : tuple of int
    epochs : int, optional
        Of every program, instead of its own.
    schedules : tuple of str
        Under which the programs' own optimizers are tuned.
    """

    names: tuple[str, ...] = tuple(PROGRAMS)
    seeds: tuple[int, ...] = (0, 1)
    epochs: int | None = None
    schedules: tuple[str, ...] = SCHEDULES

    about = "whole programs of neuralop's with the two lines put in, over their own optimizers, tuned"
    metrics = ("errors", "seconds")

    def tiny(self) -> Programs:
        """The quickest program, an epoch."""
        return Programs(("plot_incremental_FNO_darcy",), (0,), 1, ())

    @remembered
    def run(self, name: str, how: str, times: float, seed: int) -> Run:
        """A run of a program with the ``two lines``, or with its optimizer at so many times its rate under a schedule."""
        other = PROGRAMS[name]
        epochs = self.epochs or other.epochs
        config = {"program": name, "how": how, "times": times, "epochs": epochs, "seed": seed}
        content = {"train": "programs", "commit": COMMIT, "text": other.sha256, **config}
        if how == "two lines":
            content["rules"] = RULE_VERSION
        return Run(content, config, train=measured, size=f"{name}: {how}", params={"times": times}, seed=seed)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The runs that are missing: of the first seed all, of a search those that may start now; of the other seeds a
        program with the two lines, as it was tuned with the first seed, and as written.
        """
        first, *others = self.seeds
        for name in self.names:
            yield from missing(records, (self.run(name, "two lines", 1.0, first), self.run(name, "own", 1.0, first)))
        for name in self.names:
            for schedule in self.schedules:
                yield from self._search(records, name, schedule, first)
        for seed in others:
            for name in self.names:
                yield from missing(records, [self.run(name, "two lines", 1.0, seed)])
                if (best := self.tuned(records, name)) is not None:
                    yield from missing(records, [self.run(name, *best, seed)])
            yield from missing(records, (self.run(name, "own", 1.0, seed) for name in self.names))

    def _search(self, records: Any, name: str, schedule: str, seed: int) -> Iterator[Run]:
        """The rates that are missing, first those that are always tried."""
        yield from missing(records, (self.run(name, schedule, times, seed) for times in TIMES))
        while (times := further(self._losses(records, name, schedule, seed))) is not None:
            yield (run := self.run(name, schedule, times, seed))
            if records.get(run) is None:
                return

    def _losses(self, records: Any, name: str, schedule: str, seed: int) -> dict[float, float | None]:
        """What is known of each rate, as far as a search goes."""
        losses = {times: loss_of(records.get(self.run(name, schedule, times, seed))) for times in TIMES}
        while (times := further(losses)) is not None:
            loss = loss_of(records.get(self.run(name, schedule, times, seed)))
            if loss is None:
                return losses
            losses[times] = loss
        return losses

    def tuned(self, records: Any, name: str) -> tuple[str, float] | None:
        """Schedule and factor of the best run of a program's own optimizer, with the first seed; None while a search is not
        done."""
        found: dict[tuple[str, float], float] = {}
        for schedule in self.schedules:
            losses = self._losses(records, name, schedule, self.seeds[0])
            if None in losses.values() or further(losses) is not None:
                return None
            found |= {(schedule, times): loss for times, loss in losses.items() if loss is not None}
        best = min(found, key=found.__getitem__, default=None)
        return None if best is None or math.isinf(found[best]) else best

    def over(self, records: Any, name: str, *, tuned: bool = True) -> dict[str, float]:
        """Return the mean error over seeds with the two lines, divided by that of the tuned or the written program.

        There is a ratio for each error that the program reports. A seed without an error makes the ratio infinite.
        """
        ours_by_error: dict[str, list[float]] = {}
        theirs_by_error: dict[str, list[float]] = {}
        best = self.tuned(records, name) if tuned else ("own", 1.0)
        for seed in self.seeds if best is not None else ():
            ours = records.get(self.run(name, "two lines", 1.0, seed))
            if ours is None:
                continue
            own = errors_of(ours)
            for error, value in errors_of(records.get(self.run(name, *best, seed))).items():
                ours_by_error.setdefault(error, []).append(own.get(error, math.inf))
                theirs_by_error.setdefault(error, []).append(value)
        return {error: fmean(errors) / fmean(theirs_by_error[error]) for error, errors in ours_by_error.items()}

    def table(self, records: Any) -> str:
        """Every program's errors, and those of the two lines over the others."""
        said = (
            f"L2 test errors at the end, at the program's first resolution, of {len(self.seeds)} seeds. Tuned: the rate, as "
            "a multiple of the program's own, and the schedule with the lowest of these errors, chosen with the first seed. "
            "Ratios of means over seeds, and the range over all errors that the program reports."
        )
        return "\n".join([f"# {self.about[0].upper()}{self.about[1:]}", "", said, *self._means(records), ""])

    def _firsts(self, records: Any, name: str, schedule: str, times: float = 1.0) -> str:
        """The first error of each seed."""
        losses = [loss_of(records.get(self.run(name, schedule, times, seed))) for seed in self.seeds]
        return ", ".join("–" if loss is None else f"{loss:.3g}" for loss in losses)

    def _means(self, records: Any) -> list[str]:
        """Return a row for each program: the first error of each seed, its ratios, and the range over all errors."""
        rows = []
        for name in self.names:
            over = [self.over(records, name, tuned=tuned) for tuned in (False, True)]
            if any(over):
                cells = [
                    f"{selected(ratios):.2f} ({min(ratios.values()):.2f} to {max(ratios.values()):.2f})" if ratios else "–"
                    for ratios in over
                ]
                best = self.tuned(records, name)
                firsts = [self._firsts(records, name, *of) if of else "–" for of in (("two lines",), ("own",), best)]
                rows.append([f"`{name}`", *firsts, *cells])
        return table(["program", "two lines", "as written", "tuned", "two lines / as written", "two lines / tuned"], rows)

    def numbers(self, records: Any) -> dict[str, str]:
        """Return what pages quote: geometric means over programs, of the selecting error and of all errors."""
        over = [ratios for name in self.names if (ratios := self.over(records, name))]
        means = {"tuned.mean": map(selected, over), "tuned.all.mean": (geometric_mean(own.values()) for own in over)}
        said = {name: f"{geometric_mean(ratios):.2f}" for name, ratios in means.items()} if over else {}
        return {**said, "means": "\n".join(self._means(records))}


def selected(ratios: Mapping[str, float]) -> float:
    """Return the ratio of the error by which learning rates are selected: the first L2 error."""
    return next(ratio for error, ratio in ratios.items() if error.endswith("l2"))


def further(losses: Mapping[float, float | None]) -> float | None:
    """The factor to be tried next: beyond the edge at which the best is; None if it is inside, or not all are known."""
    known = {times: loss for times, loss in losses.items() if loss is not None}
    if len(known) < len(losses) or all(map(math.isinf, known.values())):
        return None
    best = min(known, key=known.__getitem__)
    if best == max(known) and best < _MOST:
        return 2 * best
    return best / 2 if best == min(known) and best > _LEAST else None


def errors_of(record: Mapping[str, Any] | None) -> dict[str, float]:
    """All errors of a run; those that are no numbers are infinite, and one that did not complete has none."""
    errors = {} if record is None else record["metrics"].get("errors") or {}
    return {name: math.inf if value is None else value for name, value in errors.items()}


def measured(config: Mapping[str, Any]) -> dict[str, Any]:
    """Run it in a process of its own, in a copy of the checkout; the loss is the first test error in L2."""
    other = PROGRAMS[config["program"]]
    text = edited(text_of(other), config)
    with tempfile.TemporaryDirectory() as folder:
        root, result = Path(folder, "neuraloperator"), Path(folder, "result.json")
        for part in ("neuralop", "config"):
            shutil.copytree(checkout() / part, root / part)
        for path in root.joinpath(_DATA).glob("burgers_*.pt"):
            torch.save({name: data.float() for name, data in torch.load(path).items()}, path)
        root.joinpath(_DATA, _NEVER_READ).touch()
        program = root / other.path
        program.parent.mkdir(parents=True)
        program.write_text(text, encoding="utf-8")
        ours = Path(nm.__file__).parents[1]
        paths = [str(root), str(ours), *filter(None, [os.environ.get("PYTHONPATH")])]
        ended = subprocess.run(
            [
                sys.executable,
                Path(__file__).with_name("program_run.py"),
                program,
                result,
                str(config["seed"]),
                *other.arguments,
            ],
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)},
            cwd=program.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(f"{other.path} ended: {(ended.stderr.strip().splitlines() or ['without a word'])[-1]}")
        told = json.loads(result.read_text(encoding="utf-8"))
    return {"loss": next(value for name, value in told["errors"].items() if name.endswith("l2")), **told}


def edited(text: str, config: Mapping[str, Any]) -> str:
    """Return a program's text as a run has it.

    All programs have the names ``model``, ``optimizer``, ``scheduler`` and ``train_loader``.
    """
    epochs = str(config["epochs"] or _EPOCHS.findall(text)[0])
    text = _replaced(_EPOCHS, epochs, text)
    if config["how"] == "two lines":
        made = f"nm.MuSOAP(model, steps=({epochs}) * len(train_loader))"
        return _replaced(_OPTIMIZER, rf"\1import neuralop_mup as nm; nm.parametrize(model)\n\1optimizer = {made}", text)
    if config["how"] == "cosine":
        made = "torch.optim.lr_scheduler.CosineAnnealingLR"
        text = _replaced(_SCHEDULER, f"scheduler = {made}(optimizer, T_max={epochs})", text)
    optimizer = next(_OPTIMIZER.finditer(text))[0]
    return text.replace(optimizer, re.sub(r"lr=([\w.-]+)", rf"lr=(\1) * {config['times']!r}", optimizer))


def _replaced(pattern: re.Pattern[str], new: str, text: str) -> str:
    """Return the text with all places replaced, of which there must be one."""
    changed, number = pattern.subn(new, text)
    if not number:
        raise nm.MupError(f"The program has no {pattern.pattern}: edit it by hand.")
    return changed


def text_of(other: Other) -> str:
    """A program's text in the checkout, which has to be what was measured."""
    path = checkout() / other.path
    text = path.read_text(encoding="utf-8")
    if not hashlib.sha256(text.encode()).hexdigest().startswith(other.sha256):
        raise nm.MupError(f"{path} is not the program of neuraloperator's commit {COMMIT[:7]}: check that one out.")
    return text


def checkout() -> Path:
    """The folder of neuraloperator's repository."""
    told = os.environ.get(CHECKOUT)
    if told and Path(told, "scripts", "train_burgers.py").is_file():
        return Path(told)
    given = f"{CHECKOUT} is {told!r}, which has no scripts/train_burgers.py" if told else f"{CHECKOUT} is not set"
    # What is missing here may be there the next time, so that the run is no result.
    raise nm.MupError(
        f"{given}: set it to the folder of a checkout of github.com/neuraloperator/neuraloperator at commit {COMMIT[:7]}."
    ) from FileNotFoundError(told or CHECKOUT)
