"""What the recipe gives: neuralop's model under Adam, and in μP under MuSOAP, as they come and with a learning rate that was
found at a proxy, and on request under Adam with one that was found at the target itself.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn

from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.lab import wording as say
from neuralop_mup.lab.decisions import Decided, decide
from neuralop_mup.lab.engines import cuda_devices
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.results import Results, seconds
from neuralop_mup.lab.statistics import SEEDS, difference
from neuralop_mup.lab.study import Study, edge_of
from neuralop_mup.lab.tuning import train_missing
from neuralop_mup.optim.musoap.optimizer import default_lr

#: torch's default, and the learning rate of the FNO's first code (github.com/neuraloperator/neuraloperator, fourier_1d.py).
ADAM_LR = 1e-3
#: The way that is taken on request.
TUNED = "Adam, tuned at the target"
SMALL = "Adam, tuned small"
#: Way → its learning rate for a number of steps, where none is searched.
LRS: dict[str, Callable[[int], float]] = {"Adam, as it comes": lambda steps: ADAM_LR, "MuSOAP, as it comes": default_lr}
#: Name → what is done.
WAYS = {
    "Adam, as it comes": f"neuralop's model under MuAdam without μP, which is torch's Adam, at {ADAM_LR:g}",
    SMALL: "the same, at the learning rate that is best with one seed at the proxy's size, carried as it is",
    TUNED: "the same, at the best of five learning rates at the target, in factors of 2 around that of the proxy",
    "MuSOAP, as it comes": "parametrize(model), MuSOAP(model, steps=…)",
    "MuSOAP, checked": "the same from the proxy's size, at the best of five learning rates at the cheap proxy",
}


@dataclass(frozen=True)
class Way:
    """One way to train the target.

    Attributes
    ----------
    name : str
        A key of :data:`WAYS`.
    lr : float
        Learning rate, at the proxy where one was tuned.
    errors : tuple of float
        On the test data where there is some, else on the validation data, seed by seed; infinite where training failed.
    took : float
        Seconds of one training of the target, in the mean.
    tuning : float
        Seconds of all that was trained to find the learning rate.
    tuned : str
        Where it was tuned, and from which learning rates.
    """

    name: str
    lr: float
    errors: tuple[float, ...]
    took: float
    tuning: float = 0.0
    tuned: str = "–"


@dataclass(frozen=True)
class Comparison:
    """Ways to train one target, by their names, in the order of :data:`WAYS`, of which :data:`TUNED` may be left out.

    Attributes
    ----------
    ways : mapping of str to Way
    title : str
    about : str
        What was trained, for how long and on which loss.
    """

    ways: Mapping[str, Way]
    title: str
    about: str

    def table(self) -> str:
        """A row a way: learning rate and where it was tuned, error as median and range over the seeds, time."""
        rows = [["way", "learning rate", "tuned", "error", "range over seeds", "one training", "tuning"]]
        for way in self.ways.values():
            ends = f"{say.number(min(way.errors))} to {say.number(max(way.errors))}"
            times = (f"{seconds:.1f} s" for seconds in (way.took, way.tuning))
            rows.append([way.name, f"{way.lr:.3g}", way.tuned, say.number(median(way.errors)), ends, *times])
        return say.aligned(rows)

    def sentences(self) -> list[str]:
        """What was trained, what the errors say where there are three seeds, and what else a reader must know."""
        plain, small, ours, checked = (self.ways[name] for name in WAYS if name != TUNED)
        adams = [plain, small, *([self.ways[TUNED]] if TUNED in self.ways else [])]
        said = [self.about, *(_between(ours, adam) for adam in adams), _between(checked, ours)]
        if len(ours.errors) < SEEDS:
            said.append(f"With fewer than {SEEDS} seeds nothing is said of whether these differences are more than noise.")
        said.append(
            f"{small.name} is at {small.lr:.3g}, {small.tuned}. Without μP no rule carries that to the target, where it is "
            f"taken as it is and may be worse than {plain.lr:g}"
            + ("." if TUNED in self.ways else ": no learning rate of Adam's was tuned at the target itself (tuned=True).")
        )
        ratio = ours.took / small.took if small.took else 0.0
        return [*said, f"A training under MuSOAP took {ratio:.2f} times as long as one under Adam, with as many steps."]


def _between(way: Way, other: Way) -> str:
    ours, theirs = (say.number(median(one.errors)) for one in (way, other))
    apart = difference(way.errors, other.errors)
    return f"{way.name}, against {other.name}: error {ours} against {theirs} in the median{apart}."


def compare(
    build: Callable[..., nn.Module],
    data: Any,
    *,
    target: Mapping[str, Any],
    folder: str | Path,
    read: Mapping[str, Any] | None = None,
    loss: Any = None,
    tuned: bool = False,
    epochs: int = 20,
    batch_size: int = 20,
    seeds: Iterable[int] = (0, 1, 2),
    device: str = "cpu",
    n_workers: int | None = None,
    progress: bool = True,
) -> Comparison:
    """Train one target in four ways, with each seed; a learning rate that is searched is searched with the first one.

    Parameters
    ----------
    build, data, target, folder, read, loss, epochs, batch_size, device, n_workers, progress
        As for :func:`neuralop_mup.tune`.
    tuned : bool, default False
        Whether Adam is tuned at the target, too, by five rates there. It takes as many trainings of the target.
    seeds : iterable of int
        Of the target.

    Returns
    -------
    Comparison

    Raises
    ------
    MupError
        If the data or the model cannot work, or has no Fourier kernel.
    """
    folder, seeds = Path(folder), tuple(seeds)
    shared = {"epochs": epochs, "batch_size": batch_size, "device": device}

    def decided(optimizer: str, rule: str) -> Decided:
        asking = {"target": target, "rules": (rule,), "optimizer": optimizer, "seeds": seeds[:1], **shared}
        return decide(build, data, folder, read=read, loss=loss, **asking)

    adam, soap = decided("adam", "standard"), decided("soap", DEFAULT_RULE)
    if progress:
        print(soap)
    of_ways = {name: adam if name.startswith("Adam") else soap for name in WAYS if tuned or name != TUNED}
    how: dict[str, Any] = {"n_workers": n_workers, "progress": progress, "devices": cuda_devices(device)}
    lrs = {name: LRS[name](soap.steps) for name in WAYS if name in LRS}
    searches: dict[str, Results] = {}
    for name in [name for name in of_ways if name not in lrs]:
        study, size = of_ways[name].study, "target" if name == TUNED else "proxy"
        space = {"lr": [lrs[SMALL] * 2.0**i for i in (-2, -1, 0, 1, 2)]} if name == TUNED else study.space
        search = replace(study, name=name, space=space, sizes={size: study.sizes[size]}, keep_weights=False)
        searches[name] = train_missing(search, folder, **how)
        lrs[name] = searches[name].best["lr"]  # raises if no learning rate completed
    under = {
        name: {
            "optimizer": one.study.fixed["optimizer"],
            "rule": one.study.rules[0],
            **one.study.settings_by_rule.get(one.study.rules[0], {}),
            "base": None if name in LRS else one.study.sizes["proxy"],
            "lr": lrs[name],
        }
        for name, one in of_ways.items()
    }
    parts = {
        "rules": tuple(under),
        "settings_by_rule": under,
        "fixed": {**shared, "model": target},
        "train": adam.study.train,
    }
    records = train_missing(Study(name=folder.resolve().name, space={}, seeds=seeds, **parts), folder, **how).records
    ways = {}
    for name, one in of_ways.items():
        own, searched = [r for r in records if r["rule"] == name], searches.get(name)
        done = [r for r in own if is_complete(r)]
        errors = tuple(r["metrics"].get("test_loss", r["loss"]) if is_complete(r) else math.inf for r in own)
        tuning = {"tuning": seconds(searched.records), "tuned": _where(searched, one)} if searched else {}
        ways[name] = Way(name, lrs[name], errors, seconds(done) / len(done) if done else 0.0, **tuning)
    errors = "test" if any("test_loss" in r["metrics"] for r in records) else "validation"
    used = soap.study.train.loss
    about = (
        f"The target, {say.size_text(target)}, trains for {soap.steps} steps ({epochs} epochs of batches of {batch_size}) "
        f"on {f'the loss {used}' if isinstance(used, str) else 'a loss of your own'}; errors are of {errors} data."
    )
    return Comparison(ways, soap.title, about)


def _where(searched: Results, made: Decided) -> str:
    """Where a learning rate was tuned, and from which."""
    which, lrs, seeds = searched.study.base, searched.study.space["lr"], len(searched.study.seeds)
    edge = edge_of(searched.best["lr"], lrs)
    return (
        f"best of {len(lrs)} from {min(lrs):.3g} to {max(lrs):.3g}{f', the {edge}' if edge else ''}, at "
        f"{say.size_text(made.study.sizes[which])}, {made.steps} steps, "
        f"{'one seed' if seeds == 1 else f'{seeds} seeds'}"
    )
