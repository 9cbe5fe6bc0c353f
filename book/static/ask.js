// Predictions and exercises: the reader answers, the page checks it by what the lesson's kernel found, and keeps it in
// this browser. Until it has come, styles keep the answers back (book.css, theme.js).

// What readers have answered: {given: [texts], right: whether all is right}, by lesson and cell, the same in all editions.
const KEPT = "answer:";
const DRAFT = "draft:"; // what is written there and not checked yet
const ALL = "show-all"; // the switch that keeps nothing back

function keptAnswers() {
  const keys = kept.keys().filter((key) => key.startsWith(KEPT));
  return Object.fromEntries(keys.map((key) => [key.slice(KEPT.length), kept.read(key)]));
}

// The answers in a file that a reader has saved; none if it is another file.
function fromFile(text) {
  try {
    const isAnswer = ([name, answer]) => name.includes("/") && Array.isArray(answer?.given);
    return Object.fromEntries(Object.entries(JSON.parse(text)).filter(isAnswer));
  } catch {
    return {};
  }
}

// A sentence of the page's language, such as "It is %(truth)s.", with its values.
function say(name, values = {}) {
  say.words ??= JSON.parse(document.querySelector("#ask-words").textContent);
  return filled(say.words[name], values);
}

// What stands between the entries of a list, as commas: "B and D" are two.
function withCommas(text) {
  const and = say("and").split(" ").map((word) => (/\w/.test(word) ? `\\b${word}\\b` : word)).join("|");
  return text.replace(/[、;→]/g, ",").replace(new RegExp(and, "gi"), ",");
}

// What one has typed, as entries: numbers where they are some, other words in small letters.
function entries(text) {
  const words = withCommas(text.replace(/\s+%/g, "%").replace(/\s*\/\s*/g, "/").replaceAll("−", "-"))
    .replace(/(\d)\s*[x×]\s*(?=\d)/g, "$1,").replace(/torch\.Size/gi, "");
  return words.split(/[\s,[\](){}"'“”]+/).filter(Boolean).map((word) => {
    const [, above, below] = /^(-?[\d.]+)\/([\d.]+)$/.exec(word) ?? [];
    const number = below ? above / below : Number(word.replace(/%$/, "")) / (word.endsWith("%") ? 100 : 1);
    return Number.isFinite(number) ? number : word.toLowerCase();
  });
}

// A word may stand before and after a number, also in a list: step 4, 720 MB, 30分钟, 1 MB, 6 MB. But 4k is not 4, nor is
// 0.72 GB where MB are asked for; 25% is a quarter. 163,840 is one number, "three" is 3, and "none" is 0.
function bare(text, kind, asked) {
  if (kind === "list") return withCommas(text).split(",").map((entry) => bare(entry, "entry", asked)).join(",");
  const inside = text.replace(/[[\](){}]/g, " ").trim();
  const [, numbers, word] = /^\p{L}*\s*([^\p{L}]*\d)\s*(\p{L}*|×)$/u.exec(inside) ?? [];
  const size = /^([kmgt]i?b?|[千万亿].*)$/i.test(word ?? "") && !asked.split(/[^\p{L}]+/u).includes(word);
  const number = numbers === undefined || size ? inside : numbers;
  const named = numeral(number);
  if (named >= 0) return String(named);
  if (kind === "entry") return number;
  return isNone(number) ? "0" : number.replace(/,(?=\d{3}(?!\d))/g, "");
}

// The number that a word means, or -1; in some languages the words that count with it touch it.
function numeral(text) {
  const counted = (words) => say("counted").replace("#", `(?:${words})`);
  return say("numerals").split(" ").findIndex((words) => new RegExp(`^${counted(words)}$`, "iu").test(text));
}

const isNone = (text) => say("zero").split(" ").includes(text.trim().toLowerCase());

// Whole numbers are to be met, others to one part in fifty: two digits are enough.
function same(given, truth) {
  if (typeof truth === "number" && typeof given === "number") {
    return Number.isInteger(truth) ? given === truth : Math.abs(given - truth) <= Math.abs(truth) / 50;
  }
  return String(given) === String(truth).toLowerCase();
}

// Words without what stands between them: DBAC is D, B, A, C, and "parallel apply" is parallel_apply.
const squeezed = (words) => [words].flat().join("").toLowerCase().replace(/[^\p{L}\d]/gu, "");

