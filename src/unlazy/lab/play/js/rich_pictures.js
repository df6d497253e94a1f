// The five pictures of stage 2, each a function of where training stands.
import { color } from "./picture.js";

/** @typedef {import("./picture.js").Picture} Picture */
/** @typedef {import("./training.js").Training} Training */

/**
 * Both functions over the coordinate that matters.
 * @param {Picture} picture @param {Training} training @param {Float64Array} network @param {Float64Array} kernel
 */
export function drawFunctions(picture, training, network, kernel) {
  const { task } = training;
  picture.begin({ x: task.x, y: task.height, xLabel: task.xLabel, yLabel: "f(x)" });
  picture.inside(() => {
    const order = [...task.shown.keys()].sort((i, j) => task.shown[i] - task.shown[j]);
    const sorted = (/** @type {Float64Array} */ a) => order.map((i) => a[i]);
    if (task.line) {
      picture.line(task.shown, task.truth, { color: "quiet", width: 1, dash: [2, 3] });
      picture.line(task.shown, kernel, { color: "kernel", width: 2.5, dash: [8, 5] });
      picture.line(task.shown, network, { color: "network", width: 3 });
      task.seen.forEach((s, i) => {
        picture.mark(s, task.y[i], 6, "page");
        picture.mark(s, task.y[i], 4.5, "ink");
      });
      return;
    }
    if (!task.levels) picture.line(sorted(task.shown), sorted(task.truth), { color: "quiet", width: 2 });
    for (const [x, y] of task.levels ?? []) picture.line([x - 0.35, x + 0.35], [y, y], { color: "quiet", width: 2 });
    task.shown.forEach((s, i) => picture.mark(s, kernel[i], 2.6, "kernel", "square", 0.8));
    task.shown.forEach((s, i) => picture.mark(s, network[i], 3.4, "network", "disc", 0.9));
  });
}

/** Neurons in the plane of two weights, each with the way it has come. @param {Picture} picture @param {Training} training */
export function drawNeurons(picture, training) {
  const { net, first, task } = training;
  const [p, q] = task.plane;
  let reach = 3;
  for (let j = 0; j < net.N; j++) reach = Math.max(reach, 1.1 * Math.abs(net.w[p * net.N + j]), 1.1 * Math.abs(net.w[q * net.N + j]));
  picture.begin({ x: [-reach, reach], y: [-reach, reach], square: true, xLabel: task.planeLabels[0], yLabel: task.planeLabels[1] });
  picture.inside(() => {
    const { pen } = picture;
    pen.beginPath();
    for (let j = 0; j < net.N; j++) {
      pen.moveTo(picture.left(first.w[p * net.N + j]), picture.top(first.w[q * net.N + j]));
      pen.lineTo(picture.left(net.w[p * net.N + j]), picture.top(net.w[q * net.N + j]));
    }
    pen.strokeStyle = color("quiet");
    pen.globalAlpha = 0.5;
    pen.lineWidth = 1;
    pen.stroke();
    pen.globalAlpha = 0.85;
    for (const up of [true, false]) {
      pen.beginPath(); // one path for all: five hundred neurons in a frame
      for (let j = 0; j < net.N; j++) {
        if (net.z[j] > 0 !== up) continue;
        const radius = Math.min(2 + 0.8 * Math.abs(net.z[j]), 7);
        const [x, y] = [picture.left(net.w[p * net.N + j]), picture.top(net.w[q * net.N + j])];
        pen.moveTo(x + radius, y);
        if (up) pen.arc(x, y, radius, 0, 2 * Math.PI);
        else pen.rect(x - radius, y - radius, 2 * radius, 2 * radius);
      }
      pen.fillStyle = color(up ? "network" : "other");
      pen.fill();
    }
    pen.globalAlpha = 1;
  });
}

/** The tangent kernel among the training points, at the start and now. @param {Picture} picture @param {Training} training */
export function drawKernels(picture, training) {
  picture.begin({ x: [0, 1], y: [0, 1], bare: true });
  const { width, height } = picture.box;
  const side = Math.min((width - 16) / 2, height - 20);
  const left = picture.box.left + (width - 2 * side - 16) / 2;
  drawMatrix(picture, training, training.first.tangent, left, side, "at the start");
  drawMatrix(picture, training, training.now, left + side + 16, side, "now");
}

