// Request services: the form that starts one, and the page that watches it.

import { amount, api, ask, away, options, pressed } from "./service.js";

const at = (id) => document.getElementById(id);
const number = (id) => Number(at(id).value);
const form = at("new-service");

/** Start what the form says. */
async function create() {
  const own = at("own-yes").checked, language = at("own-language")?.checked;
  const body = { name: at("service-name").value.trim(), options: options(form) };
  if ((body.options.cluster || language) && at("option-server").value === at("option-server").defaultValue) delete body.options.server;
  if (language) body.language_model = at("language-model").value;
  if (own) {
    body.family = at("service-family").value.trim();
    body.variants = [...at("variants").tBodies[0].rows].flatMap((row) => {
      const file = row.querySelector("select").value, accuracy = row.querySelector("input").value;
      if (file && !accuracy) throw { what: "the accuracy is missing", where: file, next: "state its accuracy on data that it was not trained on, 0 to 1" };
      return file ? [{ name: file.replace(/\.onnx$/, ""), file, accuracy: Number(accuracy) }] : [];
    });
  }
  const made = await ask("POST", `${api}/services`, JSON.stringify(body));
  location.assign(`/services/${made.name}`);
}

if (form) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    pressed(form.querySelector("[type=submit]"), create);
  });
  form.addEventListener("change", () => {
    at("own").hidden = !at("own-yes").checked;
    if (at("language")) at("language").hidden = !at("own-language").checked;
  });
}

const live = document.querySelector("[data-service]");
const here = live && `${api}/services/${live.dataset.service}`;

/** Images of handwritten digits, 8 x 8 pixels from 0 to 16 (g), from scikit-learn's set. */
const IMAGES = [
  "0019fb0000bg8e6002ga099001g4088004g4088001g51b3000ccaa00001ad300",
  "0000ed100005gg20000egc0001aggc0003ceg9000005gf000004ge000001dg10",
  "005c100000fe700000d1c00002a0e0000020g1000006f000009gf982003b8dc4",
  "029fe93004d89g800006ef30000be2000002fb0000002f400156dg6002ccdb00",
  "0008f100001ed11000af3fb007g71g8009gdeg5001afge000001ga00000af400",
  "05cdgg200bgf840008eb100008gge0000166g0000005g300015fd00004fg2000",
  "0008f100000ce000003g7000006g2000007ggd5000fg99e0003e92g20007fgb0",
  "0018fa0003dfee0005a0ac000035fa2000ggggc0018ce830000ad000000b9000",
  "00a7d900009acf20004bab00001ga10000cd400000c1c00001a2e00000be5000",
  "006e400000bga000008eg200001ccb0000000b30000005b0001447g2007ggdb1",
];

const pixels = () => [...IMAGES[number("digit")]].map((each) => parseInt(each, 17) / 16);

/** Show the image that is sent. */
function paint() {
  at("image").replaceChildren(...pixels().map((value, k) => {
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const given = { x: k % 8, y: Math.floor(k / 8), width: 1.02, height: 1.02, "fill-opacity": value };
    for (const [name, each] of Object.entries(given)) dot.setAttribute(name, each);
    return dot;
  }));
}

const model = live && `${here}/v2/models/${encodeURIComponent(live.dataset.family)}`;

/** One row of zeros for every input of the model. */
async function zeros() {
  const { inputs } = await ask("GET", model);
  return inputs.map(({ name, datatype, shape: sizes }) => {
    const shape = sizes.map((each) => Math.max(1, each)), count = shape.reduce((a, b) => a * b, 1);
    if (count > 100_000) throw { what: "an input is too large for an example", where: name, by: `${count} values`, next: "write the inputs" };
    return { name, datatype, shape, data: Array(count).fill({ BOOL: false, BYTES: "" }[datatype] ?? 0) };
  });
}

