"""Options and arrays that were once read wrongly without an error."""

import pytest

from neuralop_mup.lab.cli import main
from neuralop_mup.lab.data.given import as_source
from support.errors import refused
from support.files import array, write

PAIR = (array(40, 16), array(40, 16))


@pytest.mark.parametrize("crop", [(0, 8), [0, 8], 1, 0, {"x": 8}])
def test_crop_is_a_flag_or_has_ranges_by_axis(crop):
    with refused("crop {'x':(0,64)} --read.crop.x"):
        as_source(PAIR, {"crop": crop})


@pytest.mark.parametrize("every", [None, 2, {"x": 2}])
def test_crop_does_not_end_behind_the_last_point(every):
    assert as_source(PAIR, {"crop": {"x": (4, 16)}, "every": every}).load().train[0].shape[-1] == (6 if every else 12)
    with refused("crop 'x' 18 (4,None)"):
        as_source(PAIR, {"crop": {"x": (4, 18)}, "every": every}).load()


@pytest.mark.parametrize(
    "words",
    [
        "--read.every.x 2",
        "--read.shuffle false --read.every.x 2",
        "--read.every.x 2 --read.shuffle false",
        "--read.crop.x 0,16 --read.every.x 2 --read.every.time 1",
        "--read.every.time 1 --read.crop.x=0,16 --read.every.x=2",
        "--read.every.time=1 --read.every.x=2",
    ],
)
def test_options_with_a_dot_in_any_order(words, capsys):
    u = write("u.npz", u=array(20, 6, 16))
    given = ["--read.dims", "sample time x", "--read.time_step", "1", "--read.y", "u"]
    for argv in ([*given, *words.split()], [*words.split(), *given]):
        assert main(["data", u, *argv]) == 0, capsys.readouterr().err
        assert "on 8 points" in capsys.readouterr().out


def test_an_option_as_a_whole_and_by_axis(capsys):
    assert main(["data", write("u.npz", x=array(20, 16), y=array(20, 16)), "--read.every", "2", "--read.every.x", "4"]) == 2
    assert "--read.every" in capsys.readouterr().err
    assert main(["data", "u.npz", "--read.every.x", "--read.shuffle", "false"]) == 2
