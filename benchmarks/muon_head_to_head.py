"""MuMuon against tuned Adam, AdamW, neuralop's AdamW and SOAP: test error at equal steps and at equal time.

    python benchmarks/muon_head_to_head.py --problem burgers

At each width every contender is tuned with the same number of runs: five learning rates times two values of a second
hyperparameter, seed 0, by validation error. The best point is trained with every seed for the same number of epochs; then
for as many epochs as MuAdam's time allows, by the processor time of a training step, measured for all contenders in turn in
one run (rounded to whole epochs; the time actually taken is printed). All train under μP with rule "none", width 16 as base.

SOAP is pytorch_optimizer's (``pip install --no-deps pytorch_optimizer``), left out where that is not installed. It refuses
complex parameters (NoComplexParameterError, as Shampoo and ScalableShampoo there do), so each is handed to it as pairs of
real numbers, which share the parameter's memory; it then preconditions channels, modes and the pair, each as an axis.

Interrupted, the same command resumes. Writes benchmarks/results/muon_head_to_head_PROBLEM.{md,json} and
docs/muon_head_to_head.png from the json files of all problems.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from neuralop_mup.tuning.engine import Planned, Session, open_session
from neuralop_mup.tuning.records import Record, best_point, mean_and_std
from neuralop_mup.tuning.settings import describe
from torch import nn

import neuralop_mup as nm
from neuralop_mup.experiments import training
from neuralop_mup.problems import Problem, get_problem

HERE = Path(__file__).parent
RESULTS, FIGURE = HERE / "results", HERE.parent / "docs" / "muon_head_to_head.png"
PROBLEMS = {"burgers": {"n_train": 400}, "darcy": {"n_train": 200, "grid": 32}}
WIDTHS = {"burgers": (16, 32, 64), "darcy": (16, 32, 64)}
MODES = {"burgers": 16, "darcy": 8}  # K
BATCH, BASE = 20, 16
ADAM = {"burgers": nm.log2_grid(4e-3, 6.4e-2), "darcy": nm.log2_grid(4e-3, 6.4e-2)}
MUON = {"burgers": nm.log2_grid(1e-2, 1.6e-1), "darcy": nm.log2_grid(2e-2, 3.2e-1)}
# Optimizer of a run, grid of its learning rate, and its second hyperparameter.
CONTENDERS = {
    "MuAdam": ("adam", ADAM, ("beta2", (0.99, 0.999))),
    "MuAdamW": ("adamw", ADAM, ("weight_decay", (0.01, 0.1))),
    "neuralop's AdamW": ("neuralop-adamw", ADAM, ("weight_decay", (0.01, 0.1))),
    "SOAP": ("soap", ADAM, ("beta2", (0.95, 0.99))),
    "MuMuon": ("muon", MUON, ("aux_lr", (4e-3, 8e-3))),
    "MuMuon, damping 0.7": ("muon", MUON, ("aux_lr", (4e-3, 8e-3))),
}
FIXED = {"MuMuon, damping 0.7": {"muon": {"damping": 0.7}}}
REFERENCE = "MuAdam"
ROUNDS = 20  # a multiple of MuMuon's period and of SOAP's 10 steps between decompositions


def soap(model: nn.Module, lr: float, beta2: float) -> torch.optim.Optimizer:
    """SOAP with the plan's learning rates (those of Adam), complex parameters as pairs of real numbers."""
    from pytorch_optimizer import SOAP

    groups, pairs = nm.param_groups(model, lr, "adam"), []
    for group in groups:
        for i, p in enumerate(group["params"]):
            if p.is_complex():
                group["params"][i] = nn.Parameter(torch.view_as_real(p.detach()))
                pairs.append((p, group["params"][i]))

    def give(*_: Any) -> None:
        for p, real in pairs:
            real.grad = None if p.grad is None else torch.view_as_real(p.grad)

    def clear(*_: Any) -> None:
        for p, _real in pairs:
            p.grad = None

    optimizer = SOAP(groups, lr=lr, betas=(0.95, beta2), weight_decay=0.0)
    optimizer.register_step_pre_hook(give)
    optimizer.register_step_post_hook(clear)
    return optimizer


