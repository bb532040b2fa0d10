"""One colour a method in every figure, and lines that are seen: a contrast of 3 on white, on which all are drawn."""

import re
from pathlib import Path

import pytest

from neuralop_mup.lab import plots

ROOT = Path(__file__).parents[2]
SCRIPTS = [*sorted(ROOT.joinpath("examples").glob("*.py")), *sorted(ROOT.joinpath("benchmarks").rglob("*.py"))]
HEX = r"#[0-9A-Fa-f]{6}\b"


def contrast(colour: str) -> float:
    """Of a colour on white, as WCAG 2 has it; white has the luminance 1."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 1.05 / (luminance + 0.05)


def test_contrast_by_hand():
    """Black: 1.05 / 0.05 = 21. Pure red has the luminance 0.2126: 1.05 / 0.2626 = 3.998."""
    assert contrast("#000000") == pytest.approx(21)
    assert contrast("#FF0000") == pytest.approx(3.998, abs=1e-3)


@pytest.mark.parametrize("colour", [*plots.PALETTE, plots.GREY])
def test_the_palette_is_seen(colour):
    assert contrast(colour) >= 3


def test_no_two_methods_share_a_colour():
    colours = [colour for colour, _ in plots.LOOKS.values()]
    assert len(colours) == len(set(colours))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_colours_of_scripts_are_seen(script):
    faint = {colour: contrast(colour) for colour in re.findall(HEX, script.read_text(encoding="utf-8"))}
    assert {colour: value for colour, value in faint.items() if value < 3} == {}
