// Stage 3: how many samples? Algorithm 1 and kernels on g(u·x): risks from the laboratory, the direction live [D6, D9].
import { byId, canvasOf, chosen, number, say, short, write } from "./controls.js";
import { drawSample, firstStep, fitHead, linkOf, removeLinear, staircase, symmetricStart } from "./one_step.js";
import { Picture } from "./picture.js";
import { normals, uniforms } from "./random.js";
import { evenly } from "./tasks.js";

/** Median, smallest and largest risk over seeds at every n. @typedef {[number, number, number][]} Curve */
/** @typedef {{n: number[], seeds: number, width: number, risks: Record<string, Record<string, Curve>>}} Grid */
/** @typedef {{n: number, d: number, degree: number, seed: number}} Setting */

const NEURONS = 96, FRESH = 300;

export class SamplesStage {
  constructor() {
    this.risks = new Picture(canvasOf("samples-risks"));
    this.neurons = new Picture(canvasOf("samples-neurons"));
    this.fit = new Picture(canvasOf("samples-fit"));
    this.grid = /** @type {Grid} */ (JSON.parse(byId("samples-grid").textContent ?? "{}"));
    this.stale = true;
  }

  touched() {
    this.stale = true;
  }

  /** @returns {Setting} */
  setting() {
    return {
      n: Math.round(2 ** number("samples")), d: Number(chosen("dimension")), degree: Number(chosen("degree")),
      seed: number("draw"),
    };
  }

  /** Draw the sample and take the one step. The head waits for the next frame. */
  prepare() {
    const at = this.setting();
    const sample = drawSample(at.n, at.d, at.degree, at.seed);
    const linear = removeLinear(sample);
    const { W, heads } = symmetricStart(NEURONS, at.d, at.seed);
    const learned = firstStep(W, heads, sample.X, linear.rest);
    this.now = { at, sample, linear, W, learned, share: alongShare(learned, sample.u) };
    this.fitted = null;
    this.stale = false;
  }

  /** (iii) and (iv): biases and the head. */
  finish() {
    const { at, sample, linear, learned } = /** @type {NonNullable<typeof this.now>} */ (this.now);
    const all = drawSample(at.n + FRESH, at.d, at.degree, at.seed); // the same points, and fresh ones after them
    const fresh = { ...all, X: all.X.subarray(at.n * at.d), y: all.y.subarray(at.n), n: FRESH };
    const found = fitHead(learned, normals(uniforms(at.seed + 500), NEURONS), sample, fresh, linear);
    this.fitted = { fresh, values: found.predict(fresh.X), error: found.error };
  }

  /** @param {number} _now @returns {boolean} */
  draw(_now) {
    const first = this.stale || !this.now;
    if (first) this.prepare();
    else if (!this.fitted) this.finish();
    const { at } = /** @type {NonNullable<typeof this.now>} */ (this.now);
    this.drawRisks(at);
    this.drawNeurons();
    this.drawFit(at);
    this.say(at);
    return !this.fitted;
  }

  /** @param {Setting} at */
  drawRisks(at) {
    const picture = this.risks;
    const { grid } = this;
    const curves = grid.risks[`${at.d},${at.degree}`];
    const ends = /** @type {[number, number]} */ ([grid.n[0] * 0.85, grid.n[grid.n.length - 1] * 1.2]);
    picture.begin({ x: ends, y: [3e-3, 3], logX: true, logY: true, xLabel: "samples n", yLabel: "risk" });
    picture.inside(() => {
      this.mark(at.d ** 2, "d²", ends);
      this.mark(at.d ** at.degree, at.degree === 3 ? "d³" : "d⁴", ends);
      picture.line([at.n, at.n], [1e-4, 10], { color: "ink", width: 1.5 });
      const places = evenly(Math.log(ends[0]), Math.log(ends[1]), 400).map(Math.exp);
      picture.line(places, places.map((n) => Math.max(staircase(n, at.d, at.degree), 1e-5)), { color: "quiet", width: 2, dash: [2, 4] });
      const styles = /** @type {[string, string, number[], "disc" | "square" | "ring"][]} */ ([
        ["random", "path", [3, 4], "ring"], ["ntk", "kernel", [8, 5], "square"], ["one_step", "network", [], "disc"],
      ]);
      for (const [method, name, dash, shape] of styles) {
        const curve = curves[method];
        picture.band(grid.n, curve.map((v) => v[1]), curve.map((v) => v[2]), name, 0.14);
        picture.line(grid.n, curve.map((v) => v[0]), { color: name, width: 2.5, dash });
        grid.n.forEach((n, i) => picture.mark(n, curve[i][0], 4, name, shape));
      }
    });
  }

