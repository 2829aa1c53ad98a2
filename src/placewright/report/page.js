"use strict";
const tip = document.getElementById("tip");
document.addEventListener("pointermove", (event) => {
  const at = event.target.closest("[data-tip]");
  tip.style.opacity = at ? 1 : 0;
  if (!at) return;
  tip.textContent = at.dataset.tip;
  const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
  const low = event.clientY + 18 + tip.offsetHeight > innerHeight;
  tip.style.left = `${right ? event.clientX - tip.offsetWidth - 12 : event.clientX + 16}px`;
  tip.style.top = `${low ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
});
// A device's chip shows that device alone, in every picture; once more shows all.
const chips = [...document.querySelectorAll(".chip")];
for (const chip of chips) chip.addEventListener("click", () => {
  const alone = chip.getAttribute("aria-pressed") !== "true";
  for (const other of chips) other.setAttribute("aria-pressed", alone && other === chip);
  document.body.classList.toggle("dim", alone);
  for (const part of document.querySelectorAll("[data-device]"))
    part.classList.toggle("on", alone && part.dataset.device === chip.dataset.chip);
});
