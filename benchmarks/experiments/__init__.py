"""All experiments by name; see :class:`experiments.experiment.Experiment`. ``python benchmarks/run.py`` runs them."""

from __future__ import annotations

from dataclasses import replace

from experiments import paper, pino
from experiments.ablations import (
    ARCHITECTURES,
    CHOICES,
    HELD_OUT_CHOICES,
    LOSSES,
    Ablation,
    Architectures,
    Losses,
    architecture_configs,
    default_configs,
    held_out_configs,
    loss_configs,
)
from experiments.against_tuned import AgainstTuned
from experiments.comparison import BASELINES, TUNED, VARIANTS, Comparison
from experiments.contenders import MUSOAP, PEERS
from experiments.fine_tuning import FineTuning
from experiments.law import Law
from experiments.law_settings import CHOSEN_ON, PROBLEMS
from experiments.memory import Memory
from experiments.mup_figure import SizeCurves
from experiments.pino import Pino
from experiments.programs import Programs
from experiments.published_code import PublishedCode
from experiments.tasks import (
    APEBENCH,
    FEW_SAMPLES,
    FEWEST_SAMPLES,
    FURTHER,
    LAYOUTS,
    LENGTHS,
    LINEAR,
    OWN_LOSS,
    ROLLOUT_RATES,
    SUITE,
    TUNED_SCENARIOS,
)
from experiments.timing import GPU_CASES, Timing
from experiments.transfer import MOVES, Transfer
from experiments.unknown_length import UnknownLength
from problems.apebench import FOLDER

_UNTUNED = {"MuSOAP, untuned": "MuSOAP"}
EXPERIMENTS = {
    "law": Law(),
    "choices": Ablation("the defaults of MuSOAP, one at a time", default_configs(), CHOICES, (0, 1, 2)),
    "elsewhere": Ablation("three defaults of MuSOAP on held-out problems", held_out_configs(), HELD_OUT_CHOICES, (0, 1, 2)),
    "losses": Losses("training losses: relative, relative with a floor, and squared", loss_configs(), LOSSES, (0, 1, 2)),
    "pino": Pino(),
    "pino-held-out": Pino(pino.HELD_OUT, (10, 40), (0.0, 0.1), adam_weights=(), balancing=()),
    "time": AgainstTuned(
        "when untuned MuSOAP reaches the error of tuned Adam", SUITE, (1.0, 0.15, 0.25, 0.4, 0.6), others=PEERS
    ),
    "few-samples": AgainstTuned("untuned MuSOAP beside tuned Adam and AdamW, by the number of samples", FEW_SAMPLES),
    "few-samples-decay": AgainstTuned(
        "whether a larger weight decay helps MuSOAP with the fewest samples",
        FEWEST_SAMPLES,
        seeds=(0,),
        others={f"MuSOAP, decay {decay:g}": {**MUSOAP, "weight_decay": decay} for decay in (0.03, 0.1, 0.3)},
    ),
    "apebench-loss": AgainstTuned(
        "untuned MuSOAP beside tuned Adam on scenarios of APEBench, all with its squared error",
        OWN_LOSS,
        selection={"part": "selection"},
    ),
    "apebench-sgno": Architectures(
        "FNO and SGNO, each with Adam at 0.001 and with untuned MuSOAP, on APEBench",
        *(architecture_configs(), ARCHITECTURES, (0, 1, 2)),
    ),
    "transfer": Transfer(
        "transfer of the best learning rate over width, modes, depth, samples, grid points and batch size",
        {name: PROBLEMS[name] for name in ("korteweg-de-vries", "gray-scott", "darcy")},
        only_moves={
            "MuAdam": ("width, 8 times",),
            "MuAdam, log-modes": ("modes, 4 times",),
            "Adam (SP)": tuple(MOVES)[:4],  # width, modes, both, and depth
        },
    ),
    "mup": SizeCurves(),
    "paper": paper.WithCosts(
        "transfer of the best learning rate over K at the same width, at a small size", paper.SMALL, paper.MOVES, paper.RULES
    ),
    "paper-burgers": paper.WithCosts(
        "transfer of the best learning rate over K on the paper's Burgers' equation, at its width",
        *(paper.BURGERS, paper.BURGERS_MOVES, paper.BURGERS_RULES),
    ),
    "paper-figure-3": Ablation(
        "the best batch size and beta2 on Darcy, at a small and a large K",
        paper.configs("darcy", (0.016, 0.016, 0.016)),
        paper.FIGURE_3,
        (0, 1, 2),
    ),
    "paper-clipping": Ablation(
        "clipping of the gradients of kernels on Navier–Stokes, at a small and a large K",
        paper.configs("navier-stokes", (0.032, 0.016, 0.016)),
        paper.CLIPPING,
        (0, 1, 2),
    ),
    "paper-full": paper.WithCosts(
        "transfer of the best learning rate over K at the paper's size (needs a GPU)", paper.FULL, paper.MOVES, paper.RULES
    ),
    "timing": Timing(),
    "memory": Memory(),
    "gpu": Timing("cost of a step relative to fused Adam, on a GPU", GPU_CASES, "cuda"),
    "gpu-time": AgainstTuned(
        "when untuned MuSOAP reaches the error of tuned Adam, on a GPU, in 2D",
        {"darcy": replace(SUITE["darcy"], config={**SUITE["darcy"].config, "device": "auto"})},
        (1.0, 0.15, 0.25, 0.4, 0.6),
        seeds=(0,),
        others=PEERS,
    ),
    "fine-tuning": FineTuning(),
    "unknown-length": UnknownLength(),
    "programs": Programs(),
    "published-code": PublishedCode(),
    "apebench": Comparison(
        "optimizers on APEBench's scenarios, by its rollout error",
        APEBENCH,
        TUNED,
        only_on=dict.fromkeys(set(TUNED) - {*BASELINES, "stock SOAP"}, TUNED_SCENARIOS)
        | dict.fromkeys(BASELINES[2:], TUNED_SCENARIOS[:1]),
        search_from=dict.fromkeys(BASELINES[1:], "Adam"),
        longer=True,
        groups={d: tuple(name for name in APEBENCH if name.endswith(d)) for d in ("1D", "2D")}
        | {"nonlinear": tuple(name for name in APEBENCH if name not in LINEAR)},
        apebench_runs=FOLDER / "own.jsonl",
    ),
    "apebench-further": Comparison(
        "optimizers on further scenarios of APEBench, selected by a rule",
        FURTHER,
        ("Adam", "AdamW"),
        (0,),
        search_from={"Adam": 0.016, "AdamW": "Adam"},  # Adam's best rate on most of the other scenarios
        untuned=_UNTUNED,
    ),
    "lengths": Comparison("the formula's learning rate in short trainings", LENGTHS, ("MuSOAP",), untuned=_UNTUNED),
    "apebench-rates": Comparison(
        "the best learning rate for rollouts, on further scenarios of APEBench", ROLLOUT_RATES, ("MuSOAP",), (0,)
    ),
    "layouts": Comparison(
        "optimizers on other kernels and models of neuralop, by the test error",
        LAYOUTS,
        ("Adam",),
        untuned=_UNTUNED,
    ),
    "optimizers": Comparison(
        "optimizers on the problems of this repository, by the test error",
        SUITE,
        one_seed=("MuAdamW", "torch's Muon and AdamW", *VARIANTS),
        longer=True,
        groups={"elsewhere": tuple(set(SUITE) - set(CHOSEN_ON))},
    ),
}
