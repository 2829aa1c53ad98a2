// Runs: start them from the page that trains, and draw their steps while they happen.

import { amount, api, ask, pressed } from "./service.js";

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
  const options = JSON.parse(form.dataset.options);
  Object.assign(options, { steps: 3, train: Number(form.querySelector("#steps").value), weights: true });
  const slow = form.querySelector("#slow").value.trim();
  if (slow) options.slow = [slow];
  if (choice.startsWith("plan:")) options.plan = choice.slice(5);
  else if (choice) options.planner = choice;
  pressed(form.querySelector("[type=submit]"), () => start("layers.run", options));
});

/** Follow a job, and show the page anew when it has ended. */
async function follow(part) {
  try {
    const job = await ask("GET", `${api}/jobs/${part.dataset.follow}`);
    if (job.state !== part.dataset.state) { location.reload(); return; }
    const line = job.progress, what = part.querySelector("[data-what]");
    const since = Math.round(Date.now() / 1000 - job.started_s);
    if (line && what) what.textContent = `${line.title}${line.what ? `: ${line.what}` : ""} (${since} s)`;
  } catch { /* the service is away for a moment */ }
  setTimeout(follow, 1000, part);
}

for (const part of document.querySelectorAll("[data-follow]")) {
  if (GOING.includes(part.dataset.state)) follow(part);
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

/** Draw one number of every step. */
function line(part, steps, key, text) {
  const known = steps.filter((each) => each[key] !== null);
  if (!known.length) return;
  const values = known.map((each) => each[key]);
  const low = key === "loss" ? Math.min(...values) : 0, range = Math.max(...values) - low || 1;
  const across = 800 / Math.max(1, known.length - 1);
  const d = values.map((value, k) => `${k ? "L" : "M"}${k * across} ${135 - ((value - low) / range) * 125}`);
  part.querySelector(`[data-line=${key}] .value`).setAttribute("d", d.join(""));
  part.querySelector(`[data-range=${key}]`).textContent = `${text(low)} to ${text(low + range)}`;
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
  part.querySelector("[data-events]").replaceChildren(...events.map((each) => {
    const item = document.createElement("li"), kind = document.createElement("b");
    kind.textContent = each.event;
    item.append(`step ${each.step}: `, kind, ` ${each.text}`);
    return item;
  }));
}

/** Ask for new steps each second, until the run has ended. */
async function watch(part, steps = []) {
  let going = true;
  try {
    const found = await ask("GET", `${api}/jobs/${part.dataset.steps}/steps?after=${steps.length}`);
    steps.push(...found.steps);
    show(part, steps, found.events);
    going = GOING.includes(found.state) || found.steps.length === 5000;
  } catch { /* the service is away for a moment */ }
  if (going) setTimeout(watch, 1000, part, steps);
}

for (const part of document.querySelectorAll("[data-steps]")) watch(part);
