// A report to explore: values under the pointer, and claims by word and verdict. Without scripts the page reads as it is.

/** The nearest mark of a figure to a place in it, no further than a finger. @typedef {[number, number, string, string, string]} Mark */

const NEAR = 26;

/** @param {HTMLImageElement} image @param {Mark[]} marks @param {HTMLElement} tip @param {string} note */
function answerPointer(image, marks, tip, note) {
  /** @param {PointerEvent} event */
  const show = (event) => {
    const box = image.getBoundingClientRect();
    const far = (/** @type {Mark} */ m) =>
      Math.hypot(box.left + (m[0] * box.width) / 1000 - event.clientX, box.top + (m[1] * box.height) / 1000 - event.clientY);
    const best = marks.reduce((a, b) => (far(b) < far(a) ? b : a));
    tip.hidden = far(best) > NEAR;
    if (tip.hidden) return;
    tip.textContent = `${best[2] ? `${best[2]}: ` : ""}${best[3]} → ${best[4]}${note ? ` (${note})` : ""}`;
    tip.style.left = `${image.offsetLeft + Math.min((best[0] * box.width) / 1000, box.width - tip.offsetWidth - 4)}px`;
    tip.style.top = `${image.offsetTop + (best[1] * box.height) / 1000 + 10}px`;
  };
  image.addEventListener("pointermove", show);
  image.addEventListener("pointerdown", show);
  image.addEventListener("pointerleave", () => (tip.hidden = true));
}

for (const figure of document.querySelectorAll("figure[data-marks]")) {
  const marks = /** @type {Mark[]} */ (JSON.parse(/** @type {HTMLElement} */ (figure).dataset.marks ?? "[]"));
  const image = figure.querySelector("img");
  if (!image || !marks.length) continue;
  const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  figure.append(tip);
  answerPointer(image, marks, tip, /** @type {HTMLElement} */ (figure).dataset.note ?? "");
}

/** Show the claims that have all the words and one of the verdicts, and the sections that have such a claim. */
function filterClaims() {
  const words = /** @type {HTMLInputElement} */ (document.getElementById("find")).value.toLowerCase().split(/\s+/);
  const verdict = /** @type {HTMLSelectElement} */ (document.getElementById("verdict")).value;
  let [shown, all] = [0, 0];
  for (const section of document.querySelectorAll("section")) {
    const about = ["h2", ".source", ".question"].map((s) => section.querySelector(s)?.textContent ?? "").join(" ").toLowerCase();
    let some = false;
    for (const row of /** @type {NodeListOf<HTMLElement>} */ (section.querySelectorAll("table.claims tbody tr"))) {
      const text = `${about} ${row.textContent}`.toLowerCase();
      const said = row.querySelector("[data-label=verdict]")?.textContent ?? "";
      row.hidden = !words.every((w) => text.includes(w)) || (verdict !== "" && said !== verdict);
      some ||= !row.hidden;
      shown += row.hidden ? 0 : 1;
      all++;
    }
    section.hidden = !some && (verdict !== "" || !words.every((w) => about.includes(w)));
  }
  const count = document.getElementById("found");
  if (count) count.textContent = shown === all ? "" : `${shown} of ${all} claims`;
}

for (const id of ["find", "verdict"]) document.getElementById(id)?.addEventListener("input", filterClaims);
document.getElementById("filter")?.removeAttribute("hidden");
