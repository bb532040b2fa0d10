"""APEBench's scenarios (Köhler, Niedermayr, Westermann and Thuerey, arXiv 2411.00180): data and protocol by others.

The trajectories are made in APEBench's own environment (``benchmarks/apebench/theirs.py data``) and only read here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems import ProblemData

FOLDER = Path(__file__).parents[1] / "apebench"
sys.path.append(str(FOLDER))
import scenarios  # noqa: E402  (shared with that environment, in which this package is not)


@dataclass(frozen=True)
class ApeBench:
    """One scenario: pairs of successive states to train on, and test trajectories for rollouts."""

    scenario: str
    #: Which test trajectories are scored: the first third ("selection"), the others ("report"), or all of them.
    part: Literal["", "selection", "report"] = ""

    @property
    def n_dim(self) -> int:
        """Axes of space."""
        return scenarios.dimensions(self.scenario)

    def content(self) -> dict[str, Any]:
        """What makes the data the same."""
        theirs, arguments = scenarios.SCENARIOS[self.scenario]
        part = {"part": self.part} if self.part else {}
        return {"apebench": scenarios.VERSION, "scenario": theirs, **arguments, **part}

    def losses(self) -> None:
        """The relative L2 error alone."""

    def load(self) -> ProblemData:
        """Training pairs, and the test trajectories as validation data, of which rollouts are scored.

        Raises
        ------
        MupError
            If the data was not made.
        """
        path = FOLDER / "data" / scenarios.file_name(self.scenario)
        if not path.exists():
            raise MupError(
                f"{path} is not there: APEBench makes it, in an environment of its own; benchmarks/apebench/theirs.py says "
                "how, in two commands."
            )
        with np.load(path) as file:
            states = {split: torch.from_numpy(file[split]) for split in ("train", "test")}
        third = len(states["test"]) // 3
        parts = {"selection": slice(third), "report": slice(third, None), "": slice(None)}
        states["test"] = states["test"][parts[self.part]]
        pairs = {split: (u[:, :-1].flatten(0, 1), u[:, 1:].flatten(0, 1)) for split, u in states.items()}
        train, test = (states[split].shape[1] - 1 for split in ("train", "test"))
        return ProblemData(pairs["train"], pairs["test"], trajectory=train, lengths={"val": test})


def channel_errors(prediction: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """APEBench's nRMSE of each sample: the relative L2 error of each channel, added up."""
    off, size = ((prediction - truth).flatten(2).double().norm(dim=2), truth.flatten(2).double().norm(dim=2))
    return (off / size).sum(1)
