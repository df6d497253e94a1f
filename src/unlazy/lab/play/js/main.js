// The page: three stages behind tabs, one loop that draws the open one, and the address that says how it is set.
import { byId, chosen, readAddress, restore, write, writeAddress } from "./controls.js";
import { coefficient, machine, mean, variance } from "./flow.js";
import { diagonal, gram } from "./kernels.js";
import { embed, outputs, step, tangent } from "./network.js";
import { firstStep, removeLinear, staircase } from "./one_step.js";
import { repaint } from "./picture.js";
import { KernelStage } from "./stage_kernel.js";
import { RichStage } from "./stage_rich.js";
import { SamplesStage } from "./stage_samples.js";

/** @typedef {"kernel" | "rich" | "samples"} Name */
/** @typedef {{draw(now: number): boolean, touched(): void, toggle?(): void, running?: boolean}} Stage */

const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const kernelStage = new KernelStage(() => changed());
const richStage = new RichStage();
/** @type {Record<string, Stage>} */
const stages = { kernel: kernelStage, rich: richStage, samples: new SamplesStage() };
let open = "rich";
let wanted = false;
let saved = 0;

/** Draw a frame when the browser is ready for one. */
function wake() {
  if (wanted) return;
  wanted = true;
  requestAnimationFrame((now) => {
    wanted = false;
    if (stages[open].draw(now)) wake();
    buttons();
  });
}

/** Something that the address says has changed. */
function changed() {
  wake();
  clearTimeout(saved);
  saved = setTimeout(() => writeAddress({ stage: open === "rich" ? "" : open, points: kernelStage.address() }), 200);
}

/** What the play buttons do next. */
function buttons() {
  for (const [name, stage] of Object.entries(stages))
    if (stage.toggle) write(`${name}-play`, stage.running ? "Pause" : "Play");
}

/** @param {string} name @param {boolean} [focus] */
function show(name, focus = false) {
  open = name in stages ? name : "rich";
  for (const key of Object.keys(stages)) {
    const tab = byId(`tab-${key}`);
    tab.setAttribute("aria-selected", String(key === open));
    tab.tabIndex = key === open ? 0 : -1;
    byId(`stage-${key}`).hidden = key !== open;
    if (key === open && focus) tab.focus();
  }
  wake();
}

/** Tabs by click and by arrow keys. */
function bindTabs() {
  const names = Object.keys(stages);
  names.forEach((name, i) => {
    const tab = byId(`tab-${name}`);
    tab.addEventListener("click", () => {
      show(name);
      changed();
    });
    tab.addEventListener("keydown", (event) => {
      const next = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: names.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      show(names[(next + names.length) % names.length], true);
      changed();
    });
  });
}

function bindControls() {
  for (const [name, stage] of Object.entries(stages)) {
    byId(`stage-${name}`).addEventListener("input", (event) => {
      const input = /** @type {HTMLInputElement} */ (event.target);
      if (input.id === "time") kernelStage.running = false;
      else stage.touched();
      byId(`stage-${name}`).dataset.choice = chosen("kernel");
      changed();
    });
    if (!stage.toggle) continue;
    byId(`${name}-play`).addEventListener("click", () => {
      stage.toggle?.();
      changed();
    });
  }
  byId("rich-restart").addEventListener("click", () => {
    richStage.restart();
    changed();
  });
  for (const button of document.querySelectorAll("button[data-points]"))
    button.addEventListener("click", () => {
      kernelStage.preset(/** @type {HTMLElement} */ (button).dataset.points ?? "");
      changed();
    });
}

function begin() {
  const said = readAddress();
  restore(said);
  kernelStage.restore(said.get("points"));
  byId("stage-kernel").dataset.choice = chosen("kernel");
  for (const stage of Object.values(stages)) stage.touched();
  show(said.get("stage") ?? "rich");
}

bindTabs();
bindControls();
begin();
if (!still && !readAddress().size) stages[open].toggle?.();
wake();
addEventListener("hashchange", begin);
new ResizeObserver(wake).observe(document.body);
for (const query of ["(prefers-color-scheme: dark)", "print"])
  matchMedia(query).addEventListener("change", () => {
    repaint();
    wake();
  });

/** The page's numbers, for whoever wants to check them: the test suite does, against Python. */
Object.assign(globalThis, {
  unlazy: {
    coefficient, machine, mean, variance, diagonal, gram, embed, outputs, step, tangent, firstStep, removeLinear, staircase,
    stages,
  },
});
