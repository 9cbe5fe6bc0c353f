// What every page does beyond Furo.

// The old address of a page, or of a place that has moved to another page, leads there.
const moved = document.querySelector('meta[name^="moved-"]');
const asked = location.hash.slice(1).split("?")[0]; // without the step or the numbers that may follow
const gone = asked && !document.getElementById(asked);
if (moved && (gone || moved.name === "moved-page")) location.replace(moved.content + location.hash);

// The link to the other edition leads to the same place there, and the choice is remembered.

// What has the same id in both editions: cells, terms, and the labels of headings.
const PLACES = 'div[id^="cell-"], :is(h1, h2, h3, h4)[id], dt span[id]';

function place() {
  if (new URLSearchParams(location.hash.slice(1)).has("rows")) return location.hash; // the split explorer's
  // On a narrow screen, a bar at its top hides what is under it.
  const bar = document.querySelector(".mobile-header").getBoundingClientRect().bottom;
  const named = document.getElementById(location.hash.slice(1).split("?")[0])?.getBoundingClientRect();
  if (named && named.top < innerHeight && named.bottom > bar) return location.hash; // in view; a step or numbers, too
  if (scrollY < 100) return "";
  const places = [...document.querySelectorAll("article")].flatMap((article) =>
    [...article.querySelectorAll(PLACES)]
      .filter((mark) => !mark.closest("[hidden]"))
      .map((mark) => ({ id: mark.id, top: Math.ceil(mark.getBoundingClientRect().top) })),
  );
  // What begins first in the upper half of the screen, or else what one is in the middle of.
  const first = places.find(({ top }) => top >= bar && top < innerHeight / 2);
  const here = first ?? places.filter(({ top }) => top < bar).at(-1);
  return here ? `#${here.id}` : "";
}

for (const link of document.querySelectorAll("a[data-edition]")) {
  link.addEventListener("click", () => {
    link.search = location.search; // what was searched for
    link.hash = place();
    try {
      localStorage.setItem("edition", link.dataset.edition);
    } catch {
      // Storage may be forbidden; the link works all the same.
    }
  });
}

// A link to a term or to a rule shows what it means or says: under the mouse, with the focus, at the first tap.
for (const link of document.querySelectorAll('article a[href*="#"]:not(.headerlink)')) {
  const meaning = document.getElementById(`meaning-${link.hash.slice(1)}`);
  if (!meaning?.showPopover) continue;
  let [wait, touched] = [0, false];
  const show = () => {
    meaning.showPopover();
    const { left, bottom, top } = link.getBoundingClientRect();
    const { width, height } = meaning.getBoundingClientRect();
    meaning.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    meaning.style.top = `${bottom + height + 8 < innerHeight ? bottom + 4 : top - height - 4}px`;
  };
  const hide = () => {
    clearTimeout(wait);
    meaning.hidePopover();
  };
  link.setAttribute("aria-describedby", meaning.id);
  link.addEventListener("pointerenter", ({ pointerType }) => {
    if (pointerType === "mouse") wait = setTimeout(show, 200);
  });
  link.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && hide());
  link.addEventListener("pointerdown", ({ pointerType }) => {
    touched = pointerType === "touch" && !meaning.matches(":popover-open");
  });
  link.addEventListener("click", (event) => {
    if (!touched) return;
    event.preventDefault();
    show();
  });
  link.addEventListener("focus", () => link.matches(":focus-visible") && show());
  link.addEventListener("blur", hide);
  link.addEventListener("keydown", ({ key }) => key === "Escape" && hide());
  addEventListener("scroll", hide, { passive: true });
}

// Code that is wider than the page, or an output that is long, can be scrolled by keyboard, and only that is a stop for it.
function reachable() {
  for (const box of document.querySelectorAll("article pre, article .table-wrapper")) {
    box.tabIndex = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight ? 0 : -1;
  }
}

(window.requestIdleCallback ?? setTimeout)(reachable); // measuring takes a while, and nobody waits for it
addEventListener("resize", reachable);
addEventListener("toggle", reachable, true); // folded code has no width until it is opened

