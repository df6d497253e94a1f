// Interactive report: values in tooltips, and a filter of claims by word and verdict. The page is readable without scripts.

/** A point of a figure; tooltips show the nearest one within NEAR pixels of the pointer. @typedef {[number, number, string, string, string]} Mark */

const NEAR = 26;

/** @param {HTMLImageElement} image @param {Mark[]} marks @param {HTMLElement} tip @param {string} note
 * @param {Record<string, number[]>} behind @param {HTMLElement[]} rows */
function answerPointer(image, marks, tip, note, behind, rows) {
  /** @param {number[]} numbers */
  const light = (numbers) => rows.forEach((row, i) => row.classList.toggle("pointed", numbers.includes(i + 1)));
  /** @param {PointerEvent} event */
  const show = (event) => {
    const box = image.getBoundingClientRect();
    const far = (/** @type {Mark} */ m) =>
      Math.hypot(box.left + (m[0] * box.width) / 1000 - event.clientX, box.top + (m[1] * box.height) / 1000 - event.clientY);
    const best = marks.reduce((a, b) => (far(b) < far(a) ? b : a));
    tip.hidden = far(best) > NEAR;
    const claims = tip.hidden ? [] : (behind[best[2]] ?? []);
    light(claims);
    if (tip.hidden) return;
    const values = [best[3], best[4]].filter(Boolean).join(" → ");
    tip.textContent = `${[best[2], values].filter(Boolean).join(": ")}${note ? ` (${note})` : ""}${named(claims)}`;
    tip.style.left = `${image.offsetLeft + Math.max(0, Math.min((best[0] * box.width) / 1000, box.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${image.offsetTop + (best[1] * box.height) / 1000 + 10}px`;
  };
  const hide = () => {
    tip.hidden = true;
    light([]);
  };
  image.addEventListener("pointermove", show);
  image.addEventListener("pointerdown", show);
  image.addEventListener("pointerleave", hide);
}

/** " · claims 2–4, 7", or nothing. @param {number[]} numbers */
function named(numbers) {
  /** @type {[number, number][]} */
  const runs = [];
  for (const i of numbers) {
    const last = runs[runs.length - 1];
    if (last && last[1] === i - 1) last[1] = i;
    else runs.push([i, i]);
  }
  const text = runs.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
  return text && ` · ${numbers.length > 1 ? "claims" : "claim"} ${text}`;
}

for (const figure of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("figure[data-marks]"))) {
  const marks = /** @type {Mark[]} */ (JSON.parse(figure.dataset.marks ?? "[]"));
  const image = figure.querySelector("img");
  if (!image || !marks.length) continue;
  const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  figure.append(tip);
  const rows = /** @type {HTMLElement[]} */ ([...(figure.closest("section")?.querySelectorAll("table.claims tbody tr") ?? [])]);
  answerPointer(image, marks, tip, figure.dataset.note ?? "", JSON.parse(figure.dataset.behind ?? "{}"), rows);
}

/** Show the claims that contain all words and have the verdict, and the sections with such claims. */
function filterClaims() {
  const words = /** @type {HTMLInputElement} */ (document.getElementById("find")).value.toLowerCase().split(/\s+/);
  const verdict = /** @type {HTMLSelectElement} */ (document.getElementById("verdict")).value;
  let [shown, all] = [0, 0];
  for (const section of document.querySelectorAll("section")) {
    const about = ["h2", ".source", ".question"].map((s) => section.querySelector(s)?.textContent ?? "").join(" ").toLowerCase();
    let some = false;
    for (const row of /** @type {NodeListOf<HTMLElement>} */ (section.querySelectorAll("table.claims tbody tr"))) {
      const text = `${about} ${row.textContent}`.toLowerCase();
      const said = row.querySelector("[data-verdict]")?.getAttribute("data-verdict") ?? "";
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
