// Calculators of lessons: <lesson-calculator> holds the form; globalThis.calculators has the lesson's own functions.

class LessonCalculator extends HTMLElement {
  connectedCallback() {
    this.form = this.querySelector("form");
    this.count = globalThis.calculators[this.id.replace("calculator-", "")];
    this.presets = JSON.parse(this.dataset.presets) ?? {};
    this.inputs = [...this.form.querySelectorAll(".calculator-inputs :is(input, select)")];
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", ({ target }) => this.changed(target));
    addEventListener("hashchange", () => this.readAddress());
    if (!this.readAddress()) this.update();
  }

  // An address ends in, for example, #calculator-choose?gpus=8&billions=7
  readAddress() {
    const values = addressOf(this);
    if (!values) return false;
    this.put(Object.fromEntries(values));
    this.update();
    arrive(this);
    return true;
  }

  // The name of the known example that the fields show, if they do.
  known() {
    const shown = ([name, value]) => this.valueOf(this.form.elements[name]) === value;
    return Object.keys(this.presets).find((name) => Object.entries(this.presets[name]).every(shown)) ?? "";
  }

  put(values) {
    for (const input of this.inputs.filter(({ name }) => name in values)) {
      const value = String(values[input.name]);
      if (input.type === "checkbox") input.checked = value === "true";
      // An old address may name what there is no more to choose.
      else if (!input.options || [...input.options].some((option) => option.value === value)) input.value = value;
    }
  }

  changed(target) {
    if (target.name === "preset") this.put(this.presets[target.value] ?? {});
    clearTimeout(this.later);
    if (!this.update()) return;
    this.later = setTimeout(() => this.tell(), 400); // not at each letter
  }

  // In the address, and to those who listen.
  tell() {
    const values = new URLSearchParams(this.inputs.map((input) => [input.name, this.valueOf(input)]));
    keepAddress(`#${this.id}?${values}`);
    const words = [...this.querySelectorAll("dt")].map((term) => `${term.textContent}: ${term.nextElementSibling.textContent}`);
    this.querySelector("[role=status]").textContent = words.join("; ");
  }

  // NaN is what does not count: no number, too small or too large, or not whole where it must be.
  valueOf(input) {
    if (input.type === "checkbox") return input.checked;
    const text = plain(input.value).trim().replace(/,(?=\d{3}(?!\d))/g, "");
    if (input.tagName === "SELECT") return Number.isNaN(Number(text)) ? text : Number(text);
    // 70B, 80 GB and 4096 rows, where the name of the field says so; but not 700M for 0.7 billion.
    const [, digits, unit] = /^(.*\d)\s*(\p{L}+)$/u.exec(text) ?? [];
    const number = text ? Number(nameOf(input).split(/[^\p{L}]+/u).includes(unit) ? digits : text) : NaN;
    return this.counts(number, input) ? number : NaN;
  }

  // A limit is a number, or another input's name: the gradient has no more bytes than all has.
  limit(text) {
    const other = this.form.elements.namedItem(text);
    return other ? this.valueOf(other) : Number(text);
  }

  counts(number, { dataset }) {
    const inside = number >= this.limit(dataset.least) && !(number > this.limit(dataset.most));
    return inside && (!("whole" in dataset) || Number.isInteger(number));
  }

  update() {
    if (this.form.elements.preset) this.form.elements.preset.value = this.known();
    const values = this.inputs.map((input) => this.valueOf(input));
    this.inputs.forEach((input, i) => {
      input.ariaInvalid = Number.isNaN(values[i]) ? "true" : null;
    });
    const wrong = this.inputs.filter((_, i) => Number.isNaN(values[i]));
    this.querySelector(".calculator-problem").textContent = wrong.map((input) => this.problem(input)).join(" ");
    if (wrong.length) {
      for (const place of this.querySelectorAll("dd")) place.textContent = "–";
      this.querySelector("[role=status]").textContent = "";
      this.showTable(false);
      return false;
    }
    const results = this.count(...values);
    this.querySelectorAll("dd").forEach((place, i) => {
      place.textContent = this.shown(results[i], place);
    });
    this.vary(values);
    this.showTable(true);
    return true;
  }

  problem(input) {
    const { number, whole } = this.dataset;
    const [least, most] = [input.dataset.least, input.dataset.most].map((limit) => {
      return this.limit(limit).toLocaleString(document.documentElement.lang, { maximumFractionDigits: 9 });
    });
    return filled("whole" in input.dataset ? whole : number, { name: nameOf(input), least, most });
  }

  shown(result, { dataset }) {
    if (result === null || result === undefined || Number.isNaN(result)) return this.dataset.never;
    if (typeof result !== "number") return String(result);
    const digits = Number(dataset.digits);
    const options = Number.isInteger(result) ? {} : { maximumSignificantDigits: digits };
    return result.toLocaleString(document.documentElement.lang, options) + (dataset.unit ? ` ${dataset.unit}` : "");
  }

  showTable(shown) {
    const table = this.querySelector(".calculator-table");
    if (table) table.hidden = !shown;
  }

  // The first result with each number halved and doubled: what it depends on.
  vary(values) {
    const body = this.querySelector(".calculator-table tbody");
    if (!body) return;
    const place = this.querySelector("dd");
    const now = this.count(...values)[0];
    const rows = this.inputs.flatMap((input, i) => {
      if (input.type === "checkbox" || input.tagName === "SELECT") return [];
      const results = [0.5 * values[i], 2 * values[i]].map((half) => {
        const value = "whole" in input.dataset ? Math.round(half) : half;
        return this.counts(value, input) ? this.count(...values.with(i, value))[0] : "–";
      });
      return results.every((result) => result === now) ? [] : [[nameOf(input), ...results]]; // nothing hangs on it here
    });
    const most = Math.max(...rows.flatMap(([, ...results]) => results.filter((each) => typeof each === "number")));
    body.replaceChildren();
    for (const [name, ...results] of rows) {
      const row = add(body, "tr");
      add(row, "th", { scope: "row" }, name);
      for (const result of results) {
        const cell = add(row, "td", {}, this.shown(result, place));
        cell.style.backgroundSize = `${typeof result === "number" ? (100 * result) / most : 0}% 100%`;
      }
    }
  }
}

function nameOf(input) {
  return input.parentElement.firstChild.textContent.trim();
}

define({ "lesson-calculator": LessonCalculator });