  /** @param {number} n @param {string} text @param {[number, number]} ends */
  mark(n, text, ends) {
    if (n < ends[0] || n > ends[1]) return;
    this.risks.line([n, n], [1e-4, 10], { color: "line", width: 2 });
    this.risks.word(` n = ${text}`, n, 2.2);
  }

  drawNeurons() {
    const { sample, W, learned } = /** @type {NonNullable<typeof this.now>} */ (this.now);
    const picture = this.neurons;
    picture.begin({ x: [-1, 1], y: [-0.05, 1], square: true, xLabel: "along the true direction", yLabel: "across it" });
    picture.inside(() => {
      for (const [rows, name, shape, size] of /** @type {const} */ ([[W, "quiet", "ring", 0.5], [learned, "network", "disc", 1]]))
        for (let j = 0; j < NEURONS; j++) {
          const [along, across] = split(rows.subarray(j * sample.d, (j + 1) * sample.d), sample.u);
          picture.mark(size * along, size * across, 3.5, name, shape, 0.8);
        }
      picture.line([-1, 1], [0, 0], { color: "ink", width: 1 });
    });
  }

  /** @param {Setting} at */
  drawFit(at) {
    const picture = this.fit;
    picture.begin({ x: [-3, 3], y: [-3, 6], xLabel: "u·x", yLabel: "f(x)" });
    const places = evenly(-3, 3, 121);
    picture.inside(() => {
      picture.line(places, places.map(linkOf(at.degree)), { color: "quiet", width: 2 });
      if (!this.fitted) return;
      const { fresh, values } = this.fitted;
      for (let i = 0; i < fresh.n; i++) {
        const [along] = split(fresh.X.subarray(i * fresh.d, (i + 1) * fresh.d), fresh.u);
        picture.mark(along, values[i], 3, "network", "disc", 0.75);
      }
    });
  }

  /** @param {Setting} at */
  say(at) {
    const { share } = /** @type {NonNullable<typeof this.now>} */ (this.now);
    say("samples", `n = ${at.n}, that is ${short(at.n / at.d ** 2)} d²`);
    say("draw", `no. ${at.seed}`);
    const words = share > 0.8 ? "One step has found the direction." : share > 0.4 ? "One step begins to see the direction." : "Too few samples: one step sees noise.";
    write("samples-say", words);
    const error = this.fitted ? ` This draw's risk: ${short(this.fitted.error)}.` : "";
    write("samples-numbers", `${Math.round(100 * share)}% of the neurons' length lies along u; by chance it would be ${Math.round(100 / at.d)}%.${error}`);
  }
}

/** How much of a vector lies along u, and how much across. @param {Float64Array} w @param {Float64Array} u @returns {[number, number]} */
function split(w, u) {
  let [along, all] = [0, 0];
  for (let l = 0; l < u.length; l++) {
    along += w[l] * u[l];
    all += w[l] * w[l];
  }
  return [along, Math.sqrt(Math.max(all - along * along, 0))];
}

/** Share of the squared length of all rows that lies along u. @param {Float64Array} W @param {Float64Array} u */
function alongShare(W, u) {
  let [along, all] = [0, 0];
  for (let at = 0; at < W.length; at += u.length) {
    const [a, b] = split(W.subarray(at, at + u.length), u);
    along += a * a;
    all += a * a + b * b;
  }
  return all > 0 ? along / all : 0;
}
