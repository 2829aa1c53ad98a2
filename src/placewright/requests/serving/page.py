"""The live page: it reads ``/status.json`` every second and needs nothing else."""

PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Placewright requests</title>
<style>
body{font:14px system-ui,sans-serif;margin:2em;max-width:70em;color:#222}
table{border-collapse:collapse;margin:1em 0}
td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}
svg{background:#fafafa;border:1px solid #ddd}
.big{display:inline-block;margin-right:2em}.big b{display:block;font-size:1.8em}
</style></head><body><h1>Requests</h1>
<div id="totals"></div>
<h2>Success (blue) and effective accuracy (orange), over the last ten seconds</h2>
<svg id="chart" width="720" height="160"></svg>
<h2>Servers</h2><table id="servers"></table>
<h2>Latency of one row, ms</h2><table id="latency"></table>
<h2>Outcomes</h2><table id="outcomes"></table>
<script>
const past = [], at = id => document.getElementById(id);
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const options = token ? {headers: {Authorization: "Bearer " + token}} : {};
const codes = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"};
const escaped = text => String(text).replace(/[&<>"]/g, c => codes[c]);
const cells = (tag, row) => row.map(c => `<${tag}>${escaped(c)}</${tag}>`).join("");
const table = (head, rows) =>
  [cells("th", head), ...rows.map(row => cells("td", row))].map(r => `<tr>${r}</tr>`).join("");
const points = key => past.map((p, i) => 4 * i + "," + (150 - 140 * p[key])).join(" ");
const line = (key, colour) =>
  `<polyline fill="none" stroke="${colour}" stroke-width="2" points="${points(key)}"/>`;
const state = s => s.active ? (s.up ? "up" : "down") : "removed";
const ms = seconds => seconds === null ? "-" : (1e3 * seconds).toFixed(2);
function show(s) {
  const totals = {
    "requests": s.requests,
    "per second": s.recent_rate_per_s.toFixed(1),
    "success": (100 * s.success).toFixed(2) + " %",
    "effective accuracy": s.effective_accuracy.toFixed(4),
    "rows waiting": s.waiting,
  };
  at("totals").innerHTML = Object.entries(totals)
    .map(([name, value]) => `<span class="big"><b>${escaped(value)}</b>${name}</span>`).join("");
  past.push(s);
  if (past.length > 180) past.shift();
  at("chart").innerHTML =
    line("recent_success", "#1f77b4") + line("recent_effective_accuracy", "#ff7f0e");
  at("servers").innerHTML = table(
    ["server", "speed", "state", "rows now", "rows served", "busy %", "restarts"],
    s.servers.map(x => [x.name, x.speed, state(x), x.rows, x.served,
      (100 * x.busy_s / s.uptime_s).toFixed(1), x.restarts]));
  const servers = Object.entries(s.latency_s);
  at("latency").innerHTML = table(["server", ...Object.keys(servers[0][1])],
    servers.map(([name, variants]) => [name, ...Object.values(variants).map(ms)]));
  at("outcomes").innerHTML = table(["outcome", "requests"], Object.entries(s.outcomes));
}
async function look() {
  try { show(await (await fetch("status.json", options)).json()); } catch (error) {}
  setTimeout(look, 1000);
}
look();
</script></body></html>
"""
