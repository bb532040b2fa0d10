"""Colours of figures."""

from neuralop_mup.lab import plots


def test_each_method_has_its_own_colour():
    colours = [colour for colour, _ in plots.LOOKS.values()]
    assert len(colours) == len(set(colours))
