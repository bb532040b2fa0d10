"""Whose rate lowers the best learning rate as K alone grows: at the target one role's rate is lowered, all others stay.

Every run is at the target of a move, at the learning rate that is best at its base. If the best rate of all falls because
one role wants less, then lowering that role alone gains what lowering all does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from statistics import geometric_mean
from typing import Any

from experiments.curves import rounded
from experiments.kept import loss_of, missing
from experiments.pages import NAMES, table
from experiments.transfer import Transfer
from neuralop_mup.lab.records import Run

#: What is lowered beside the rate of all, and its role.
LOWERED = {"kernels": "spectral", "hidden maps": "hidden", "lifting": "input", "projection": "readout", "biases": "vector"}
_SHARES = (0.5, 0.25)


@dataclass(frozen=True)
class Roles:
    """The experiment; ``transfer`` has the moves, of whose first rule the base's best rate is taken."""

    about: str
    transfer: Transfer
    small: bool = False

    def tiny(self) -> Roles:
        """One problem."""
        return replace(self, transfer=self.transfer.tiny(), small=True)

    def cells(self) -> list[tuple[str, str, str]]:
        """Problem, move and rule."""
        return list(self.transfer.cells())

    def runs(self, records: Any, cell: tuple[str, str, str]) -> dict[tuple[str, float, int], Run]:
        """What is lowered, its share and the seed → the run, ``("", 1)`` where nothing is; none before the base's best rate
        is known.
        """
        base = self.transfer.curve(records, cell, 0)
        if base is None:
            return {}
        lr, seeds = rounded(2**base.best), self.transfer.seeds
        plain = {("", 1.0, seed): self.transfer.run(cell, 1, lr, seed) for seed in seeds}
        every = {
            ("all", share, seed): self.transfer.run(cell, 1, rounded(share * lr), seed)
            for share in _SHARES
            for seed in seeds
        }
        return (
            plain
            | every
            | {
                (what, share, seed): self._lowered.run((*cell[:2], f"{what} × {share:g}"), 1, lr, seed)
                for what, share, seed in product(LOWERED, _SHARES, seeds)
            }
        )

    @cached_property
    def _lowered(self) -> Transfer:
        """With the first rule, and one role's rate lowered, in place of the rules."""
        settings, start = next(iter(self.transfer.optimizers.values()))
        lowered = {
            f"{what} × {share:g}": ({**settings, "lr_mult": {role: share}}, start)
            for (what, role), share in product(LOWERED.items(), _SHARES)
        }
        return replace(self.transfer, optimizers=lowered)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The base's search, and then the runs at the target."""
        bases = [run for run in self.transfer.missing_runs(records) if run.labels["size"].endswith("base")]
        yield from bases
        if not bases:
            for cell in self.cells():
                yield from missing(records, self.runs(records, cell).values())

    def numbers(self, records: Any) -> dict[str, str]:
        """A table, a column a problem: the error at the target over that with nothing lowered, means of the seeds."""
        lowered = list(product(("all", *LOWERED), _SHARES))
        rows = [[f"{what} × {share:g}"] for what, share in lowered]
        for cell in self.cells():
            errors = {key: loss_of(records.get(run)) for key, run in self.runs(records, cell).items()}
            for row, (what, share) in zip(rows, lowered, strict=True):
                row.append(self._over(errors, what, share))
        return {"table": "\n".join(table(["", *(NAMES[cell[0]] for cell in self.cells())], rows))}

    def _over(self, errors: Mapping[tuple[str, float, int], float | None], what: str, share: float) -> str:
        pairs = [(errors.get((what, share, seed)), errors.get(("", 1.0, seed))) for seed in self.transfer.seeds]
        over = [lowered / plain for lowered, plain in pairs if lowered is not None and plain is not None]
        return f"{geometric_mean(over):.3f} ({min(over):.3f} to {max(over):.3f})" if over else "–"

    def table(self, records: Any) -> str:
        """The page."""
        return (
            f"# {self.about[0].upper()}{self.about[1:]}\n\nError at the target, at the learning rate that is best at the "
            "base, with the rate of one role lowered, over that with none lowered: means of the seeds and their range.\n\n"
            f"{self.numbers(records)['table']}\n"
        )
