// Runs: start them from the page that trains, and draw their steps while they happen.

import { amount, api, ask, away, eventsOf, pressed } from "./service.js";

const GOING = ["queued", "running"];

/** Start an operation; the page then shows it, as what was chosen stands in its address. */
async function start(operation, options) {
  await ask("POST", `${api}/operations/${operation}/jobs`, JSON.stringify(options));
  location.reload();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-run]");
  if (button) pressed(button, () => start(button.dataset.run, JSON.parse(button.dataset.options)));
});

document.querySelector("[data-train]")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const form = event.target, choice = form.querySelector("#planner").value;
  const options = JSON.parse(form.dataset.options), count = Number(form.querySelector("#steps").value);
  const long = form.dataset.train === "layers.run" ? { steps: 3, train: count } : { adapt: true, epochs: count };
  Object.assign(options, long, { weights: true });
  const slow = form.querySelector("#slow").value.trim();
  if (slow) options.slow = [slow];
  if (choice.startsWith("plan:")) options.plan = choice.slice(5);
  else if (choice) options.planner = choice;
  pressed(form.querySelector("[type=submit]"), () => start(form.dataset.train, options));
});

const described = document.querySelector("[data-describe]"), rows = described?.querySelector("[data-rows]");

/** What stands in inputs: numbers as numbers, other text as it is; what is empty or a default is left out. */
function written(part) {
  const found = {};
  for (const { name, value, dataset } of part.querySelectorAll("input")) {
    const text = value.trim();
    if (text !== "" && text !== dataset.default) found[name] = name !== "name" && Number.isFinite(Number(text)) ? Number(text) : text;
  }
  return found;
}

described?.addEventListener("click", ({ target }) => {
  const { children } = rows.tBodies[0];
  if ("add" in target.dataset) {
    const row = children[children.length - 1].cloneNode(true), first = row.querySelector("input");
    first.value = `node-${children.length}`;
    rows.tBodies[0].append(row);
    first.focus();
  } else if ("remove" in target.dataset && children.length > 1) target.closest("tr").remove();
});

described?.addEventListener("submit", (event) => {
  event.preventDefault();
  pressed(described.querySelector("[type=submit]"), async () => {
    const data = { ...written(described.querySelector("[data-fields]")), [rows.dataset.rows]: [...rows.tBodies[0].rows].map(written) };
    const name = `${String(data.name ?? described.dataset.describe).replace(/[^A-Za-z0-9._-]/g, "-")}.json`;
    const stored = await ask("PUT", `${api}/files/${encodeURIComponent(name)}`, JSON.stringify(data), "application/octet-stream");
    location.assign(`?file=${encodeURIComponent(stored.name)}`);
  });
});

/** Follow a job, and show the page anew when it has ended. */
async function follow(part) {
  try {
    const job = await ask("GET", `${api}/jobs/${part.dataset.follow}`);
    if (job.state !== part.dataset.state) { location.reload(); return; }
    away();
    const line = job.progress, what = part.querySelector("[data-what]");
    const since = Math.round(Date.now() / 1000 - job.started_s);
    if (line && what) what.textContent = `${line.title}${line.what ? `: ${line.what}` : ""} (${since} s)`;
  } catch (error) { away(error); }
  setTimeout(follow, 1000, part);
}

for (const part of document.querySelectorAll("[data-follow]")) {
  if (GOING.includes(part.dataset.state)) follow(part);
}

