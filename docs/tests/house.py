"""The figures of docs/explain/house.md, read off the code: which part imports which, and which files a call enters.

    python docs/tests/house.py --write

writes them, and the page's picture, anew; docs/tests/test_house.py compares.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from test_layers import LAYERS, ROOT, imports, modules

REPOSITORY = Path(__file__).parents[2]  # the package may be installed elsewhere
DOCS = REPOSITORY / "docs"
PAGE = DOCS / "explain" / "house.md"
PICTURE = DOCS / "_static" / "house.svg"
COMMAND = "python docs/tests/house.py --write"

#: Part → what the picture and the table say of it. What every part may use has one box at the bottom.
PARTS = {
    "neuralop_mup": "the public names",
    "lab": "train, tune, data, reports, commands",
    "instruments": "measuring while training",
    "losses": "equations",
    "diagnostics": "coordinate check",
    "integrations": "files, FSDP2",
    "optim": "param groups, MuSOAP",
    "core": "rules, layers, plan, parametrize",
    "errors": "errors, checks of arguments, private names of torch",
}
_SMALL = {part for parts in LAYERS[:2] for part in parts}  # single files that any part may use
_MARK = re.compile(r"(<!--from-the-code:(\w+)-->\n).*?(<!--/-->)", re.S)


# Which part imports which


def parts() -> dict[str, list[str]]:
    """Part of the package → the parts that it imports, from the bottom."""
    order = [part for parts in LAYERS for part in parts]
    found: dict[str, set[str]] = {}
    for name, path in modules().items():
        own = name.partition(".")[0]
        found.setdefault(own, set()).update(other.partition(".")[0] for other in imports(path, anywhere=True))
    return {part: sorted(found.get(part, set()) - {part} - _SMALL, key=order.index) for part in PARTS if part in found}


def table() -> str:
    """The parts as a table, the highest first."""
    rows = [
        f"| `{part}/` | {PARTS[part]} | {', '.join(f'`{other}`' for other in below) or 'none'} |"
        for part, below in parts().items()
        if part not in _SMALL
    ]
    return "\n".join(["| folder | what it has | imports of other folders |", "| --- | --- | --- |", *rows])


def picture() -> str:
    """The layers as an SVG, from the bottom up, with benchmarks beside them; letters are 12 of 400 units high."""
    rows = [[part for part in parts if part in PARTS] for parts in reversed(LAYERS)]
    rows = [row for row in rows if row]
    width, left, height, gap = 400, 46, 46, 8
    total = len(rows) * (height + gap) + gap
    boxes = [
        f'<rect x="{gap}" y="{gap}" width="{left - 2 * gap}" height="{total - 2 * gap}" rx="5" fill="#fff" stroke="#555"/>',
        f'<text x="{left / 2}" y="{total / 2}" transform="rotate(-90 {left / 2} {total / 2})" dy="4" '
        'font-weight="bold">benchmarks, tests</text>',
    ]
    for i, row in enumerate(rows):
        y, each = gap + i * (height + gap), (width - left - gap * len(row)) / len(row)
        for j, part in enumerate(row):
            x = left + j * (each + gap)
            said = "errors, files, validation" if part == "errors" else part
            lines = [(said, ' font-weight="bold"'), ("what all may use" if part == "errors" else PARTS[part], "")]
            boxes.append(f'<rect x="{x:g}" y="{y}" width="{each:g}" height="{height}" rx="5" fill="#e8eef7" stroke="#345"/>')
            boxes += [
                f'<text x="{x + each / 2:g}" y="{y + 19 + 17 * k}"{weight}>{text}</text>'
                for k, (text, weight) in enumerate(lines)
            ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" width="{width}" height="{total}" '
        'font-family="sans-serif" font-size="12" text-anchor="middle" fill="#111">'
    )
    title = "<title>The parts of the package: each imports only parts below it</title>"
    return "\n".join([head, title, f'<rect width="{width}" height="{total}" fill="#fff"/>', *boxes, "</svg>", ""])


# Which files a call enters


def way(name: str) -> list[str]:
    """Files of the package that a call enters, in order, found in a process of its own, where nothing is kept yet."""
    python = [sys.executable, __file__, "--trace", name]
    lines = subprocess.run(python, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.removeprefix("enters ") for line in lines if line.startswith("enters ")]


def _entered(call: Callable[[], object]) -> list[str]:
    found: dict[str, None] = {}

    def look(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(str(ROOT)):
            found[Path(code.co_filename).relative_to(ROOT).as_posix()] = None

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(found)


def _trace(name: str) -> list[str]:
    import torch
    from neuralop.models import FNO

    import neuralop_mup as nm

    for module in pkgutil.walk_packages([str(ROOT)], "neuralop_mup."):
        # They would run the command, or want a newer neuralop or torch_harmonics.
        if not module.name.endswith(("__main__", "recurrent", "sphere")):
            importlib.import_module(module.name)
    os.cpu_count = lambda: 1  # as on one core, where runs stay in this process

    def build(hidden_channels: int) -> FNO:
        return FNO((8,), in_channels=1, out_channels=1, hidden_channels=hidden_channels)

    torch.manual_seed(0)
    x, model = torch.randn(60, 1, 16), build(32)
    if name == "parametrize":
        return _entered(lambda: nm.parametrize(model))
    if name == "step":
        optimizer = nm.MuSOAP(nm.parametrize(model), steps=100)
        model(x).square().mean().backward()
        return _entered(optimizer.step)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"target": {"hidden_channels": 16}, "epochs": 1, "folder": Path(folder) / "runs"}
        entered = _entered(lambda: nm.train(build, (x, x.square()), **settings))
    return [file for file in entered if file.startswith("lab/") and not file.endswith("__init__.py")]


def code(files: list[str]) -> str:
    """Their number and names, in a sentence."""
    return f"{len(files)} files: {', '.join(f'`{file}`' for file in files)}."


# The page


def rendered(text: str, only: str | None = None) -> str:
    """The page with what is between its marks read off the code; with ``only`` of one mark alone."""

    def anew(found: re.Match[str]) -> str:
        if only not in (None, found[2]):
            return found[0]
        return f"{found[1]}\n{table() if found[2] == 'parts' else code(way(found[2]))}\n\n{found[3]}"

    return _MARK.sub(anew, text)


def marks(text: str) -> list[str]:
    """Names of what a page has from the code."""
    return [found[2] for found in _MARK.finditer(text)]


if __name__ == "__main__":
    if "--trace" in sys.argv:
        for entered in _trace(sys.argv[-1]):
            print("\nenters", entered)
    elif "--write" in sys.argv:
        PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        PICTURE.write_text(picture(), encoding="utf-8")
    else:
        sys.exit(f"Write the page of the house anew: {COMMAND}")
