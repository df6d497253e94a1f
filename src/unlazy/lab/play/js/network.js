// A two-layer ReLU network of N neurons under gradient descent, from lazy to rich with one number [M1, M2].
import { times } from "./linear.js";

/**
 * f(x) = σ/(γ₀ N) Σ_j z_j relu(h_j),  h_j = w_j·e(x),  e(x) = (σ_w x/√d, σ_b). Small γ₀ is lazy, γ₀ = 1 and beyond rich,
 * whatever the width. `w` is r × N, input after input: long inner loops.
 * @typedef {{w: Float64Array, z: Float64Array, N: number, r: number, sigma: number, richness: number}} Network
 */

/**
 * e(x) of every row of X (n × d): (σ_w x/√d, σ_b).
 * @param {Float64Array} X @param {number} d @param {number} sigmaW @param {number} sigmaB
 */
export function embed(X, d, sigmaW, sigmaB) {
  const [n, r] = [X.length / d, d + 1];
  const E = new Float64Array(n * r);
  for (let i = 0; i < n; i++) {
    for (let l = 0; l < d; l++) E[i * r + l] = (sigmaW * X[i * d + l]) / Math.sqrt(d);
    E[i * r + d] = sigmaB;
  }
  return E;
}

/**
 * Neurons in antisymmetric pairs, so that f₀ ≡ 0: the second half repeats w and negates z.
 * @param {Float64Array} draws (N/2)(r + 1) normal numbers @param {number} N @param {number} r @param {number} sigma
 * @param {number} richness
 * @returns {Network}
 */
export function start(draws, N, r, sigma, richness) {
  const half = N / 2;
  const [w, z] = [new Float64Array(N * r), new Float64Array(N)];
  for (let j = 0; j < half; j++) {
    for (let l = 0; l < r; l++) w[l * N + j] = w[l * N + j + half] = draws[j * (r + 1) + l];
    z[j] = draws[j * (r + 1) + r];
    z[j + half] = -z[j];
  }
  return { w, z, N, r, sigma, richness };
}

/**
 * f from the preactivations.
 * @param {Network} net @param {Float64Array} H
 */
function read(net, H) {
  const { z, N } = net;
  const f = new Float64Array(H.length / N);
  const scale = net.sigma / (net.richness * N);
  for (let i = 0, at = 0; i < f.length; i++) {
    let sum = 0;
    for (let j = 0; j < N; j++, at++) if (H[at] > 0) sum += z[j] * H[at];
    f[i] = scale * sum;
  }
  return f;
}

/**
 * f at the rows of E.
 * @param {Network} net @param {Float64Array} E
 */
export function outputs(net, E) {
  return read(net, times(E, net.w, E.length / net.r, net.r, net.N));
}

/**
 * One step of gradient descent on ½Σ(f - y)², in place [M2]: with Δ = y - f,
 * w_j += η γ₀ σ Σ_i Δ_i z_j relu'(h_ji) e_i,  z_j += η γ₀ σ Σ_i Δ_i relu(h_ji). Returns f before the step.
 * @param {Network} net @param {Float64Array} E @param {ArrayLike<number>} y @param {number} eta
 */
export function step(net, E, y, eta) {
  const { w, z, N, r } = net;
  const n = E.length / r;
  const H = times(E, w, n, r, N);
  const f = read(net, H);
  const rate = eta * net.richness * net.sigma;
  const gaps = new Float64Array(r * n);
  for (let i = 0; i < n; i++) for (let l = 0; l < r; l++) gaps[l * n + i] = (y[i] - f[i]) * E[i * r + l];
  for (let at = 0; at < H.length; at++) H[at] = H[at] > 0 ? 1 : 0;
  const pull = times(gaps, H, r, n, N);
  // relu(h) = relu'(h) w·e: the sum that moves w, times w, moves the head
  const head = new Float64Array(N);
  for (let l = 0, v = 0; l < r; l++)
    for (let j = 0; j < N; j++, v++) {
      head[j] += pull[v] * w[v];
      w[v] += rate * z[j] * pull[v];
    }
  for (let j = 0; j < N; j++) z[j] += rate * head[j];
  return f;
}

/**
 * The tangent kernel at the rows of E [M2]: Θ = σ²/N Σ_j (relu relu + z_j² relu' relu' e·e').
 * @param {Network} net @param {Float64Array} E
 */
export function tangent(net, E) {
  const { z, N, r } = net;
  const n = E.length / r;
  const H = times(E, net.w, n, r, N);
  const slopes = new Float64Array(n * N); // z relu'(h), and relu(h) in its place
  for (let at = 0; at < H.length; at++) {
    slopes[at] = H[at] > 0 ? z[at % N] : 0;
    H[at] = H[at] > 0 ? H[at] : 0;
  }
  const K = new Float64Array(n * n);
  const share = net.sigma ** 2 / N;
  for (let i = 0; i < n; i++)
    for (let k = 0; k <= i; k++) {
      let [values, turns, near] = [0, 0, 0];
      for (let j = 0, a = i * N, b = k * N; j < N; j++, a++, b++) {
        values += H[a] * H[b];
        turns += slopes[a] * slopes[b];
      }
      for (let l = 0; l < r; l++) near += E[i * r + l] * E[k * r + l];
      K[i * n + k] = K[k * n + i] = share * (values + turns * near);
    }
  return K;
}

/**
 * ‖A - B‖/‖B‖ in Frobenius' norm: how far the tangent kernel has moved [K10].
 * @param {Float64Array} now @param {Float64Array} before
 */
export function relativeChange(now, before) {
  let [moved, size] = [0, 0];
  for (let i = 0; i < now.length; i++) {
    moved += (now[i] - before[i]) ** 2;
    size += before[i] ** 2;
  }
  return Math.sqrt(moved / size);
}