/** The request of the form. */
async function request() {
  const parameters = {
    deadline_ms: number("deadline"),
    min_accuracy: number("least"),
    time_sensitivity: number("time"),
    accuracy_sensitivity: number("sensitive"),
  };
  const written = at("inputs")?.value.trim();
  const image = at("digit") && [{ name: "image", datatype: "FP32", shape: [1, 64], data: pixels() }];
  return JSON.stringify({ parameters, inputs: image ?? (written ? JSON.parse(written) : await zeros()) });
}

/** Send a request; a refusal is an answer, too. */
async function infer(body) {
  const answer = await fetch(`${model}/infer`, { method: "POST", headers: { "content-type": "application/json" }, body });
  return { status: answer.status, ...await answer.json() };
}

/** The answer in words. */
function told(answer) {
  if (answer.error) return `Refused (${answer.status}): ${answer.error.what ?? answer.error}`;
  const p = answer.parameters, data = answer.outputs[0]?.data ?? [];
  const best = data.indexOf(Math.max(...data));
  const read = at("digit") ? `It is a ${best} (${(data[best] * 100).toFixed(1)} %). ` : "";
  const late = p.in_time ? "in time" : "too late";
  return `${read}Answered by ${p.variant} (accuracy ${p.accuracy.toFixed(3)}) on ${p.server} in ${p.latency_ms.toFixed(1)} ms, ${late}; ${p.compute_ms.toFixed(1)} ms of it computing.`;
}

/** Send many, ten at a time; the charts show what becomes of them. */
async function load(count) {
  const body = await request();
  let left = count;
  const one = async () => { while (left-- > 0) await infer(body); };
  await Promise.all(Array.from({ length: 10 }, one));
  at("answer").textContent = `Sent ${count}.`;
}

const forms = {
  try: async () => { at("answer").textContent = told(await infer(await request())); },
  "add-server": async () => {
    const body = { name: at("server-name").value, speed: number("server-speed") };
    show(await ask("POST", `${here}/servers`, JSON.stringify(body)));
  },
  "add-variant": async () => {
    const file = at("variant-file").value;
    const body = { name: file.replace(/\.onnx$/, ""), file, accuracy: number("variant-accuracy") };
    show(await ask("POST", `${here}/variants`, JSON.stringify(body)));
  },
  capacity: async () => {
    const body = { target_success: number("target"), deadline_ms: number("capacity-deadline"), min_accuracy: number("capacity-least") };
    const job = await ask("POST", `${here}/capacity`, JSON.stringify(body));
    location.assign(`/jobs/${job.id}`);
  },
};

/** A row of a table. */
function row(cells, head = false) {
  const made = document.createElement("tr");
  for (const [text, kind] of cells) {
    const cell = document.createElement(head ? "th" : "td");
    if (kind) cell.className = kind;
    if (head) cell.scope = "col";
    cell.append(text);
    made.append(cell);
  }
  return made;
}

const percent = (value) => `${(value * 100).toFixed(1)} %`;
const points = [];

/** Draw the last two minutes. */
function draw() {
  for (const [key, kind] of [["success", "value"], ["accuracy", "bound"]]) {
    const d = points.map((each, k) => each[key] === null ? "" : `${points[k - 1]?.[key] == null ? "M" : "L"}${800 - (points.length - 1 - k) * (800 / 119)} ${135 - each[key] * 130}`);
    at("chart").querySelector(`.${kind}`).setAttribute("d", d.join(""));
  }
}

/** A button that removes something. */
function removing(path, text) {
  const button = document.createElement("button");
  button.textContent = "Remove";
  button.ariaLabel = `Remove ${text}`;
  button.addEventListener("click", () => pressed(button, async () => show(await ask("DELETE", `${here}/${path}`))));
  return button;
}