def build_optimizer(model: nn.Module, config: Mapping[str, Any]) -> torch.optim.Optimizer:
    """train_run's, and SOAP."""
    if config["optimizer"] == "soap":
        return soap(model, config["lr"], config["beta2"])
    return _build_optimizer(model, config)


_build_optimizer = training.build_optimizer


def train(config: Mapping[str, Any]) -> dict[str, float]:
    """train_run, which has no SOAP of its own."""
    if config["optimizer"] != "soap":
        return training.train_run(config)
    with mock.patch.object(training, "build_optimizer", lambda model, c: build_optimizer(model, {**c, "optimizer": "soap"})):
        return training.train_run({**config, "optimizer": "adam"})


def config_of(problem: str, width: int, name: str, params: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """What :func:`train` is given."""
    n_modes = (2 * MODES[problem],) * get_problem(problem).n_dim
    return {
        "problem": problem,
        "problem_args": PROBLEMS[problem],
        "model": {"hidden_channels": width, "n_modes": n_modes},
        "base": {"hidden_channels": BASE},
        "rule": "none",
        "batch_size": BATCH,
        "optimizer": CONTENDERS[name][0],
        **FIXED.get(name, {}),
        **params,
        "seed": seed,
    }


def step_seconds(problem: Problem, configs: Mapping[str, dict[str, Any]], rounds: int) -> dict[str, float]:
    """Mean processor time of a training step of each contender, measured in turn in one run."""
    x = torch.randn(BATCH, problem.in_channels, *problem.grid_shape)
    models, optimizers = {}, {}
    for name, config in configs.items():
        torch.manual_seed(0)
        models[name] = training.build_model(problem, config["model"], config["base"], config["rule"])
        optimizers[name] = build_optimizer(models[name], config)
    spent = dict.fromkeys(configs, 0.0)
    for i in range(rounds + 2):
        # Every second round runs the other way round, so that a drift of the machine's speed cancels.
        for name in configs if i % 2 else reversed(configs):
            start = time.process_time()
            optimizers[name].zero_grad()
            models[name](x).square().mean().backward()
            optimizers[name].step()
            if i >= 2:  # the first steps allocate
                spent[name] += time.process_time() - start
    return {name: seconds / rounds for name, seconds in spent.items()}


class HeadToHead:
    """One problem: the trials, in the order in which they depend on each other."""

    def __init__(self, problem: str, names: list[str], widths: tuple[int, ...], seeds: int, epochs: int) -> None:
        self.problem, self.names, self.widths, self.seeds, self.epochs = problem, names, widths, range(seeds), epochs
        # Two further lengths at the largest width, for the curve of error against time.
        self.curve = tuple(sorted({max(1, epochs // 2), epochs, epochs + epochs // 2}))

    def grid(self, name: str) -> dict[str, tuple[float, ...]]:
        _, lrs, (second, values) = CONTENDERS[name]
        return {"lr": tuple(lrs[self.problem]), second: values}

    def planned(self, width: int, name: str, params: Mapping[str, Any], epochs: int, seed: int) -> Planned:
        params = {**params, "epochs": epochs}
        config = config_of(self.problem, width, name, params, seed)
        return Planned(f"{width}/{name}", name, str(width), name, params, seed, config)

    def studies(self) -> dict[str, tuple[dict[str, Any], bool]]:
        # More epochs than MuAdam's are never asked for but on the curve; a cheaper contender has a few.
        epochs = tuple(range(1, 2 * self.epochs + 1))
        return {f"{w}/{n}": ({**self.grid(n), "epochs": epochs}, False) for w, n in product(self.widths, self.names)}

    def tuning(self) -> list[Planned]:
        points = {
            n: [dict(zip(self.grid(n), values, strict=True)) for values in product(*self.grid(n).values())]
            for n in self.names
        }
        return [self.planned(w, n, point, self.epochs, 0) for w in self.widths for n in self.names for point in points[n]]

    def select(self, records: list[Record], width: int, name: str, params=None, epochs: int | None = None) -> list[Record]:
        want = None if params is None else {**params, "epochs": epochs or self.epochs}
        return [
            r for r in records if (r["size"], r["stage"]) == (str(width), name) and (want is None or r["params"] == want)
        ]

    def tuned(self, records: list[Record], width: int, name: str) -> dict[str, Any] | None:
        """The best point on the grid; None if every run failed."""
        at = [r for r in self.select(records, width, name) if r["seed"] == 0 and r["params"]["epochs"] == self.epochs]
        best, _ = best_point(at, 1)
        return None if best is None else {k: v for k, v in best.items() if k != "epochs"}

    def equal_epochs(self, seconds: Mapping[str, float], name: str) -> int:
        """Whole epochs that come closest to MuAdam's time."""
        return min(2 * self.epochs, max(1, round(self.epochs * seconds[REFERENCE] / seconds[name])))

    def finals(self, records: list[Record], timing: Mapping[str, Mapping[str, float]]) -> list[Planned]:
        planned = []
        for width, name in product(self.widths, self.names):
            point = self.tuned(records, width, name)
            if point is None:
                continue
            epochs = {self.epochs, self.equal_epochs(timing[str(width)], name)}
            epochs |= set(self.curve) if width == max(self.widths) else set()
            planned += [self.planned(width, name, point, e, seed) for e in sorted(epochs) for seed in self.seeds]
        return planned

    def run(self, session: Session, timing: Mapping[str, Mapping[str, float]]) -> list[Record]:
        tuned = session.run_grid(self.tuning())
        session.run_grid(self.finals(tuned, timing))
        session.write_results(session.records())
        return session.records()


def errors(records: list[Record]) -> str:
    """``0.0123 ± 0.0004``: test error over the seeds."""
    done = [r["metrics"]["test_loss"] for r in records if r["state"] == "complete"]
    if not records or len(done) < len(records):
        return "failed"
    mean, std = mean_and_std(done)
    return f"{mean:.4f} ± {std:.4f}"


def report(h: HeadToHead, records: list[Record], timing: Mapping[str, Mapping[str, float]]) -> str:
    """The tables of one problem."""
    tried = len(next(iter(h.grid(REFERENCE).values()))) * 2
    lines = [
        f"## Head to head: {h.problem}, K = {MODES[h.problem]}",
        "",
        f"{PROBLEMS[h.problem]}, batch {BATCH}, μP with rule none from width {BASE}. Each contender tuned at each width "
        f"with {tried} runs (seed 0, {h.epochs} epochs, validation error); test error (relative L2), mean ± std of "
        f"{len(h.seeds)} seeds (one of them is the seed tuned with). Step time: processor time over {REFERENCE}'s, all "
        "measured in turn in one run. * marks a learning rate at the edge of its grid.",
    ]
    for width in h.widths:
        seconds = timing[str(width)]
        lines += [
            "",
            f"### Width {width} ({REFERENCE}: {1e3 * seconds[REFERENCE]:.1f} ms a step)",
            "",
            f"| contender | tuned | step time | equal steps ({h.epochs} epochs) | equal time: epochs | time | error |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for name in h.names:
            point, ratio = h.tuned(records, width, name), seconds[name] / seconds[REFERENCE]
            if point is None:
                lines.append(f"| {name} | every run failed | {ratio:.2f} | | | | |")
                continue
            grid, equal = h.grid(name)["lr"], h.equal_epochs(seconds, name)
            edge = "*" if point["lr"] in (min(grid), max(grid)) else ""
            values = ", ".join(f"{k} {v:g}{edge if k == 'lr' else ''}" for k, v in point.items())
            lines.append(
                f"| {name} | {values} | {ratio:.2f} | {errors(h.select(records, width, name, point))} | {equal} | "
                f"{ratio * equal / h.epochs:.2f} | {errors(h.select(records, width, name, point, equal))} |"
            )
    return "\n".join(lines) + "\n"


def curves(h: HeadToHead, records: list[Record], timing: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Mean test error against processor time at the largest width; each point is a run with its own cosine schedule."""
    width, found = max(h.widths), {}
    steps = -(-PROBLEMS[h.problem]["n_train"] // BATCH)
    for name in h.names:
        point = h.tuned(records, width, name)
        line = []
        for epochs in h.curve if point else ():
            done = [r["metrics"].get("test_loss") for r in h.select(records, width, name, point, epochs)]
            if done and None not in done:
                line.append((epochs * steps * timing[str(width)][name], *mean_and_std(done)))
        found[name] = line
    return {"title": f"{h.problem}, width {width}", "curves": found}


def draw(path: Path) -> None:
    """The figure, from the json file of every problem that has one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    files = [f for p in PROBLEMS if (f := RESULTS / f"muon_head_to_head_{p}.json").exists()]
    panels = [json.loads(f.read_text())["figure"] for f in files]
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.6), squeeze=False, layout="constrained")
    for axis, panel in zip(axes[0], panels, strict=True):
        for name, line in panel["curves"].items():
            if line:
                x, y, std = zip(*line, strict=True)
                axis.errorbar(x, y, std, marker="o", markersize=4, linewidth=1.2, capsize=2, label=name)
        axis.set(title=panel["title"], xlabel="processor seconds of training", yscale="log")
    axes[0][0].set_ylabel("test error (relative L2)")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=110)


def contenders() -> list[str]:
    """All of them; without SOAP where pytorch_optimizer is not installed."""
    try:
        import pytorch_optimizer  # noqa: F401
    except ImportError:
        warnings.warn("pytorch_optimizer is not installed: SOAP is left out.", stacklevel=2)
        return [name for name in CONTENDERS if name != "SOAP"]
    return list(CONTENDERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=tuple(PROBLEMS), required=True)
    parser.add_argument("--widths", type=int, nargs="+", help="default: 16 32 64")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder; the figure is drawn only for the default")
    args = parser.parse_args()
    torch.set_num_threads(1)
    problem, names = get_problem(args.problem, **PROBLEMS[args.problem]), contenders()
    problem.load()
    h = HeadToHead(args.problem, names, tuple(args.widths or WIDTHS[args.problem]), args.seeds, args.epochs)
    sizes = "-".join(map(str, h.widths))
    folder = HERE / "runs" / f"muon_head_to_head_{args.problem}_{sizes}_{args.epochs}{'' if 'SOAP' in names else '_nosoap'}"
    with open_session(
        train,
        name="head-to-head",
        folder=folder,
        settings={"widths": list(h.widths), "epochs": h.epochs, "grids": describe({n: h.grid(n) for n in names})},
        studies=h.studies(),
        seeds=h.seeds,
        expected={str(w): 10 * len(names) + len(names) * len(h.seeds) for w in h.widths},
        fixed={},
        n_workers=args.workers,
        progress=True,
    ) as session:
        kept = folder / "timing.json"
        if not kept.exists():
            timing = {}
            for width in h.widths:
                configs = {n: config_of(args.problem, width, n, {k: v[0] for k, v in h.grid(n).items()}, 0) for n in names}
                timing[str(width)] = step_seconds(problem, configs, ROUNDS)
            kept.write_text(json.dumps(timing, indent=1))
        timing = json.loads(kept.read_text())
        records = h.run(session, timing)
    text = report(h, records, timing)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / f"muon_head_to_head_{args.problem}.md").write_text(text)
    result = {"step_seconds": timing, "figure": curves(h, records, timing), "records": records}
    (args.output / f"muon_head_to_head_{args.problem}.json").write_text(json.dumps(result) + "\n")
    if args.output == RESULTS:
        draw(FIGURE)
    print(text, flush=True)


if __name__ == "__main__":
    main()