// Furo opens its menu and "on this page" by labels of hidden checkboxes, which neither keyboard nor screen reader can
// use: they become buttons. And the links of what is closed could be reached, though nobody sees them.
for (const [box, side, narrow] of [
  ["__navigation", ".sidebar-drawer", "(max-width: 63em)"],
  ["__toc", ".toc-drawer", "(max-width: 82em)"],
]) {
  const [checkbox, drawer, media] = [document.getElementById(box), document.querySelector(side), matchMedia(narrow)];
  const buttons = [...document.querySelectorAll(`label[for="${box}"]:not(.overlay)`)].map((label) => {
    const button = document.createElement("button");
    Object.assign(button, { className: label.className, ariaLabel: checkbox.ariaLabel });
    button.append(...label.childNodes);
    label.replaceWith(button);
    button.addEventListener("click", ({ detail }) => {
      checkbox.click();
      if (detail > 0 || !checkbox.checked) return; // a finger or the mouse
      [...drawer.querySelectorAll("a[href], input")].find((link) => link.offsetWidth)?.focus();
    });
    return button;
  });
  const update = () => {
    drawer.inert = media.matches && !checkbox.checked;
    for (const button of buttons) button.ariaExpanded = String(checkbox.checked);
  };
  drawer.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape" || !checkbox.checked) return;
    checkbox.click();
    buttons.find((button) => button.offsetWidth)?.focus();
  });
  drawer.addEventListener("click", ({ target }) => target.closest("a") && checkbox.checked && checkbox.click());
  checkbox.addEventListener("change", update);
  media.addEventListener("change", update);
  update();
}

// The menu shows the page that one reads, when the page opens and when the menu does.
function showHere() {
  const [menu, here] = [document.querySelector(".sidebar-scroll"), document.querySelector(".sidebar-tree [aria-current]")];
  const down = here?.getBoundingClientRect().top - menu.getBoundingClientRect().top - menu.clientHeight / 2;
  if (here) menu.scrollBy({ top: down, behavior: "instant" }); // a slow one would stop what scrolls the page
}

showHere();
document.getElementById("__navigation").addEventListener("change", showHere);

// Outputs of several runs become tabs, and the choice holds for all of them, from page to page.
// Without this script all are in view, one below the other.
function choose(key) {
  for (const group of document.querySelectorAll(".runs")) {
    const runs = [...group.querySelectorAll(".run")];
    const chosen = runs.find((run) => run.dataset.run === key) ?? runs[0];
    for (const tab of group.querySelectorAll('[role="tab"]')) {
      const selected = tab.dataset.run === chosen.dataset.run;
      tab.ariaSelected = String(selected);
      tab.tabIndex = selected ? 0 : -1;
    }
    for (const run of runs) run.hidden = run !== chosen;
  }
}

document.querySelectorAll(".runs").forEach((group, number) => {
  const bar = document.createElement("div");
  bar.role = "tablist";
  group.querySelectorAll(".run").forEach((run, index) => {
    run.id = `run-${number}-${index}`;
    run.role = "tabpanel";
    run.tabIndex = 0;
    const tab = document.createElement("button");
    Object.assign(tab, { role: "tab", id: `${run.id}-tab`, textContent: run.dataset.title });
    tab.setAttribute("aria-controls", run.id);
    run.setAttribute("aria-labelledby", tab.id);
    tab.dataset.run = run.dataset.run;
    bar.append(tab);
  });
  bar.addEventListener("click", ({ target }) => {
    if (!target.dataset.run) return;
    const before = target.getBoundingClientRect().top;
    choose(target.dataset.run);
    scrollBy(0, target.getBoundingClientRect().top - before); // other tabs above may have changed their height
    try {
      localStorage.setItem("run", target.dataset.run);
    } catch {
      // As above.
    }
  });
  bar.addEventListener("keydown", (event) => {
    const tabs = [...bar.children];
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = tabs[(tabs.indexOf(event.target) + steps[event.key] + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
  group.prepend(bar);
});

try {
  choose(localStorage.getItem("run"));
} catch {
  choose(null);
}
