"""Replace the optimizer in neuralop's scripts and examples by the two lines of this package, and change nothing else.

Each program is run as written, with the two lines, and with its own optimizer at several multiples of its learning rate: 1
and 2, and further ones until the best is not at an edge. These runs use the program's schedule, and a cosine that ends with
the training. The best of them is selected by the test error, which favours the program's own optimizer. Programs with many
epochs are run for fewer.

The programs and their data are those of a checkout of neuraloperator at :data:`COMMIT`. The environment variable
``NEURALOP_CHECKOUT`` contains its folder, and nothing is downloaded. The scripts need ``zencfg<1``. Each program uses the
neuralop of the checkout, because the Darcy data set of release 2.0.0 always downloads its files. The data for Burgers'
equation is converted to single precision, which the checkout no longer does.
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
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import torch

import neuralop_mup as nm
from experiments.curves import Search, searched
from experiments.experiment import Experiment
from experiments.pages import table
from experiments.records import loss_of, missing
from experiments.training import remembered
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.lab.records import Run

CHECKOUT = "NEURALOP_CHECKOUT"
COMMIT = "93d3f0633e048c915004cd782cb339acf06e1157"
_DATA = Path("neuralop", "data", "datasets", "data")
# The loader for Darcy downloads data if this file does not exist, although it never reads it.
_MARKER_FILE = "darcy_train_32.pt"
# neuralop's Trainer loads its checkpoints in a way that torch.load rejects by default since 2.6.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", "MPLBACKEND": "Agg"}
# Text that runs replace: the number of epochs, and assignments of the optimizer and of the scheduler.
_CALL = r"\((?:[^()]|\([^()]*\))*\)"
_EPOCHS = re.compile(r"(?<=n_epochs=)[\w.]+|(?<=range\()config\.opt\.n_epochs")
_OPTIMIZER = re.compile(rf"^( *)optimizer = AdamW{_CALL}", re.MULTILINE)
_SCHEDULER = re.compile(rf"scheduler = torch\.optim\.lr_scheduler\.\w+{_CALL}")


@dataclass(frozen=True)
class Program:
    """A program of neuralop.

    Attributes
    ----------
    path : str
        File in the checkout.
    sha256 : str
        Beginning of the digest of its text.
    epochs : int, optional
        Replaces the program's number of epochs.
    arguments : tuple of str
        Command-line arguments.
    """

    path: str
    sha256: str
    epochs: int | None = None
    arguments: tuple[str, ...] = ()


#: The fastest programs first.
PROGRAMS = {
    "plot_incremental_FNO_darcy": Program("examples/training/plot_incremental_FNO_darcy.py", "d44cd6989bda"),
    "plot_OTNO_car_cfd": Program("examples/models/plot_OTNO_car_cfd.py", "f87cd96e5615"),
    "plot_FNO_darcy": Program("examples/models/plot_FNO_darcy.py", "addd72837ed2"),
    "train_burgers": Program("scripts/train_burgers.py", "ed233cf0de73", 12),
    "train_burgers_pino": Program("scripts/train_burgers_pino.py", "a3b0fa29eb7f", 12),
    "train_darcy": Program("scripts/train_darcy.py", "3e9ec125a09a", 10, ("--data.folder", f"../{_DATA.as_posix()}")),
    "plot_UNO_darcy": Program("examples/models/plot_UNO_darcy.py", "fec7e120fb92", 8),
    "checkpoint_FNO_darcy": Program("examples/training/checkpoint_FNO_darcy.py", "64c0cff456cc"),
    "plot_SFNO_swe": Program("examples/models/plot_SFNO_swe.py", "fcf08a75e4a8", 10),
    "train_burgers_rno": Program("scripts/train_burgers_rno.py", "27f2b738c1a4", 4),
}
#: First multiples of the learning rate in a search, and the largest number of multiples.
TIMES, _MOST = (1.0, 2.0), 9


@dataclass(frozen=True)
class Programs(Experiment):
    """Run each program with the two lines, as written, and with its tuned optimizer.

    Attributes
    ----------
    names : tuple of str
        Keys of :data:`PROGRAMS`.
    seeds : tuple of int
    epochs : int, optional
        Replaces the number of epochs of every program.
    schedules : tuple of str
        Schedules of the tuned optimizers.
    """

    names: tuple[str, ...] = tuple(PROGRAMS)
    seeds: tuple[int, ...] = (0, 1)
    epochs: int | None = None
    schedules: tuple[str, ...] = ("own", "cosine")

    about = "neuralop's scripts and examples with the two lines, relative to their own tuned optimizers"
    notes = (
        "L2 test errors of each seed at the end, at the program's first resolution. Tuned: the multiple of the program's "
        "learning rate and the schedule with the lowest of these errors, selected with the first seed. The last columns "
        "contain ratios of means over seeds, and the range over all errors that the program reports."
    )
    metrics = ("errors", "seconds")

    def tiny(self) -> Programs:
        """Return the fastest program with one epoch."""
        return Programs(("plot_incremental_FNO_darcy",), (0,), 1, ())

    @remembered
    def run(self, name: str, how: str, times: float, seed: int) -> Run:
        """Return a run of a program.

        Parameters
        ----------
        name : str
        how : str
            ``"two lines"``, or the schedule of the program's optimizer.
        times : float
            Multiple of the optimizer's learning rate.
        seed : int
        """
        program = PROGRAMS[name]
        config = {"program": name, "how": how, "times": times, "epochs": self.epochs or program.epochs, "seed": seed}
        content = {"train": "programs", "commit": COMMIT, "text": program.sha256, **config}
        if how == "two lines":
            content["rules"] = RULE_VERSION
        return Run(content, config, train=measured, size=f"{name}: {how}", params={"times": times}, seed=seed)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs: all of the first seed, then the selected ones of the other seeds."""
        first, *others = self.seeds
        for name in self.names:
            yield from missing(records, (self.run(name, "two lines", 1.0, first), self.run(name, "own", 1.0, first)))
        for name, schedule in product(self.names, self.schedules):
            rates = self._searched(records, name, schedule).missing
            yield from missing(records, (self.run(name, schedule, times, first) for times in rates))
        for seed, name in product(others, self.names):
            settings = [("two lines", 1.0), ("own", 1.0), self.tuned(records, name)]
            yield from missing(records, (self.run(name, *own, seed) for own in dict.fromkeys(settings) if own))

    def _searched(self, records: Any, name: str, schedule: str) -> Search:
        """Return the state of the search with the first seed. It ends if all first runs failed."""

        def error_of(times: float) -> float | None:
            return loss_of(records.get(self.run(name, schedule, times, self.seeds[0])))

        search = searched(error_of, 1.0, _MOST, factors=TIMES)
        failed = len(search.errors) >= len(TIMES) and all(map(math.isinf, search.errors.values()))
        return Search(search.errors, []) if failed else search

    def tuned(self, records: Any, name: str) -> tuple[str, float] | None:
        """Return the schedule and the multiple with the lowest error, or None while a search is not finished."""
        searches = {schedule: self._searched(records, name, schedule) for schedule in self.schedules}
        if any(search.missing for search in searches.values()):
            return None
        found = {(how, times): error for how, search in searches.items() for times, error in search.errors.items()}
        return min(filter(lambda own: math.isfinite(found[own]), found), key=found.__getitem__, default=None)

    def ratios(self, records: Any, name: str, settings: tuple[str, float] | None) -> dict[str, float]:
        """Return the mean errors with the two lines divided by those with other settings.

        There is a ratio for each error that the program reports. A seed without an error makes the ratio infinite.
        """
        pairs = []
        for seed in self.seeds if settings is not None else ():
            ours, others = (records.get(self.run(name, *own, seed)) for own in (("two lines", 1.0), settings))
            if ours is not None and others is not None and _errors(others):
                pairs.append((_errors(ours), _errors(others)))
        names = pairs[0][1] if pairs else ()
        return {
            error: fmean(ours.get(error, math.inf) for ours, _ in pairs) / fmean(others[error] for _, others in pairs)
            for error in names
        }

    def numbers(self, records: Any) -> dict[str, str]:
        """Return the table, and geometric means over programs of the selecting error and of all errors."""
        rows, tuned = [], []
        for name in self.names:
            columns = [("two lines", 1.0), ("own", 1.0), self.tuned(records, name)]
            losses = [self._losses(records, name, own) for own in columns]
            ratios = [self.ratios(records, name, own) for own in columns[1:]]
            rows.append([f"`{name}`", *losses, *map(_with_range, ratios)])
            if ratios[1]:
                tuned.append(ratios[1])
        heads = ["program", "two lines", "as written", "tuned", "two lines / as written", "two lines / tuned"]
        found = {"means": table(heads, rows)}
        if tuned:
            found["tuned.mean"] = f"{geometric_mean(map(_selecting, tuned)):.2f}"
            found["tuned.all.mean"] = f"{geometric_mean(geometric_mean(own.values()) for own in tuned):.2f}"
        return found

    def _losses(self, records: Any, name: str, settings: tuple[str, float] | None) -> str:
        losses = [loss_of(records.get(self.run(name, *settings, seed))) for seed in self.seeds] if settings else [None]
        return ", ".join("–" if loss is None else f"{loss:.3g}" for loss in losses)


