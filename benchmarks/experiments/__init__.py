"""Experiments: each says which runs it still wants, given the records so far, and makes a text of what they hold.

``missing_runs(records)``, the runs that are missing in the order in which they should be trained, and ``table(records)``, a
page of what is done, are pure functions of the records, which need no more than ``get(run)``: what a run gave, or None.
``about`` says what is measured, and ``tiny()`` is the same in a minute. ``python benchmarks/run.py`` trains what is missing.

An experiment may have more: ``numbers(records)``, what pages quote; ``draw(records, path)``, its figure; ``metrics``, what a
file of its runs keeps of each besides the loss (``test_loss`` and ``seconds``).
"""

from __future__ import annotations

from typing import Any

from experiments import paper
from experiments.against_tuned import AgainstTuned
from experiments.choices import BASES, CHOICES, DECAYS, DOUBTS, Choices, decay_fields, elsewhere_fields, reference_fields
from experiments.contest import TUNED, USUAL, VARIANTS
from experiments.contest_page import ContestWithPage
from experiments.fields import APEBENCH, FEW_SAMPLES, FURTHER, LAYOUTS, LENGTHS, LINEAR, MORE, OWN_LOSS, RATES, SOME, SUITE
from experiments.fine_tuning import FineTuning
from experiments.gpu import Gpu
from experiments.law import CHOSEN_ON, PROBLEMS
from experiments.law_page import LawWithPage
from experiments.losses import Losses
from experiments.memory import Memory
from experiments.mup_figure import SizeCurves
from experiments.pino import Pino
from experiments.programs import Programs
from experiments.published_code import PublishedCode
from experiments.rollout import Rollout
from experiments.timing import Timing
from experiments.transfer import MOVES, Transfer
from experiments.unknown_length import UnknownLength
from experiments.untuned import PEERS
from problems.apebench import FOLDER

EXPERIMENTS: dict[str, Any] = {
    "law": LawWithPage(),
    "decay": Choices("weight decay of MuSOAP at the law's learning rate", decay_fields(), DECAYS),
    "reference": Choices("the base of MuSOAP where nobody tuned one", reference_fields(), BASES),
    "choices": Choices("the defaults of MuSOAP, one at a time", reference_fields(1000), CHOICES, (0, 1, 2)),
    "elsewhere": Choices(
        "three choices that were in doubt, on problems where none was made", elsewhere_fields(), DOUBTS, (0, 1, 2)
    ),
    "rollout": Rollout(),
    "losses": Losses(),
    "pino": Pino(),
    "time": AgainstTuned(
        "when untuned MuSOAP reaches the error of tuned Adam", SUITE, (1.0, 0.15, 0.25, 0.4, 0.6), seeds=(0,), others=PEERS
    ),
    "few-samples": AgainstTuned("untuned MuSOAP beside tuned Adam and AdamW, by the number of samples", FEW_SAMPLES),
    "apebench-loss": AgainstTuned(
        "untuned MuSOAP beside tuned Adam on scenarios of APEBench, all with its squared error",
        OWN_LOSS,
        selection={"part": "selection"},
    ),
    "transfer": Transfer(
        "whether the best learning rate carries over width, modes, depth, samples, points and batch",
        {name: PROBLEMS[name] for name in ("korteweg-de-vries", "gray-scott", "darcy")},
        # Adam where sizes grow: width, modes, both, depth.
        few={"MuAdam": ("width, 8 times",), "MuAdam, log-modes": ("modes, 4 times",), "Adam (SP)": tuple(MOVES)[:4]},
    ),
    "mup": SizeCurves(),
    "paper": Transfer("whether the best learning rate falls as K alone grows", paper.SMALL, paper.MOVES, paper.RULES),
    "paper-full": Transfer(
        "whether the best learning rate falls as K alone grows, at the paper's own size, which needs a GPU",
        paper.FULL,
        paper.MOVES,
        paper.RULES,
    ),
    "timing": Timing(),
    "memory": Memory(),
    "gpu": Gpu(),
    "fine-tuning": FineTuning(),
    "unknown-length": UnknownLength(),
    "programs": Programs(),
    "published-code": PublishedCode(),
    "apebench": ContestWithPage(
        "optimizers on APEBench's scenarios, by its own error of rollouts",
        APEBENCH,
        TUNED,
        few=dict.fromkeys(set(TUNED) - {*USUAL, "stock SOAP"}, SOME) | dict.fromkeys(USUAL[2:], SOME[:1]),
        near=dict.fromkeys(USUAL[1:], "Adam"),
        longer=True,
        groups={d: tuple(name for name in APEBENCH if name.endswith(d)) for d in ("1D", "2D")}
        | {"nonlinear": tuple(name for name in APEBENCH if name not in LINEAR)},
        others=FOLDER / "own.jsonl",
    ),
    "apebench-further": ContestWithPage(
        "optimizers on further scenarios of APEBench, taken by a rule",
        FURTHER,
        ("Adam", "AdamW"),
        (0,),
        near={"Adam": 0.016, "AdamW": "Adam"},  # Adam's best one on most of the other scenarios
        untuned={"MuSOAP, untuned": "MuSOAP"},
    ),
    "apebench-more": ContestWithPage(
        "whether four times the trajectories turn the scenarios of APEBench on which MuSOAP is worse than AdamW",
        MORE,
        ("AdamW",),
        (0,),
        near={"AdamW": 0.016},  # its best one on each of them with fewer
        untuned={"MuSOAP, untuned": "MuSOAP"},
    ),
    "lengths": ContestWithPage(
        "what the formula's learning rate loses in short trainings, with today's defaults",
        LENGTHS,
        ("MuSOAP",),
        untuned={"MuSOAP, untuned": "MuSOAP"},
        told="test_loss",
    ),
    "apebench-rates": ContestWithPage(
        "which learning rate rollouts want, on scenarios of APEBench on which nothing is reported", RATES, ("MuSOAP",), (0,)
    ),
    "layouts": ContestWithPage(
        "optimizers on other kernels and models of neuralop's, by their test error",
        LAYOUTS,
        ("Adam",),
        untuned={"MuSOAP, untuned": "MuSOAP"},
        told="test_loss",
    ),
    "optimizers": ContestWithPage(
        "optimizers on the problems of this repository, by their test error",
        SUITE,
        once=("MuAdamW", "torch's Muon and AdamW", *VARIANTS),
        longer=True,
        groups={"elsewhere": tuple(set(SUITE) - set(CHOSEN_ON))},
        told="test_loss",
    ),
}
