"""What a study keeps of its target: weights, plan and normalisation, in one file for each of its runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from neuralop.data.transforms.data_processors import DefaultDataProcessor
from neuralop.data.transforms.normalizers import UnitGaussianNormalizer

from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.errors import MupError
from neuralop_mup.experiments.training import Job
from neuralop_mup.files import replace_file, save_torch
from neuralop_mup.tuning.space import params_key

__all__ = ["FORMAT", "KeptTarget", "described", "processor_from", "read_kept"]

#: Of the files that this module and ``tuned`` write.
FORMAT = 1


class KeptTarget:
    """Where the target's runs leave what they trained; sent to worker processes with the train function.

    Parameters
    ----------
    folder : Path
        Made when the first run ends.
    target : mapping
        Arguments of the model at the target: runs of other sizes leave nothing.
    rule : str
        The rule that carries the hyperparameters: runs under the others are for comparison.
    """

    def __init__(self, folder: Path, target: Mapping[str, Any], rule: str | None) -> None:
        self.folder, self.target, self.rule = folder, dict(target), rule

    def path(self, config: Mapping[str, Any]) -> Path:
        """The file of the run with this configuration."""
        return self.folder / f"target-{hashlib.sha256(params_key(config).encode()).hexdigest()[:16]}.pt"

    def keep(self, config: Mapping[str, Any], job: Job) -> None:
        """Write the file of a run that is complete, if it is one of the target's under the rule."""
        if dict(config["model"]) != self.target or config["rule"] != self.rule or job.settings.until is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT,
            "weights": _on_cpu(job.model.state_dict()),
            "plan": get_plan(job.model).to_json(),
            "processor": described(job.processor),
        }
        with replace_file(self.path(config), "the target's weights") as part:
            save_torch(content, part)

    def drop_others(self, kept: Iterable[Mapping[str, Any]]) -> None:
        """Remove the files of all runs but these: a search at the target leaves one for each of its points."""
        paths = {self.path(config) for config in kept}
        for path in self.folder.glob("target-*.pt"):
            if path not in paths:
                path.unlink()


def _on_cpu(state: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a state dict, changed in place: a plain dict of them would lose what says of which plan they are."""
    for key, value in list(state.items()):
        if isinstance(value, torch.Tensor):
            state[key] = value.cpu()
        else:
            del state[key]
    return state


def read_kept(path: Path) -> dict[str, Any] | None:
    """The content of a run's file; None where there is none, or one that an earlier version wrote.

    Raises
    ------
    MupError
        If the file is damaged, or a later version wrote it.
    """
    if not path.exists():
        return None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip's and pickle's errors share no base class
        raise MupError(
            f"The weights {path} cannot be read ({type(error).__name__}): the file is damaged. Remove it, and the same call "
            "trains the target again; the other runs are kept."
        ) from error
    if "format" not in content:
        return None
    if content["format"] != FORMAT:
        raise MupError(
            f"The weights {path} are of another version of neuralop_mup (their format is {content['format']}, here it is "
            f"{FORMAT}): read them with the version that wrote them, or tune in another folder."
        )
    return content


def described(processor: Any) -> dict[str, Any] | None:
    """A data processor as numbers that a file can hold; of one whose numbers are not known, its name."""
    from neuralop_mup.losses import PhysicalDataProcessor, sine_mollifier

    if processor is None:
        return None
    kind = type(processor)
    unknown = {"kind": "own", "name": kind.__qualname__}
    if kind not in (DefaultDataProcessor, PhysicalDataProcessor):
        return unknown
    content: dict[str, Any] = {"kind": kind.__name__}
    if kind is PhysicalDataProcessor:
        if processor.mollifier not in (None, sine_mollifier):
            return unknown
        content["mollifier"] = processor.mollifier is sine_mollifier
    for which in ("in_normalizer", "out_normalizer"):
        normalizer = getattr(processor, which)
        if normalizer is None:
            content[which] = None
        elif type(normalizer) is UnitGaussianNormalizer and normalizer.mask is None:
            content[which] = {"mean": normalizer.mean.cpu(), "std": normalizer.std.cpu(), "eps": normalizer.eps}
        else:
            return unknown
    return content


def processor_from(content: Mapping[str, Any] | None) -> Any:
    """The processor that :func:`described` wrote down; None for none, and for one whose numbers were not known."""
    from neuralop_mup.losses import PhysicalDataProcessor, sine_mollifier

    if content is None or content["kind"] == "own":
        return None
    normalizers = [
        None if (stats := content[which]) is None else UnitGaussianNormalizer(**stats)
        for which in ("in_normalizer", "out_normalizer")
    ]
    if content["kind"] == "DefaultDataProcessor":
        return DefaultDataProcessor(*normalizers)
    return PhysicalDataProcessor(*normalizers, mollifier=sine_mollifier if content["mollifier"] else None)