const rounded = (number) => String(Math.abs(number) >= 1000 ? Math.round(number) : Number(number.toPrecision(4)));

// What the same signs mean to others: 2,667 is 2.667, and 30 × 3, 10 is 30, 30, 30, 10.
const otherwise = {
  number: (text) => text.replace(/(\d),(?=\d)/, "$1."),
  list: (text) => text.replace(/(\d[\d.]*)\s*[x×*]\s*(\d\d?)(?!\d)/gi, (_, entry, times) => Array(Number(times)).fill(entry).join()),
};

function shown(value) {
  if (Array.isArray(value)) return value.map(shown).join(", ") || "[]";
  return typeof value === "number" ? rounded(value) : String(value);
}

// What is to be said of an answer: {words, right}, or {problem} if it cannot be read. `it` is the truth in words.
function judged({ kind, right }, written, exercise, it, asked) {
  const [truth] = right;
  const text = plain(written);
  if (!text.trim()) return exercise ? { problem: say("empty"), empty: true } : { words: say("none", { truth: it }), none: true };
  const letters = kind === "list" && truth.every((each) => /^[A-Z]$/.test(each)); // then BD is B, D
  const counts = kind === "number" || (kind === "list" && typeof truth[0] === "number");
  const read = kind === "list" && isNone(text) ? "" : counts ? bare(text, kind, asked) : text;
  const typed = entries(read).flatMap((word) => (letters ? [...String(word)] : [word]));
  const other = counts ? entries(bare(otherwise[kind](text), kind, asked)) : [];
  const given = right.some((each) => matches(kind, other, each)) ? other : typed;
  if (kind === "number" && (given.length !== 1 || typeof given[0] !== "number")) return { problem: say("number") };
  if (kind === "list" && typeof truth[0] === "number" && given.some((each) => typeof each !== "number")) {
    return { problem: say("numbers") };
  }
  if (right.some((each) => matches(kind, given, each) || (!counts && squeezed(text) === squeezed(each)))) {
    const about = kind === "number" && right.length === 1 && rounded(given[0]) !== rounded(truth);
    return { words: about ? say("about", { truth: it }) : say("right"), right: true };
  }
  if (kind === "number" && right.length === 1) {
    const high = given[0] > truth;
    const off = rounded(Math.abs(given[0] - truth));
    return { words: exercise ? say(high ? "tooHigh" : "tooLow") : say(high ? "high" : "low", { truth: it, off }) };
  }
  const sameLength = kind === "list" && given.length === truth.length;
  const inPlace = sameLength && truth.filter((each, i) => same(given[i], each)).length;
  if (inPlace || (exercise && sameLength && right.length === 1)) {
    return { words: say(exercise ? "listNotYet" : "list", { truth: it, count: truth.length, same: inPlace }) };
  }
  if (kind === "list" && !exercise) return { words: say("otherList", { truth: it, given: written.trim() }) };
  if (kind === "list" && right.length === 1) return { words: say("length", { count: truth.length, given: given.length }) };
  return { words: exercise ? say("notYet") : say("wrong", { truth: it }) };
}

function matches(kind, given, truth) {
  if (kind === "number") return given.length === 1 && same(given[0], truth);
  const expected = kind === "list" ? truth : entries(String(truth));
  return expected.length === given.length && expected.every((each, i) => same(given[i], each));
}

class AskBox extends HTMLElement {
  get name() {
    return this.dataset.name;
  }

  get status() {
    return this.querySelector(".ask-buttons [role=status]");
  }

  get exercise() {
    return "exercise" in this.dataset;
  }

  // Of each question: what is right, its fields (one to write in, or several to choose from), and where to answer.
  get questions() {
    this.truths ??= JSON.parse(this.dataset.truths);
    return [...this.querySelectorAll(".ask-question")].map((question, i) => {
      const inputs = [...question.querySelectorAll("input")];
      const [verdict, hint] = [".ask-verdict", ".ask-hint"].map((part) => question.querySelector(part));
      return { truth: this.truths[i], inputs, verdict, hint };
    });
  }

  given() {
    const chosen = (inputs) => inputs.find((each) => each.checked)?.value ?? "";
    return this.questions.map(({ inputs }) => (inputs[0].type === "radio" ? chosen(inputs) : inputs[0].value));
  }

