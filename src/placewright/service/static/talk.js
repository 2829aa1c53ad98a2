// A language model that is served: a box to talk to it, whose answer comes in events.

import { api, ask, away, pressed } from "./service.js";

const at = (id) => document.getElementById(id);
const live = document.querySelector("[data-service]");
const here = `${api}/services/${live.dataset.service}`;
const stop = at("stop");
let going = null;

/** The text of each event, until the last one. */
async function* pieces(answer) {
  let rest = "";
  for await (const text of answer.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((each) => each.startsWith("data: {"))) {
      const event = JSON.parse(line.slice(6));
      if (event.error) throw { what: event.error.message };
      const choice = event.choices[0];
      yield choice?.delta?.content ?? choice?.text ?? "";
    }
  }
}

/** Send the text, and show the answer as it comes. */
async function talk() {
  const { numbers } = await ask("GET", `${here}/status`), chats = numbers?.map?.chat, text = at("text").value;
  const asked = chats ? { messages: [{ role: "user", content: text }] } : { prompt: text };
  const body = { model: numbers?.models[0], stream: true, max_tokens: Number(at("tokens").value), temperature: Number(at("temperature").value), ...asked };
  going = new AbortController();
  stop.disabled = false;
  at("answer").textContent = at("took").textContent = "";
  const begin = performance.now();
  try {
    const answer = await fetch(`${here}/v1/${chats ? "chat/" : ""}completions`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal: going.signal });
    if (!answer.ok) {
      const { error } = await answer.json();
      throw error.what ? error : { what: error.message };
    }
    for await (const piece of pieces(answer)) at("answer").append(piece);
    at("took").textContent = `Answered in ${((performance.now() - begin) / 1000).toFixed(1)} s.`;
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    at("took").textContent = "Stopped.";
  } finally {
    stop.disabled = true;
  }
}

/** Look each two seconds whether its state has changed. */
async function watch() {
  try {
    const found = await ask("GET", here);
    if (found.state !== live.dataset.state) { location.reload(); return; }
    at("log").textContent = await (await fetch(`${here}/log`)).text();
    away();
  } catch (error) { away(error); }
  if (["starting", "running", "draining"].includes(live.dataset.state)) setTimeout(watch, 2000);
}

at("talk")?.addEventListener("submit", (event) => {
  event.preventDefault();
  pressed(event.submitter, talk);
});
stop?.addEventListener("click", () => going?.abort());
watch();
