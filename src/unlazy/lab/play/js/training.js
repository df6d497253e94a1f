// A network in training beside the exact flow of its infinitely wide, lazy twin, on the same clock [K3, M2].
import { coefficient, machine, mean, project } from "./flow.js";
import { diagonal, gram } from "./kernels.js";
import { embed, outputs, relativeChange, start, step, tangent } from "./network.js";
import { normals, uniforms } from "./random.js";
import { TASKS } from "./tasks.js";

/** @typedef {{task: string, richness: number, width: number, pace: number, seed: number}} Setting */
/** @typedef {{time: number, train: number, test: number, kernelTrain: number, kernelTest: number, drift: number}} Moment */

const SIGMA = Math.SQRT2;
const ENOUGH = 1e-5, LONGEST = 40000, BLOWN = 1e4, MEASURED = 80;

/** What there is to learn, and the kernel machine that learns it: free of the network. */
export class Lesson {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
    this.task = (TASKS[name] ?? TASKS.index)();
    const { X, Z, y, d, bias, seen } = this.task;
    /** @type {import("./kernels.js").Wide} */
    const kernel = { kind: "ntk", sigmaW: [SIGMA, SIGMA], sigmaB: [bias, 0] };
    const points = gram(kernel, X, X, d);
    const across = gram(kernel, Z, X, d);
    this.machine = machine(points, across, { points, across, diagonal: diagonal(kernel, Z, d) });
    this.parts = project(this.machine, y);
    this.E = embed(X, d, SIGMA, bias);
    /** The tangent kernel is looked at among so many points: more would cost frames and say the same. */
    this.few = this.E.subarray(0, MEASURED * (d + 1));
    this.order = [...seen.subarray(0, MEASURED).keys()].sort((i, j) => seen[i] - seen[j]);
    this.Ez = embed(Z, d, SIGMA, bias);
  }
}

export class Training {
  /** @param {Lesson} lesson @param {Setting} setting */
  constructor(lesson, setting) {
    const { task, machine: of } = lesson;
    this.lesson = lesson;
    this.task = task;
    this.setting = setting;
    const r = task.d + 1;
    const draws = normals(uniforms(setting.seed), (setting.width / 2) * (r + 1));
    this.net = start(draws, setting.width, r, SIGMA, setting.richness);
    this.first = { w: this.net.w.slice(), tangent: tangent(this.net, lesson.few) };
    this.eta = (2 * setting.pace) / of.values[0];
    this.steps = 0;
    this.diverged = false;
    this.now = this.first.tangent;
    this.drift = 0;
    this.loss = size(task.y) / task.y.length;
    /** Largest distance between the two functions so far, relative to the truth. */
    this.parted = 0;
    /** @type {Moment[]} */
    this.history = [];
  }

  get time() {
    return this.steps * this.eta;
  }

  get over() {
    return this.diverged || this.loss < ENOUGH || this.steps >= LONGEST;
  }

  /** Steps until `goal`, for at most so many milliseconds, at least one. @param {number} goal @param {number} budget */
  advance(goal, budget) {
    const begun = performance.now();
    while (this.steps < goal && !this.over) {
      const f = step(this.net, this.lesson.E, this.task.y, this.eta);
      this.steps++;
      this.loss = apart(f, this.task.y);
      this.diverged = !(this.loss < BLOWN);
      if (performance.now() - begun > budget) break;
    }
  }

  /** The network and the kernel machine where they are looked at. */
  functions() {
    return { network: outputs(this.net, this.lesson.Ez), kernel: mean(this.lesson.machine, this.coefficient(), this.task.y) };
  }

  coefficient() {
    return coefficient(this.lesson.machine.values, 0, this.time);
  }

  /** Look at the tangent kernel again: Θ_t and how far it has moved. */
  measure() {
    this.now = tangent(this.net, this.lesson.few);
    this.drift = relativeChange(this.now, this.first.tangent);
  }

  /** Write down where both are. @param {Float64Array} network @param {Float64Array} kernel Values at the places. */
  record(network, kernel) {
    const { parts, machine: of } = this.lesson;
    const last = this.history.at(-1);
    if (this.steps === 0 || (last && last.time === this.time)) return;
    this.parted = Math.max(this.parted, Math.sqrt((apart(network, kernel) * kernel.length) / size(this.task.truth)));
    const left = parts.map((part, i) => part * Math.exp(-Math.max(of.values[i], 0) * this.time));
    this.history.push({
      time: this.time, train: this.loss, test: apart(network, this.task.truth), drift: this.drift,
      kernelTrain: size(left) / left.length, kernelTest: apart(kernel, this.task.truth),
    });
    if (this.history.length > 900) this.history = this.history.filter((_, i) => i % 2 === 1 || i > 890);
  }
}

/** @param {ArrayLike<number>} a */
function size(a) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * a[i];
  return sum;
}

/** Mean squared difference. @param {ArrayLike<number>} a @param {ArrayLike<number>} b */
function apart(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += (a[i] - b[i]) ** 2;
  return sum / a.length;
}
