// The first page leads to the edition that was chosen last, or to the browser's language.
let edition = (navigator.language || "").startsWith("zh") ? "zh" : "en";
try {
  edition = localStorage.getItem("edition") || edition;
} catch {
  // Storage may be forbidden.
}
location.replace(`${edition === "zh" ? "zh" : "en"}/index.html`);
