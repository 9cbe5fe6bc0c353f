// Search as one types. Pagefind has indexed the pages; it fetches only the parts of its index that a query needs.
// A page that is opened from a file may fetch nothing: there, a script brings the text of all sections.

const MOST = 12; // results shown
const MOST_SECTIONS = 3; // of a page
const AROUND = 80; // letters of an excerpt before and after the word

const input = document.querySelector("#search-input");
const state = document.querySelector("#search-state");
const list = document.querySelector("#search-results");
const words = state.dataset;

async function start() {
  input.value = new URLSearchParams(location.search).get("q") ?? "";
  const find = location.protocol === "file:" ? await inSections() : await inPagefind();
  input.addEventListener("input", () => search(find));
  input.focus();
  await search(find);
}

async function search(find) {
  const query = input.value.trim();
  history.replaceState(null, "", query ? `?q=${encodeURIComponent(query)}` : location.pathname);
  const found = query ? await find(query) : { count: 0, results: [] };
  if (found === null || query !== input.value.trim()) return; // another letter was typed meanwhile
  state.textContent = query && (found.count ? words.found.replace("%", found.count) : words.none);
  list.replaceChildren(...found.results.map(shown));
}

async function inPagefind() {
  const pagefind = await import(new URL("pagefind/pagefind.js", location.href));
  await pagefind.options({ excerptLength: 24 });
  return async (query) => {
    const search = await pagefind.debouncedSearch(query, {}, 150);
    if (search === null) return null;
    const results = await Promise.all(search.results.slice(0, MOST).map((result) => result.data()));
    // The lesson to which the glossary sends those who look up just this term comes first.
    const names = ({ meta }) => (meta.terms ?? "").toLowerCase().split("|").includes(query.toLowerCase());
    results.sort((one, other) => names(other) - names(one));
    return { count: search.results.length, results: results.map(page) };
  };
}

// A page, and below it up to three of its sections in which the words stand.
function page({ url, meta, excerpt, sub_results }) {
  const sections = sub_results.filter(({ title }) => title !== meta.title);
  const weight = ({ weighted_locations }) => weighted_locations.reduce((sum, { balanced_score }) => sum + balanced_score, 0);
  sections.sort((one, other) => weight(other) - weight(one));
  return { url, title: meta.title, excerpt: sections.length ? "" : excerpt, sections: sections.slice(0, MOST_SECTIONS) };
}

async function inSections() {
  await new Promise((resolve, reject) => {
    const script = document.createElement("script");
    Object.assign(script, { src: "_static/sections.js", onload: resolve, onerror: reject });
    document.head.append(script);
  });
  return async (query) => {
    const parts = query.toLowerCase().split(/\s+/);
    const needed = parts.length > 2 ? parts.length - 1 : parts.length;
    const results = globalThis.PAGES.map(([name, title, sections]) => {
      const found = sections.map(([anchor, title, text]) => {
        const [inTitle, inAll] = [title, `${title} ${text}`].map((where) => parts.filter(standsIn(where)).length);
        const score = inAll < needed ? 0 : 10 * inTitle + inAll;
        return { url: `${name}.html#${anchor}`, title, excerpt: around(text, parts), score };
      });
      found.sort((one, other) => other.score - one.score);
      const best = found.filter(({ score }) => score).slice(0, MOST_SECTIONS);
      return { url: `${name}.html`, title, sections: best, score: best[0]?.score ?? 0 };
    }).filter(({ score }) => score);
    results.sort((one, other) => other.score - one.score);
    return { count: results.length, results: results.slice(0, MOST) };
  };
}

// Whether a word, or what begins with it, stands in a text; Chinese has no spaces between words.
function standsIn(text) {
  const lower = text.toLowerCase();
  return (part) => (/^\w/.test(part) ? ` ${lower}`.split(/[^\w.]+/).some((word) => word.startsWith(part)) : lower.includes(part));
}

// An excerpt as HTML, with the longest of the words marked.
function around(text, parts) {
  const word = parts.reduce((one, other) => (other.length > one.length ? other : one));
  const at = Math.max(0, text.toLowerCase().indexOf(word));
  const after = text.toLowerCase().includes(word) ? at + word.length : at;
  const [before, mark] = [text.slice(Math.max(0, at - AROUND), at), text.slice(at, after)];
  const [start, end] = [before.replace(/^\w+/, "…"), text.slice(after, after + AROUND).replace(/\w+$/, "…")];
  return `${escaped(start)}<mark>${escaped(mark)}</mark>${escaped(end)}`;
}

function escaped(text) {
  const box = document.createElement("p");
  box.textContent = text;
  return box.innerHTML;
}

function shown({ url, title, excerpt, sections = [] }) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  Object.assign(link, { href: url, textContent: title });
  item.append(link);
  if (excerpt) {
    const text = document.createElement("p");
    text.innerHTML = excerpt; // all but its <mark> is escaped
    item.append(text);
  }
  if (sections.length) {
    const inner = document.createElement("ul");
    inner.append(...sections.map(shown));
    item.append(inner);
  }
  return item;
}

document.querySelector("#search-form").addEventListener("submit", (event) => event.preventDefault());
start().catch(() => {
  state.textContent = words.broken;
});
