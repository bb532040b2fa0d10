"""Identity at base: weights, learning rates and ten training steps, bit for bit, on every model of the case table.

    python benchmarks/identity.py

Compares a parametrized model with the unpatched one (plain torch optimizer, one group) at base shapes, under every
rule. Writes benchmarks/results/identity.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import neuralop_mup as nm
from neuralop_mup.core.rules import RULES

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from cases import CASES  # noqa: E402
from support import differing, train  # noqa: E402


def main() -> None:
    torch.set_num_threads(1)
    lines = [
        "| model | parameters | differ at start | learning rates ≠ lr | differ after 10 steps |",
        "|" + " --- |" * 5,
    ]
    total = [0, 0, 0, 0]
    for case in CASES:
        counts = [0, 0, 0, 0]
        for rule in RULES:
            plain, mup = case.build(), nm.parametrize(case.build(), base=case.same, rule=rule)
            counts[0] += sum(1 for _ in plain.parameters())
            counts[1] += differing(plain, mup)
            optimizer = nm.MuAdam(mup, lr=3e-3)
            counts[2] += sum(len(g["params"]) for g in optimizer.param_groups if g["lr"] != 3e-3)
            train(case, plain, torch.optim.Adam(plain.parameters(), lr=3e-3))
            train(case, mup, optimizer)
            counts[3] += differing(plain, mup)
        total = [t + c for t, c in zip(total, counts, strict=True)]
        lines.append(f"| {case.name} | " + " | ".join(map(str, counts)) + " |")
    lines.append("| **all** | " + " | ".join(map(str, total)) + " |")
    head = ["# Identity at base", "", f"`python benchmarks/identity.py`, rules {', '.join(RULES)}.", ""]
    text = "\n".join(head + lines) + "\n"
    print(text)
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "identity.md").write_text(text)


if __name__ == "__main__":
    main()
