// Forms, buttons and live progress of the pages. Everything goes through the API.

export const api = "/api/v1";

const SILENT = { what: "the service does not answer", where: "", by: "", next: "look whether placewright serve still runs, and try again", silent: true };

/** Ask the API; throws the four parts of its error. */
export async function ask(method, path, body, type = "application/json") {
  const headers = body === undefined ? {} : { "content-type": type };
  const answer = await fetch(path, { method, headers, body }).catch(() => { throw SILENT; });
  if (answer.status === 204) return null;
  const text = await answer.text();
  let data = null;
  try { data = JSON.parse(text); } catch { /* not ours: a proxy's page */ }
  if (!answer.ok) {
    throw { ...(data?.error ?? { ...SILENT, what: `the service answered ${answer.status}` }), silent: answer.status >= 500 };
  }
  return data;
}

/** Where an error of this element is shown, if anywhere. */
const boxOf = (near) => near.closest("form, section, [data-job]")?.querySelector(".problem") ?? document.querySelector(".problem");

/** Show an error beside what has caused it. */
export function complain(near, error) {
  const box = boxOf(near);
  if (!box) return;
  const what = document.createElement("p");
  const where = error.where ? `${error.where}: ` : "";
  what.textContent = where + (error.what ?? String(error)) + (error.by ? ` (${error.by})` : "");
  const next = document.createElement("p");
  next.textContent = error.next ? `Next: ${error.next}` : "";
  box.replaceChildren(what, next);
  box.hidden = false;
  box.scrollIntoView({ block: "nearest" });
}

/** Say on a page that follows something why it stands still; without an error, that it goes on. */
export function away(error) {
  let said = document.querySelector("#away");
  if (!error) { said?.remove(); return; }
  if (!said) {
    said = document.createElement("p");
    Object.assign(said, { id: "away", role: "alert", className: "failure" });
    document.querySelector("main h1").after(said);
  }
  const text = `What stands here may be old: ${error.what ?? error}. Trying again.`;
  if (said.textContent !== text) said.textContent = text; // which would be read out once more
}

/** The options of a form as the API takes them; empty ones and defaults are not given. */
export function options(form) {
  const found = {}, number = (text) => Number.isNaN(Number(text)) ? text : Number(text);
  for (const field of form.querySelectorAll("[data-kind]")) {
    const text = field.type === "checkbox" ? String(field.checked) : field.value.trim();
    if (text !== "" && text !== field.closest(".field").dataset.default) {
      const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
      found[field.name] = {
        number: () => number(text),
        numbers: () => lines.map(number),
        lines: () => lines,
        flag: () => text === "true",
        text: () => text,
      }[field.dataset.kind]();
    }
  }
  return found;
}

/** Run what a button stands for; it is off meanwhile, and keeps the focus of a keyboard. */
export async function pressed(button, action) {
  const focused = document.activeElement === button;
  button.disabled = true;
  try {
    await action();
    boxOf(button)?.setAttribute("hidden", "");
  } catch (error) { complain(button, error); }
  button.disabled = false;
  if (focused && [document.body, null].includes(document.activeElement)) button.focus({ preventScroll: true });
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!("login" in form.dataset || "start" in form.dataset)) return; // other scripts have it
  event.preventDefault();
  pressed(form.querySelector("[type=submit]"), async () => {
    if ("login" in form.dataset) {
      await ask("POST", `${api}/login`, JSON.stringify({ token: form.querySelector("#token").value }));
      const to = new URL(new URLSearchParams(location.search).get("to") ?? "/", location.origin);
      location.assign(to.origin === location.origin ? to : "/");
    } else {
      const path = `${api}/operations/${form.dataset.start}/jobs`;
      const job = await ask("POST", path, JSON.stringify(options(form)));
      location.assign(`/jobs/${job.id}`);
    }
  });
});

document.addEventListener("click", (event) => {
  const choice = event.target.closest("[data-fill]");
  if (choice) document.getElementById(choice.dataset.fill).value = choice.textContent;
  const button = event.target.closest("[data-post], [data-delete]");
  if (!button) return;
  const { post, then } = button.dataset;
  pressed(button, async () => {
    if (post) {
      const made = await ask("POST", post, "{}");
      if (then) location.assign(then + (made.id ?? made.name));
    } else {
      await ask("DELETE", button.dataset.delete);
      if (then) location.assign(then);
      else location.reload();
    }
  });
});

const compiling = document.querySelector("[data-compiling]");

/** Say what the service compiles, while it does. */
async function look() {
  const left = await ask("GET", `${api}/health`).then((health) => health.compiling, () => "");
  compiling.hidden = !left;
  compiling.querySelector("b").textContent = left;
  setTimeout(look, 3000);
}

if (compiling) look();

const upload = document.querySelector("#upload");

/** A name that a file can have here, like its own. */
const plain = (name) => name.normalize("NFKD").replace(/\p{M}/gu, "").replace(/[^A-Za-z0-9._+-]+/g, "-").replace(/\.{2,}/g, ".").replace(/^[^A-Za-z0-9]+/, "");

