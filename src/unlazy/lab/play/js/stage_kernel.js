// Stage 1: a kernel machine in training. Points are placed by hand; mean, band and draws follow time [K3, K5, K11].
import { canvasOf, chosen, move, number, say, short, ticked, write } from "./controls.js";
import { coefficient, machine, mean, project, variance, weightsOf } from "./flow.js";
import { diagonal, gram, wide } from "./kernels.js";
import { cholesky } from "./linear.js";
import { Picture } from "./picture.js";
import { pointEditor } from "./points.js";
import { normals, uniforms } from "./random.js";

/** @typedef {import("./kernels.js").Kernel} Kernel */
/** @typedef {import("./flow.js").Machine} Machine */
/** @typedef {{x: number, y: number}} Point */

const PLACES = 121, REACH = 3, HEIGHT = 2.5, PATHS = 5, SECONDS = 14, SHOWN = 6;
const [EARLY, LATE] = [-2, 5];
/** Powers of ten of time at which the slider begins and after which it says ∞. */

/** @type {Record<string, Point[]>} */
const DATA = {
  wave: [-2.6, -1.9, -1.1, -0.2, 0.7, 1.3, 2.2, 2.7].map((x) => ({ x, y: +(1.3 * Math.sin(1.7 * x) + 0.25 * x).toFixed(3) })),
  step: [-2.5, -1.8, -1.1, -0.4, 0.4, 1.1, 1.8, 2.5].map((x) => ({ x, y: Math.sign(x) })),
  noisy: [-2.7, -2.1, -1.6, -1.2, -0.5, -0.1, 0.4, 0.9, 1.4, 1.8, 2.3, 2.8].map((x, i) => ({
    x, y: +(Math.cos(1.2 * x) + 0.5 * Math.sin(37.7 * (i + 1))).toFixed(3),
  })),
};

/** The kernel that the controls say. @returns {Kernel} */
function kernelOf() {
  const kind = chosen("kernel");
  if (kind === "nngp" || kind === "ntk") return wide(kind, number("depth"), 1);
  return { kind: kind === "laplace" ? "laplace" : "gaussian", bandwidth: 10 ** number("bandwidth") };
}

/** Time, and whether it is over. @returns {number} */
function timeOf() {
  const at = number("time");
  return at > LATE ? Infinity : 10 ** at;
}

export class KernelStage {
  /** @param {() => void} changed Called when something that belongs to the address has changed. */
  constructor(changed) {
    this.function = new Picture(canvasOf("kernel-function"));
    this.spectrum = new Picture(canvasOf("kernel-spectrum"));
    this.modes = new Picture(canvasOf("kernel-modes"));
    this.places = Float64Array.from({ length: PLACES }, (_, i) => -REACH + (2 * REACH * i) / (PLACES - 1));
    this.points = DATA.wave.map((p) => ({ ...p }));
    this.running = false;
    this.last = 0;
    this.stale = true;
    /** The start's covariance at the places, factored: it does not depend on the points. */
    this.base = { key: "", L: new Float64Array(0) };
    this.editor = pointEditor(this.function, this.points, { x: REACH, y: HEIGHT }, () => {
      this.stale = true;
      changed();
    });
  }

  /** The points as the address writes them, empty at the default. */
  address() {
    const text = this.points.map((p) => `${+p.x.toFixed(2)},${+p.y.toFixed(2)}`).join(";");
    return text === DATA.wave.map((p) => `${+p.x.toFixed(2)},${+p.y.toFixed(2)}`).join(";") ? "" : text || "none";
  }

  /** @param {string | undefined} text */
  restore(text) {
    const rows = text === undefined ? DATA.wave : text === "none" ? [] : text.split(";").map((pair) => {
      const [x, y] = pair.split(",").map(Number);
      return { x, y };
    });
    this.place(rows.filter((p) => Number.isFinite(p.x) && Number.isFinite(p.y)).slice(0, 40));
  }

