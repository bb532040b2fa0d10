"""The page of a contest: errors of all, and each one's over those of others, with intervals over the problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean, median, stdev
from typing import Any

from experiments.contest import BASELINE, LONGER, THEIRS, USUAL, Contest, End
from experiments.contest_figure import draw
from experiments.pages import dotted, named, table
from neuralop_mup.lab.statistics import student

#: Whose errors a page shows, for a table that is not too wide; the experiment's own text has all of them.
_ON_PAGES = (THEIRS, "MuSOAP, untuned", "MuSOAP", BASELINE, "Adam", "AdamW", "stock SOAP")
#: Over whose errors a page's table has those of the untuned MuSOAP.
_RIVALS = (THEIRS, BASELINE, LONGER, *USUAL, "stock SOAP")
#: Name in numbers of pages → who all are compared with.
_AGAINST = {
    "theirs": THEIRS,
    "Adam": "Adam",
    "best": BASELINE,
    "longer": LONGER,
    "SOAP": "stock SOAP",
    "none": "MuSOAP, untuned, no weight decay",
}
#: The same, for pages alone.
_ON_PAGES_AGAINST = {**_AGAINST, "AdamW": "AdamW", "tuned": "MuSOAP"}


@dataclass(frozen=True)
class ContestWithPage(Contest):
    """A contest with what it says."""

    def table(self, records: Any) -> str:
        """Errors of each contender on each field, in training, too, and their ratios."""
        ends = self.ends(records)
        lines = [
            f"# {self.about[0].upper()}{self.about[1:]}\n",
            f"{sum(len(ends.get(who, ())) for who in self.contenders)} of {len(self.pairs)} searches are done. Median error "
            "over the seeds, their range where there are several, and the learning rate.",
            *self._errors(ends, lambda end: f"{_spread(end.errors)} at {end.lr:.3g}"),
        ]
        lines += ["\n## In training", *self._errors(ends, lambda end: _spread(end.training) if end.training else "–")]
        for other in _AGAINST.values():
            rows = [
                [who, of, f"{mean} ({interval})", f"{median(over):.2f}", ends_at]
                for who in ends
                if who != other and (over := self.against(ends, who, other))
                for of, mean, interval, ends_at in [_summed_up(over)]
            ]
            if rows:
                lines += [
                    f"\n## Error over that of {other}",
                    *table(["", "rows", "geometric mean (95 % interval)", "median", "range"], rows),
                ]
        return "\n".join(lines) + "\n"

    def _errors(self, ends: Mapping[str, Mapping[str, End]], said: Callable[[End], str]) -> list[str]:
        """A row for each field of which one of ours is done."""
        fields = [name for name in self.fields if any(name in own for who, own in ends.items() if who != THEIRS)]
        rows = [[named(n), *(said(own[n]) if n in own else "–" for own in ends.values())] for n in fields]
        return table(["", *ends], rows)

    def _over(self, ends: Mapping[str, Mapping[str, End]], who: str) -> list[str]:
        """A contender's errors over those of each other one that pages compare it with."""
        rows = [[other, *_summed_up(over)] for other in _RIVALS if who in ends and (over := self.against(ends, who, other))]
        return table(["relative to", "rows", "mean", "interval", "range"], rows)

    def draw(self, records: Any, path: Path) -> None:
        """The figure, over the baseline; over Adam where some of the baseline's searches are not done."""
        ends = self.ends(records)
        over = BASELINE if ends.get(BASELINE, {}).keys() == ends.get("Adam", {}).keys() else "Adam"
        if "Adam" in self.contenders:
            draw(ends, {name: named(name).strip("`") for name in self.fields}, path, over=over)

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote: medians of the errors, and each contender's over those of others."""
        ends = self.ends(records)
        shown = {who: ends[who] for who in _ON_PAGES if who in ends}
        said = {
            "medians": "\n".join(self._errors(shown, lambda end: f"{median(end.errors):.3g}")),
            "over": "\n".join(self._over(ends, "MuSOAP, untuned")),
        }
        for who, (short, other) in product(ends, _ON_PAGES_AGAINST.items()):
            over = [] if who in (THEIRS, other) else self.against(ends, who, other)
            if not over:
                continue
            called = f"{dotted(who)}.over.{short}"
            told = {"median": median(over), "least": min(over), "most": max(over)} | {
                f"{dotted(name)}.{kind}": median(own) / median(theirs)
                for name, kind in product(ends[who].keys() & ends[other].keys(), ("errors", "training"))
                if (own := getattr(ends[who][name], kind)) and (theirs := getattr(ends[other][name], kind))
            }
            said |= {f"{called}.{k}": f"{value:.2f}" for k, value in told.items()}
            for group, names in {"": None, **{f".{name}": names for name, names in self.groups.items()}}.items():
                if some := self.against(ends, who, other, names):
                    _, mean, interval, _ = _summed_up(some)
                    said |= {f"{called}{group}.mean": mean, f"{called}{group}.interval": interval}
        return said

    def against(
        self, ends: Mapping[str, Mapping[str, End]], who: str, other: str, names: Iterable[str] | None = None
    ) -> list[float]:
        """A contender's errors over the other's, on those of the fields on which both are done and the other is not lost."""
        theirs = {name: median(end.errors) for name, end in ends.get(other, {}).items()}
        done = [name for name in ends[who] if math.isfinite(theirs.get(name, math.inf)) and (names is None or name in names)]
        return [median(ends[who][name].errors) / theirs[name] for name in done]


def _spread(errors: Sequence[float]) -> str:
    """Their median, and their range where there are several."""
    ends = f" [{min(errors):.3g}, {max(errors):.3g}]" if len(errors) > 1 else ""
    return f"{median(errors):.3g}{ends}"


def _summed_up(over: Sequence[float]) -> tuple[str, str, str, str]:
    """Of ratios: how many they are, their geometric mean, its interval, and their range."""
    return str(len(over)), f"{geometric_mean(over):.2f}", _interval(over), f"{min(over):.2f} to {max(over):.2f}"


def _interval(ratios: Sequence[float]) -> str:
    """Where their geometric mean lies with 95 %, were the problems drawn at random: Student's, of the logarithms.

    A dash for a single ratio, and for those that are not finite.
    """
    if len(ratios) < 2 or not all(map(math.isfinite, ratios)):
        return "–"
    logs = [math.log(ratio) for ratio in ratios]
    reach = student(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(fmean(logs) - reach):.2f} to {math.exp(min(fmean(logs) + reach, 700)):.2f}"
