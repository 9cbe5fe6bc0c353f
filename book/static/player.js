// Plays the steps of a table: what each device holds after each of them.

class StepPlayer extends HTMLElement {
  connectedCallback() {
    const names = [...this.querySelectorAll("thead th")].slice(2).map((head) => head.textContent);
    this.steps = [...this.querySelectorAll("tbody tr")].map((row) => {
      const [what, ...held] = row.querySelectorAll("td");
      const line = what.querySelector("code")?.textContent ?? "";
      return { sentence: what.firstChild.textContent, line, held: held.map((cell) => cell.textContent) };
    });
    for (const name of names) {
      const box = add(this.querySelector(".player-devices"), "section");
      add(box, "b", {}, name);
      add(box, "span", { class: "player-held" });
    }
    this.querySelector(".player").hidden = false;
    this.addEventListener("click", ({ target }) => target.value && this.go(this.after(target.value)));
    this.querySelector(".player").addEventListener("keydown", (event) => {
      const move = { ArrowRight: "next", ArrowLeft: "back", Home: "first", End: "last" }[event.key];
      if (!move) return;
      event.preventDefault();
      this.go(this.after(move));
    });
    addEventListener("hashchange", () => this.readAddress());
    this.show(0);
    this.readAddress();
  }

  after(move) {
    const last = this.steps.length - 1;
    return { first: 0, back: Math.max(0, this.at - 1), next: Math.min(last, this.at + 1), last }[move];
  }

  // An address ends in, for example, #player-ring?step=3
  readAddress() {
    const values = addressOf(this);
    if (!values) return;
    const step = Math.round(Number(values.get("step"))) || 1;
    this.show(Math.min(Math.max(step, 1), this.steps.length) - 1);
    arrive(this);
  }

  go(at) {
    this.show(at);
    keepAddress(`#${this.id}?step=${at + 1}`);
  }

  show(at) {
    const before = this.steps[Math.max(0, at - 1)].held;
    this.at = at;
    const { sentence, line, held } = this.steps[at];
    this.querySelector(".player-line code").textContent = line;
    this.querySelector(".player-sentence").textContent = sentence;
    const count = this.querySelector(".player-count");
    count.textContent = filled(count.dataset.words, { at: at + 1, all: this.steps.length });
    [...this.querySelectorAll(".player-devices section")].forEach((box, i) => {
      box.lastChild.replaceChildren();
      const earlier = before[i].split(" ");
      for (const word of held[i].split(" ").filter(Boolean)) add(box.lastChild, earlier.includes(word) ? "i" : "mark", {}, word);
      box.classList.toggle("changed", held[i] !== before[i]);
    });
    for (const [value, end] of [["first", 0], ["back", 0], ["next", this.steps.length - 1], ["last", this.steps.length - 1]]) {
      this.querySelector(`button[value=${value}]`).ariaDisabled = String(at === end);
    }
  }
}

define({ "step-player": StepPlayer });
