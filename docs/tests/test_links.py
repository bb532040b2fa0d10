"""Links of README and the pages lead to files and headings that exist, and MyST takes no line of text for a comment."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/results/*.md")])

FENCE = re.compile(r"^(```+|~~~+).*?^\1`*\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[(?:[^][]|\[[^]]*\])*\]\(\s*<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,3}\s+(.+)", re.MULTILINE)  # as deep as myst_heading_anchors of docs/conf.py
EXTERNAL = re.compile(r"[a-z][a-z+.-]*:")  # https: and the like, which no test opens

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """Return the text of a page without blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors of headings as GitHub and MyST make them: lower case, no punctuation, hyphens."""
    titles = [re.sub(r"\]\([^)]*\)", "", title).lower() for title in HEADING.findall(prose(page))]
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in titles}


def exists(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if path.is_relative_to(ROOT / "docs" / "gallery"):  # made by the build of the site
        return True
    return path.exists() and (not anchor or anchor in anchors(path))


@each_page
def test_links_lead_somewhere(page):
    targets = LINK.findall(re.sub(r"`[^`\n]*`", "``", prose(page)))
    assert [target for target in targets if not EXTERNAL.match(target) and not exists(page, target)] == []


@each_page
def test_no_line_begins_with_a_percent_sign(page):
    """MyST drops such a line as a comment, maybe with the rest of the paragraph."""
    assert re.findall(r"^[ \t]*%.*", prose(page), re.MULTILINE) == []
