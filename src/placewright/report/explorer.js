"use strict";
// Draws graphs that `report/explorer.py` laid out: what is in view, in as much detail as can be seen.
(() => {
const LEGIBLE = 12, BOX_LEGIBLE = 44, LABEL_FROM = 44; // pixels on the screen
const MOST_LINES = 900, MOST_MOVING = 250, MOST_SLOW = 50, SLOW_MS = 26, REST_MS = 140, LEAST = 4, MOST_ROWS = 100, RAMP = 24, CROWDED = 150, MOST_NEIGHBOURS = 8;
const AUTO = 0, OPEN = 1, CLOSED = 2;

const make = (name, content = "", attributes = {}) => {
  const element = Object.assign(document.createElement(name), attributes);
  element.append(...(Array.isArray(content) ? content : [content]));
  return element;
};

const prefixed = (value, steps, units) => {
  let k = 0;
  while (k + 1 < units.length && Math.abs(value) >= steps) { value /= steps; k += 1; }
  return `${+value.toPrecision(4)} ${units[k]}`;
};

function shown(value, unit, bare) {
  if (value === null || !Number.isFinite(value)) return "-";
  if (bare || !["s", "bytes", "FLOP"].includes(unit)) return `${+value.toPrecision(6)}${bare ? "" : ` ${unit}`}`;
  if (unit === "FLOP") return prefixed(value, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]);
  if (unit === "bytes") return prefixed(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
  return value >= 1 || value === 0 ? `${+value.toPrecision(4)} s` : prefixed(value * 1e9, 1000, ["ns", "us", "ms"]);
}

// ---- The graph: nodes are operators 0..n-1, then boxes n..n+g-1; a box follows its parent.

function readGraph(data) {
  const n = data.names.length, count = n + data.boxes.length;
  const graph = { ...data, n, count, x: Float64Array.from(data.x), y: Float64Array.from(data.y),
    w: new Float64Array(count).fill(data.cell[0]), h: new Float64Array(count).fill(data.cell[1]),
    around: Int32Array.from(data.parent, (box) => (box < 0 ? -1 : n + box)),
    inside: Array.from({ length: count }, () => null), operators: new Float64Array(count).fill(1, 0, n),
    need: new Float64Array(count) };
  for (let k = n; k < count; k++) {
    graph.w[k] = data.width[k - n]; graph.h[k] = data.height[k - n]; graph.inside[k] = [];
  }
  for (let k = 0; k < count; k++) if (graph.around[k] >= 0) graph.inside[graph.around[k]].push(k);
  graph.summed = (of) => {
    const sums = new Float64Array(count);
    for (let k = 0; k < n; k++) sums[k] = of[k] ?? 0;
    for (let k = 0; k < n; k++) sums[graph.around[k]] += sums[k];
    for (let k = count - 1; k > n; k--) sums[graph.around[k]] += sums[k];
    return sums;
  };
  graph.operators = graph.summed(new Float64Array(n).fill(1));
  for (const amount of graph.amounts) if (amount.sums) amount.sum = graph.summed(amount.of);
  for (const category of graph.categories)
    category.share = category.values.map((_, c) => graph.summed(category.of.map((k) => +(k === c))));
  for (let k = n + 1; k < count; k++) { // largest box inside: what must be legible before one opens
    const up = graph.around[k];
    graph.need[up] = Math.max(graph.need[up], Math.min(graph.w[k], 2 * graph.h[k]));
  }
  graph.path = (node) => {
    const names = [];
    for (let k = node < n ? graph.around[node] : node; k > n; k = graph.around[k])
      names.unshift(graph.boxes[k - n]);
    return names.join(" / ") || "whole graph";
  };
  graph.title = (node) => (node < n ? graph.names[node] : graph.path(node));
  return graph;
}

// What stands for each operator while boxes are closed, and the lines between those.
function contracted(graph, stands) {
  const [from, to, bytes] = graph.edges, device = graph.categories.find((c) => c.devices);
  const found = new Map(), lines = [];
  for (let k = 0; k < from.length; k++) {
    const a = stands[from[k]], b = stands[to[k]];
    if (a === b) continue;
    const key = a * graph.count + b;
    let line = found.get(key);
    if (!line) { found.set(key, line = { a, b, bytes: 0, across: false }); lines.push(line); }
    line.bytes += bytes[k] ?? 0;
    line.across ||= !!device && device.of[from[k]] !== device.of[to[k]];
  }
  lines.sort((p, q) => q.across - p.across || q.bytes - p.bytes);
  const { x, y, w, h } = graph, ends = new Float64Array(4 * lines.length); // where each is, to see at once what is in view
  lines.forEach(({ a, b }, k) => ends.set([Math.min(x[a], x[b]), Math.min(y[a], y[b]),
    Math.max(x[a] + w[a], x[b] + w[b]), Math.max(y[a] + h[a], y[b] + h[b])], 4 * k));
  return { lines, ends, most: lines.reduce((top, line) => Math.max(top, line.bytes), 0) || 1 };
}

function explore(root) {
  const graph = readGraph(JSON.parse(root.querySelector("script").textContent));
  const { n, count, x, y, w, h, around, inside } = graph;
  const part = (selector) => root.querySelector(selector);
  const canvas = part("canvas"), context = canvas.getContext("2d"), search = part("input");
  const about = part(".about"), table = part("details");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const pinned = new Uint8Array(count), isHit = new Uint8Array(count), stands = new Int32Array(count);
  const neighbours = [new Map(), new Map()];
  graph.edges[0].forEach((a, k) => {
    const b = graph.edges[1][k];
    for (const [side, own, other] of [[0, b, a], [1, a, b]])
      (neighbours[side].get(own) ?? neighbours[side].set(own, []).get(own)).push(other);
  });
  const texts = graph.names.map((name, k) => [name, graph.path(k),
    ...graph.facts.filter((f) => f.name === "module" || f.name === "kind").map((f) => f.values[f.of[k]])]
    .join(" ").toLowerCase());
  let view = { scale: 1, x: 0, y: 0 }, size = { width: 1, height: 1 }, mode = "by zoom", ink = {};
  let colour = null, selected = -1, hits = [], hit = -1, drawn = null, stale = true, moving = 0, rest = 0, moves = false, painted = 0, pace = 16, slow = false, byKeys = false;
  let due = true; // nothing is drawn until the canvas has a size

  // ---- What is open

  const big = (k, cell, box) => view.scale * graph.cell[0] >= cell || view.scale * graph.need[k] >= box;
  const isOpen = (k) => pinned[k] === OPEN || (pinned[k] === AUTO
    && (mode === "open" ? big(k, LEAST, 2 * LEAST) : mode === "by zoom"
      && (big(k, LEGIBLE, BOX_LEGIBLE) || w[k] * view.scale > size.width / 2)));

  function stand() {
    stands[n] = -1; // an open box stands for nothing
    for (let k = n + 1; k < count; k++) {
      const up = stands[around[k]], own = up >= 0 ? up : isOpen(k) ? -1 : k;
      if (stands[k] !== own) { stands[k] = own; stale = true; }
    }
    if (!stale || (moves && drawn)) return; // lines wait until a movement has ended
    for (let k = 0; k < n; k++) { const up = stands[around[k]]; stands[k] = up >= 0 ? up : k; }
    drawn = contracted(graph, stands);
    stale = false;
  }

  function standing(k) { // the operator or box itself, or the closed box that it is in
    const closed = stands[k < n ? around[k] : k];
    return closed < 0 ? k : closed;
  }

  // ---- Colours

  function readInk() {
    const style = getComputedStyle(root);
    for (const name of ["bg", "card", "ink", "soft", "line", "row", "accent", "link"]) ink[name] = style.getPropertyValue(`--${name}`).trim();
    ink.of = Array.from({ length: graph.colours }, (_, k) => style.getPropertyValue(`--c${k}`).trim());
    const [low, high] = [ink.line, ink.accent].map((hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16)));
    ink.ramp = Array.from({ length: RAMP }, (_, k) => {
      const part = 0.12 + 0.88 * k / (RAMP - 1);
      return `rgb(${low.map((a, c) => Math.round(a + (high[c] - a) * part)).join(" ")})`;
    });
  }

  function chooseColour(name) {
    const category = graph.categories.find((c) => c.name === name);
    const amount = graph.amounts.find((a) => a.name === name);
    const top = amount ? amount.of.reduce((most, value) => Math.max(most, value ?? 0), 0) || 1 : 1;
    let most = 1;
    colour = { name, category, amount,
      begin: (boxes) => { most = amount ? Math.max(1e-300, ...boxes.map((k) => amount.sum[k])) : 1; },
      at: (k) => category ? ink.of[category.of[k] % graph.colours]
        : ink.ramp[Math.round(Math.sqrt(Math.max(0, k < n ? (amount.of[k] ?? 0) / top : amount.sum[k] / most)) * (RAMP - 1))] };
    const swatch = (background) => { const i = make("i"); i.style.background = background; return i; };
    const entries = category
      ? category.values.map((value, c) => make("span", [swatch(ink.of[c % graph.colours]), `${value}: ${category.share[c][n]}`]))
      : [make("span", [swatch(ink.ramp[0]), "0"]), make("span", [swatch(ink.ramp[RAMP >> 1]), shown(top / 4, amount.unit, graph.bare)]),
        make("span", [swatch(ink.ramp[RAMP - 1]), shown(top, amount.unit, graph.bare)]), make("span", "per operator; closed modules by their sum")];
    part(".key").replaceChildren(...entries, make("span", "", { className: "seen" }));
    draw();
  }

  // ---- Drawing

  const draw = () => { if (!due) { due = true; requestAnimationFrame(paint); } };
  const left = (k) => (x[k] - view.x) * view.scale, top = (k) => (y[k] - view.y) * view.scale;
  const outside = (l, t, r, b) => r < 0 || b < 0 || l > size.width || t > size.height;

  function inView() {
    const seen = { open: [], closed: [], operators: [] }, stack = [n];
    while (stack.length) {
      const box = stack.pop();
      seen.open.push(box);
      for (const k of inside[box]) {
        const l = left(k), t = top(k);
        if (outside(l, t, l + w[k] * view.scale, t + h[k] * view.scale)) continue;
        if (k < n) seen.operators.push(k);
        else if (stands[k] < 0) stack.push(k);
        else seen.closed.push(k);
      }
    }
    return seen;
  }

  function paint(now) {
    due = false;
    if (moves && now - painted < 300) pace += 0.3 * (now - painted - pace);
    slow = moves && (slow || pace > SLOW_MS); // until the movement ends: a slow machine draws less
    painted = now;
    const ratio = devicePixelRatio || 1, { width, height } = size;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    stand();
    const seen = inView(), alone = aloneValue();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = ink.card;
    context.fillRect(0, 0, width, height);
    colour.begin(seen.closed);
    paintOpen(seen.open);
    paintLines();
    const taken = names(seen.open);
    for (const k of seen.closed) paintClosed(k, taken);
    paintOperators(seen.operators, alone);
    paintNames(taken);
    paintMarks(seen);
    const text = `${seen.closed.length} closed modules and ${seen.operators.length} operators in view`;
    const line = part(".seen");
    if (line.textContent !== text) line.textContent = text;
  }

  function paintOpen(boxes) {
    context.strokeStyle = ink.line;
    context.lineWidth = 1;
    for (const k of boxes) {
      if (k === n) continue;
      const l = left(k), t = top(k), wide = w[k] * view.scale, high = h[k] * view.scale;
      context.fillStyle = ink.bg;
      context.fillRect(l, t, wide, high);
      context.strokeRect(l, t, wide, high);
    }
  }

  function paintLines() {
    if (stale) return;
    const { lines, ends, most } = drawn, { scale } = view, own = selected < 0 ? -1 : standing(selected);
    const limit = slow ? MOST_SLOW : moves ? MOST_MOVING : MOST_LINES, right = view.x + size.width / scale, bottom = view.y + size.height / scale;
    const chosen = [];
    let room = limit;
    for (let k = 0, e = 0; k < lines.length; k++, e += 4) {
      if (ends[e] > right || ends[e + 1] > bottom || ends[e + 2] < view.x || ends[e + 3] < view.y) continue;
      const line = lines[k], marked = line.a === own || line.b === own;
      if (marked || room > 0) chosen.push(line);
      room -= 1;
    }
    const paler = Math.min(1, Math.sqrt(CROWDED / (limit - Math.max(room, 0) || 1))), thin = Math.min(1, 0.4 + scale);
    for (const line of chosen.reverse()) {
      const { a, b } = line, marked = a === own || b === own, back = x[b] < x[a] + w[a] / 2;
      const ax = left(a) + (back ? w[a] / 2 : w[a]) * scale, ay = top(a) + (back ? h[a] : h[a] / 2) * scale;
      const bx = left(b) + (back ? w[b] / 2 : 0) * scale, by = top(b) + (back ? 0 : h[b] / 2) * scale;
      const far = Math.abs(ax - bx) + Math.abs(ay - by) > size.width / 3 ? 0.5 : 1;
      context.strokeStyle = marked ? ink.ink : line.across && colour.category ? ink.accent : ink.link;
      context.globalAlpha = marked ? 1 : (line.across ? 0.75 : 0.4) * paler * far;
      context.lineWidth = marked ? 2 : ((line.across ? 1.2 : 0.7) + 1.8 * Math.sqrt(line.bytes / most)) * thin;
      const bend = Math.min(back ? Math.abs(by - ay) / 2 : Math.abs(bx - ax) / 2, 90 * scale);
      context.beginPath();
      context.moveTo(ax, ay);
      if (moves) context.lineTo(bx, by);
      else if (back) context.bezierCurveTo(ax, ay + bend, bx, by - bend, bx, by);
      else context.bezierCurveTo(ax + bend, ay, bx - bend, by, bx, by);
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  const fitting = (text, pixels, font) => {
    const most = Math.floor(pixels / (font * 0.56));
    return text.length <= most ? text : most < 3 ? "" : `${text.slice(0, most - 1)}…`;
  };

  function paintClosed(k, taken) {
    const l = left(k), t = top(k), wide = w[k] * view.scale, high = h[k] * view.scale;
    context.fillStyle = colour.category ? ink.row : colour.at(k);
    context.fillRect(l, t, wide, high);
    if (colour.category) { // a bar: how its operators divide
      const bar = Math.max(2, Math.min(high * 0.3, 8));
      let from = l;
      colour.category.share.forEach((share, c) => {
        const part = wide * share[k] / graph.operators[k];
        context.fillStyle = ink.of[c % graph.colours];
        context.fillRect(from, t + high - bar, part, bar);
        from += part;
      });
    }
    context.strokeStyle = ink.link;
    context.lineWidth = 1;
    context.strokeRect(l, t, wide, high);
    if (wide < LABEL_FROM || high < 20) return;
    const free = [t + 3, t + 19].find((at) => at + 15 <= t + high * (colour.category ? 0.7 : 1) && !taken.some((o) => overlap(o, [l, at, wide, 14])));
    if (free === undefined) return;
    const two = free + 38 <= t + high;
    context.fillStyle = colour.category ? ink.ink : backed(l + 3, free, wide - 6, two ? 30 : 15);
    context.font = "600 12px ui-sans-serif, system-ui, sans-serif";
    context.fillText(fitting(graph.boxes[k - n], wide - 10, 12), l + 6, free + 11);
    if (!two) return;
    context.font = "11px ui-sans-serif, system-ui, sans-serif";
    if (colour.category) context.fillStyle = ink.soft;
    const sum = colour.amount ?? graph.amounts.find((a) => a.sums);
    const words = sum ? shown(sum.sum[k], sum.unit, graph.bare) : "";
    context.fillText(fitting(wide < 130 ? words : `${words}, ${graph.operators[k]} operators`, wide - 10, 11), l + 6, free + 26);
  }

  function backed(l, t, wide, high) { // text on a coloured ground gets a plain one of its own
    context.fillStyle = ink.card;
    context.fillRect(l, t, wide, high);
    return ink.ink;
  }

  function paintOperators(operators, alone) {
    const wide = graph.cell[0] * view.scale, high = graph.cell[1] * view.scale, detailed = wide >= (slow ? 2 * LABEL_FROM : LABEL_FROM);
    const dim = hits.length > 0 || alone;
    context.font = "11px ui-sans-serif, system-ui, sans-serif";
    for (const k of operators) {
      const l = left(k), t = top(k);
      context.globalAlpha = dim && ((hits.length && !isHit[k]) || (alone && alone.category.of[k] !== alone.value)) ? 0.2 : 1;
      context.fillStyle = colour.at(k);
      if (!detailed) { context.fillRect(l, t, Math.max(wide, 1), Math.max(high, 1)); continue; }
      const stripe = Math.max(4, wide * 0.06);
      context.fillRect(l, t, wide, high);
      context.fillStyle = ink.card;
      context.globalAlpha *= 0.86;
      context.fillRect(l + stripe, t + 1, wide - stripe - 1, high - 2);
      context.globalAlpha = Math.min(1, context.globalAlpha / 0.86);
      if (high < 12) continue;
      context.fillStyle = ink.ink;
      context.fillText(fitting(graph.names[k], wide - stripe - 6, 11), l + stripe + 4, t + high / 2 + 4);
    }
    context.globalAlpha = 1;
  }

  const overlap = (p, q) => p[0] < q[0] + q[2] && q[0] < p[0] + p[2] && p[1] < q[1] + q[3] && q[1] < p[1] + p[3];

  function names(boxes) { // of open modules, the outer ones first; none over another
    const taken = [];
    context.font = "600 12px ui-sans-serif, system-ui, sans-serif";
    for (const k of boxes.slice().sort((a, b) => a - b)) {
      const l = Math.max(left(k), 0), wide = Math.min(left(k) + w[k] * view.scale, size.width) - l;
      const t = Math.max(top(k), 0), high = h[k] * view.scale;
      if (k === n || wide < LABEL_FROM || high < 34 || top(k) + high < 20) continue;
      const text = fitting(graph.boxes[k - n], wide - 10, 12);
      const box = [l + 2, t + 2, text.length * 6.9 + 9, 16, text];
      if (text && !taken.some((other) => overlap(other, box))) taken.push(box);
    }
    return taken;
  }

  function paintNames(taken) {
    context.font = "600 12px ui-sans-serif, system-ui, sans-serif";
    for (const [l, t, wide, high, text] of taken) {
      context.globalAlpha = 0.88;
      context.fillStyle = ink.bg;
      context.fillRect(l, t, wide, high);
      context.globalAlpha = 1;
      context.fillStyle = ink.soft;
      context.fillText(text, l + 4, t + 12);
    }
  }

  function outline(k, colour_, width) {
    context.strokeStyle = colour_;
    context.lineWidth = width;
    context.strokeRect(left(k) - 1, top(k) - 1, w[k] * view.scale + 2, h[k] * view.scale + 2);
  }

  function paintMarks(seen) {
    if (hits.length) {
      for (const k of seen.operators) if (isHit[k]) outline(k, ink.accent, 1.5);
      for (const k of seen.closed) if (isHit[k]) outline(k, ink.accent, 2.5);
    }
    if (selected >= 0) outline(standing(selected), ink.ink, 2.5);
    if (byKeys && document.activeElement === canvas) { // what Enter selects
      context.strokeStyle = ink.soft;
      context.lineWidth = 1.5;
      context.strokeRect(size.width / 2 - 7, size.height / 2 - 7, 14, 14);
    }
  }

  function aloneValue() { // a pressed chip of the page's legend shows its value alone
    const category = graph.categories.find((c) => c.devices), chip = document.querySelector(".chip[aria-pressed=true]");
    return category && chip ? { category, value: +chip.dataset.chip } : null;
  }

  // ---- Moving

  function bounded(next) {
    const fit = fitted(n).scale;
    next.scale = Math.min(Math.max(next.scale, fit / 2), Math.max(3, fit));
    next.x = Math.min(Math.max(next.x, x[n] - size.width / next.scale / 2), x[n] + w[n] - size.width / next.scale / 2);
    next.y = Math.min(Math.max(next.y, y[n] - size.height / next.scale / 2), y[n] + h[n] - size.height / next.scale / 2);
    return next;
  }

  function fitted(k, most = 1.6) {
    const scale = Math.min(size.width / (w[k] + 40), size.height / (h[k] + 40), most);
    return { scale, x: x[k] + w[k] / 2 - size.width / scale / 2, y: y[k] + h[k] / 2 - size.height / scale / 2 };
  }

  function move(next) { // what is costly is drawn when the movement has ended
    view = next;
    moves = true;
    clearTimeout(rest);
    rest = setTimeout(() => { moves = false; draw(); }, REST_MS);
    draw();
  }

  function jump(next) { cancelAnimationFrame(moving); move(bounded(next)); }

  function fly(next) {
    if (calm.matches) return jump(next);
    cancelAnimationFrame(moving);
    const from = { ...view }, to = bounded(next), began = performance.now();
    const centre = (v) => [v.x + size.width / v.scale / 2, v.y + size.height / v.scale / 2];
    const [a, b] = [centre(from), centre(to)];
    const step = (now) => {
      const part = Math.min(1, Math.max(0, now - began) / 220), eased = part * part * (3 - 2 * part);
      const scale = from.scale * (to.scale / from.scale) ** eased;
      move(part < 1 ? { scale, x: a[0] + (b[0] - a[0]) * eased - size.width / scale / 2,
        y: a[1] + (b[1] - a[1]) * eased - size.height / scale / 2 } : to);
      if (part < 1) moving = requestAnimationFrame(step);
    };
    moving = requestAnimationFrame(step);
  }

  function zoom(factor, px = size.width / 2, py = size.height / 2) {
    const next = bounded({ ...view, scale: view.scale * factor });
    jump({ scale: next.scale, x: view.x + px / view.scale - px / next.scale, y: view.y + py / view.scale - py / next.scale });
  }

  const pan = (dx, dy) => jump({ ...view, x: view.x + dx / view.scale, y: view.y + dy / view.scale });

  function goTo(k) { // opens what is closed around it
    for (let up = around[k]; up > n; up = around[up]) if (pinned[up] === CLOSED || mode === "closed") pinned[up] = OPEN;
    select(k);
    measure(); // the facts take some of the width
    fly(fitted(k, k < n ? 1 : 1.6));
  }

  function toggle(k) {
    if (k <= n) return;
    const closed = stands[k] >= 0;
    pinned[k] = closed ? OPEN : CLOSED;
    select(k);
    measure();
    if (closed) fly(fitted(k));
    else draw();
  }

  function pick(px, py) {
    let box = n;
    for (;;) {
      const found = inside[box].find((k) => {
        const l = left(k), t = top(k);
        return px >= l && py >= t && px <= l + w[k] * view.scale && py <= t + h[k] * view.scale;
      });
      if (found === undefined) return box === n ? -1 : box;
      if (found < n || stands[found] >= 0) return found;
      box = found;
    }
  }

  // ---- Facts, search, table

  const button = (words, action, attributes = {}) => {
    const element = make("button", words, { type: "button", ...attributes });
    element.addEventListener("click", action);
    return element;
  };

  function select(k) {
    selected = k;
    about.replaceChildren(...(k < 0 ? [] : k < n ? operatorFacts(k) : boxFacts(k)));
    fillTable();
    draw();
  }

  const list = (entries) => make("dl", entries.filter(([, value]) => value !== "" && value !== null)
    .flatMap(([name, value]) => [make("dt", name), make("dd", value)]));

  function operatorFacts(k) {
    const linked = (side) => {
      const all = neighbours[side].get(k) ?? [];
      const first = all.slice(0, MOST_NEIGHBOURS).map((o) => button(graph.names[o], () => goTo(o)));
      return all.length ? [...first, all.length > first.length ? ` and ${all.length - first.length} more` : ""] : "";
    };
    return [make("h3", graph.names[k]), list([
      ...graph.facts.map((f) => [f.name, f.values[f.of[k]]]),
      ...graph.categories.filter((c) => !graph.facts.some((f) => f.name === c.name)).map((c) => [c.name, c.values[c.of[k]]]),
      ...graph.amounts.map((a) => [a.name, a.of[k] === null ? "" : shown(a.of[k], a.unit, graph.bare)]),
      ["reads from", linked(0)], ["read by", linked(1)]]),
    around[k] > n ? button(`Module ${graph.boxes[around[k] - n]}`, () => select(around[k])) : ""];
  }

  function boxFacts(k) {
    return [make("h3", graph.path(k)), list([
      ["operators", `${graph.operators[k]}`],
      ...graph.categories.map((c) => [c.name, c.values.map((value, v) => [c.share[v][k], value])
        .filter(([share]) => share).sort((a, b) => b[0] - a[0]).slice(0, 6).map(([share, value]) => `${value}: ${share}`).join(", ")]),
      ...graph.amounts.filter((a) => a.sums).map((a) => [a.name, shown(a.sum[k], a.unit, graph.bare)])]),
    button(stands[k] >= 0 ? "Open module" : "Close module", () => toggle(k)),
    button("Fit", () => fly(fitted(k))),
    around[k] > n ? button(`Module ${graph.boxes[around[k] - n]}`, () => select(around[k])) : ""];
  }

  function find(words) {
    isHit.fill(0);
    hit = -1;
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    hits = [];
    if (wanted.length) texts.forEach((text, k) => { if (wanted.every((word) => text.includes(word))) hits.push(k); });
    for (const k of hits) for (let up = k; up >= 0 && !isHit[up]; up = around[up]) isHit[up] = 1;
    part(".hits").textContent = wanted.length ? `${hits.length} of ${n}` : "";
    fillTable();
    draw();
  }

  function nextHit(step) {
    if (!hits.length) return;
    hit = (hit + step + hits.length) % hits.length;
    goTo(hits[hit]);
    part(".hits").textContent = `${hit + 1} of ${hits.length}`;
  }

  const within = (k, box) => { while (k > box || (k < n && k >= 0)) k = around[k]; return k === box; };

  function subject() {
    if (hits.length || search.value.trim()) return ["that match the search", hits];
    if (selected >= n) return [`of ${graph.path(selected)}`, [...Array(n).keys()].filter((k) => within(k, selected))];
    if (selected >= 0) return [`beside ${graph.names[selected]}`, [...new Set([selected, ...neighbours[0].get(selected) ?? [], ...neighbours[1].get(selected) ?? []])]];
    return ["of the graph", [...Array(n).keys()]];
  }

  function fillTable() {
    if (!table.open) return;
    const [what, operators] = subject(), columns = [...graph.facts, ...graph.categories.filter((c) => !graph.facts.some((f) => f.name === c.name))];
    const head = make("tr", ["operator", ...columns.map((c) => c.name), ...graph.amounts.map((a) => a.name)]
      .map((name) => make("th", name, { scope: "col" })));
    const rows = operators.slice(0, MOST_ROWS).map((k) => make("tr", [
      make("td", button(graph.names[k], () => goTo(k))),
      ...columns.map((c) => make("td", c.values[c.of[k]])),
      ...graph.amounts.map((a) => make("td", shown(a.of[k], a.unit, graph.bare), { className: "num" }))]));
    const more = operators.length > MOST_ROWS ? `; the first ${MOST_ROWS}, search or select to see others` : "";
    const caption = make("caption", `${operators.length} operators ${what}${more}`);
    table.querySelector("div").replaceChildren(make("table", [caption, make("thead", head), make("tbody", rows)]));
  }

  // ---- Events

  const fingers = new Map();
  let travelled = 0, spread = 0;
  const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => {
    byKeys = false;
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, place(event));
    travelled = fingers.size > 1 ? Infinity : 0;
    spread = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId), now = place(event);
    if (!before) {
      const k = pick(...now);
      canvas.title = k < 0 ? "" : `${graph.title(k)}${k < n ? "" : ` (${graph.operators[k]} operators)`}`;
      return;
    }
    fingers.set(event.pointerId, now);
    const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
    travelled += Math.abs(dx) + Math.abs(dy);
    if (travelled > 4) pan(-dx / fingers.size, -dy / fingers.size);
    if (fingers.size !== 2) return;
    const [p, q] = [...fingers.values()], apart = Math.hypot(p[0] - q[0], p[1] - q[1]);
    if (spread) zoom(apart / spread, (p[0] + q[0]) / 2, (p[1] + q[1]) / 2);
    spread = apart;
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => {
    if (name === "pointerup" && fingers.has(event.pointerId) && travelled <= 4) select(pick(...place(event)));
    fingers.delete(event.pointerId);
    spread = 0;
  });
  canvas.addEventListener("dblclick", (event) => { const k = pick(...place(event)); if (k >= n) toggle(k); else if (k >= 0) goTo(k); });
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey) return; // a page scrolls past
    event.preventDefault();
    const lines_ = event.deltaMode ? 30 : 1;
    zoom(Math.exp(-event.deltaY * lines_ * (event.ctrlKey ? 0.01 : 0.002)), ...place(event));
  }, { passive: false });
  const middle = () => pick(size.width / 2, size.height / 2);
  const box = () => (selected < 0 ? middle() : standing(selected));
  const keys = {
    "+": () => zoom(1.3), "=": () => zoom(1.3), "-": () => zoom(1 / 1.3), 0: () => fly(fitted(n)),
    ArrowLeft: () => pan(-80, 0), ArrowRight: () => pan(80, 0), ArrowUp: () => pan(0, -80), ArrowDown: () => pan(0, 80),
    Enter: () => { const k = middle(); if (k >= 0 && k === selected && k > n) toggle(k); else select(k); },
    c: () => { const k = box(); toggle(k < 0 ? k : k < n ? around[k] : k); },
    n: () => nextHit(1), p: () => nextHit(-1),
    Escape: () => { search.value = ""; find(""); select(-1); },
  };
  canvas.addEventListener("keydown", (event) => {
    const action = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
    if (!action) return;
    event.preventDefault();
    byKeys = true;
    action();
  });
  for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => { byKeys = canvas.matches(":focus-visible"); draw(); });
  search.addEventListener("input", () => find(search.value));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); nextHit(event.shiftKey ? -1 : 1); }
    if (event.key === "Escape") { search.value = ""; find(""); canvas.focus(); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
    if (document.querySelector(".explorer") !== root) return;
    event.preventDefault();
    search.focus();
  });
  document.addEventListener("click", (event) => { if (event.target.closest(".chip")) draw(); });
  root.addEventListener("change", (event) => {
    const what = event.target.dataset.choose;
    if (what === "colour") chooseColour(event.target.value);
    if (what === "modules") { mode = event.target.value; pinned.fill(AUTO); draw(); }
  });
  root.querySelectorAll("[data-zoom]").forEach((element) => element.addEventListener("click", () => {
    ({ in: () => zoom(1.5), out: () => zoom(1 / 1.5), fit: () => fly(fitted(n)) })[element.dataset.zoom]();
  }));
  table.addEventListener("toggle", fillTable);
  const restyle = () => { readInk(); chooseColour(colour.name); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  function measure() { size = { width: canvas.clientWidth || 1, height: canvas.clientHeight || 1 }; }
  let fresh = true;
  new ResizeObserver(() => {
    measure();
    if (fresh) { view = fitted(n); due = false; }
    fresh = false;
    draw();
  }).observe(canvas);
  readInk();
  chooseColour(part("[data-choose=colour]").value);
}

document.querySelectorAll(".explorer").forEach(explore);
})();
