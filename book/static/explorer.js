// The split explorer: who gets which rows of a batch. <split-explorer> holds what readers without scripts see; its
// words come with it, in the page's language (templates/explorer.html).

const MOST = { rows: 4096, gpus: 64 };
const SLIDER = { rows: 256, gpus: 64 }; // more would be too fine for a finger

const FEATURES = 5; // the size of the dimension that is not cut, as in the lessons
const SQUARES = 256; // with more rows, a square stands for several

class SplitExplorer extends HTMLElement {
  // The split law; equal to the sizes of torch.ones(rows).chunk(gpus).
  static split(rows, gpus) {
    const chunk = Math.ceil(rows / gpus);
    const chunks = [];
    for (let start = 0; start < rows; start += chunk) chunks.push(Math.min(chunk, rows - start));
    return chunks;
  }

  connectedCallback() {
    this.words = JSON.parse(this.dataset.words);
    this.state = { rows: 12, gpus: 8, dim: 0 }; // two GPUs are idle
    const linked = this.readAddress();
    this.build();
    this.fill();
    if (linked) arrive(this);
    addEventListener("hashchange", () => this.readAddress() && this.fill());
    this.said = this.sentence(); // only changes are read aloud
  }

  // An address ends in, for example, #rows=10&gpus=8&dim=0; returns whether this one does.
  readAddress() {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (!asked.has("rows") && !asked.has("gpus")) return false;
    for (const key of ["rows", "gpus"]) {
      if (asked.has(key)) this.state[key] = this.within(key, asked.get(key));
    }
    this.state.dim = asked.get("dim") === "1" ? 1 : 0;
    return true;
  }

  within(key, value) {
    return Math.min(MOST[key], Math.max(1, Math.round(Number(value)) || 1));
  }

  build() {
    const { words } = this;
    this.replaceChildren();
    const form = add(this, "form", { class: "explorer-form" });
    form.addEventListener("submit", (event) => event.preventDefault());
    this.fields = {};
    for (const key of ["rows", "gpus"]) {
      const label = add(form, "label");
      const name = add(label, "span", {}, words[key]);
      add(label, "span", { class: "page-note" }, filled(words.limits, { most: MOST[key] }));
      const number = add(label, "input", { type: "number", min: 1, max: MOST[key], required: "", inputmode: "numeric" });
      const slider = add(form, "input", { type: "range", min: 1, max: SLIDER[key], "aria-label": words[key] });
      number.addEventListener("focus", () => number.select()); // what is typed takes the old number's place
      number.addEventListener("input", () => this.typed(key));
      slider.addEventListener("input", () => {
        number.value = slider.value;
        this.typed(key);
      });
      this.fields[key] = { name, number, slider };
    }
    const choice = add(form, "fieldset");
    add(choice, "legend", {}, words.dim);
    this.dims = [0, 1].map((dim) => {
      const label = add(choice, "label");
      const radio = add(label, "input", { type: "radio", name: "dim", value: dim });
      add(label, "span", {}, `dim=${dim}`);
      radio.addEventListener("change", () => this.change("dim", dim));
      return radio;
    });
    this.problem = add(this, "p", { class: "calculator-problem", role: "alert" });
    this.shape = add(this, "p");
    this.strip = add(this, "div", { class: "explorer-strip", "aria-hidden": "true" });
    this.scale = add(this, "p", { class: "page-note" });
    this.law = add(this, "ul", { class: "explorer-law" });
    this.status = add(this, "p", { class: "explorer-status", role: "status" });
    add(this, "p", { class: "page-note" }, words.why);
    this.box = add(this, "div", { class: "explorer-table", role: "group", "aria-label": words.caption });
    this.table = add(this.box, "table", { class: "docutils", "aria-label": words.caption });
  }

  fill() {
    for (const key of ["rows", "gpus"]) this.fields[key].number.value = this.state[key];
    this.show();
  }

  // What does not count changes nothing but the line that says so.
  typed(key) {
    const { number } = this.fields[key];
    if (number.validity.valid) this.change(key, Number(number.value));
    else this.showProblem();
  }

