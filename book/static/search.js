// Search as one types, in the sections of all pages: _static/sections.js has them, a script, so that it works in pages
// opened from a file, too. What is rare in the book counts more than what is common, and a title more than a text.

const MOST = 20; // results that are shown
const AROUND = 80; // letters of an excerpt before and after the word
const [IN_TITLE, IN_TEXT, IN_PAGE] = [3, 1, 0.7]; // what a word counts for that stands there
const CHINESE = /[\u3400-\u9fff]+/;

const input = document.querySelector("#search-input");
const state = document.querySelector("#search-state");
const list = document.querySelector("#search-results");
const words = state.dataset;

// What readers write in many ways, and the book in one: of the page's language.
const WRITTEN = words.written.split("\n").map((line) => line.split(" → ")).map(([way, word]) => [new RegExp(way, "g"), word]);
// An exercise with its number is one thing to look for; Chinese words have no spaces between them.
const ANY = /[\u3400-\u9fff]+|[^\u3400-\u9fff\s,;:"'“”‘’()[\]{}<>?!，。；：？！、（）]+/;
const PART = new RegExp(`${words.exercise} \\d+|${ANY.source}`, "g");
const NUMBERED = new RegExp(`${words.exercise} \\d+[.（：]`, "i");

const sections = (globalThis.PAGES ?? []).flatMap(([name, page, parts, topic]) =>
  parts
    .filter(([, , text]) => text)
    .map(([anchor, title, text, aliases], at) => {
      const exercise = NUMBERED.test(text) ? words.exercise : ""; // whatever the title of its section is
      // A lesson is also found by its name in the table of lessons, which its title, a question, does not have.
      const index = [at ? "" : topic, exercise, aliases].join("; ");
      const texts = Object.entries({ title, text, index, page, all: `${title} ${index} ${text}` });
      const lower = Object.fromEntries(texts.map(([where, text]) => [where, text.toLowerCase()]));
      return { url: `${name}.html#${anchor}`, page, title, text, lower };
    }),
);

function search() {
  const typed = input.value.trim().normalize("NFKC").toLowerCase();
  const query = spelt(typed);
  const meant = WRITTEN.reduce((text, [way, word]) => text.replace(way, word), query);
  const parts = partsOf(meant);
  const results = found(meant, parts);
  const near = query === typed ? "" : filled(words.near, { query });
  state.textContent = query && near + (results.length ? told(results.length) : "");
  if (query && !results.length) state.append(document.querySelector("#search-none").content.cloneNode(true));
  const names = parts.flatMap((part) => part.names);
  list.replaceChildren(...results.slice(0, MOST).map((result) => shown(result, names)));
  keepAddress(typed ? `?q=${encodeURIComponent(input.value.trim())}` : location.pathname);
}

function told(count) {
  return count > MOST ? filled(words.best, { most: MOST, count }) : filled(words.found, { count });
}

// A longer word that stands nowhere is taken for the nearest one of titles and index, at most two letters away.
function spelt(query) {
  return query.replace(/(?<![\w./-])[a-z]{5,}(?![\w./-])/g, (word) => {
    if (holding([stem(word)]).size) return word;
    spelt.known ??= [...new Set(sections.flatMap(({ lower }) => `${lower.title} ${lower.index}`.match(/[a-z]{5,}/g) ?? []))];
    const [best, steps] = spelt.known.map((each) => [each, distance(word, each)]).sort((one, other) => one[1] - other[1])[0];
    return steps <= (word.length < 8 ? 1 : 2) ? best : word;
  });
}

// How many letters one has to add, to leave out or to change to make one word of another.
function distance(word, other) {
  let row = [...other, ""].map((_, at) => at);
  for (const letter of word) {
    const next = [row[0] + 1];
    for (const [at, its] of [...other].entries()) {
      next.push(Math.min(next[at] + 1, row[at + 1] + 1, row[at] + (letter === its ? 0 : 1)));
    }
    row = next;
  }
  return row.at(-1);
}

// All sections with most of what is asked for, the best first.
function found(query, parts) {
  const same = (text) => text.replaceAll("-", " ").replace(/s$/, ""); // a plural is the same term
  const term = globalThis.TERMS.find(([names]) => names.some((name) => same(name) === same(query)));
  const rated = sections.map((section) => ({ ...section, ...rating(section, query, parts, term?.[1]) }));
  const most = Math.max(...rated.map(({ matched }) => matched));
  return rated
    .filter(({ matched, sent }) => sent || matched > 0.4 * most)
    .sort((one, other) => other.score - one.score);
}

function rating(section, query, parts, places = []) {
  const { url, lower } = section;
  let [score, matched] = [0, 0];
  for (const { names, worth } of parts) {
    const count = (where) => times(names, lower[where]);
    const [title, index, text] = holding(names).has(section) ? ["title", "index", "text"].map(count) : [0, 0, 0];
    const page = count("page");
    if (title + index + text + page) matched += worth;
    const of = title && Math.max(...names.filter((name) => times([name], lower.title)).map((name) => name.length));
    const inTitle = title && IN_TITLE + of / lower.title.length; // more of a short title
    score += worth * (inTitle || (index ? IN_TITLE : text ? IN_TEXT + Math.min(text - 1, 4) / 8 : page ? IN_PAGE : 0));
  }
  // The very words, and the place to which the glossary sends those who look up just this term.
  if (parts.length > 1 && lower.all.includes(query)) score *= 1.5;
  const sent = places.includes(url);
  return { score: sent ? score + 3 * IN_TITLE * rarity(0) : score, matched, sent };
}

// What a query asks for: terms of the glossary by any of their names, words, and of a longer Chinese phrase that
// nowhere stands as it is, its pairs of letters.
function partsOf(query) {
  let rest = query;
  for (const word of words.common.split(" ")) {
    rest = CHINESE.test(word) ? rest.replaceAll(word, " ") : rest.replace(new RegExp(`(?<![\\w.-])${word}(?![\\w.-])`, "g"), " ");
  }
  const asked = [];
  const terms = globalThis.TERMS.flatMap(([names]) => names.map((name) => ({ name, names })));
  for (const { name, names } of terms.sort((one, other) => other.name.length - one.name.length)) {
    if (name.length === 1 && CHINESE.test(name)) continue; // 行, a row, stands in 并行, parallel, too
    if (!times([name], rest, true)) continue;
    rest = rest.replace(name, " ");
    if (!asked.includes(names)) asked.push(names);
  }
  for (const part of rest.match(PART) ?? []) {
    const mixed = part.match(/[\u3400-\u9fff]+|[a-z_]+|\d+/g); // GPU100%, LSTM2
    if (mixed?.length > 1 && !holding([part]).size) {
      asked.push(...mixed.map((piece) => [stem(piece)]));
      continue;
    }
    const pairs = [...part.slice(1)].map((letter, at) => part[at] + letter).filter((pair) => holding([pair]).size);
    if (!CHINESE.test(part)) asked.push([stem(part)]);
    else if (holding([part]).size || !pairs.length) asked.push([part]);
    else asked.push(...pairs.map((pair) => [pair]));
  }
  // A word that stands nowhere in the book helps nobody to find the others.
  const known = asked.filter((names) => holding(names).size);
  return (known.length ? known : asked).map((names) => ({ names, worth: rarity(holding(names).size) }));
}

function stem(word) {
  if (word.length < 6 || !/^[a-z]+$/.test(word)) return word;
  return word.replace(/(ing|er|ed|es|s)$/, "").replace(/([bdgmnprt])\1$/, "$1"); // logging, stopped
}

// The sections in which one of these words stands, asked several times of each.
function holding(names) {
  holding.known ??= Object.create(null); // an object has words of its own, such as constructor
  holding.known[names] ??= new Set(sections.filter(({ lower }) => times(names, lower.all)));
  return holding.known[names];
}

// What it is worth that a word of so many sections stands in one.
function rarity(count) {
  return Math.log(1 + sections.length / (count + 0.5));
}

// How often words stand in a text; those in Latin letters at the beginning of a word, or whole.
function times(names, text, whole = false) {
  return names.reduce((sum, name) => {
    if (!text.includes(name)) return sum; // in most texts they do not, and this is seen at once
    if (!/^\w/.test(name)) return sum + text.split(name).length - 1;
    const literal = name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const end = whole || name.length < 3 ? "(?!\\w)" : "";
    return sum + (text.match(new RegExp(`(?<![a-z0-9])${literal}${end}`, "g"))?.length ?? 0);
  }, 0);
}

function shown({ url, page, title, text }, names) {
  const item = document.createElement("li");
  mark(add(item, "a", { href: url }), title, names);
  if (page !== title) add(item, "span", { class: "page-note" }, page);
  mark(add(item, "p"), text, names);
  return item;
}

// A part of a text, with the longest of the words that stand in it marked.
function mark(element, text, names) {
  const lower = text.toLowerCase();
  const here = names.filter((name) => times([name], lower)).sort((one, other) => other.length - one.length);
  const at = here.length ? lower.indexOf(here[0]) : 0;
  const end = at + (here[0]?.length ?? 0);
  const [before, after] = [text.slice(Math.max(0, at - AROUND), at), text.slice(end, end + AROUND)];
  element.append(at > AROUND ? `…${before.replace(/^\w+/, "")}` : before);
  if (here.length) add(element, "mark", {}, text.slice(at, end));
  element.append(end + AROUND < text.length ? `${after.replace(/\w+$/, "")}…` : after);
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
