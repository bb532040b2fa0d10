"""Which part of the width rule matters for an FNO? Each part is switched off in turn.

    python benchmarks/ablation.py

A part that is off keeps the standard parametrization's initialisation and learning rate for its parameters, everything
else follows the width rule. Measured on Burgers: the steepest coordinate-check slopes over width 16 to 128, and what it
costs to carry the learning rate tuned at width 16 to width 64 (regret and drift on a factor-2 grid, 3 seeds). Writes
benchmarks/results/ablation.{md,json}; interrupted, the same command resumes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.problems import get_problem

HERE = Path(__file__).parent
BASE, TARGET = 16, 64
PROBLEM = {"n_train": 400}
EPOCHS, BATCH = 8, 20

# Which parameters a part holds, by qualified name and role.
PARTS = {
    "nothing": lambda name, role: False,
    "readout": lambda name, role: role == "readout",
    "biases": lambda name, role: role == "vector",
    "hidden maps": lambda name, role: role == "hidden" and not name.startswith("lifting"),
    "lifting": lambda name, role: role == "hidden" and name.startswith("lifting"),
    "kernels": lambda name, role: role == "spectral",
    "standard": lambda name, role: True,
}


def build(width: int, part: str) -> FNO:
    """An FNO under the width rule with one part's initialisation back at neuralop's."""
    model = nm.parametrize(FNO((16,), 1, 1, width), base={"hidden_channels": BASE}, rule="none")
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for row in nm.summary(model).rows:
            if PARTS[part](row.name, row.role):
                parameters[row.name].div_(row.init_mult)
    return model


def optimizer(model: FNO, lr: float, part: str) -> torch.optim.Optimizer:
    """Adam under the width rule with one part at the plain learning rate."""
    parameters = dict(model.named_parameters())
    return torch.optim.Adam(
        [
            {"params": [parameters[row.name]], "lr": lr if PARTS[part](row.name, row.role) else lr * row.lr_mult}
            for row in nm.summary(model).rows
        ],
        lr=lr,
    )


def train(config: Mapping) -> float:
    """Validation error of one run; ``config["rule"]`` names the part that is off."""
    torch.manual_seed(config["seed"])
    data = get_problem("burgers", **PROBLEM).load()
    loader, _ = data.loaders(batch_size=BATCH, seed=config["seed"])
    processor, loss = data.processor(), LpLoss(d=1, p=2)
    model = build(config["model"]["hidden_channels"], config["rule"])
    opt = optimizer(model, config["lr"], config["rule"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=EPOCHS)
    for _ in range(EPOCHS):
        processor.train()
        for batch in loader:
            batch = processor.preprocess(batch)
            opt.zero_grad()
            loss(model(batch["x"]), batch["y"]).backward()
            opt.step()
        scheduler.step()
    processor.eval()
    x, y = data.val
    with torch.no_grad():
        batch = processor.preprocess({"x": x, "y": y})
        out, _ = processor.postprocess(model(batch["x"]), batch)
    return loss(out, y).item() / len(x)


def slopes(part: str, seeds: int) -> tuple[float, float, float]:
    """Steepest slope of a block at init, and of an update after 1 and after 10 steps."""
    data = get_problem("burgers", **PROBLEM).load()
    loader, _ = data.loaders(batch_size=BATCH, seed=0)
    processor = data.processor()
    batches = [{k: b[k] for k in "xy"} for b, _ in zip(map(processor.preprocess, loader), range(10), strict=False)]
    check = nm.coord_check(
        lambda width: build(width, part),
        [16, 32, 64, 128],
        batches,
        lr=8e-3,
        steps=(1, 10),
        seeds=seeds,
        optimizer=lambda model, lr: optimizer(model, lr, part),
    )
    rows = [r for r in check.slopes if r["kind"] == "update" or r["block"] != "projection"]
    return tuple(max((r["slope"] for r in rows if r["step"] == step), key=abs) for step in (0, 1, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--check-seeds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# Ablation of the width rule",
        "",
        f"`python benchmarks/ablation.py`: Burgers, K = 8; slopes over width 16 to 128 ({args.check_seeds} seeds); transfer "
        f"from width {BASE} to {TARGET} ({args.seeds} seeds). One part at a time is left as neuralop has it.",
        "",
        "| off | slope at init | update, t = 1 | t = 10 | loss at the transferred lr | best loss | drift | regret |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    # At the proxy's size every part is the same model, so one proxy sweep serves them all.
    result = nm.transfer(
        train,
        proxy={"hidden_channels": BASE},
        target={"hidden_channels": TARGET},
        space={"lr": nm.log2_grid(1e-3, 6.4e-2)},
        rule="nothing",
        rules=tuple(PARTS),
        seeds=range(args.seeds),
        verify=True,
        folder=HERE / "runs" / "ablation",
    )
    numbers = {}
    for row in result.summary():
        init, first, tenth = slopes(row["rule"], args.check_seeds)
        numbers[row["rule"]] = {"init": init, "t1": first, "t10": tenth, **row}
        name = {"nothing": "nothing (μP)", "standard": "everything (SP)"}.get(row["rule"], row["rule"])
        lines.append(
            f"| {name} | {init:+.2f} | {first:+.2f} | {tenth:+.2f} | {row['transferred_loss']:.4f} ± "
            f"{row['transferred_std']:.4f} | {row['best_loss']:.4f} | {row['drift_steps']:+d} | "
            f"{100 * row['regret']:.1f} % |"
        )
        print(lines[-1], flush=True)
    (HERE / "results" / "ablation.md").write_text("\n".join(lines) + "\n")
    (HERE / "results" / "ablation.json").write_text(json.dumps(numbers, indent=1, default=str))


if __name__ == "__main__":
    main()
