// Before the page is drawn: the colours that its reader has chosen, and whether answers are kept back (ask.js).
const { dataset } = document.body;
try {
  dataset.theme = localStorage.getItem("theme") || "auto";
  if (localStorage.getItem("show-all") === "true") dataset.shown = "all";
} catch {
  dataset.theme = "auto"; // storage may be forbidden
}
addEventListener("load", () => {
  if (!customElements.get("ask-box")) dataset.shown = "failed";
});
