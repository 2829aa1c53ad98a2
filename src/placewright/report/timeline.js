"use strict";
// Timelines that `report/gantt.py` drew: zoom, pan, and what a bar did and waited for.
(() => {
const KEYS = "w and s zoom, a and d pan, 0 shows all; arrow keys go from bar to bar, Enter or a click explains one, Esc clears. Ctrl and the wheel zoom.";
const MOST_ZOOM = 1e5, ZOOM = 1.5, STEP = 0.15, SAME = 1e-9;

const make = (name, content = [], attributes = {}) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...[content].flat());
  return element;
};

function seconds(value, bare) {
  if (bare || value === 0) return `${+value.toPrecision(4)}${bare ? "" : " s"}`;
  const [scale, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "us"]].find(([least]) => Math.abs(value) >= least) ?? [1e-9, "ns"];
  return `${+(value / scale).toPrecision(4)} ${unit}`;
}

/** About `count` round values within a range. */
function ticks(from, to, count = 8) {
  const rough = (to - from) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(from / step - 1e-6); k * step <= to + step * 1e-6; k++) found.push(k * step);
  return [found, step];
}

const groups = new Map(); // timelines of one section with one end show the same part of time

class Timeline {
  constructor(root) {
    this.root = root;
    this.svg = root.querySelector("svg");
    const data = JSON.parse(root.querySelector("script").textContent);
    Object.assign(this, { data, count: data.track.length, chosen: -1, pointer: null });
    [this.left, this.right, this.finest] = data.frame;
    this.end = data.start.map((start, k) => start + data.length[k]);
    this.bars = [...this.svg.querySelectorAll("[data-track]")].map((group) => {
      const track = Number(group.dataset.track), row = group.parentNode.querySelector(".row");
      const spans = []; // of this track, by their start
      for (let k = data.track.indexOf(track); k >= 0 && data.track[k] === track; k++) spans.push(k);
      return { group, track, spans, y: Number(row.getAttribute("y")), height: Number(row.getAttribute("height")) };
    });
    const section = root.closest("section") ?? root;
    this.group = (groups.get(section) ?? groups.set(section, []).get(section));
    this.peers = () => this.group.filter((other) => other.data.until === data.until);
    this.group.push(this);
    this.view = [0, data.until];
    this.build();
  }

