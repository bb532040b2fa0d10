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
from experiments.curves import ninth_decile
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
_ON_PAGES_AGAINST = {**_AGAINST, "AdamW": "AdamW", "tuned": "MuSOAP", "lowest": "the lowest of Adam and AdamW"}


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
        """What pages quote: the errors, each contender's over those of others, and single runs of a search."""
        ends = self.ends(records)
        # The baseline is chosen by what rates are chosen by; this by what is reported.
        usual = {n: [ends[who][n] for who in USUAL if n in ends.get(who, {})] for n in ends.get(BASELINE, {})}
        lowest = {n: min(own, key=lambda end: median(end.errors)) for n, own in usual.items()}
        shown = {who: ends[who] for who in _ON_PAGES if who in ends}
        said = {
            "table": "\n".join(self._errors(ends, lambda end: _spread(end.errors))),
            "medians": "\n".join(self._errors(shown, lambda end: f"{median(end.errors):.3g}")),
            "over": "\n".join(self._over(ends, "MuSOAP, untuned")),
        }
        for name, who in product(self.fields, self.contenders):
            for lr, error in self.searched(records, name, who)[0].items():
                called = dotted(f"{name} {who} {lr:g}")
                one = self.error(records, self.run(name, who, lr, self.seeds[0]), "validation_error") or math.nan
                said |= {called: f"{error:.2g}", f"{called}.one": f"{one:.2g}"}
        of_all = {**ends, **({_ON_PAGES_AGAINST["lowest"]: lowest} if lowest else {})}
        for who, (short, other) in product(ends, _ON_PAGES_AGAINST.items()):
            if who not in (THEIRS, other) and (over := self.against(of_all, who, other)):
                called = f"{dotted(who)}.over.{short}"
                told = {"median": median(over), "ninth": ninth_decile(over), "least": min(over), "most": max(over)} | {
                    f"{dotted(name)}.{kind}": median(own) / median(theirs)
                    for name, kind in product(ends[who].keys() & of_all[other].keys(), ("errors", "training"))
                    if (own := getattr(ends[who][name], kind)) and (theirs := getattr(of_all[other][name], kind))
                }
                grouped = {called: None, **{f"{called}.{name}": names for name, names in self.groups.items()}}
                for group, names in grouped.items():
                    if some := self.against(of_all, who, other, names):
                        of, mean, interval, _ = _summed_up(some)
                        said |= {f"{group}.of": of, f"{group}.mean": mean, f"{group}.interval": interval}
                said |= {
                    f"{called}.lower": str(sum(ratio < 1 for ratio in over)),
                    f"{called}.apart": str(self.apart(of_all, who, other)),
                    f"{called}.behind": str(self.apart(of_all, other, who)),
                    **{f"{called}.{k}": f"{value:.2f}" for k, value in told.items()},
                }
        return said

    def against(
        self, ends: Mapping[str, Mapping[str, End]], who: str, other: str, names: Iterable[str] | None = None
    ) -> list[float]:
        """A contender's errors over the other's, on those of the fields on which both are done and the other is not lost."""
        theirs = {name: median(end.errors) for name, end in ends.get(other, {}).items()}
        done = [name for name in ends[who] if math.isfinite(theirs.get(name, math.inf)) and (names is None or name in names)]
        return [median(ends[who][name].errors) / theirs[name] for name in done]

    def apart(self, ends: Mapping[str, Mapping[str, End]], who: str, other: str) -> int:
        """On how many fields every seed of a contender is below every seed of the other's."""
        return sum(max(end.errors) < min(ends[other][n].errors) for n, end in ends[who].items() if n in ends[other])


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
