"""``neuralop-mup compare``: what the recipe gives on a problem or on own data, beside neuralop's model under Adam."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonargparse.typing import PositiveInt

from neuralop_mup.lab.cli.data import chosen, data_groups, problem_lines
from neuralop_mup.lab.cli.options import Verb, fno_arguments, on_axes
from neuralop_mup.lab.comparison import WAYS, compare
from neuralop_mup.lab.fno import FNOs
from neuralop_mup.lab.problems import get_problem

#: Without a word: Burgers' equation at a size that takes 60 to 100 seconds on two cores.
_FIRST = {"n_train": 400, "grid": 64}
_FIRST_SIZE = {"hidden_channels": 64, "n_modes": (32,)}
_FIRST_EPOCHS = 8


def run(argv: list[str]) -> int:
    """Read the options and do it."""
    groups = {"target": (fno_arguments(), "argument of FNO, such as --target.hidden_channels 64")} | data_groups(argv)
    about = [f"{name}: {what}" for name, what in WAYS.items()]
    return Verb("compare", compared, groups, (), [*problem_lines(), "", "ways:", *about]).call(argv)


def compared(
    problem: str | None = None,
    *,
    data: str = "",
    seeds: PositiveInt = 3,
    epochs: PositiveInt | None = None,
    batch_size: PositiveInt | None = None,
    device: str = "cpu",
    workers: PositiveInt | None = None,
    output: str = "",
    target: Mapping[str, Any],
    problem_: Mapping[str, Any],
    data_: Mapping[str, Any],
    command: str,
) -> int:
    """Train one FNO under Adam and under MuSOAP, each as it comes and tuned at a small size.

    Parameters
    ----------
    problem
        what to learn: burgers, burgers-pino, darcy, darcy-pino, navier-stokes, burgers-files, …
    data
        your own fields instead: .npz, .pt or .h5; a folder, a pattern, or several with commas
    seeds
        number of seeds of the target; learning rates are searched with the first
    epochs
        epochs of each training [by problem]
    batch_size
        samples a batch [by problem]
    device
        cpu, cuda, cuda:N or auto
    workers
        runs at once, each in its own process [one per core; on GPUs one each]
    output
        folder for results; the same command resumes there [runs/NAME-comparison]
    """
    first = not (problem or data or problem_ or target)
    source = get_problem("burgers", **_FIRST) if first else chosen(problem, data, problem_, data_)
    size = {"hidden_channels": 64, "n_modes": tuple(min(32, n // 2) for n in source.grid_shape), **target}
    folder = Path(output or f"runs/{source.title}-comparison")
    found = compare(
        FNOs(source.in_channels, source.out_channels, source.n_dim),
        source,
        target=_FIRST_SIZE if first else on_axes(size, source.n_dim),
        folder=folder,
        epochs=epochs or (_FIRST_EPOCHS if first else 20),
        batch_size=batch_size or 20,
        seeds=range(seeds),
        device=device,
        n_workers=workers,
    )
    path = found.plot(folder / "comparison.png")
    text = "\n".join([f"# {found.title}", "", *found.sentences(), "", found.table(), ""])
    (folder / "comparison.md").write_text(f"{text}\n`{command}`\n", encoding="utf-8")
    print("", text, f"Figure, table and every run: {folder} ({path.name}, comparison.md)", sep="\n")
    return 0 if all(max(way.errors) < float("inf") for name, way in found.ways.items() if "SOAP" in name) else 1