/** Servers by variants: latency, and answers. */
function table(numbers, served) {
  const variants = Object.entries(numbers.models[live.dataset.family] ?? {});
  const head = [["server"], ["speed", "num"], ...variants.map(([name, accuracy]) => [`${name} (${accuracy.toFixed(3)})`, "num"]), ["answers", "num"], ["busy", "num"], ["state"], ["change"]];
  at("servers").tHead.replaceChildren(row(head, true));
  const rows = numbers.servers.filter((each) => each.active || each.up).map((each) => {
    const times = variants.map(([name]) => {
      const latency = numbers.latency_s[each.name]?.[`${live.dataset.family}/${name}`];
      const count = served[each.name]?.[name] ?? 0;
      return [`${latency ? (latency * 1e3).toFixed(2) : "-"} · ${count}`, "num"];
    });
    const busy = percent(Math.min(1, each.busy_s / numbers.uptime_s));
    return row([[each.name, "who"], [String(each.speed), "num"], ...times, [String(each.served), "num"], [busy, "num"], [each.up ? "up" : "down"], [removing(`servers/${encodeURIComponent(each.name)}`, each.name)]]);
  });
  const last = row([["", ""], ["", ""], ...variants.map(([name]) => [variants.length > 1 ? removing(`variants/${encodeURIComponent(name)}`, name) : "", "num"]), [""], [""], [""], [""]]);
  at("servers").tBodies[0].replaceChildren(...rows, last);
}

/** Show what the service has said of itself. */
function show(found) {
  const { numbers, recent } = found;
  if (found.state !== live.dataset.state) { location.reload(); return; }
  const p = recent.percentiles_s;
  at("percentiles").textContent = p.p50 === undefined ? "-" : [p.p50, p.p95, p.p99].map((each) => (each * 1e3).toPrecision(3)).join(", ");
  at("latest").tBodies[0].replaceChildren(...recent.latest.map((each) => {
    const took = each.answered_s === undefined ? "-" : amount(each.answered_s - each.arrival_s, "s");
    const allowed = each.deadline_s === undefined ? "-" : amount(each.deadline_s, "s");
    return row([[String(each.request), "num"], [each.status === 200 ? (each.answered_s <= each.due_s ? "in time" : "late") : `refused ${each.status}`], [each.server ?? "-"], [each.variant ?? "-"], [took, "num"], [allowed, "num"], [each.reason ?? "", "note"]]);
  }));
  if (!numbers) return;
  const any = numbers.recent_rate_per_s > 0;
  at("success").textContent = any ? percent(numbers.recent_success) : "no requests";
  at("accuracy").textContent = any ? numbers.recent_effective_accuracy.toFixed(3) : "-";
  at("rate").textContent = numbers.recent_rate_per_s.toFixed(1);
  at("queue").textContent = `${numbers.waiting}, ${numbers.under_way}`;
  at("total").textContent = numbers.requests ? `${numbers.requests}, ${percent(numbers.success)} in time` : "0";
  points.push(any ? { success: numbers.recent_success, accuracy: numbers.recent_effective_accuracy } : { success: null, accuracy: null });
  if (points.length > 120) points.shift();
  draw();
  const outcomes = Object.entries(numbers.outcomes);
  if (outcomes.length) {
    at("outcomes").replaceChildren(...outcomes.map(([name, count]) => {
      const item = document.createElement("li"), chip = document.createElement("span"), many = document.createElement("em");
      chip.className = "chip";
      many.textContent = count;
      chip.append(`${name} `, many);
      item.append(chip);
      return item;
    }));
  }
  if (!at("servers").contains(document.activeElement)) table(numbers, recent.served);
}

/** Ask each second, and each quarter of a minute for the log. */
async function watch(turn = 0) {
  try {
    show(await ask("GET", `${here}/status`));
    away();
    if (turn % 15 === 0) at("log").textContent = await (await fetch(`${here}/log`)).text();
  } catch (error) { away(error); }
  if (["starting", "running", "draining"].includes(live.dataset.state)) setTimeout(watch, 1000, turn + 1);
}

if (live) {
  for (const [name, action] of Object.entries(forms)) {
    at(name)?.addEventListener("submit", (event) => {
      event.preventDefault();
      pressed(event.submitter ?? at(name).querySelector("[type=submit]"), action);
    });
  }
  at("load")?.addEventListener("click", () => pressed(at("load"), () => load(100)));
  if (at("digit")) { at("digit").addEventListener("change", paint); paint(); }
  watch();
}
