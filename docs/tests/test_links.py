"""Every link inside the repository leads somewhere: files, pictures and headings that README and the pages name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/results/*.md")])
ANCHORED = 3  # depth of headings that get an anchor: myst_heading_anchors in docs/conf.py

_FENCE = re.compile(r"^(```+|~~~+).*?^\1`*\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[(?:[^][]|\[[^]]*\])*\]\(\s*<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*\s*$", re.MULTILINE)


def links(text: str) -> list[str]:
    """Targets of inline links and pictures; code has none."""
    return [m[1] for m in _LINK.finditer(re.sub(r"`[^`\n]*`", "``", _FENCE.sub("", text)))]


def anchors(text: str) -> set[str]:
    """Anchors of headings as GitHub and MyST make them: lower case, no punctuation, hyphens; a second one ends in -1."""
    found: dict[str, int] = {}
    for level, title in _HEADING.findall(_FENCE.sub("", text)):
        if len(level) <= ANCHORED:
            title = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
            slug = re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-")
            found[slug] = found.get(slug, -1) + 1
    return {slug if n == 0 else f"{slug}-{n}" for slug, last in found.items() for n in range(last + 1)}


def broken(page: Path, text: str) -> list[str]:
    """Links of a page that lead nowhere; those to the network are not tried."""
    result = []
    for target in links(text):
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        # Pages of the site that its build makes are there only then.
        built = path.is_relative_to(ROOT / "docs" / "gallery")
        if not built and (
            not path.exists() or (anchor and anchor not in anchors(text if path == page else path.read_text()))
        ):
            result.append(target)
    return result


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert broken(page, page.read_text()) == []


def test_the_depth_is_the_site_s():
    assert f"myst_heading_anchors = {ANCHORED}" in (ROOT / "docs" / "conf.py").read_text()


@pytest.mark.parametrize("link", ["nowhere.md", "docs/install.md#nowhere", "#nowhere", "docs/no.png"])
def test_a_broken_link_is_seen(link):
    text = f"# Somewhere\n\nWords, then [a `link`]({link}), [another](docs/install.md) and [here](#somewhere).\n"
    assert broken(ROOT / "README.md", text) == [link]


def test_code_has_no_links_and_no_headings():
    text = "# What it *does*, `really`\n```python\n# a comment\nx[0](a.md)\n```\n`y[1](b.md)`\n## Twice\n## Twice\n"
    assert links(text) == []
    assert anchors(text) == {"what-it-does-really", "twice", "twice-1"}


def swallowed(text: str) -> list[str]:
    """Lines that begin with a percent sign: MyST takes them for comments, and the rest of the paragraph may go with them."""
    return re.findall(r"^[ \t]*%.*", _FENCE.sub("", text), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_is_taken_for_a_comment(page):
    assert swallowed(page.read_text()) == []


def test_a_line_taken_for_a_comment_is_seen():
    assert swallowed("A share of 95\n% was kept, and 4 % not.\n\n```\n% of a fence\n```\n* with 3\n  % more\n") == [
        "% was kept, and 4 % not.",
        "  % more",
    ]
