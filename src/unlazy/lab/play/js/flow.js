// Exact training of a kernel machine from one eigendecomposition [K2, K3, K5, K11]: any time, any ridge.
import { eigh, times, timesTransposed } from "./linear.js";

/**
 * c(s) = (1 - e^{-st})/s at s = λ + ρ [K2, K3]: gradient flow on ½Σ(f - y)² + ½ρ‖f‖² for the time t. ρ = 0 is plain
 * flow, t = ∞ ridge regression. Directions that are rounding are left alone where c would blow them up.
 * @param {Float64Array} values @param {number} ridge @param {number} time
 */
export function coefficient(values, ridge, time) {
  const shifted = values.map((value) => Math.max(value, 0) + ridge);
  const floor = values.length * (Number.EPSILON / 2) * Math.max(...shifted);
  return shifted.map((s) => {
    const c = s === 0 ? (time === Infinity ? 0 : time) : -Math.expm1(-s * time) / s;
    return s <= floor && c * floor >= 1 ? 0 : c;
  });
}

/**
 * The eigendecomposition of a kernel on n points, and what is needed to predict at m others. `signal` is the kernel
 * that trains (Θ of a network), `prior` that of the start (Σ of a network); for a plain kernel they are one.
 * @typedef {{n: number, m: number, values: Float64Array, vectors: Float64Array, across: Float64Array,
 *   modes: Float64Array, prior: {points: Float64Array, across: Float64Array, diagonal: Float64Array}}} Machine
 */

/**
 * @param {Float64Array} points n × n, the kernel that trains @param {Float64Array} across m × n
 * @param {Machine["prior"]} prior
 * @returns {Machine}
 */
export function machine(points, across, prior) {
  const n = Math.round(Math.sqrt(points.length));
  const m = n ? across.length / n : prior.diagonal.length;
  const { values, vectors } = eigh(points, n);
  return { n, m, values, vectors, across, modes: timesTransposed(across, vectors, m, n, n), prior };
}

/**
 * α = U c Uᵀ residual, so that f(z) = f₀(z) + K(z,X) α.
 * @param {Machine} of @param {Float64Array} c @param {ArrayLike<number>} residual
 */
export function weightsOf(of, c, residual) {
  const parts = project(of, residual).map((value, i) => value * c[i]);
  return times(parts, of.vectors, 1, of.n, of.n);
}

/**
 * Uᵀ y: how much of the labels each mode has.
 * @param {Machine} of @param {ArrayLike<number>} y
 */
export function project(of, y) {
  return times(of.vectors, Float64Array.from(y), of.n, of.n, 1);
}

/**
 * The mean f_t at the m places, from f₀ = 0 [K3].
 * @param {Machine} of @param {Float64Array} c @param {ArrayLike<number>} y
 */
export function mean(of, c, y) {
  return times(of.across, weightsOf(of, c, y), of.m, of.n, 1);
}

/**
 * Variance at the m places of an ensemble started from the prior, labels with noise of variance ρ. One kernel [K5]:
 * k(z,z) - Σ_i b_i² (2c - (λ + ρ)c²), b = K(z,X)U, the posterior of noise ρ at t = ∞. Two [K11] (Lee et al. 2019):
 * Σ(z,z) - 2 A Σ(X,z) + A (Σ + ρ) Aᵀ, A = Θ(z,X) U c Uᵀ.
 * @param {Machine} of @param {Float64Array} c @param {number} ridge @param {boolean} single
 */
export function variance(of, c, ridge, single) {
  const { n, m, prior } = of;
  const found = Float64Array.from(prior.diagonal);
  if (single) {
    const removed = c.map((value, i) => 2 * value - (Math.max(of.values[i], 0) + ridge) * value * value);
    for (let j = 0; j < m; j++) for (let i = 0; i < n; i++) found[j] -= of.modes[j * n + i] ** 2 * removed[i];
    return found;
  }
  const A = times(of.modes.map((value, at) => value * c[at % n]), of.vectors, m, n, n);
  const AS = times(A, prior.points, m, n, n);
  for (let j = 0; j < m; j++)
    for (let i = 0; i < n; i++) {
      const a = A[j * n + i];
      found[j] += a * (AS[j * n + i] + ridge * a - 2 * prior.across[j * n + i]);
    }
  return found;
}
