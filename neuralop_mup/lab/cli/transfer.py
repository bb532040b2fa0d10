"""``neuralop-mup transfer``: Algorithm 1 from the command line, which is ``nm.tune`` of neuralop's FNO with presets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt

from neuralop_mup.core.rules import DEFAULT_RULE, ROLES, check_rule
from neuralop_mup.errors import MupError
from neuralop_mup.lab import report, wording
from neuralop_mup.lab.cli.data import chosen, data_groups, problem_lines
from neuralop_mup.lab.cli.options import BelowOne, Verb, fno_arguments, on_axes, searched
from neuralop_mup.lab.engines import cuda_devices
from neuralop_mup.lab.fno import FNOs
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.pipeline import Tuning, tuning
from neuralop_mup.lab.presets import EXTENDS, PRESETS, Preset, preset_of
from neuralop_mup.lab.problems import Problem
from neuralop_mup.lab.problems.mode_energy import mode_energy
from neuralop_mup.lab.search import is_search, log2_grid
from neuralop_mup.lab.settings import OPTIMIZERS, optimizer_name
from neuralop_mup.lab.target import lines_of_use

#: Arguments in which proxy and target may differ.
_SCALED = ("hidden_channels", "n_modes", "max_n_modes", "n_layers")
#: Hyperparameters that may be searched, by what reads their values.
_SEARCHED = {
    "lr": float,
    **{f"{kind}.{role}": float for kind in ("lr_mult", "init_mult") for role in ROLES},
    **{"batch_size": int, "aux_lr": float, "weight_decay": float, "beta2": float, "epochs": int},
}
_RARE = (
    *("sampler", "aux_lr", "kernel_init", "weight_decay", "beta2", "schedule", "clip_spectral", "allow_large_proxy"),
    *("workers_per_device", "address", "cpus", "gpus"),
)
_GROUPS = {
    "proxy": "argument of FNO at the proxy, such as --proxy.hidden_channels 16 --proxy.n_modes 8",
    "target": "argument of FNO at the target",
    "model": "argument of FNO at both sizes, such as --model.n_layers 6",
}


def run(argv: list[str]) -> int:
    """Read the options and do it."""
    fno = fno_arguments()
    groups = {name: (fno, what) for name, what in _GROUPS.items()} | data_groups(argv)
    groups["search"] = (_SEARCHED, "also searched, such as --search.lr_mult.spectral 1,2,4")
    presets = [f"{problem} {size}: {preset}" for (problem, size), preset in PRESETS.items()]
    return Verb("transfer", transfer, groups, _RARE, [*problem_lines(), "", "by preset:", *presets]).call(argv)


def transfer(
    problem: str | None = None,
    *,
    data: str = "",
    preset: Literal["cpu", "gpu", "paper"] = "cpu",
    lr: str = "",
    seeds: PositiveInt = 1,
    trials: PositiveInt | None = None,
    sampler: str | None = None,
    rule: Literal["operator-norm", "log-modes", "none"] = DEFAULT_RULE,
    rules: tuple[str, ...] = (),
    allow_large_proxy: bool = False,
    epochs: PositiveInt | None = None,
    batch_size: PositiveInt | None = None,
    optimizer: str = "soap",
    proxy_steps: PositiveInt | None = None,
    proxy_stride: PositiveInt | None = None,
    aux_lr: PositiveFloat | None = None,
    kernel_init: Literal["default", "small"] | None = None,
    loss: str = "l2",
    score: str | None = None,
    weight_decay: NonNegativeFloat | None = None,
    beta2: BelowOne = 0.999,
    schedule: str | None = None,
    clip_spectral: PositiveFloat | None = None,
    device: str = "cpu",
    workers: PositiveInt | None = None,
    workers_per_device: PositiveInt = 1,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    cpus: NonNegativeFloat = 1,
    gpus: NonNegativeFloat | None = None,
    output: str = "",
    dry_run: bool = False,
    proxy: Mapping[str, Any],
    target: Mapping[str, Any],
    model: Mapping[str, Any],
    problem_: Mapping[str, Any],
    data_: Mapping[str, Any],
    search: Mapping[str, str],
    command: str,
) -> int:
    """Check the learning rate at a cheap proxy, and train a large FNO with it (Algorithm 1 of arXiv 2506.19396).

    Parameters
    ----------
    problem
        what to learn: burgers, burgers-pino, darcy, darcy-pino, navier-stokes, burgers-files, …
    data
        your own fields instead: .npz, .pt or .h5; a folder, a pattern, or several with commas
    preset
        sizes, data and epochs: cpu (minutes), gpu or paper
    lr
        learning rates: LOW:HIGH in factors of 2, a comma list, log:LOW:HIGH [five around the law's]
    seeds
        number of seeds
    trials
        points of a search over a distribution (log:LOW:HIGH)
    sampler
        Optuna's: tpe, random, qmc, gp, cmaes [tpe]
    rule
        rule that carries the values: operator-norm, log-modes, none
    rules
        rules to compare it with, a comma list, such as standard; each costs as much as the target
    allow_large_proxy
        accept a proxy as large as the target
    epochs
        epochs of each run [by preset]
    batch_size
        samples a batch [by preset]
    optimizer
        soap, adam, adamw, neuralop-adamw, sgd
    proxy_steps
        optimizer steps of the proxy [an eighth of the target's, 125 at least]
    proxy_stride
        1: the proxy sees every point of the grid; 2: every 2nd [as the data allows]
    aux_lr
        learning rate of input, readout and vectors, for optimizers that have one [soap 0.004]
    kernel_init
        how large Fourier kernels start: default, small [small with soap; SP has its own]
    loss
        l2, h1 or l2,h1; by the first one runs are compared
    score
        what runs are compared by instead: rollout:50, the error of 50 steps from one prediction to the next
    weight_decay
        weight decay [soap 0.01, others 0]
    beta2
        second beta of Adam
    schedule
        of lr: cosine, constant, halve:50 (every 50 epochs), halve:100,150 [by preset]
    clip_spectral
        clip each gradient entry of the spectral kernels here
    device
        cpu, cuda, cuda:N or auto
    workers
        runs at once, each in its own process [one per core; on GPUs one each]
    workers_per_device
        runs at once on each GPU, for small proxies
    engine
        local: processes of this machine; ray: a cluster
    address
        of the Ray cluster, such as auto or ray://HOST:10001 [one is started here]
    cpus
        CPUs that a run asks Ray for
    gpus
        GPUs that a run asks Ray for; 0.5 puts two runs on one [1 unless on the cpu]
    output
        folder for results; the same command resumes there [runs/NAME-transfer]
    dry_run
        read and check the data, print what would be trained, and stop
    """
    source = chosen(problem, data, problem_, data_, preset)
    folder = Path(output or f"runs/{source.title}-transfer")
    if lr and "lr" in search:
        raise MupError("--lr and --search.lr are the same; give one of them.")
    for name in rules:
        check_rule(name)
    choice = OPTIMIZERS[optimizer_name(optimizer)]
    space = {name: searched(f"--search.{name}", text, _SEARCHED[name]) for name, text in search.items()}
    batches = space.get("batch_size") if isinstance(space.get("batch_size"), list) else [batch_size or 0]
    in_files = not isinstance(source, Problem) or source.file_name is None
    sample = source.load().sample() if in_files and (source.name, preset) not in PRESETS else None
    energy = None if sample is None else mode_energy(sample["x"], sample["y"])
    row = preset_of(source, preset, batch_size=max(batches) or None, energy=energy)
    if lr or (not choice.by_steps and "lr" not in space):
        space = {"lr": searched("--lr", lr) if lr else log2_grid(*row.lr), **space}
    if is_search(space) != (trials is not None):
        raise MupError(
            f"--trials {trials} is for searches over a distribution, such as --search.lr log:1e-3:1e-1; a grid runs every "
            "point."
            if trials is not None
            else "A search over a distribution needs --trials N: how many points to try."
        )
    asked = {"epochs": epochs, "batch_size": batch_size, "schedule": schedule}
    fixed = {name: getattr(row, name) if value is None else value for name, value in asked.items()}
    fixed |= {"optimizer": optimizer_name(optimizer), "aux_lr": aux_lr or choice.aux_lr, "clip_spectral": clip_spectral}
    decay = choice.weight_decay if weight_decay is None else weight_decay
    fixed |= {"weight_decay": decay, "beta2": beta2, "device": device}
    sizes = _sizes(row, {**model, **proxy}, {**model, **target}, source.n_dim, from_data=energy is not None)
    plan = tuning(
        FNOs(source.in_channels, source.out_channels, source.n_dim),
        source,
        base=sizes["proxy"],
        target=sizes["target"],
        folder=folder,
        space=space,
        fixed=fixed,
        loss=loss,
        score=score,
        kernel_init=choice.kernel_init if kernel_init is None else kernel_init,
        under=row.under_mup if clip_spectral is None else {},
        title=f"μTransfer on {source.title}",
        flag="--proxy.n_modes",
        large=allow_large_proxy,
        look=not dry_run,
        rule=rule,
        rules=[rule, *rules],
        naive=False,
        seeds=range(seeds),
        n_trials=trials,
        sampler=sampler,
        # A grid that the user gave is walked as it is.
        extends={"lr": EXTENDS} if not lr and set(space) <= {"lr"} else {},
        proxy_steps=proxy_steps,
        proxy_stride=proxy_stride,
        whole=preset == "paper",  # whose proxies differ from its targets in their modes alone
    )
    print(plan_text(plan))
    if dry_run:
        return 0
    devices = [name for name in cuda_devices(device) for _ in range(workers_per_device)]
    if gpus is None:
        gpus = float(device != "cpu" and bool(cuda_devices()))
    made = "ray" if engine == "ray" else None
    results, found = plan.run(n_workers=workers, devices=sorted(devices), command=command, progress=True, engine=made)
    print("", *report.verdict(results), "", report.aligned_table(results), sep="\n")
    print(f"\nReport (report.html), figure and every run: {folder}")
    if found is not None:
        print("The trained target, in Python:", *(f"    {line}" for line in lines_of_use(folder, found)), sep="\n")
    carried = results.carried("target", rule)
    return 0 if carried and all(map(is_complete, carried)) else 1


def _sizes(
    preset: Preset, proxy: Mapping[str, Any], target: Mapping[str, Any], n_dim: int, from_data: bool
) -> dict[str, dict[str, Any]]:
    """Arguments of FNO at both sizes: what was given of them, and what follows from the preset."""
    sizes = {}
    for which, given in (("proxy", proxy), ("target", target)):
        width, modes = getattr(preset, which)
        modes = (modes,) if isinstance(modes, int) else modes
        sizes[which] = on_axes({"hidden_channels": width, "n_modes": modes, **given}, n_dim)
    if from_data:  # what was given bounds what follows from the data
        ends = list(zip(sizes["proxy"]["n_modes"], sizes["target"]["n_modes"], strict=True))
        if "n_modes" not in proxy:
            sizes["proxy"]["n_modes"] = tuple(map(min, ends))
        if "n_modes" not in target:
            sizes["target"]["n_modes"] = tuple(map(max, ends))
    defaults = {field.name: field.default for field in dataclasses.fields(fno_arguments())}
    if any("n_layers" in size for size in sizes.values()):  # else the base would have the target's
        sizes = {which: {"n_layers": defaults["n_layers"], **size} for which, size in sizes.items()}
    for name in dict.fromkeys([*sizes["proxy"], *sizes["target"]]):
        ends = [size.get(name, defaults[name]) for size in sizes.values()]
        if name not in _SCALED and ends[0] != ends[1]:
            raise MupError(
                f"{name} is {ends[0]} at the proxy and {ends[1]} at the target, but no rule carries hyperparameters "
                f"over that: let only {', '.join(_SCALED)} differ, and set --model.{name} for both."
            )
    return sizes


def plan_text(plan: Tuning) -> str:
    """What would be trained: sizes, runs, parameters, and their cost in trainings of the target."""
    study, planned = plan.study, plan.study.planned()
    lines = [plan.title, *(f"  note    {note}" for note in study.notes)]
    lines += [f"  {what:<7} {wording.cell(value, '×')}" for what, value in plan.told.items()]
    more = ", and beyond an edge" if study.extends else ""
    for name, values in study.space.items():
        text = " ".join(f"{v:g}" for v in values) if isinstance(values, (list, tuple)) else str(values)
        lines.append(f"  search  {name}: {text}{more}")
    lines.append(f"  run     {wording.cell({k: v for k, v in study.fixed.items() if v is not None})}")
    lines += [f"  under   {rule}: {wording.cell(settings)}" for rule, settings in study.under.items()]
    lines += [f"  rules   {', '.join(study.rules)}", f"  seeds   {len(study.seeds)}", f"  output  {plan.folder}", ""]
    rows = [["size", "model", "parameters", "runs", "cost (1 = one training of the target)"]]
    once, total = plan.costs["target"], 0.0
    for size, arguments in study.sizes.items():
        cost = planned[size] * plan.costs[size] / once
        total += cost
        rows.append([size, wording.size_text(arguments), f"{plan.parameters[size]:,}", str(planned[size]), f"{cost:.2f}"])
    rows.append(["all", "", "", str(planned.total()), f"{total:.2f}"])
    flops = f"One training of the target takes the time of about {once:.1e} floating-point operations, from its shapes."
    return "\n".join([*lines, wording.aligned(rows), "", flops])
