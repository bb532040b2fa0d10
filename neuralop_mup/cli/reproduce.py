"""``neuralop-mup reproduce``: the source paper's experiments from the command line."""

from __future__ import annotations

import dataclasses

import torch

from neuralop_mup.cli import studies
from neuralop_mup.cli.options import Parser, count, one_of
from neuralop_mup.cli.plan import problem_in
from neuralop_mup.errors import MupError
from neuralop_mup.experiments import paper
from neuralop_mup.experiments.presets import SIZES
from neuralop_mup.experiments.training import build_model
from neuralop_mup.tuning import Study


def run(argv: list[str]) -> int:
    """Plan, train, report."""
    options, _ = _parser().read(argv)
    if options.experiment is None:
        raise MupError(f"Name an experiment: {', '.join(paper.NAMES)}.")
    study = paper.get_experiment(options.experiment, options.size)
    if options.seeds:
        study = dataclasses.replace(study, seeds=tuple(range(options.seeds)))
    if options.device:
        study = dataclasses.replace(study, fixed={**study.fixed, "device": options.device})
    check(study)
    options.output = options.output or f"runs/{options.experiment}-{options.size}"
    studies.run(study, options, argv, "reproduce", title=study.name)
    return 0


def check(study: Study) -> None:
    """Refuse what would fail in every run: a grid too coarse for the modes, an undefined rule.

    Raises
    ------
    MupError
    """
    problem, base = problem_in(study), study.sizes[study.base]
    with torch.device("meta"):
        for size in study.sizes.values():
            for rule in study.rules:
                build_model(problem, size, base, rule)


def _parser() -> Parser:
    width = max(map(len, paper.NAMES))
    parser = Parser(
        "neuralop-mup reproduce",
        "The experiments of arXiv 2506.19396, and joint moves of width and modes: SP and μP side by side.\n\n"
        + "\n".join(f"  {name:<{width}}  {paper.SHOWS[name]}" for name in paper.NAMES),
        usage="neuralop-mup reproduce EXPERIMENT [options]",
    )
    parser.section("what to reproduce")
    parser.option("experiment", "one of those above", one_of(paper.NAMES), nargs="?", metavar="EXPERIMENT")
    parser.option("--size", "cpu (minutes), gpu (hours) or paper (as published)", one_of(SIZES), default="cpu")
    parser.option("--seeds", "number of seeds [3]", count)
    studies.add_options(parser, None, "runs/EXPERIMENT-SIZE")
    return parser