  /** @param {Point[]} rows */
  place(rows) {
    this.points.splice(0, this.points.length, ...rows.map((p) => ({ ...p })));
    this.stale = true;
  }

  /** @param {string} name */
  preset(name) {
    this.place(DATA[name] ?? []);
  }

  /** A control was moved: the kernel may be another. */
  touched() {
    this.stale = true;
  }

  /** Let time run, from the start where it had ended. */
  toggle() {
    this.running = !this.running;
    if (this.running && number("time") >= LATE) move("time", EARLY);
    this.last = 0;
  }

  /** Eigendecomposition, and draws of the start: what depends on kernel and points alone. */
  prepare() {
    const kernel = kernelOf();
    const X = Float64Array.from(this.points, (p) => p.x);
    /** @type {Kernel} */
    const prior = kernel.kind === "ntk" ? { ...kernel, kind: "nngp" } : kernel;
    this.single = kernel.kind !== "ntk";
    this.machine = machine(gram(kernel, X, X, 1), gram(kernel, this.places, X, 1), {
      points: gram(prior, X, X, 1), across: gram(prior, this.places, X, 1), diagonal: diagonal(prior, this.places, 1),
    });
    this.starts = this.draws(prior, X);
    this.stale = false;
  }

  /**
   * Draws of the prior at all places, then at the points. @param {Kernel} prior @param {Float64Array} X
   * @returns {{places: Float64Array, points: Float64Array, noise: Float64Array}[]}
   */
  draws(prior, X) {
    const all = Float64Array.from([...this.places, ...X]);
    const size = all.length;
    const key = JSON.stringify(prior);
    if (this.base.key !== key)
      this.base = { key, L: cholesky(gram(prior, this.places, this.places, 1), PLACES, 1e-9) };
    const L = cholesky(gram(prior, X, all, 1), size, 1e-9, PLACES, this.base.L);
    return Array.from({ length: PATHS }, (_, path) => {
      const random = normals(uniforms(path), PLACES);
      const z = Float64Array.from([...random, ...normals(uniforms(path + 100), 80)]);
      const f = new Float64Array(size);
      for (let i = 0; i < size; i++) for (let j = 0; j <= i; j++) f[i] += L[i * size + j] * z[j];
      return { places: f.subarray(0, PLACES), points: f.subarray(PLACES), noise: z.subarray(PLACES + 40) };
    });
  }

  /** @param {number} now Milliseconds. @returns {boolean} Whether another frame is wanted. */
  draw(now) {
    if (this.running) this.advance(now);
    if (this.stale || !this.machine) this.prepare();
    const [time, ridge] = [timeOf(), number("ridge") <= -6 ? 0 : 10 ** number("ridge")];
    const of = /** @type {Machine} */ (this.machine);
    const c = coefficient(of.values, ridge, time);
    this.say(time, ridge);
    this.drawFunction(of, c, ridge);
    this.drawSpectrum(of, c, ridge, time);
    this.drawModes(of, c);
    return this.running;
  }

  /** @param {number} now */
  advance(now) {
    const passed = this.last ? Math.min(now - this.last, 100) : 0;
    this.last = now;
    const next = number("time") + ((LATE - EARLY) * passed) / (1000 * SECONDS);
    move("time", Math.min(next, LATE));
    if (next >= LATE) this.running = false;
  }

  /** @param {number} time @param {number} ridge */
  say(time, ridge) {
    say("time", `t = ${short(time)}`);
    say("ridge", ridge === 0 ? "none" : short(ridge));
    say("bandwidth", short(10 ** number("bandwidth")));
    say("depth", String(number("depth")));
  }

