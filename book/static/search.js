// Search as one types. Pagefind has indexed the pages; it fetches only the parts of its index that a query needs.

const MOST = 12; // results shown

const input = document.querySelector("#search-input");
const state = document.querySelector("#search-state");
const list = document.querySelector("#search-results");
const words = state.dataset;

async function start() {
  input.value = new URLSearchParams(location.search).get("q") ?? "";
  if (location.protocol === "file:") {
    state.textContent = words.file; // browsers do not let a page read other files
    return;
  }
  const pagefind = await import(new URL("pagefind/pagefind.js", location.href));
  await pagefind.options({ excerptLength: 24 });
  input.addEventListener("input", () => find(pagefind));
  input.focus();
  await find(pagefind);
}

async function find(pagefind) {
  const query = input.value.trim();
  history.replaceState(null, "", query ? `?q=${encodeURIComponent(query)}` : location.pathname);
  if (!query) {
    state.textContent = "";
    list.replaceChildren();
    return;
  }
  const search = await pagefind.debouncedSearch(query, {}, 150);
  if (search === null) return; // another letter was typed meanwhile
  const results = await Promise.all(search.results.slice(0, MOST).map((result) => result.data()));
  // The lesson to which the glossary sends those who look up just this term comes first.
  const names = ({ meta }) => (meta.terms ?? "").toLowerCase().split("|").includes(query.toLowerCase());
  results.sort((one, other) => names(other) - names(one));
  state.textContent = results.length ? words.found.replace("%", search.results.length) : words.none;
  list.replaceChildren(...results.map(shown));
}

function shown(result) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  link.href = result.url;
  link.textContent = result.meta.title;
  const excerpt = document.createElement("p");
  excerpt.innerHTML = result.excerpt; // Pagefind has escaped all but its <mark>
  item.append(link, excerpt);
  return item;
}

document.querySelector("#search-form").addEventListener("submit", (event) => event.preventDefault());
start();