  build() {
    const { svg, root, data } = this, button = (sign, name, act) => {
      const made = make("button", sign, { type: "button", "aria-label": name, title: name });
      made.addEventListener("click", act);
      return made;
    };
    this.seen = make("output");
    root.prepend(make("div", [
      button("−", "Zoom out", () => this.zoom(1 / ZOOM)), button("+", "Zoom in", () => this.zoom(ZOOM)),
      button("←", "Earlier", () => this.pan(-STEP)), button("→", "Later", () => this.pan(STEP)),
      button("All", "Show all of it", () => this.show(0, data.until)), this.seen], { class: "tools" }));
    this.about = make("div", [], { class: "about", "aria-live": "polite" });
    root.append(this.about, ...(this.group[0] === this ? [make("p", KEYS, { class: "help" })] : []));
    svg.closest(".scroll").removeAttribute("tabindex");
    for (const [key, value] of [["tabindex", 0], ["role", "application"], ["aria-description", KEYS]]) svg.setAttribute(key, value);
    this.axis = svg.querySelector(".axis");
    this.last = svg.querySelector(".end");
    this.depth = Number(this.last.getAttribute("y2"));
    this.mark = svg.appendChild(document.createElementNS(svg.namespaceURI, "rect"));
    this.mark.setAttribute("class", "mark");
    svg.addEventListener("keydown", (event) => this.key(event));
    svg.addEventListener("click", (event) => this.click(event));
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoom(ZOOM ** (-event.deltaY / 100), this.time(event));
    }, { passive: false });
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) this.pointer = { x: event.clientX, view: this.view, moved: false };
    });
    svg.addEventListener("pointermove", (event) => this.move(event));
    addEventListener("pointerup", () => { this.pointer &&= null; });
    svg.addEventListener("pointerover", ({ target }) => {
      if (target.dataset.first && !target.dataset.tip) target.dataset.tip = this.tip(target.dataset);
    });
  }

  // ---- What is seen

  /** The part of time from `from` to `to`, as far as there is one. */
  show(from, to) {
    const { until } = this.data, width = Math.min(until, Math.max(to - from, until / MOST_ZOOM));
    const start = Math.min(Math.max(0, from), until - width);
    for (const peer of this.peers()) {
      peer.view = [start, start + width];
      peer.due ??= requestAnimationFrame(() => { peer.due = null; peer.draw(); });
    }
    const all = width >= until;
    this.seen.textContent = all ? "" : `${this.amount(start)} to ${this.amount(start + width)}`;
  }

  zoom(factor, at = this.middle()) {
    const [from, to] = this.view, width = (to - from) / factor;
    this.show(at - (at - from) / factor, at - (at - from) / factor + width);
  }

  pan(share) {
    const [from, to] = this.view, by = share * (to - from);
    this.show(from + by, to + by);
  }

  /** What zooming keeps in place: the chosen bar if it is seen, else the middle. */
  middle() {
    const [from, to] = this.view, k = this.chosen;
    const at = k < 0 ? NaN : this.data.start[k] + this.data.length[k] / 2;
    return at >= from && at <= to ? at : (from + to) / 2;
  }

  amount(value) { return seconds(value, this.data.bare); }

  x(time) {
    const [from, to] = this.view;
    return this.left + Math.min(1, Math.max(0, (time - from) / (to - from))) * (this.right - this.left);
  }

  /** The time below the pointer. */
  time(event) {
    const box = this.svg.getBoundingClientRect(), scale = this.svg.viewBox.baseVal.width / box.width;
    const share = ((event.clientX - box.left) * scale - this.left) / (this.right - this.left);
    return this.view[0] + share * (this.view[1] - this.view[0]);
  }

  draw() {
    const [from, to] = this.view;
    for (const bar of this.bars) bar.group.innerHTML = this.blocks(bar).join("");
    const [marks, step] = ticks(from, to), line = (x) => `<line class="grid" x1="${x}" x2="${x}" y1="2" y2="${this.depth}"/>`;
    const digits = Math.max(4, Math.ceil(Math.log10(to / step)) + 1); // neighbours must differ
    this.axis.innerHTML = marks.map((at) => {
      const name = digits > 4 ? `+${this.amount(Math.max(0, at - from))}` : this.amount(at);
      return `${line(this.x(at))}<text x="${this.x(at)}" y="${this.depth + 15}" class="tick" text-anchor="middle">${name}</text>`;
    }).join("");
    const ended = Math.max(...this.end), x = this.x(ended);
    this.last.setAttribute("x1", x);
    this.last.setAttribute("x2", x);
    this.last.toggleAttribute("hidden", ended > to || ended < from);
    this.outline();
  }

  /** Bars of a track; runs of spans each too short to be seen alone are one, as in `gantt.py`. */
  blocks({ spans, y, height }) {
    const { start, length, critical } = this.data, [from, to] = this.view;
    const finest = (to - from) * this.finest / (this.right - this.left), drawn = [];
    let block = null;
    const close = () => {
      if (!block) return;
      const x = this.x(block.from), width = Math.max(this.x(block.to) - x - (block.count > 1 ? 0 : 0.4), 0.6);
      const dense = block.busy / Math.max(block.to - block.from, 1e-30);
      const faint = dense > 0.9 ? "" : ` opacity="${Math.max(0.25, dense).toFixed(2)}"`;
      drawn.push(`<rect class="span${block.critical ? " critical" : ""}" x="${x}" y="${y}" width="${width}" height="${height}" data-first="${block.longest}" data-count="${block.count}"${faint}/>`);
    };
    for (const k of spans) {
      if (this.end[k] < from) continue;
      if (start[k] > to) break;
      const short = length[k] < finest;
      if (block && short && block.short && start[k] - block.to < finest && this.end[k] - block.from < 4 * finest) {
        block.to = Math.max(block.to, this.end[k]);
        block.busy += length[k];
        block.count += 1;
        block.critical ||= critical?.[k];
        if (length[k] > length[block.longest]) block.longest = k;
      } else {
        close();
        block = { from: start[k], to: this.end[k], busy: length[k], count: 1, longest: k, short, critical: critical?.[k] };
      }
    }
    close();
    return drawn;
  }

  outline() {
    const k = this.chosen, bar = k < 0 ? null : this.bars.find(({ track }) => track === this.data.track[k]);
    const seen = bar && this.end[k] >= this.view[0] && this.data.start[k] <= this.view[1];
    this.mark.toggleAttribute("hidden", !seen);
    if (!seen) return;
    const x = this.x(this.data.start[k]), width = Math.max(this.x(this.end[k]) - x, 2);
    for (const [key, value] of Object.entries({ x: x - 1, y: bar.y - 1, width: width + 2, height: bar.height + 2 })) this.mark.setAttribute(key, value);
  }

  // ---- What is asked

  name(k) { return this.data.labels[this.data.label[k]]; }

  place(k) { return this.data.tracks[this.data.track[k]]; }

  when(k) { return `${this.amount(this.data.start[k])} to ${this.amount(this.end[k])} (${this.amount(this.data.length[k])})`; }

  tip({ first, count }) {
    const k = Number(first), many = count > 1 ? `${count} short spans, longest ` : "";
    return `${many}${this.name(k)}${this.data.critical?.[k] ? "\non the critical path" : ""}\n${this.when(k)}`;
  }

  move(event) {
    const from = this.pointer;
    if (!from || (!from.moved && Math.abs(event.clientX - from.x) < 4)) return;
    from.moved = true;
    const [start, end] = from.view, box = this.svg.getBoundingClientRect();
    const scale = (end - start) * this.svg.viewBox.baseVal.width / box.width / (this.right - this.left);
    const by = (from.x - event.clientX) * scale;
    this.dragged = true;
    this.show(start + by, end + by);
  }

  click({ target }) {
    if (this.dragged) { this.dragged = false; return; }
    if (target.dataset.first !== undefined) this.choose(Number(target.dataset.first), true);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      w: () => this.zoom(ZOOM), s: () => this.zoom(1 / ZOOM), a: () => this.pan(-STEP), d: () => this.pan(STEP),
      0: () => this.show(0, this.data.until),
      ArrowRight: () => this.beside(1), ArrowLeft: () => this.beside(-1),
      ArrowDown: () => this.across(1), ArrowUp: () => this.across(-1),
      Enter: () => this.chosen >= 0 && this.explain(), " ": () => this.chosen >= 0 && this.explain(),
      Escape: () => this.clear(),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** The next bar of the track, or the first one that is seen. */
  beside(step) {
    const of = this.bars.find(({ track }) => this.chosen >= 0 && track === this.data.track[this.chosen]);
    if (!of) { this.first(this.bars[0]); return; }
    const next = of.spans[of.spans.indexOf(this.chosen) + step];
    if (next !== undefined) this.choose(next);
  }

  first(bar) {
    const k = bar?.spans.find((span) => this.end[span] >= this.view[0]) ?? bar?.spans[0];
    if (k !== undefined) this.choose(k);
  }

  /** The bar of the next track that has one, nearest in time. */
  across(step) {
    const at = this.bars.findIndex(({ track }) => this.chosen >= 0 && track === this.data.track[this.chosen]);
    if (at < 0) { this.first(this.bars[0]); return; }
    const begun = this.data.start[this.chosen], far = (k) => Math.abs(this.data.start[k] - begun);
    for (let k = at + step; this.bars[k]; k += step) {
      const { spans } = this.bars[k];
      if (spans.length) { this.choose(spans.reduce((best, span) => (far(span) < far(best) ? span : best))); return; }
    }
  }

  choose(k, explained = false) {
    this.chosen = k;
    const [from, to] = this.view, width = to - from;
    if (this.end[k] < from || this.data.start[k] > to) {
      this.show(this.data.start[k] - width / 4, this.data.start[k] + 3 * width / 4);
    } else this.outline();
    if (explained) this.explain();
    else this.seen.textContent = `${this.name(k)} on ${this.place(k)}: ${this.when(k)}`;
  }

  clear() {
    this.chosen = -1;
    this.about.replaceChildren();
    this.seen.textContent = "";
    this.outline();
  }

  /** Say what the chosen bar did, why there, and what it waited for. */
  explain() {
    const k = this.chosen, { data } = this, facts = [[data.track[k] < data.devices ? "runs on" : "link", this.place(k)], ["from", this.when(k)]];
    for (const note of data.notes) facts.push([note.name, note.values[note.of[k]]]);
    facts.push(...this.waited(k));
    if (data.critical) facts.push(["critical path", data.critical[k] ? "on it: if this takes longer, so does the whole" : "not on it"]);
    for (const other of this.group) {
      const same = other === this ? -1 : other.data.labels.indexOf(this.name(k));
      const there = same < 0 ? -1 : other.data.label.indexOf(same);
      if (there >= 0) facts.push([other.data.title, `${other.place(there)}, ${other.when(there)}`]);
    }
    const list = facts.filter(([, value]) => value).flatMap(([name, value]) => [make("dt", name), make("dd", value)]);
    this.about.replaceChildren(make("h3", this.name(k)), make("dl", list));
  }

  waited(k) {
    const { start, track, waits } = this.data, { spans } = this.bars.find((bar) => bar.track === track[k]) ?? { spans: [] };
    const before = waits ? waits[k] : (spans[spans.indexOf(k) - 1] ?? -1);
    if (before < 0) return start[k] > 0 ? [] : [["waited for", "nothing: it starts at once"]];
    const idle = Math.max(0, start[k] - this.end[before]), own = track[before] === track[k];
    const link = make("button", this.name(before), { type: "button" });
    link.addEventListener("click", () => { this.choose(before, true); this.about.querySelector("button")?.focus(); });
    const late = idle > SAME * this.data.until ? `, which ended ${this.amount(idle)} earlier` : "";
    const where = own ? ` before it on ${this.place(k)}` : ` on ${this.place(before)}`;
    return [[waits ? "waited for" : "comes after", [link, `${where}${late}`]]];
  }
}

for (const root of document.querySelectorAll(".timeline")) new Timeline(root).draw();
})();