/** The mean of the two in the middle, where they are two. */
function median(values) {
  const sorted = [...values].sort((a, b) => a - b), half = values.length >> 1;
  return values.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** Draw one number of every step; there is a gap where a step has none. */
function line(part, steps, key, text) {
  const values = steps.map((each) => each[key]), known = values.filter((value) => value !== null);
  if (!known.length) return;
  const low = key === "loss" ? known.reduce((a, b) => Math.min(a, b)) : 0;
  const range = known.reduce((a, b) => Math.max(a, b)) - low || 1;
  const across = 800 / Math.max(1, values.length - 1);
  const d = values.map((value, k) => value === null ? "" : `${(values[k - 1] ?? null) === null ? "M" : "L"}${k * across} ${135 - ((value - low) / range) * 125}`);
  part.querySelector(`[data-line=${key}] .value`).setAttribute("d", d.join(""));
  part.querySelector(`[data-range=${key}]`).textContent = `${text(low)} to ${text(low + range)}`;
}

/** Draw where something happened. */
function marks(part, steps, events) {
  const first = steps[0].step, across = 800 / Math.max(1, steps.length - 1);
  const d = events.map(({ step }) => `M${(step - first) * across} 5V135`).join("");
  for (const path of part.querySelectorAll(".mark")) path.setAttribute("d", d);
}

const CHANGES = ["migrate", "roll back", "recover"];

/** What a change of the plan did to the step time: of the last steps under the plan before it, and of those under it. */
function effect(part, { event, step }, steps, events) {
  if (!CHANGES.includes(event)) return "";
  const others = events.filter((each) => CHANGES.includes(each.event)).map((each) => each.step);
  const began = Math.max(0, ...others.filter((at) => at < step)), ended = Math.min(Infinity, ...others.filter((at) => at > step));
  const times = (from, to) => steps.filter((each) => each.step > from && each.step <= to).map((each) => each.step_s);
  const before = times(began, step).slice(part.dataset.step === "epoch" ? -1 : -3), after = times(step, ended).slice(0, 11);
  if (!before.length || !after.length) return "";
  const then = median(before), now = median(after.length > 3 ? after.slice(1) : after); // the first step begins cold
  const change = Math.round((now / then - 1) * 100);
  return `${amount(then, "s")} before, ${amount(now, "s")} after (${change > 0 ? "+" : ""}${change} %)`;
}

/** Show what a run has done. */
function show(part, steps, events) {
  if (!steps.length) return;
  part.hidden = false;
  const last = steps.at(-1), now = (name) => part.querySelector(`[data-now=${name}]`);
  const loss = (value) => String(Number(value.toPrecision(4)));
  now("loss").textContent = last.loss === null ? "-" : loss(last.loss);
  now("step").textContent = last.step;
  now("time").textContent = amount(median(steps.slice(-10).map((each) => each.step_s)), "s");
  now("plan").textContent = last.plan;
  line(part, steps, "loss", loss);
  line(part, steps, "step_s", (value) => amount(value, "s"));
  const told = events.filter(({ event }) => event !== "snapshot"), list = part.querySelector("[data-events]");
  marks(part, steps, told);
  told.forEach((each, k) => { // a list that is read out: what stands there stays
    const item = list.children[k] ?? list.appendChild(document.createElement("li"));
    const kind = document.createElement("b"), did = document.createElement("em");
    kind.textContent = each.event;
    did.textContent = effect(part, each, steps, told);
    if (item.dataset.did === did.textContent) return;
    item.dataset.did = did.textContent;
    item.replaceChildren(`${part.dataset.step} ${each.step}: `, kind, ` ${each.text}${did.textContent ? ": " : ""}`, did);
  });
}

/** Show a run: live by server-sent events while it goes on, all of it afterwards. */
async function watch(part) {
  const steps = [], events = [], path = `${api}/jobs/${part.dataset.steps}`;
  const add = (found) => {
    steps.push(...found.steps);
    events.push(...found.events);
    show(part, steps, events);
  };
  if (GOING.includes(part.dataset.state)) {
    const source = eventsOf(part.dataset.steps);
    source.addEventListener("run", (event) => add(JSON.parse(event.data)));
    source.addEventListener("state", (event) => { if (!GOING.includes(JSON.parse(event.data).state)) source.close(); });
    return;
  }
  let found;
  do {
    found = await ask("GET", `${path}/steps?after=${steps.length}`);
    add({ steps: found.steps, events: steps.length ? [] : found.events });
  } while (found.steps.length === 5000);
}

for (const part of document.querySelectorAll("[data-steps]")) watch(part);
