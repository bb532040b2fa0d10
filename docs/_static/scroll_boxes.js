// What scrolls in a box of its own takes the keyboard: the tab key reaches it, arrows move it, and a screen reader says what
// it is. A box that has room for all that is in it is left out, so that the tab key need not stop there.
const LABELS = {
  ".table-wrapper.container": "Table that scrolls",
  "article div.highlight > pre": "Code that scrolls",
  "article div.math": "Formula that scrolls",
};

function nameScrollBoxes() {
  for (const [selector, label] of Object.entries(LABELS)) {
    for (const box of document.querySelectorAll(selector)) {
      const named = { tabindex: "0", role: "region", "aria-label": label };
      const scrolls = box.scrollWidth > box.clientWidth + 1;
      for (const [name, value] of Object.entries(named)) {
        if (scrolls) box.setAttribute(name, value);
        else box.removeAttribute(name);
      }
    }
  }
}

window.addEventListener("load", () => {
  nameScrollBoxes();
  if (window.MathJax && MathJax.startup) MathJax.startup.promise.then(nameScrollBoxes); // formulas have no width before
});
window.addEventListener("resize", nameScrollBoxes);
