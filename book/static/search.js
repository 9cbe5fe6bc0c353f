// Search as one types, in the sections of all pages: _static/sections.js has them, a script, so that it works in pages
// opened from a file, too.

const MOST_SECTIONS = 3; // of a page
const AROUND = 80; // letters of an excerpt before and after the word
const CHINESE = /[\u3400-\u9fff]/;

const input = document.querySelector("#search-input");
const state = document.querySelector("#search-state");
const list = document.querySelector("#search-results");
const words = state.dataset;

function search() {
  const query = input.value.trim().toLowerCase();
  history.replaceState(null, "", query ? `?q=${encodeURIComponent(input.value.trim())}` : location.pathname);
  const pages = query ? found(query) : [];
  state.textContent = query && (pages.length ? words.found.replace("%", pages.length) : words.none);
  list.replaceChildren(...pages.map(shown));
}

// The pages in which all words stand, or all but one of many; if there are none, those with most of them, where a long
// Chinese word counts by its pairs of letters.
function found(query) {
  const parts = query.split(/\s+/);
  const pages = ranked(query, parts, parts.length > 2 ? parts.length - 1 : parts.length);
  if (pages.length) return pages;
  const pairs = parts.flatMap((part) => (CHINESE.test(part) && part.length > 2 ? pairsOf(part) : part));
  return ranked(query, pairs, Math.max(1, Math.floor(0.6 * pairs.length)));
}

function pairsOf(part) {
  return [...part.slice(1)].map((letter, at) => part[at] + letter);
}

function ranked(query, parts, needed) {
  const pages = globalThis.PAGES.map(([name, title, sections, terms]) => {
    const best = sections
      .map(([anchor, title, text]) => {
        const [inTitle, inText] = [title, text].map((where) => parts.map((part) => times(part, where)));
        const each = parts.map((_, at) => (inTitle[at] ? 10 : inText[at] && 1 + Math.min(inText[at], 5) / 5));
        const score = each.filter((one) => one).length < needed ? 0 : each.reduce((sum, one) => sum + one);
        return { url: `${name}.html#${anchor}`, title, excerpt: around(text, parts), score };
      })
      .filter(({ score }) => score)
      .sort((one, other) => other.score - one.score)
      .slice(0, MOST_SECTIONS);
    // The lesson to which the glossary sends those who look up just this term comes first.
    const score = best.length && best[0].score + (terms.includes(query) ? 20 : 0);
    return { url: `${name}.html`, title, sections: best, score };
  });
  return pages.filter(({ score }) => score).sort((one, other) => other.score - one.score);
}

// How often a word, or one that begins with it, stands in a text; Chinese has no spaces between words.
function times(part, text) {
  if (!/^\w/.test(part)) return text.toLowerCase().split(part).length - 1;
  return text.toLowerCase().split(/[^\w.]+/).filter((word) => word.startsWith(part)).length;
}

// An excerpt as HTML, with the longest of the words marked.
function around(text, parts) {
  const word = parts.reduce((one, other) => (other.length > one.length ? other : one));
  const at = Math.max(0, text.toLowerCase().indexOf(word));
  const after = text.toLowerCase().includes(word) ? at + word.length : at;
  const [before, mark, rest] = [text.slice(Math.max(0, at - AROUND), at), text.slice(at, after), text.slice(after)];
  const start = at > AROUND ? `…${before.replace(/^\w+/, "")}` : before;
  const end = rest.length > AROUND ? `${rest.slice(0, AROUND).replace(/\w+$/, "")}…` : rest;
  return escaped(start) + (mark && `<mark>${escaped(mark)}</mark>`) + escaped(end);
}

function escaped(text) {
  const box = document.createElement("p");
  box.textContent = text;
  return box.innerHTML;
}

function shown({ url, title, excerpt, sections }) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  Object.assign(link, { href: url, textContent: title });
  item.append(link);
  if (excerpt) {
    const text = document.createElement("p");
    text.innerHTML = excerpt; // all but its <mark> is escaped
    item.append(text);
  }
  if (sections) {
    const inner = document.createElement("ul");
    inner.append(...sections.map(shown));
    item.append(inner);
  }
  return item;
}

document.querySelector("#search-form").addEventListener("submit", (event) => event.preventDefault());
input.value = new URLSearchParams(location.search).get("q") ?? "";
if (globalThis.PAGES) {
  input.addEventListener("input", search);
  input.focus();
  search();
} else {
  state.textContent = words.broken;
}