  answer() {
    const given = this.given();
    const verdicts = this.judge(given);
    if (verdicts.some(({ problem }) => problem)) {
      this.status.textContent = this.exercise ? "" : say("again");
      return;
    }
    kept.write(DRAFT + this.name, null);
    const right = verdicts.every((each) => each.right) || kept.read(KEPT + this.name)?.right === true;
    const isKept = kept.write(KEPT + this.name, { given, right });
    this.status.textContent = isKept ? this.before(verdicts) : say("notKept");
    this.open();
  }

  // From a field that is filled in: the next question that has no answer yet.
  nextEmpty(field) {
    const questions = this.questions;
    const place = questions.findIndex(({ inputs }) => inputs.includes(field));
    const empty = this.given().findIndex((text, i) => i > place && !text.trim());
    return field.value.trim() && questions[empty]?.inputs[0];
  }

  // What has been answered before, here or in another tab, or only been written.
  restore() {
    const [draft, given] = [kept.read(DRAFT + this.name), kept.read(KEPT + this.name)?.given];
    const texts = draft ?? given;
    if (!Array.isArray(texts)) return;
    this.questions.forEach(({ inputs }, i) => {
      if (inputs[0].type !== "radio") inputs[0].value = texts[i] ?? "";
      for (const each of inputs) each.checked = each.value === texts[i];
    });
    if (draft) for (const question of this.questions) this.forget(question);
    else this.status.textContent = this.before(this.judge(this.given()));
    if (given) this.open();
  }

  // What is said where a solved exercise is wrong now.
  before(verdicts) {
    const solved = this.exercise && kept.read(KEPT + this.name)?.right === true;
    return solved && !verdicts.every(({ right }) => right) ? say("before") : "";
  }

  // What was said of an answer is not said of the one that takes its place.
  change(field) {
    this.forget(this.questions.find(({ inputs }) => inputs.includes(field)));
    kept.write(DRAFT + this.name, this.given());
  }

  forget({ inputs, verdict, hint }) {
    for (const input of inputs) input.ariaInvalid = null;
    Object.assign(verdict, { textContent: "", className: "ask-verdict" });
    for (const each of [hint, this.querySelector("form > .ask-hint")]) if (each) each.hidden = true;
    this.status.textContent = "";
  }

  judge(given) {
    const verdicts = this.questions.map(({ truth, inputs }, i) => {
      const label = inputs.find((each) => each.type === "radio" && each.value === String(truth.right[0]))?.parentElement;
      const it = label?.textContent.trim() ?? shown(truth.right[0]);
      return judged(truth, given[i], this.exercise, it, this.querySelector("form").textContent);
    });
    // Where one cannot be read, no other answer is told either; fields that are empty may wait.
    const unread = verdicts.some(({ problem, empty }) => problem && !empty) || verdicts.every(({ empty }) => empty);
    this.questions.forEach(({ inputs, verdict, hint }, i) => {
      const { problem, words, right, none } = verdicts[i];
      for (const input of inputs) input.ariaInvalid = problem ? "true" : null;
      verdict.textContent = problem ?? (unread ? "" : words);
      verdict.className = `ask-verdict ${unread || problem ? "" : right ? "ask-right" : none ? "" : "ask-wrong"}`;
      if (hint) hint.hidden = unread || problem !== undefined || right === true;
    });
    const hint = this.querySelector("form > .ask-hint");
    if (hint) hint.hidden = unread || verdicts.every(({ right }) => right);
    return verdicts;
  }

  open() {
    this.querySelector("answer-part")?.show(true);
  }

  // What the button does: what is in view already need not be shown.
  label(open) {
    const words = !open ? "show" : kept.read(KEPT + this.name) ? "checkAgain" : "check";
    if (!this.exercise) this.querySelector(".ask-button").textContent = say(words);
  }
}

// What an answer shows.
class AnswerPart extends HTMLElement {
  connectedCallback() {
    const box = this.closest("ask-box");
    this.show(kept.read(ALL) || kept.read(KEPT + box.name) || this.soughtFor());
  }

  // A link of another page leads to this section.
  soughtFor() {
    const heading = this.closest("section").querySelector(":is(h2, h3, h4)");
    return location.hash === `#${heading?.id}`;
  }

  show(open) {
    // Searching in the page finds all the same what is hidden so, where the browser can.
    const hidden = "onbeforematch" in this ? "until-found" : "";
    if (open) this.removeAttribute("hidden");
    else this.setAttribute("hidden", hidden);
    this.closest("ask-box").label(open);
    dispatchEvent(new Event("resize")); // what is in view now may be wider than the page
  }
}

