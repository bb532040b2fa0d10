"""Links of README and the pages lead to files and headings that exist, and MyST takes no line of text for a comment."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/results/*.md")])
CONFIGURATION = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
ANCHORED = int(re.search(r"myst_heading_anchors = (\d)", CONFIGURATION)[1])  # depth of headings that get an anchor

_FENCE = re.compile(r"^(```+|~~~+).*?^\1`*\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[(?:[^][]|\[[^]]*\])*\]\(\s*<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*\s*$", re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:")  # https: and the like, which no test opens

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def links(text: str) -> list[str]:
    """Return the targets of links and pictures outside code."""
    return [m[1] for m in _LINK.finditer(re.sub(r"`[^`\n]*`", "``", _FENCE.sub("", text)))]


def anchors(text: str) -> set[str]:
    """Return anchors as GitHub and MyST make them: lower case, no punctuation, hyphens; -1 for a second equal one."""
    found: list[str] = []
    for level, title in _HEADING.findall(_FENCE.sub("", text)):
        title = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
        if len(level) <= ANCHORED:
            found.append(re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-"))
    return {f"{slug}-{n}" if (n := found[:i].count(slug)) else slug for i, slug in enumerate(found)}


def exists(page: Path, target: str, text: str) -> bool:
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if path.is_relative_to(ROOT / "docs" / "gallery"):  # made by the build of the site
        return True
    return path.exists() and (not anchor or anchor in anchors(text if path == page else path.read_text()))


def broken(page: Path, text: str) -> list[str]:
    return [target for target in links(text) if not _ELSEWHERE.match(target) and not exists(page, target, text)]


def comments(text: str) -> list[str]:
    """Return lines that begin with a percent sign. MyST drops them, maybe with the rest of the paragraph."""
    return re.findall(r"^[ \t]*%.*", _FENCE.sub("", text), re.MULTILINE)


@each_page
def test_links_lead_somewhere(page):
    assert broken(page, page.read_text()) == []


@each_page
def test_no_line_is_a_comment(page):
    assert comments(page.read_text()) == []


@pytest.mark.parametrize("link", ["nowhere.md", "docs/install.md#nowhere", "#nowhere", "docs/no.png"])
def test_a_broken_link_is_found(link):
    text = f"# Somewhere\n\nWords, then [a `link`]({link}), [another](docs/install.md) and [here](#somewhere).\n"
    assert broken(ROOT / "README.md", text) == [link]
