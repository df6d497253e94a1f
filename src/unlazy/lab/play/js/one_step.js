// Algorithm 1 [D4] on f*(x) = g(u·x), live: one gradient step finds u, ridge regression on the head learns g.
import { cholesky, substitute, times } from "./linear.js";
import { normals, uniforms } from "./random.js";

/** @typedef {{X: Float64Array, y: Float64Array, n: number, d: number, u: Float64Array}} Sample */

/**
 * g = He_2/2 + He_p/√(2 p!), E g² = 1 [D9].
 * @param {number} degree 3 or 4 @returns {(s: number) => number}
 */
export function linkOf(degree) {
  const top = degree === 3 ? (/** @type {number} */ s) => s ** 3 - 3 * s : (/** @type {number} */ s) => s ** 4 - 6 * s * s + 3;
  const size = Math.sqrt(2 * (degree === 3 ? 6 : 24));
  return (s) => (s * s - 1) / 2 + top(s) / size;
}

/**
 * Risk that n samples leave to any kernel of inner products as d → ∞: the energy of f* above the largest degree k with
 * n ≥ d^k [D6, D9]; half of it has degree 2, half degree p.
 * @param {number} n @param {number} d @param {number} degree
 */
export function staircase(n, d, degree) {
  return (n >= d ** 2 ? 0 : 0.5) + (n >= d ** degree ? 0 : 0.5);
}

/** n Gaussian points and their labels; u is random too. @param {number} n @param {number} d @param {number} degree @param {number} seed @returns {Sample} */
export function drawSample(n, d, degree, seed) {
  const uniform = uniforms(seed);
  const raw = normals(uniform, d);
  const length = Math.hypot(...raw);
  const u = raw.map((v) => v / length);
  const X = normals(uniform, n * d);
  return { X, y: times(X, u, n, d, 1).map(linkOf(degree)), n, d, u };
}

/**
 * (i) α = mean y, β = mean y x and what is left of y [D4].
 * @param {Sample} sample
 */
export function removeLinear({ X, y, n, d }) {
  const alpha = y.reduce((a, v) => a + v, 0) / n;
  const beta = times(y, X, 1, n, d).map((v) => v / n);
  const line = times(X, beta, n, d, 1);
  return { alpha, beta, rest: y.map((v, i) => v - alpha - line[i]) };
}

/**
 * (ii) W¹ = -η ∇_W L at f₀ ≡ 0: rows along a_j Σ_i y_i x_i 1{w_j·x_i > 0} [D5], scaled to rms length ½.
 * @param {Float64Array} W N × d @param {ArrayLike<number>} heads @param {Float64Array} X @param {ArrayLike<number>} rest
 */
export function firstStep(W, heads, X, rest) {
  const N = heads.length;
  const d = W.length / N;
  const n = X.length / d;
  const turned = new Float64Array(W.length);
  for (let j = 0; j < N; j++) for (let l = 0; l < d; l++) turned[l * N + j] = W[j * d + l];
  const H = times(X, turned, n, d, N);
  const active = new Float64Array(N * n);
  for (let i = 0; i < n; i++) for (let j = 0; j < N; j++) active[j * n + i] = H[i * N + j] > 0 ? heads[j] * rest[i] : 0;
  const G = times(active, X, N, n, d);
  const rms = Math.sqrt(G.reduce((a, v) => a + v * v, 0) / N);
  return G.map((v) => (rms > 0 ? (0.5 * v) / rms : 0));
}

/** The symmetric start [D3]: rows N(0, I/d) in pairs with heads ±1. @param {number} N @param {number} d @param {number} seed */
export function symmetricStart(N, d, seed) {
  const uniform = uniforms(seed + 1000);
  const half = normals(uniform, (N / 2) * d).map((v) => v / Math.sqrt(d));
  const signs = Array.from({ length: N / 2 }, () => (uniform() < 0.5 ? -1 : 1));
  return { W: Float64Array.from([...half, ...half]), heads: [...signs, ...signs.map((s) => -s)] };
}

/**
 * (iii), (iv) The head by ridge regression on relu(Wx + b), its ridge chosen on fresh points; the fitted function.
 * @param {Float64Array} W @param {Float64Array} biases @param {Sample} sample @param {Sample} fresh
 * @param {{alpha: number, beta: Float64Array, rest: Float64Array}} linear
 */
export function fitHead(W, biases, sample, fresh, linear) {
  const { n, d } = sample;
  const N = biases.length;
  const phi = features(W, biases, sample.X, d);
  const turned = new Float64Array(phi.length);
  for (let i = 0; i < n; i++) for (let j = 0; j < N; j++) turned[j * n + i] = phi[i * N + j];
  const C = times(turned, phi, N, n, N);
  const right = times(turned, linear.rest, N, n, 1);
  let trace = 0;
  for (let j = 0; j < N; j++) trace += C[j * N + j];
  const predict = (/** @type {Float64Array} */ head, /** @type {Float64Array} */ X) => {
    const m = X.length / d;
    const line = times(X, linear.beta, m, d, 1);
    return times(features(W, biases, X, d), head, m, N, 1).map((v, i) => v + linear.alpha + line[i]);
  };
  let best = { error: Infinity, predict: (/** @type {Float64Array} */ X) => X };
  for (const ridge of [1e-8, 1e-6, 1e-4, 1e-2, 1]) {
    const head = substitute(cholesky(C, N, ridge * trace), N, right);
    const found = predict(head, fresh.X);
    const error = found.reduce((a, v, i) => a + (v - fresh.y[i]) ** 2, 0) / fresh.n;
    if (error < best.error) best = { error, predict: (X) => predict(head, X) };
  }
  return best;
}

/** relu(Wx + b), n × N. @param {Float64Array} W @param {Float64Array} biases @param {Float64Array} X @param {number} d */
function features(W, biases, X, d) {
  const N = biases.length;
  const turned = new Float64Array(W.length);
  for (let j = 0; j < N; j++) for (let l = 0; l < d; l++) turned[l * N + j] = W[j * d + l];
  const H = times(X, turned, X.length / d, d, N);
  for (let at = 0; at < H.length; at++) H[at] = Math.max(H[at] + biases[at % N], 0);
  return H;
}