/**
 * @param {Picture} picture @param {Training} training @param {Float64Array} K @param {number} left @param {number} side
 * @param {string} name
 */
function drawMatrix(picture, training, K, left, side, name) {
  const { pen, box } = picture;
  pen.imageSmoothingEnabled = false;
  pen.drawImage(sheetOf(K, training.lesson.order), left, box.top + 16, side, side);
  pen.strokeStyle = color("line");
  pen.strokeRect(left, box.top + 16, side, side);
  pen.fillStyle = color("quiet");
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(name, left + side / 2, box.top + 4);
}

/** Matrices as images, each painted once. @type {WeakMap<Float64Array, {tone: string, sheet: OffscreenCanvas}>} */
const sheets = new WeakMap();

/** @param {Float64Array} K @param {number[]} order @returns {OffscreenCanvas} */
function sheetOf(K, order) {
  const tone = color("page") + color("kernel");
  const painted = sheets.get(K);
  if (painted?.tone === tone) return painted.sheet;
  const n = order.length;
  const most = K.reduce((a, v) => Math.max(a, v), 1e-300);
  const image = new ImageData(n, n);
  const [low, high] = [rgb(color("page")), rgb(color("kernel"))];
  for (let i = 0; i < n; i++)
    for (let j = 0; j < n; j++) {
      const share = Math.max(K[order[i] * n + order[j]] / most, 0) ** 0.7;
      for (let k = 0; k < 3; k++) image.data[4 * (i * n + j) + k] = low[k] + share * (high[k] - low[k]);
      image.data[4 * (i * n + j) + 3] = 255;
    }
  const sheet = new OffscreenCanvas(n, n);
  /** @type {OffscreenCanvasRenderingContext2D} */ (sheet.getContext("2d")).putImageData(image, 0, 0);
  sheets.set(K, { tone, sheet });
  return sheet;
}

/** How far the tangent kernel has moved, over time. @param {Picture} picture @param {Training} training */
export function drawDrift(picture, training) {
  const { history } = training;
  picture.begin({ x: clock(training), y: [1e-3, 100], logX: true, logY: true, xLabel: "training time", yLabel: "kernel moved" });
  picture.inside(() => {
    const times = history.map((m) => m.time);
    picture.line(times, history.map(() => 1), { color: "quiet", width: 1, dash: [2, 3] });
    picture.line(times, history.map((m) => m.drift), { color: "network", width: 3 });
    const last = history.at(-1);
    if (last) picture.mark(last.time, last.drift, 5, "network");
  });
}

/** Errors of both, over time. @param {Picture} picture @param {Training} training */
export function drawLosses(picture, training) {
  const { history } = training;
  picture.begin({ x: clock(training), y: [1e-4, 4], logX: true, logY: true, xLabel: "training time", yLabel: "mean squared error" });
  picture.inside(() => {
    const times = history.map((m) => m.time);
    picture.line(times, history.map((m) => m.kernelTrain), { color: "kernel", width: 1.3, dash: [8, 5] });
    picture.line(times, history.map((m) => m.train), { color: "network", width: 1.3 });
    picture.line(times, history.map((m) => m.kernelTest), { color: "kernel", width: 3, dash: [8, 5] });
    picture.line(times, history.map((m) => m.test), { color: "network", width: 3 });
    const last = history.at(-1);
    if (!last) return;
    picture.mark(last.time, last.kernelTest, 4.5, "kernel", "square");
    picture.mark(last.time, last.test, 5, "network");
  });
}

/** The range of the clock: from the first step on, ever longer. @param {Training} training @returns {[number, number]} */
function clock(training) {
  const first = training.eta;
  return [first, Math.max(first * 1000, training.time * 1.3)];
}

/** @param {string} hex @returns {number[]} */
function rgb(hex) {
  const full = hex.length === 4 ? [...hex.slice(1)].map((c) => c + c).join("") : hex.slice(1);
  return [0, 2, 4].map((at) => parseInt(full.slice(at, at + 2), 16));
}