def _selecting(ratios: Mapping[str, float]) -> float:
    """Return the ratio of the first L2 error, which selects the learning rate."""
    return next(ratio for error, ratio in ratios.items() if error.endswith("l2"))


def _with_range(ratios: Mapping[str, float]) -> str:
    if not ratios:
        return "–"
    return f"{_selecting(ratios):.2f} ({min(ratios.values()):.2f} to {max(ratios.values()):.2f})"


def _errors(record: Mapping[str, Any]) -> dict[str, float]:
    """Return all errors of a run. Those that are not finite numbers are infinite, and a failed run has none."""
    errors = record["metrics"].get("errors") or {}
    return {name: math.inf if value is None else value for name, value in errors.items()}


# A run


def measured(config: Mapping[str, Any]) -> dict[str, Any]:
    """Run a program in its own process and in a copy of the checkout. The loss is the first L2 test error."""
    program = PROGRAMS[config["program"]]
    text = edited(text_of(program), config)
    with tempfile.TemporaryDirectory() as folder:
        root, result = Path(folder, "neuraloperator"), Path(folder, "result.json")
        for part in ("neuralop", "config"):
            shutil.copytree(checkout() / part, root / part)
        for path in root.joinpath(_DATA).glob("burgers_*.pt"):
            torch.save({name: data.float() for name, data in torch.load(path).items()}, path)
        root.joinpath(_DATA, _MARKER_FILE).touch()
        path = root / program.path
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        package = Path(nm.__file__).parents[1]
        paths = [str(root), str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
        runner = Path(__file__).with_name("program_run.py")
        process = subprocess.run(
            [sys.executable, runner, path, result, str(config["seed"]), *program.arguments],
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)},
            cwd=path.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            raise RuntimeError(f"{program.path} failed: {(process.stderr.strip().splitlines() or ['no message'])[-1]}")
        metrics = json.loads(result.read_text(encoding="utf-8"))
    return {"loss": next(value for name, value in metrics["errors"].items() if name.endswith("l2")), **metrics}


