// What every page does beyond Furo.

// The link to the other edition leads to the same place there, and the choice is remembered.

// What has the same id in both editions: cells, terms, and the labels of headings.
const PLACES = 'div[id^="cell-"], span[id]:empty, section[id]:not(:has(> span[id]:empty))';

function place() {
  if (new URLSearchParams(location.hash.slice(1)).has("rows")) return location.hash; // the split explorer's
  if (scrollY < 100) return "";
  const above = [...document.querySelectorAll("article")].flatMap((article) =>
    [...article.querySelectorAll(PLACES)].filter((mark) => mark.getBoundingClientRect().top < innerHeight / 3),
  );
  return above.length ? `#${above.at(-1).id}` : "";
}

for (const link of document.querySelectorAll("a[data-edition]")) {
  link.addEventListener("click", () => {
    link.hash = place();
    try {
      localStorage.setItem("edition", link.dataset.edition);
    } catch {
      // Storage may be forbidden; the link works all the same.
    }
  });
}

// Code that is wider than the page can be scrolled by keyboard, and only such code is a stop for it.
function reachable() {
  for (const box of document.querySelectorAll("article pre, article .table-wrapper")) {
    box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1;
  }
}

(window.requestIdleCallback ?? setTimeout)(reachable); // measuring takes a while, and nobody waits for it
addEventListener("resize", reachable);
addEventListener("toggle", reachable, true); // folded code has no width until it is opened