/** Upload files one after another; a model is then what the page asks for. */
async function send(files) {
  const status = document.querySelector("#uploading");
  const stored = [];
  try {
    for (const file of files) {
      status.textContent = `uploading ${file.name}`;
      const path = `${api}/files/${encodeURIComponent(plain(file.name) || file.name)}`;
      stored.push(await ask("PUT", path, file, "application/octet-stream"));
    }
    const model = stored.find((file) => file.kind === "model"), { then } = upload.dataset;
    location.assign(model && then.includes("?") ? then + encodeURIComponent(model.name) : "/files");
  } catch (error) {
    status.textContent = upload.value = ""; // the same file may be chosen again
    complain(upload, error);
  }
}

if (upload) {
  upload.addEventListener("change", () => send(upload.files));
  const area = document.querySelector("[data-drop]");
  area.addEventListener("dragover", (event) => { event.preventDefault(); area.classList.add("over"); });
  area.addEventListener("dragleave", () => area.classList.remove("over"));
  area.addEventListener("drop", (event) => { event.preventDefault(); send(event.dataTransfer.files); });
}

const SCALES = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];

/** A number with its unit, as tables and reports have it. */
export function amount(value, unit) {
  if (value === null || value === undefined) return "-";
  if (unit !== "s") return `${Number(value.toPrecision(6))} ${unit}`.trim();
  if (value === 0) return "0 s";
  const [size, name] = SCALES.find(([least]) => Math.abs(value) * 1.0005 >= least) ?? SCALES[3];
  const shown = (value / size).toFixed(0), whole = shown.replace("-", "").length > 3;
  return `${whole ? shown : Number((value / size).toPrecision(4))} ${name}`;
}

/** Value and bound over time, as two lines. */
function draw(svg, points) {
  const shown = points.filter((point) => point.value !== null);
  if (shown.length < 2) return;
  const start = shown[0].at, length = shown.at(-1).at - start || 1;
  const all = shown.flatMap((point) => [point.value, point.bound ?? point.value]);
  const low = Math.min(...all), range = (Math.max(...all) - low) || 1;
  const line = (key) => shown
    .filter((point) => point[key] !== null)
    .map((point, k) => `${k ? "L" : "M"}${((point.at - start) / length) * 800} ${150 - ((point[key] - low) / range) * 140}`)
    .join("");
  for (const key of ["bound", "value"]) {
    let path = svg.querySelector(`.${key}`);
    if (!path) {
      path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("class", key);
      svg.append(path);
    }
    path.setAttribute("d", line(key));
  }
}

/** Show the page of a job anew once the service says anything of it, be it that there is none. */
async function retry(id) {
  if (await ask("GET", `${api}/jobs/${id}`).then(() => true, (error) => !error.silent)) location.reload();
  else setTimeout(retry, 3000, id);
}

/** Events of a job, while the tab is seen: all tabs of a browser share six connections to a service. */
export function eventsOf(id) {
  const source = new EventSource(`${api}/jobs/${id}/events`);
  const look = () => {
    if (document.hidden) source.close();
    else if (source.readyState === EventSource.CLOSED) location.reload();
  };
  document.addEventListener("visibilitychange", look);
  look();
  source.addEventListener("open", () => away());
  source.addEventListener("error", () => {
    away(SILENT);
    if (source.readyState === EventSource.CLOSED && !document.hidden) retry(id); // a browser does not try again
  });
  return source;
}

const live = document.querySelector("[data-job]");

/** Say above a job's result what its log warns of. */
function warn(log) {
  const place = document.querySelector("#warnings"), found = log.match(/^warning: .*/gm);
  if (place && found) {
    place.textContent = found.join("\n");
    place.hidden = false;
  }
}

/** Follow a job until it has ended; then the page shows what it has found. */
function follow(job) {
  const at = (id) => document.getElementById(id);
  const source = eventsOf(job.dataset.job);
  const points = [], started = Number(job.dataset.started) * 1000;
  if (started) {
    setInterval(() => { at("elapsed").textContent = `${Math.round((Date.now() - started) / 1000)} s`; }, 1000);
  }
  source.addEventListener("progress", (event) => {
    const line = JSON.parse(event.data), unit = line.unit || "";
    at("what").textContent = line.what ? `${line.title}: ${line.what}` : line.title;
    ["value", "bound", "gap"].forEach((key, k) => { at(key).previousElementSibling.textContent = line.names[k]; });
    at("value").textContent = amount(line.value, unit);
    at("bound").textContent = amount(line.bound, unit);
    at("gap").textContent = line.gap === null ? "-" : `${(line.gap * 100).toFixed(line.gap < 1 ? 1 : 0)} %`;
    if (line.elapsed_s < points.at(-1)?.at) points.length = 0; // the next search, or attempt
    points.push({ at: line.elapsed_s, value: line.value, bound: line.bound });
    draw(at("history"), points);
  });
  source.addEventListener("log", (event) => { at("log").append(JSON.parse(event.data)); });
  source.addEventListener("state", (event) => {
    const { state } = JSON.parse(event.data);
    const running = state === "running" || state === "queued";
    if (!running) source.close();
    if (!running || state !== job.dataset.state) location.reload();
  });
}

if (live) {
  if (["queued", "running"].includes(live.dataset.state)) follow(live);
  else {
    for (const box of live.querySelectorAll("[data-text]")) {
      fetch(box.dataset.text).then((answer) => answer.text()).then((text) => {
        box.textContent = text || "nothing";
        if (box.id === "log") warn(text);
      });
    }
  }
}
