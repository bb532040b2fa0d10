"""What a study folder was started with, and whether a second command may continue it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.tuning.records import write_atomically
from neuralop_mup.tuning.space import is_distribution, params_key

__all__ = ["describe", "join_settings"]

# These may only grow from one command to the next: more trials, and none of the finished ones is lost.
GROWING = ("grid", "seeds", "rules", "verify", "n_trials")

# A study of this name shares its folder with no other.
ALONE = ("transfer", "reproduce")


def describe(value: Any) -> Any:
    """``value`` as JSON that is the same in every process, for comparing settings."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(k): describe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(v) for v in value]
    if isinstance(value, functools.partial):
        return [describe(value.func), describe(value.args), describe(value.keywords)]
    if is_distribution(value):
        return repr(value)
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    # Addresses differ between processes and would make every resume look like another study.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def describe_space(space: Mapping[str, Any], search: bool) -> dict[str, Any]:
    return {"search" if search else "grid": describe(space)}


def _contains(new: Any, old: Any) -> bool:
    keys = {params_key({"": v}) for v in new}
    return all(params_key({"": v}) in keys for v in old)


def _grown(key: str, old: Any, new: Any) -> bool:
    if key == "grid":
        return set(old) == set(new) and all(_contains(new[k], old[k]) for k in old)
    if key in ("seeds", "rules"):
        return _contains(new, old)
    return old is None or (new is not None and new >= old)


def join_settings(folder: Path, name: str, settings: Mapping[str, Any]) -> None:
    """Check the settings against ``config.json`` of the folder, then write them there.

    Parameters
    ----------
    folder : Path
        The study folder.
    name : str
        The command's name in it: ``"transfer"``, or the name of the sweep.
    settings : mapping
        Everything that decides what a trial is.

    Raises
    ------
    MupError
        If the folder holds another study, or this one with settings that its trials do not fit.
    """
    path = folder / "config.json"
    settings = json.loads(json.dumps(settings))
    studies: dict[str, Any] = {}
    if path.exists():
        try:
            studies = json.loads(path.read_text(encoding="utf-8"))["studies"]
        except (ValueError, KeyError, TypeError) as error:
            raise MupError(f"{path} is not the config of a study ({error}); choose another folder.") from None
    alone = next((n for n in ALONE if (n in studies) != (n == name)), None)
    if studies and alone:
        held = ", ".join(repr(n) for n in studies)
        raise MupError(f"{folder} already holds {held}, and a {alone} needs its folder for itself; choose another folder.")
    old = studies.get(name)
    if old is not None:
        differ = []
        for key in sorted({*old, *settings}):
            before, now = old.get(key), settings.get(key)
            # In a search a point's value is its mean over the seeds, so there the seeds are part of the question.
            may_grow = key in GROWING and key in old and not (key == "seeds" and "search" in settings)
            if before != now and not (may_grow and key in settings and _grown(key, before, now)):
                differ.append(f"{key} was {json.dumps(before)} and is now {json.dumps(now)}")
        if differ:
            raise MupError(
                f"{folder} holds a study {name!r} with other settings: {'; '.join(differ)}. Its trials cannot be mixed "
                "with these: give the same settings to resume it (a grid, seeds, rules and n_trials may grow), or "
                "choose another folder."
            )
    write_atomically(path, json.dumps({"version": 1, "studies": {**studies, name: settings}}, indent=2) + "\n")
