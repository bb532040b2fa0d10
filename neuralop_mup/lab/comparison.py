"""What the recipe gives: neuralop's model under Adam, and in μP under MuSOAP, as they come and with a learning rate that was
found at a proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn

from neuralop_mup.core.parts import reference_base
from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.lab import wording as say
from neuralop_mup.lab.engines import cuda_devices
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.plan import Plan, make_plan
from neuralop_mup.lab.study import Study
from neuralop_mup.lab.summary import seconds
from neuralop_mup.optim.musoap.optimizer import usual_lr

__all__ = ["ADAM_LR", "WAYS", "Comparison", "Way", "compare"]

#: torch's default, and the learning rate of the FNO's first code (github.com/neuraloperator/neuraloperator, fourier_1d.py).
ADAM_LR = 1e-3
#: Name → what is done.
WAYS = {
    "Adam, as it comes": f"neuralop's model under MuAdam without μP, which is torch's Adam, at {ADAM_LR:g}",
    "Adam, tuned small": "the same, at the learning rate that is best with one seed at the proxy's width",
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
    """

    name: str
    lr: float
    errors: tuple[float, ...]
    took: float
    tuning: float = 0.0

    @property
    def middle(self) -> float:
        """Median over the seeds."""
        return median(self.errors)

    @classmethod
    def of(cls, name: str, lr: float, trained: Sequence[Mapping[str, Any]], tuned: Sequence[Mapping[str, Any]] = ()) -> Way:
        """From the records of its runs."""
        done = [r for r in trained if is_complete(r)]
        errors = [r["metrics"].get("test_loss", r["loss"]) if is_complete(r) else float("inf") for r in trained]
        once = seconds(done) / len(done) if done else 0.0
        return cls(name, lr, tuple(errors), once, seconds(tuned))


@dataclass(frozen=True)
class Comparison:
    """Ways to train one target, by their names, in the order of :data:`WAYS`."""

    ways: Mapping[str, Way]
    title: str
    folder: Path

    def table(self) -> str:
        """A row a way: learning rate, error as median and range over the seeds, time."""
        rows = [["way", "learning rate", "error", "range over seeds", "one training", "tuning"]]
        for way in self.ways.values():
            ends = f"{say.number(min(way.errors))} to {say.number(max(way.errors))}"
            rows.append(
                [way.name, f"{way.lr:.3g}", say.number(way.middle), ends, f"{way.took:.1f} s", f"{way.tuning:.1f} s"]
            )
        return say.aligned(rows)

    def sentences(self) -> list[str]:
        """What the medians say; ways whose ranges overlap are level."""
        ours, base = self.ways["MuSOAP, as it comes"], self.ways["Adam, tuned small"]
        said = [_between(ours, self.ways[name]) for name in ("Adam, as it comes", "Adam, tuned small")]
        said.append(_between(self.ways["MuSOAP, checked"], ours))
        ratio = ours.took / base.took if base.took else 0.0
        return [*said, f"A training under MuSOAP took {ratio:.2f} times as long as one under Adam, with as many steps."]

    def plot(self, path: str | Path) -> Path:
        """Every seed's error, and the median of each way; see :func:`neuralop_mup.lab.plots.plot_ways`."""
        from neuralop_mup.lab import plots

        return plots.plot_ways({w.name: (w.errors, w.lr) for w in self.ways.values()}, path, title=self.title)


def _between(way: Way, other: Way) -> str:
    what = f"{way.name}, against {other.name}: error {say.number(way.middle)} against {say.number(other.middle)}"
    if min(way.errors) <= max(other.errors) and min(other.errors) <= max(way.errors):
        return f"{what} in the median, level within the seeds."
    return f"{what} in the median, {way.middle / other.middle:.2f} times."


def compare(
    build: Callable[..., nn.Module],
    data: Any,
    *,
    target: Mapping[str, Any],
    folder: str | Path,
    read: Mapping[str, Any] | None = None,
    loss: Any = "l2",
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
    how = {"n_workers": n_workers, "devices": cuda_devices(device), "progress": progress}

    def plan(optimizer: str, rule: str) -> Plan:
        return make_plan(
            build, data, target=target, folder=folder, read=read, loss=loss, rule=rule, seeds=seeds[:1], optimizer=optimizer,
            **shared,
        )  # fmt: skip

    adam, soap = plan("adam", "standard"), plan("soap", DEFAULT_RULE)
    n_steps = soap.steps["target"]
    reference = {**target, **reference_base(build(**target))}

    lrs, tuned = {"Adam, as it comes": ADAM_LR, "MuSOAP, as it comes": usual_lr(n_steps)}, {}
    for name, made in (("Adam, tuned small", adam), ("MuSOAP, checked", soap)):
        if progress:
            print(f"{name}: {WAYS[name]}")
        searched = _proxy(made).train(**how)
        lrs[name], tuned[name] = searched.best["lr"], searched.records
    if progress:
        print("the target, in each way")
    under = {
        name: {
            "optimizer": made.study.fixed["optimizer"],
            "rule": made.study.rules[0],
            **made.study.under.get(made.study.rules[0], {}),
            "base": made.study.sizes["proxy"] if name in tuned else reference,
            "lr": lrs[name],
        }
        for name, made in zip(WAYS, (adam, adam, soap, soap), strict=True)
    }
    study = Study(
        name=folder.resolve().name, space={}, seeds=seeds, rules=tuple(WAYS), under=under, fixed={**shared, "model": target}
    )
    records = replace(soap, study=study, costs={None: soap.costs["target"]}).train(**how).records
    ways = {name: Way.of(name, lrs[name], [r for r in records if r["rule"] == name], tuned.get(name, ())) for name in WAYS}
    return Comparison(ways, soap.title, folder)


def _proxy(made: Plan) -> Plan:
    """The search at the proxy alone."""
    return replace(made, study=replace(made.study, sizes={"proxy": made.study.sizes["proxy"]}, searched=()))
