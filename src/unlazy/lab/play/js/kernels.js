// Kernels as functions of two points: Gaussian, Laplace, and those of infinitely wide ReLU networks [K7, K8].

/**
 * What a kernel is made of. `sigmaW` and `sigmaB` have one number for each weight matrix, depth + 1 of them.
 * @typedef {{kind: "gaussian" | "laplace", bandwidth: number}} Radial
 * @typedef {{kind: "nngp" | "ntk", sigmaW: number[], sigmaB: number[]}} Wide
 * @typedef {Radial | Wide} Kernel
 */

/**
 * A ReLU network's kernel with σ_w = √2 and the same σ_b in every layer.
 * @param {"nngp" | "ntk"} kind @param {number} depth @param {number} sigmaB
 * @returns {Wide}
 */
export function wide(kind, depth, sigmaB) {
  return { kind, sigmaW: Array(depth + 1).fill(Math.SQRT2), sigmaB: Array(depth + 1).fill(sigmaB) };
}

/**
 * Σ and Θ at a pair from ⟨x,x⟩/d, ⟨z,z⟩/d and ‖x-z‖²/d [K7, K8]: Σ¹ = σ_w²⟨x,z⟩/d + σ_b² = Θ¹ and, with the angle θ of
 * the pair, E φφ = √(q q')(sin θ + (π - θ) cos θ)/2π, E φ'φ' = (π - θ)/2π (Cho and Saul 2009). What passes from layer to
 * layer is the squared distance q + q' - 2Σ, so that near points keep their angle: Θ is of first order in it.
 * @param {number} xx @param {number} zz @param {number} far @param {Wide} network
 * @returns {[number, number]}
 */
export function nngpAndNtk(xx, zz, far, network) {
  const { sigmaW, sigmaB } = network;
  const [sw, sb] = [sigmaW[0] ** 2, sigmaB[0] ** 2];
  let [left, right, apart] = [sw * xx + sb, sw * zz + sb, sw * far];
  let sigma = (left + right - apart) / 2;
  let theta = sigma;
  for (let l = 1; l < sigmaW.length; l++) {
    const [w, b] = [sigmaW[l] ** 2, sigmaB[l] ** 2];
    const [p, q] = [Math.sqrt(left), Math.sqrt(right)];
    const uneven = p + q > 0 ? ((left - right) / (p + q)) ** 2 : 0;
    const half = p * q > 0 ? Math.min(Math.max((apart - uneven) / (4 * p * q), 0), 1) : 0; // sin²(θ/2)
    const angle = 2 * Math.atan2(Math.sqrt(half), Math.sqrt(1 - half));
    const [sin, cos] = [Math.sin(angle), 1 - 2 * half];
    apart = w * (uneven / 2 + p * q * (2 * half - (sin - angle * cos) / Math.PI));
    [left, right] = [(w * left) / 2 + b, (w * right) / 2 + b];
    sigma = (w * p * q * (sin + (Math.PI - angle) * cos)) / (2 * Math.PI) + b;
    theta = sigma + (theta * w * (Math.PI - angle)) / (2 * Math.PI);
  }
  return [sigma, theta];
}

/**
 * k(x, z) for all rows of X (n × d) and Z (m × d).
 * @param {Kernel} kernel @param {Float64Array} X @param {Float64Array} Z @param {number} d
 * @returns {Float64Array}
 */
export function gram(kernel, X, Z, d) {
  const [n, m] = [X.length / d, Z.length / d];
  const K = new Float64Array(n * m);
  const entry = pairOf(kernel, d);
  const [xx, zz] = [squares(X, d), squares(Z, d)];
  for (let i = 0; i < n; i++)
    for (let j = 0; j < m; j++) {
      let far = 0;
      for (let l = 0; l < d; l++) far += (X[i * d + l] - Z[j * d + l]) ** 2;
      K[i * m + j] = entry(xx[i], zz[j], far);
    }
  return K;
}

/**
 * k(x, x) for all rows of X.
 * @param {Kernel} kernel @param {Float64Array} X @param {number} d
 */
export function diagonal(kernel, X, d) {
  const entry = pairOf(kernel, d);
  return squares(X, d).map((q) => entry(q, q, 0));
}

/**
 * The formula of ⟨x,x⟩, ⟨z,z⟩ and ‖x-z‖².
 * @param {Kernel} kernel @param {number} d
 * @returns {(xx: number, zz: number, far: number) => number}
 */
function pairOf(kernel, d) {
  if ("bandwidth" in kernel) {
    if (kernel.kind === "gaussian") return (xx, zz, far) => Math.exp(-far / (2 * kernel.bandwidth ** 2));
    return (xx, zz, far) => Math.exp(-Math.sqrt(far) / kernel.bandwidth);
  }
  const which = kernel.kind === "nngp" ? 0 : 1;
  return (xx, zz, far) => nngpAndNtk(xx / d, zz / d, far / d, kernel)[which];
}

/** @param {Float64Array} X @param {number} d */
function squares(X, d) {
  const found = new Float64Array(X.length / d);
  for (let i = 0; i < X.length; i++) found[Math.floor(i / d)] += X[i] * X[i];
  return found;
}
