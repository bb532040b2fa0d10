"""Words for axes and coordinates, as files and users write them."""

import re

#: Axes with a meaning; every other axis belongs to the grid or, with this prefix, to the channels of one array.
SAMPLE, TIME, CHANNEL = "sample", "time", "channel"

_USUAL = {
    **dict.fromkeys(("sample", "samples", "batch", "b", "n", "member", "ensemble", "realization", "number"), SAMPLE),
    **dict.fromkeys(("trajectory", "trajectories", "case", "run", "simulation"), SAMPLE),
    **dict.fromkeys(("time", "times", "t", "step", "timestep", "valid_time", "lead_time"), TIME),
    **dict.fromkeys(("channel", "channels", "c", "variable", "variables", "component", "components", "feature"), CHANNEL),
    **dict.fromkeys(("level", "lev", "plev", "pressure_level", "isobaricinhpa"), CHANNEL),  # of the atmosphere
}
_COORDINATE = re.compile(
    r"(?:.*/)?(time|times|t|x|y|z|lat|lon|latitude|longitude)(?:[-_]?(?:coordinates?|coords?|grid))?", re.I
)


def usual_word(name: str) -> str:
    """Return the word for an axis: "sample", "time" or "channel" where its name has that meaning, else its own name."""
    last = name.rpartition("/")[2]
    return _USUAL.get(last.lower(), last)


def coordinate_word(key: str) -> str | None:
    """Return the axis of which an array is the coordinate by its name, such as "x" for "x-coordinate"."""
    found = _COORDINATE.fullmatch(str(key))
    return usual_word(found[1].lower()) if found else None


def is_channel(dim: str) -> bool:
    """Return whether an axis holds channels."""
    return dim.partition(":")[0] == CHANNEL


def is_space(dim: str) -> bool:
    """Return whether an axis belongs to the grid."""
    return dim not in (SAMPLE, TIME) and not is_channel(dim)
