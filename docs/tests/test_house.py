"""docs/explain/house.md says what is so: layers, the files that a call enters, and every file that it names."""

import re

import pytest
from house import COMMAND, PAGE, PARTS, PICTURE, REPOSITORY, _entered, code, marks, picture, rendered
from test_layers import LAYERS, ROOT

from neuralop_mup.core.rules import reason_of

TEXT = PAGE.read_text(encoding="utf-8")
AGAIN = f"{PAGE.name} is not what the code does; if that is meant, write it again: `{COMMAND}`"


@pytest.mark.parametrize("mark", ["parts", "parametrize", "step", "train"])
def test_the_page_is_what_the_code_does(mark):
    assert mark in marks(TEXT)
    assert rendered(TEXT, only=mark) == TEXT, AGAIN


def test_the_picture_has_every_layer():
    assert PICTURE.read_text(encoding="utf-8") == picture(), AGAIN
    named = {part for parts in LAYERS[2:] for part in parts} - {"__main__"}
    assert named <= set(PARTS) and all(f">{part}<" in picture() for part in named)


def test_every_file_that_is_named_exists():
    """By its path from the repository, or from the package."""
    named = re.findall(r"`([\w./-]+(?:\.(?:py|md)|/))`", TEXT)
    assert len(named) > 30
    assert [name for name in named if not ((REPOSITORY / name).exists() or (ROOT / name).exists())] == []


def test_a_change_is_seen():
    text = TEXT.replace("`core`, `optim`, `diagnostics`", "`core`")
    assert text != TEXT and rendered(text, only="parts") == TEXT
    assert code(_entered(lambda: reason_of("none"))) == "1 files: `core/rules.py`."
