"""The site in a browser, at the width of a phone and of a desktop: nothing is too wide, nothing comes from the network.

It needs ``pip install ".[docs,ci]"`` and Chromium with its driver (Debian: ``apt-get install chromium chromium-driver``).
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MODULES = ("sphinx", "furo", "myst_parser", "sphinx_gallery", "sphinx-mathjax-offline", "selenium")
MISSING = [name for name in MODULES if find_spec(name) is None]
MISSING += [name for name, path in {"Chromium": BROWSER, "chromedriver": DRIVER}.items() if path is None]
FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"),
    *("disable-component-update", "disable-sync"),
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=f"the site is shown in a browser; missing: {', '.join(MISSING)}"),
]

# Returns descriptions of what is wrong with the page that the browser shows.
LOOK = """
const done = arguments[arguments.length - 1];
const name = e => e.tagName.toLowerCase() + (typeof e.className === "string" && e.className ? "." + e.className : "");
const describe = e => `${name(e)}: "${e.textContent.trim().slice(0, 40)}"`;
const scrolls = e => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
function look() {
  const wrong = [], page = document.documentElement, most = window.innerWidth;
  if (page.scrollWidth > most) wrong.push(`the page is ${page.scrollWidth} wide`);
  for (const e of document.querySelectorAll("article *")) {
    if (scrolls(e) && e.scrollWidth > e.clientWidth + 1) {
      const style = getComputedStyle(e);
      const cue = style.backgroundImage.includes("gradient") && style.backgroundAttachment.includes("local");
      if (!cue) wrong.push(`scrolls without a cue: ${describe(e)}`);
      const keyboard = e.tabIndex === 0 && e.getAttribute("role") === "region" && e.getAttribute("aria-label");
      if (!keyboard && !e.closest("mjx-container")) wrong.push(`not for the keyboard: ${describe(e)}`);
      const cell = e.querySelector("tbody td");
      if (cell && most < 700) {
        e.scrollLeft = e.scrollWidth;
        const at = cell.getBoundingClientRect().left - e.getBoundingClientRect().left;
        if (at < -1) wrong.push(`the row's name scrolls away: ${describe(cell)}`);
        if (cell.offsetWidth > e.clientWidth / 2) wrong.push(`the row's name takes half the width: ${describe(cell)}`);
        e.scrollLeft = 0;
      }
    }
    const box = e.getBoundingClientRect();
    if (box.width < 2 || box.right <= most + 1 || e.closest("mjx-assistive-mml")) continue;
    let around = e.parentElement;
    while (around && !scrolls(around)) around = around.parentElement;
    if (!around) wrong.push(`ends at ${Math.round(box.right)}: ${describe(e)}`);
  }
  for (const e of document.querySelectorAll("mjx-merror")) wrong.push(`no formula: ${describe(e)}`);
  for (const e of document.querySelectorAll("img")) if (!e.naturalWidth) wrong.push(`no picture: ${e.src}`);
  const asked = performance.getEntriesByType("resource").map(e => e.name).filter(e => /^https?:/.test(e));
  done([...wrong.slice(0, 5), ...asked.map(e => `from the network: ${e}`)]);
}
const maths = document.querySelector("span.math, div.math");
if (maths && !(window.MathJax && MathJax.startup)) done(["formulas are not drawn"]);
else if (maths) MathJax.startup.promise.then(look);
else look();
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(f"--{flag}")
    browser = Chrome(options, ChromeService(DRIVER))
    browser.set_script_timeout(60)
    yield browser
    browser.quit()


def test_pages_fit_their_window(tmp_path, browser):
    """The site is built from a copy, because the build writes next to its sources. The gallery is shown, but not run."""
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(ROOT / "docs", source / "docs", ignore=shutil.ignore_patterns("_build", "gallery", "upstream"))
    for folder in ("examples", "benchmarks/results"):
        shutil.copytree(ROOT / folder, source / folder)
    shutil.copy(ROOT / "CHANGELOG.md", source)
    command = [sys.executable, "-m", "sphinx", "-q", "-D", "plot_gallery=0", source / "docs", site]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    pages = [page for page in sorted(site.rglob("*.html")) if "_static" not in page.parts]
    assert len(pages) > 10
    found = {}
    for width in (400, 1280):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for page in pages:
            browser.get(page.as_uri())
            found[f"{page.relative_to(site)} at {width}"] = browser.execute_async_script(LOOK)
    assert {where: what for where, what in found.items() if what} == {}
