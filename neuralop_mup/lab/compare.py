"""What the recipe gives: neuralop's model under Adam, and in μP under MuSOAP, as they come and with a learning rate that was
found at a proxy, and on request under Adam with one that was found at the target itself.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn

from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.lab import wording as say
from neuralop_mup.lab.engines import cuda_devices, make_engine
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.plan import Plan, make_plan
from neuralop_mup.lab.records import Records, Run
from neuralop_mup.lab.results import Results, seconds
from neuralop_mup.lab.run import run
from neuralop_mup.lab.search import edge_of
from neuralop_mup.lab.statistics import SEEDS, told_apart
from neuralop_mup.lab.study import Study
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
    apart = told_apart(way.errors, other.errors)
    return f"{way.name}, against {other.name}: error {ours} against {theirs} in the median{apart}."


class _Trainings:
    """Everything that a comparison trains, as one plan, so that one bar shows the time left for all of it.

    Learning rates are tuned with the first seed. Each way is trained as soon as its learning rate is known.
    """

    #: Time of a run at the proxy relative to one at the target, on the problem of ``neuralop-mup compare``.
    costs = {"proxy": 0.35}

    def __init__(self, plans: Mapping[str, Plan], folder: Path, seeds: tuple[int, ...], fixed: Mapping[str, Any]) -> None:
        self.plans, self.folder, self.seeds, self.fixed = plans, folder, seeds, fixed
        self.name = folder.resolve().name
        self._studies: dict[Any, Study] = {}

    def search(self, name: str, space: Mapping[str, Any] | None = None) -> Study:
        """The study that finds the learning rate of a way: at the target where ``space`` is given, else at the proxy."""
        if name not in self._studies:
            study, size = self.plans[name].study, "target" if space else "proxy"
            self._studies[name] = replace(
                study, space=space or study.space, sizes={size: study.sizes[size]}, seeds=self.seeds[:1], keeps=False
            )
        return self._studies[name]

    def searches(self, records: Records) -> dict[str, Results]:
        """The results of each search that is done."""
        done: dict[str, Results] = {}
        for name in self.plans:
            space = None
            if name in LRS or (name == TUNED and (SMALL not in done or done[SMALL].best_loss == math.inf)):
                continue
            if name == TUNED:
                lr = done[SMALL].best["lr"]
                space = {"lr": [lr / 4, lr / 2, lr, 2 * lr, 4 * lr]}
            study = self.search(name, space)
            if not study.wanted(records):
                done[name] = Results(study, study.rows(records), self.folder)
        return done

    def lrs(self, searches: Mapping[str, Results]) -> dict[str, float]:
        """The learning rate of each way for which it is known."""
        known = {name: LRS[name](plan.steps) for name, plan in self.plans.items() if name in LRS}
        known |= {name: results.best["lr"] for name, results in searches.items() if results.best_loss < math.inf}
        return {name: known[name] for name in self.plans if name in known}

    def study(self, lrs: Mapping[str, float]) -> Study:
        """The target, trained in each way whose learning rate is known."""
        key = tuple(lrs)
        if key not in self._studies:
            under = {
                name: {
                    "optimizer": plan.study.fixed["optimizer"],
                    "rule": plan.study.rules[0],
                    **plan.study.under.get(plan.study.rules[0], {}),
                    "base": plan.study.sizes["proxy"] if name not in LRS else None,
                    "lr": lrs[name],
                }
                for name, plan in self.plans.items()
                if name in lrs
            }
            train = next(iter(self.plans.values())).study.train
            self._studies[key] = Study(
                name=self.name, space={}, seeds=self.seeds, rules=key, under=under, fixed=self.fixed, train=train
            )
        return self._studies[key]

    def wanted(self, records: Records) -> list[Run]:
        """The runs that may start now: of searches, then of the ways whose learning rate is known."""
        lrs = self.lrs(self.searches(records))
        open_searches = [study for name, study in self._studies.items() if name in self.plans and name not in lrs]
        return [run for study in [*open_searches, self.study(lrs)] for run in study.wanted(records)]

    def left(self, records: Records) -> Counter:
        """Size → number of runs that are not done."""
        searches = self.searches(records)
        lrs = self.lrs(searches)
        left = self.study(lrs).left(records)
        for name in self.plans.keys() - lrs.keys() - searches.keys():
            if name == TUNED and SMALL in searches.keys() - lrs.keys():  # there is no rate to search around
                continue
            left += self._studies[name].left(records) if name in self._studies else Counter({"target": 5})
            left[None] += len(self.seeds)
        return left

    def save(self, records: Records) -> None:
        """Write the table of the ways that were trained."""
        self.study(self.lrs(self.searches(records))).save(records)


def compare(
    build: Callable[..., nn.Module],
    data: Any,
    *,
    target: Mapping[str, Any],
    folder: str | Path,
    read: Mapping[str, Any] | None = None,
    loss: Any = "l2",
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

    def plan(optimizer: str, rule: str) -> Plan:
        asking = {"target": target, "rules": (rule,), "optimizer": optimizer, "seeds": seeds[:1], **shared}
        return make_plan(build, data, folder, read=read, loss=loss, **asking)

    adam, soap = plan("adam", "standard"), plan("soap", DEFAULT_RULE)
    if progress:
        print(soap)
    plans = {name: adam if name.startswith("Adam") else soap for name in WAYS if tuned or name != TUNED}
    trainings = _Trainings(plans, folder, seeds, {**shared, "model": target})
    n_runs = trainings.left(Records(folder)).total()
    engine = make_engine(None, None, soap.study.train, n_runs, n_workers, cuda_devices(device))
    kept = run(trainings, folder=folder, engine=engine, progress=progress)
    searches = trainings.searches(kept)
    lrs = trainings.lrs(searches)
    records = trainings.study(lrs).rows(kept)
    ways = {}
    for name in plans:
        own, searched = [r for r in records if r["rule"] == name], searches.get(name)
        done = [r for r in own if is_complete(r)]
        errors = tuple(r["metrics"].get("test_loss", r["loss"]) if is_complete(r) else math.inf for r in own)
        tuning = {"tuning": seconds(searched.records), "tuned": _where(searched, plans[name])} if searched else {}
        lr = lrs[name] if name in lrs else searches[name].best["lr"]  # raises where no learning rate completed
        ways[name] = Way(name, lr, errors, seconds(done) / len(done) if done else 0.0, **tuning)
    errors = "test" if any("test_loss" in r["metrics"] for r in records) else "validation"
    about = (
        f"The target, {say.size_text(target)}, trains for {soap.steps} steps ({epochs} epochs of batches of {batch_size}) "
        f"on {f'the loss {loss}' if isinstance(loss, str) else 'a loss of your own'}; errors are of {errors} data."
    )
    return Comparison(ways, soap.title, about)


def _where(searched: Results, made: Plan) -> str:
    """Where a learning rate was tuned, and from which."""
    which, lrs, seeds = searched.study.base, searched.study.space["lr"], len(searched.study.seeds)
    edge = edge_of(searched.best["lr"], lrs)
    return (
        f"best of {len(lrs)} from {min(lrs):.3g} to {max(lrs):.3g}{f', the {edge}' if edge else ''}, at "
        f"{say.size_text(made.study.sizes[which])}, {made.steps} steps, "
        f"{'one seed' if seeds == 1 else f'{seeds} seeds'}"
    )
