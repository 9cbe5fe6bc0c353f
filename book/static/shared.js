// What the scripts of all that one answers and plays with have in common.

Object.assign(globalThis, {
  // Where this file is missing, no element comes to life, and the page shows all that it has.
  define(elements) {
    for (const [name, element] of Object.entries(elements)) customElements.define(name, element);
  },

  // A sentence such as "Chunks: %(chunks)s" with its values.
  filled(sentence, values) {
    return sentence.replace(/%\((\w+)\)s/g, (_, name) => values[name]).replace("%%", "%");
  },

  // What a Chinese keyboard writes, as others do: 【2，6】, 0。5, ②③, 8÷3, and a full stop at the end.
  plain(text) {
    const apart = text.replace(/[①-⑳]/g, " $& ").normalize("NFKC").replace(/(\d)。(?=\d)/g, "$1.");
    return apart.replace(/。\s*$/, "").replaceAll("【", "[").replaceAll("】", "]").replaceAll("÷", "/");
  },

  // A new element at the end of another.
  add(parent, tag, attributes = {}, text = "") {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    parent.append(element);
    return element;
  },

  // The values that the address has for an element, as in #player-ring?step=3; none if it leads elsewhere.
  addressOf({ id }) {
    const [name, query] = location.hash.slice(1).split("?");
    return name === id && query ? new URLSearchParams(query) : null;
  },

  // Shows what an address leads to: now, and when all above it has its size.
  arrive(element) {
    element.scrollIntoView({ behavior: "instant" });
    if (document.readyState !== "complete") addEventListener("load", () => element.scrollIntoView({ behavior: "instant" }));
  },

  // An address that one can send to others.
  keepAddress(hash) {
    try {
      history.replaceState(null, "", hash);
    } catch {
      // Safari allows 100 changes in half a minute; the next one will do.
    }
  },

  // What this browser keeps; that may be forbidden, or full.
  kept: {
    read(key) {
      try {
        return JSON.parse(localStorage.getItem(key));
      } catch {
        return null; // forbidden, or not ours
      }
    },

    write(key, value) {
      try {
        if (value === null) localStorage.removeItem(key);
        else localStorage.setItem(key, JSON.stringify(value));
        return true;
      } catch {
        return false;
      }
    },

    keys() {
      try {
        return Object.keys(localStorage);
      } catch {
        return [];
      }
    },
  },
});
