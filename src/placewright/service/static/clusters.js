// The editor of a cluster: checked by the service while it is written, redrawn, stored.

import { api, ask, complain, pressed } from "./service.js";

const form = document.getElementById("editor");
const text = document.getElementById("text");
const lines = document.getElementById("lines");
const checked = document.getElementById("checked");

/** Number the lines; the one with an error is marked. */
function number(wrong) {
  const count = text.value.split("\n").length;
  lines.replaceChildren(...Array.from({ length: count }, (_, k) => {
    const line = document.createElement("span");
    line.textContent = `${k + 1}\n`;
    line.classList.toggle("wrong", k + 1 === wrong);
    return line;
  }));
  lines.scrollTop = text.scrollTop;
}

/** Put the cursor at a line, and select it. */
function go(line) {
  const before = text.value.split("\n").slice(0, line - 1).join("\n").length;
  const start = line > 1 ? before + 1 : 0;
  const end = text.value.indexOf("\n", start);
  text.focus();
  text.setSelectionRange(start, end < 0 ? text.value.length : end);
}

let asked = 0;

/** Ask whether the text is a cluster. */
async function check() {
  const mine = ++asked;
  const body = JSON.stringify({ text: text.value });
  let found;
  try { found = await ask("POST", `${api}/clusters/check`, body); } catch (error) { complain(form, error); return; }
  if (mine !== asked) return; // it was changed meanwhile
  form.querySelector(".problem").hidden = true;
  number(found.line);
  checked.classList.toggle("wrong", found.error !== null);
  if (found.error) {
    const { what, by, next } = found.error;
    const told = `${what}${by ? ` (${by})` : ""}${next ? `. Next: ${next}` : ""}`;
    checked.replaceChildren();
    if (found.line) {
      const jump = document.createElement("button");
      jump.type = "button";
      jump.textContent = `Line ${found.line}`;
      jump.addEventListener("click", () => go(found.line));
      checked.append(jump, " ");
    }
    const place = found.error.where.split(": ").slice(1).join(": ");
    checked.append(place ? `${place}: ${told}` : told);
    return;
  }
  checked.textContent = `A cluster of ${found.devices} devices and ${found.links} links.`;
  const drawn = new DOMParser().parseFromString(found.drawing, "text/html");
  document.getElementById("drawing").replaceChildren(...drawn.body.childNodes);
}

let later = 0;
text.addEventListener("input", () => {
  number();
  clearTimeout(later);
  later = setTimeout(check, 300);
});
text.addEventListener("scroll", () => { lines.scrollTop = text.scrollTop; });
form.addEventListener("submit", (event) => {
  event.preventDefault();
  const name = document.getElementById("name").value.trim();
  const full = /\.(yaml|yml)$/.test(name) ? name : `${name}.yaml`;
  pressed(form.querySelector("[type=submit]"), async () => {
    const path = `${api}/files/${encodeURIComponent(full)}`;
    const file = await ask("PUT", path, text.value, "application/octet-stream");
    if (file.kind === "cluster") location.assign(`/clusters/${encodeURIComponent(file.name)}`);
    else throw { what: `stored as ${file.name}, which is no cluster as it stands`, where: "", by: "", next: "mend the line that is marked, and store it again" };
  });
});
check();