  change(key, value) {
    this.state[key] = value;
    this.show();
    clearTimeout(this.later);
    this.later = setTimeout(() => this.tell(), 300); // not at each step of a slider
  }

  // In the address, which can be sent to others, and to those who listen.
  tell() {
    const { rows, gpus, dim } = this.state;
    keepAddress(`#rows=${rows}&gpus=${gpus}&dim=${dim}`);
    if (this.said === this.sentence()) return;
    this.status.textContent = this.said = this.sentence();
  }

  sentence() {
    return filled(this.words.said, this.values());
  }

  values() {
    const { rows, gpus } = this.state;
    const chunks = SplitExplorer.split(rows, gpus);
    const [chunk, last] = [chunks[0], chunks.at(-1)];
    const percent = Number(((100 * rows) / (gpus * chunk)).toFixed(1));
    return { rows, gpus, chunk, last, percent, chunks: chunks.length, others: chunks.length - 1 };
  }

  show() {
    const { rows, gpus, dim } = this.state;
    const { words } = this;
    for (const key of ["rows", "gpus"]) {
      const { slider } = this.fields[key];
      if (!slider.matches(":focus, :active")) slider.max = this.state[key] > SLIDER[key] ? MOST[key] : SLIDER[key]; // not as it moves
      slider.value = this.state[key];
    }
    const what = dim === 0 ? words.rows : words.columns;
    this.fields.rows.name.textContent = what;
    this.fields.rows.slider.setAttribute("aria-label", what);
    this.dims[dim].checked = true;
    this.showProblem();

    const shapeOf = (size) => (dim === 0 ? [size, FEATURES] : [FEATURES, size]).join(", ");
    const chunks = SplitExplorer.split(rows, gpus);
    this.shape.textContent = filled(words.shape, { shape: shapeOf(rows) });
    this.law.replaceChildren();
    for (const line of ["chunk", "count", "last", "busy", "used"]) {
      add(this.law, "li", {}, filled(words[line], this.values()));
    }
    this.showStrip(chunks, gpus);
    this.showTable(chunks, gpus, shapeOf);
  }

  showProblem() {
    const lines = Object.entries(this.fields).map(([key, { name, number }]) => {
      const { valid } = number.validity;
      number.ariaInvalid = valid ? null : "true";
      const values = { name: name.textContent, most: MOST[key], shown: this.state[key] };
      return valid ? "" : filled(this.words.problem, values);
    });
    this.problem.textContent = lines.join(" ");
  }

  showStrip(chunks, gpus) {
    this.strip.replaceChildren();
    const scale = Math.ceil(this.state.rows / SQUARES);
    this.scale.textContent = scale > 1 ? filled(this.words.scale, { scale }) : "";
    for (let gpu = 0; gpu < gpus; gpu++) {
      const idle = gpu >= chunks.length;
      const part = add(this.strip, "div", { class: idle ? "explorer-idle" : `explorer-gpu explorer-gpu-${gpu % 8}` });
      add(part, "b", {}, `GPU ${gpu}`);
      const cells = add(part, "span");
      for (let row = 0; row < (chunks[gpu] ?? 0); row += scale) add(cells, "i");
      add(part, "span", {}, idle ? this.words.idle : String(chunks[gpu]));
    }
  }

  showTable(chunks, gpus, shapeOf) {
    const { words } = this;
    this.table.replaceChildren();
    const head = add(add(this.table, "thead"), "tr");
    for (const title of this.state.dim === 0 ? words.tableOfRows : words.tableOfColumns) add(head, "th", { scope: "col" }, title);
    const body = add(this.table, "tbody");
    let start = 0;
    for (let gpu = 0; gpu < gpus; gpu++) {
      const line = add(body, "tr");
      add(line, "th", { scope: "row" }, String(gpu));
      const size = chunks[gpu];
      const texts = size ? [start, start + size - 1, `(${shapeOf(size)})`] : ["–", "–", words.idle];
      for (const text of texts) add(line, "td", {}, String(text));
      start += size ?? 0;
    }
    this.box.tabIndex = this.box.scrollHeight > this.box.clientHeight ? 0 : -1;
  }
}

define({ "split-explorer": SplitExplorer });
