// The first page leads to the edition that was chosen last, or to one in the browser's language, or to the first.
const links = [...document.querySelectorAll("a[data-edition]")];
let chosen = null;
try {
  chosen = localStorage.getItem("edition");
} catch {
  // Storage may be forbidden.
}
const language = (navigator.language || "").split("-")[0];
const link =
  links.find((each) => each.dataset.edition === chosen) ??
  links.find((each) => each.hreflang.split("-")[0] === language) ??
  links[0];
location.replace(link.getAttribute("href"));