  /** @param {Machine} of @param {Float64Array} c @param {number} ridge */
  drawFunction(of, c, ridge) {
    const { function: picture, places, points } = this;
    const y = points.map((p) => p.y);
    const middle = mean(of, c, y);
    const spread = variance(of, c, ridge, this.single ?? true).map((v) => 2 * Math.sqrt(Math.max(v, 0)));
    picture.begin({ x: [-REACH, REACH], y: [-HEIGHT, HEIGHT], xLabel: "x", yLabel: "f(x)" });
    picture.inside(() => {
      picture.band(places, middle.map((v, i) => v - spread[i]), middle.map((v, i) => v + spread[i]), "kernel", 0.18);
      if (ticked("paths"))
        for (const start of this.starts ?? []) {
          const gap = y.map((v, i) => v - start.points[i] - Math.sqrt(ridge) * start.noise[i]);
          const moved = weightsOf(of, c, gap);
          const path = start.places.map((f, j) => {
            for (let i = 0; i < of.n; i++) f += of.across[j * of.n + i] * moved[i];
            return f;
          });
          picture.line(places, path, { color: "path", width: 1.2, alpha: 0.75 });
        }
      picture.line(places, middle, { color: "kernel", width: 3 });
    });
    this.editor.draw();
  }

  /** @param {Machine} of @param {Float64Array} c @param {number} ridge @param {number} time */
  drawSpectrum(of, c, ridge, time) {
    const picture = this.spectrum;
    picture.begin({ x: [1e-6, 100], y: [0, 1.08], logX: true, xLabel: "eigenvalue λ of a mode", yLabel: "share learned" });
    const lambdas = Float64Array.from({ length: 161 }, (_, i) => 10 ** (-6 + i / 20));
    const front = coefficientCurve(lambdas, ridge, time);
    picture.inside(() => {
      picture.band(lambdas, lambdas.map(() => 0), front, "kernel", 0.12);
      picture.line(lambdas, front, { color: "kernel", width: 2 });
      const parts = project(of, this.points.map((p) => p.y));
      const size = Math.hypot(...parts) || 1;
      for (let i = 0; i < of.n; i++) {
        const share = Math.max(of.values[i], 0) * c[i];
        const at = Math.max(of.values[i], 1.2e-6);
        const radius = 3 + 8 * Math.sqrt(Math.abs(parts[i]) / size);
        picture.line([at, at], [0, share], { color: "kernel", width: 1.5, alpha: 0.6 });
        picture.mark(at, share, radius, "kernel", share > 0.5 ? "disc" : "ring");
      }
    });
    const learned = Array.from({ length: of.n }, (_, i) => of.values[i] * c[i]).filter((v) => v > 0.5).length;
    write("kernel-count", of.n ? `${learned} of ${of.n} modes are learned.` : "Place a point: click, tap, or press Enter in the picture.");
  }

  /** @param {Machine} of @param {Float64Array} c */
  drawModes(of, c) {
    const picture = this.modes;
    const rows = Math.min(SHOWN, of.n);
    picture.begin({ x: [-1.08 * REACH, 1.15 * REACH], y: [-(Math.max(rows, 1) - 0.4), 0.6], bare: true });
    for (let k = 0; k < rows; k++) {
      const mode = this.places.map((_, j) => of.modes[j * of.n + k]);
      const top = mode.reduce((a, v) => Math.max(a, Math.abs(v)), 1e-300);
      const share = Math.max(of.values[k], 0) * c[k];
      const sign = mode[PLACES >> 1] < 0 ? -1 : 1;
      picture.line([-REACH, REACH], [-k, -k], { color: "line", width: 1 });
      picture.line(this.places, mode.map((v) => -k + (0.42 * sign * v) / top), {
        color: "kernel", width: 1 + 2.5 * share, alpha: 0.25 + 0.75 * share, dash: share > 0.5 ? [] : [4, 4],
      });
      picture.word(`${k + 1}`, -1.07 * REACH, -k);
      picture.word(`${Math.round(100 * share)}%`, 1.15 * REACH, -k, "right");
    }
  }
}

/**
 * The share of every eigenvalue that is learned: λ c(λ).
 * @param {Float64Array} lambdas @param {number} ridge @param {number} time
 */
function coefficientCurve(lambdas, ridge, time) {
  return lambdas.map((lambda) => (lambda * -Math.expm1(-(lambda + ridge) * time)) / (lambda + ridge));
}