def edited(text: str, config: Mapping[str, Any]) -> str:
    """Return the text of a program for a run.

    All programs use the names ``model``, ``optimizer``, ``scheduler`` and ``train_loader``.
    """
    epochs = str(config["epochs"] or _EPOCHS.findall(text)[0])
    text = _replaced(_EPOCHS, epochs, text)
    if config["how"] == "two lines":
        optimizer = f"nm.MuSOAP(model, steps=({epochs}) * len(train_loader))"
        return _replaced(_OPTIMIZER, rf"\1import neuralop_mup as nm; nm.parametrize(model)\n\1optimizer = {optimizer}", text)
    if config["how"] == "cosine":
        cosine = f"torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max={epochs})"
        text = _replaced(_SCHEDULER, f"scheduler = {cosine}", text)
    optimizer = next(_OPTIMIZER.finditer(text))[0]
    return text.replace(optimizer, re.sub(r"lr=([\w.-]+)", rf"lr=(\1) * {config['times']!r}", optimizer))


def _replaced(pattern: re.Pattern[str], new: str, text: str) -> str:
    """Replace all occurrences of a pattern, at least one."""
    changed, number = pattern.subn(new, text)
    if not number:
        raise nm.MupError(f"The program does not contain {pattern.pattern}. Edit it by hand.")
    return changed


def text_of(program: Program) -> str:
    """Return the text of a program in the checkout, after a check of its digest."""
    path = checkout() / program.path
    text = path.read_text(encoding="utf-8")
    if not hashlib.sha256(text.encode()).hexdigest().startswith(program.sha256):
        raise nm.MupError(f"{path} differs from neuraloperator's commit {COMMIT[:7]}. Check out this commit.")
    return text


def checkout() -> Path:
    """Return the folder of neuraloperator's repository."""
    folder = os.environ.get(CHECKOUT)
    if folder and Path(folder, "scripts", "train_burgers.py").is_file():
        return Path(folder)
    # A missing file does not count as the result of a run, because it may exist the next time.
    raise nm.MupError(
        f"{CHECKOUT} is {folder!r}, which has no scripts/train_burgers.py. Set it to the folder of a checkout of "
        f"github.com/neuraloperator/neuraloperator at commit {COMMIT[:7]}."
    ) from FileNotFoundError(folder or CHECKOUT)