// The switch that keeps nothing back, on all pages.
class ShowAll extends HTMLElement {
  update() {
    const { hide, show } = this.dataset;
    this.querySelector("button").textContent = kept.read(ALL) ? hide : show;
  }

  change() {
    const all = !kept.read(ALL);
    kept.write(ALL, all);
    this.update();
    for (const part of document.querySelectorAll("answer-part")) {
      part.show(all || kept.read(KEPT + part.closest("ask-box").name));
    }
  }
}

// How many of a lesson's exercises are solved.
class SolvedCount extends HTMLElement {
  update() {
    const { lesson, all } = this.dataset;
    const names = Object.entries(keptAnswers()).filter(([name, answer]) => answer?.right && name.startsWith(lesson));
    const exercises = names.filter(([name]) => name.slice(lesson.length).startsWith("/exercise-"));
    this.textContent = exercises.length ? say("solved", { right: exercises.length, all }) : "";
  }
}

// The answers are the reader's: to be taken along and brought back, or to be erased.
class KeptAnswers extends HTMLElement {
  take() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(keptAnswers(), null, 1)], { type: "application/json" }));
    link.download = "answers.json";
    link.click();
    URL.revokeObjectURL(link.href);
    this.tell(say("saved", { file: link.download }));
  }

  bring() {
    const field = document.createElement("input");
    Object.assign(field, { type: "file", accept: ".json", onchange: async () => this.put(await field.files[0].text()) });
    field.click();
  }

  // What was solved here stays so.
  put(text) {
    const answers = Object.entries(fromFile(text));
    const written = answers.map(([name, { given, right }]) => {
      kept.write(DRAFT + name, null);
      return kept.write(KEPT + name, { given, right: right === true || kept.read(KEPT + name)?.right === true });
    });
    const words = answers.length === 0 ? "noAnswers" : written.every(Boolean) ? "brought" : "notKept";
    this.tell(say(words, { count: answers.length }));
  }

  erase() {
    if (!confirm(say("erase"))) return;
    for (const key of kept.keys().filter((key) => key.startsWith(KEPT) || key.startsWith(DRAFT))) kept.write(key, null);
    this.tell(say("erased"));
  }

  tell(words) {
    for (const count of document.querySelectorAll("solved-count")) count.update();
    this.querySelector("[role=status]").textContent = words;
  }
}

define({
  "ask-box": AskBox,
  "answer-part": AnswerPart,
  "show-all": ShowAll,
  "solved-count": SolvedCount,
  "kept-answers": KeptAnswers,
});

// Here, and when another tab has changed what is kept; `key` says what, if not all.
function update({ key = null } = {}) {
  for (const box of document.querySelectorAll("ask-box")) if (!key || key.endsWith(`:${box.name}`)) box.restore();
  for (const element of document.querySelectorAll("show-all, solved-count")) element.update();
}

// What a link leads to is shown: something in an answer, or a cell whose answer is what it puts out.
function showTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1).split("?")[0]));
  const next = target?.nextElementSibling;
  const part = target?.closest("answer-part[hidden]") ?? next?.querySelector(":scope:is(ask-box) > answer-part[hidden]");
  if (!part) return;
  part.show(true);
  target.scrollIntoView();
}

addEventListener("DOMContentLoaded", () => {
  update();
  showTarget();
});
addEventListener("hashchange", showTarget);
addEventListener("storage", update);
document.addEventListener("beforematch", ({ target }) => target.closest("answer-part")?.show(true));
document.addEventListener("input", ({ target }) => target.closest("ask-box")?.change(target));
document.addEventListener("submit", (event) => {
  const box = event.target.closest("ask-box");
  if (!box) return;
  event.preventDefault();
  box.answer();
});
document.addEventListener("keydown", (event) => {
  const next = event.key === "Enter" && event.target.matches("input:not([type=radio])") && event.target.closest("ask-box")?.nextEmpty(event.target);
  if (!next) return;
  event.preventDefault();
  next.focus();
});
document.addEventListener("click", ({ target }) => {
  target.closest("show-all button")?.parentElement.change();
  const button = target.closest("kept-answers button");
  if (button) button.closest("kept-answers")[button.value]();
});
