// Before the page is drawn: the colours that its reader has chosen.
try {
  document.body.dataset.theme = localStorage.getItem("theme") || "auto";
} catch {
  document.body.dataset.theme = "auto"; // storage may be forbidden
}
