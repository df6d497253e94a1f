// What the network of stage 2 learns: the step, the circle, one direction of eight, hidden patterns.
import { normals, uniforms } from "./random.js";

/**
 * Points to learn from and to look at. `seen` and `shown` are the coordinates that the picture draws them over; `plane`
 * names two of the inputs e(x), for which neurons are drawn. `levels` are truths that hold around an integer.
 * @typedef {{d: number, bias: number, X: Float64Array, y: Float64Array, Z: Float64Array, truth: Float64Array,
 *   seen: Float64Array, shown: Float64Array, line: boolean, x: [number, number], height: [number, number], xLabel: string,
 *   plane: [number, number], planeLabels: [string, string], about: string, levels?: [number, number][]}} Task
 */

/** @param {number} low @param {number} high @param {number} count */
export function evenly(low, high, count) {
  return Float64Array.from({ length: count }, (_, i) => low + ((high - low) * i) / (count - 1));
}

/** sign(x) on a line: can it jump? @returns {Task} */
function aStep() {
  const seen = Float64Array.from([-1, -0.8, -0.6, -0.45, -0.3, -0.15, 0.15, 0.3, 0.45, 0.6, 0.8, 1]);
  const shown = evenly(-1.3, 1.3, 131);
  return {
    d: 1, bias: 1, X: seen, y: seen.map(Math.sign), Z: shown, truth: shown.map(Math.sign), seen, shown, line: true,
    x: [-1.3, 1.3], height: [-2, 2], xLabel: "x", plane: [0, 1], planeLabels: ["weight", "bias"],
    about: "Twelve points of a step. Watch where the network puts its kinks.",
  };
}

/** sin θ + ½ cos 3θ on the unit circle [K12]. @returns {Task} */
function aCircle() {
  const wave = (/** @type {number} */ v) => Math.sin(v) + 0.5 * Math.cos(3 * v);
  const place = (/** @type {Float64Array} */ angles) =>
    Float64Array.from([...angles].flatMap((v) => [Math.cos(v), Math.sin(v)]));
  const seen = evenly(-Math.PI + 0.3, Math.PI + 0.3 - Math.PI / 6, 12);
  const shown = evenly(-Math.PI, Math.PI, 121);
  return {
    d: 2, bias: 0.7, X: place(seen), y: seen.map(wave), Z: place(shown), truth: shown.map(wave), seen, shown, line: true,
    x: [-Math.PI, Math.PI], height: [-2.2, 2.2], xLabel: "angle on the circle", plane: [0, 1],
    planeLabels: ["first weight", "second weight"], about: "Twelve points of two waves on a circle.",
  };
}

/** g(x_1) = |x_1|, centered, among eight inputs [D1]. @returns {Task} */
function anIndex() {
  const [d, n, m] = [8, 80, 160];
  const link = (/** @type {number} */ s) => (Math.abs(s) - Math.sqrt(2 / Math.PI)) / Math.sqrt(1 - 2 / Math.PI);
  const all = normals(uniforms(11), (n + m) * d);
  const first = Float64Array.from({ length: n + m }, (_, i) => all[i * d]);
  const [seen, shown] = [first.subarray(0, n), first.subarray(n)];
  return {
    d, bias: 0.5, X: all.subarray(0, n * d), y: seen.map(link), Z: all.subarray(n * d), truth: shown.map(link), seen, shown,
    line: false, x: [-3, 3], height: [-2, 4], xLabel: "the one input that matters", plane: [0, 1],
    planeLabels: ["weight on the input that matters", "weight on another"],
    about: "Eighty points in eight dimensions, labels |x₁|: one direction matters, and nobody says which.",
  };
}

/**
 * Ten hidden bits, three of which decide: the label is their parity. Structured [P2]: half of the time the three are all
 * on or all off, which gives them away.
 * @returns {Task}
 */
function thePatterns() {
  const [d, k, n, m] = [10, 3, 140, 200];
  const uniform = uniforms(5);
  const X = new Float64Array((n + m) * d);
  const counts = new Float64Array(n + m);
  for (let i = 0; i < n + m; i++) {
    const [fair, together] = [uniform() < 0.5, uniform() < 0.5];
    for (let l = 0; l < d; l++) {
      const on = l < k && !fair ? together : uniform() < 0.5;
      if (l < k && on) counts[i]++;
      X[i * d + l] = on ? 1 : -1;
    }
  }
  const jitter = normals(uniforms(6), n + m);
  const spread = counts.map((count, i) => count + 0.09 * jitter[i]);
  const labels = counts.map((count) => (count % 2 ? 1 : -1));
  return {
    d, bias: 0.3, X: X.subarray(0, n * d), y: labels.subarray(0, n), Z: X.subarray(n * d), truth: labels.subarray(n),
    seen: spread.subarray(0, n), shown: spread.subarray(n), line: false, x: [-0.5, 3.5], height: [-2.2, 2.2],
    xLabel: "relevant patterns that are on", plane: [0, 3], planeLabels: ["weight on a pattern that matters", "on one that does not"],
    levels: [[0, -1], [1, 1], [2, -1], [3, 1]],
    about: "Three of ten patterns decide, by their parity. They often come together, and that gives them away.",
  };
}

/** @type {Record<string, () => Task>} */
export const TASKS = { index: anIndex, step: aStep, circle: aCircle, patterns: thePatterns };
