// Dense linear algebra for matrices of a hundred rows, stored row after row.

/** @typedef {Float64Array} Matrix */

/**
 * A B with A (n × k) and B (k × m). Four rows of B at a time: a quarter of the loads and stores of C.
 * @param {Matrix} A @param {Matrix} B @param {number} n @param {number} k @param {number} m
 */
export function times(A, B, n, k, m) {
  const C = new Float64Array(n * m);
  for (let i = 0, c = 0; i < n; i++, c += m) {
    let l = 0;
    for (; l + 3 < k; l += 4) {
      const at = i * k + l;
      const [p, q, r, s] = [A[at], A[at + 1], A[at + 2], A[at + 3]];
      const [u, v, w, x] = [l * m, (l + 1) * m, (l + 2) * m, (l + 3) * m];
      for (let j = 0; j < m; j++) C[c + j] += p * B[u + j] + q * B[v + j] + r * B[w + j] + s * B[x + j];
    }
    for (; l < k; l++) {
      const [p, u] = [A[i * k + l], l * m];
      for (let j = 0; j < m; j++) C[c + j] += p * B[u + j];
    }
  }
  return C;
}

/**
 * A Bᵀ with A (n × k) and B (m × k).
 * @param {Matrix} A @param {Matrix} B @param {number} n @param {number} k @param {number} m
 */
export function timesTransposed(A, B, n, k, m) {
  const C = new Float64Array(n * m);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < m; j++) {
      let sum = 0;
      for (let l = 0; l < k; l++) sum += A[i * k + l] * B[j * k + l];
      C[i * m + j] = sum;
    }
  return C;
}

/**
 * Lower triangular L with L Lᵀ = A + jitter I. The rows of A from `known` on are enough where its first `known` rows have
 * been factored already, as `first`.
 * @param {Matrix} A (n - known) × n @param {number} n @param {number} jitter @param {number} [known]
 * @param {Matrix} [first]
 */
export function cholesky(A, n, jitter = 0, known = 0, first = new Float64Array(0)) {
  const L = new Float64Array(n * n);
  for (let i = 0; i < known; i++) L.set(first.subarray(i * known, (i + 1) * known), i * n);
  for (let i = known; i < n; i++)
    for (let j = 0; j <= i; j++) {
      let sum = A[(i - known) * n + j] + (i === j ? jitter : 0);
      for (let l = 0, a = i * n, b = j * n; l < j; l++, a++, b++) sum -= L[a] * L[b];
      L[i * n + j] = i === j ? Math.sqrt(Math.max(sum, jitter, 1e-300)) : sum / L[j * n + j];
    }
  return L;
}

/**
 * x with L Lᵀ x = b.
 * @param {Matrix} L @param {number} n @param {ArrayLike<number>} b
 */
export function substitute(L, n, b) {
  const x = Float64Array.from(b);
  for (let i = 0; i < n; i++) {
    for (let l = 0; l < i; l++) x[i] -= L[i * n + l] * x[l];
    x[i] /= L[i * n + i];
  }
  for (let i = n - 1; i >= 0; i--) {
    for (let l = i + 1; l < n; l++) x[i] -= L[l * n + i] * x[l];
    x[i] /= L[i * n + i];
  }
  return x;
}

/**
 * Eigenvalues, largest first, and eigenvectors as rows, of a symmetric matrix: Householder's reflections to three
 * diagonals, then QR steps with Wilkinson's shift (Golub and Van Loan, sections 8.3.1 and 8.3.5).
 * @param {Matrix} A @param {number} n
 * @returns {{values: Float64Array, vectors: Matrix}}
 */
export function eigh(A, n) {
  const { d, e, Q } = tridiagonal(Float64Array.from(A), n);
  for (let hi = n - 1, rounds = 0; hi > 0 && rounds < 60 * n; rounds++) {
    const small = (/** @type {number} */ k) =>
      Math.abs(e[k]) <= Number.EPSILON * (Math.abs(d[k]) + Math.abs(d[k + 1])) || Math.abs(e[k]) < 1e-300;
    if (small(hi - 1)) {
      e[--hi] = 0;
      continue;
    }
    let lo = hi - 1;
    while (lo > 0 && !small(lo - 1)) lo--;
    shiftedStep(d, e, Q, n, lo, hi);
  }
  const order = [...d.keys()].sort((i, j) => d[j] - d[i]);
  const vectors = new Float64Array(n * n);
  order.forEach((from, to) => vectors.set(Q.subarray(from * n, from * n + n), to * n));
  return { values: Float64Array.from(order, (i) => d[i]), vectors };
}

/**
 * Diagonal d, off-diagonal e and the rows of Qᵀ with A = Q T Qᵀ; A is overwritten.
 * @param {Matrix} A @param {number} n
 */
function tridiagonal(A, n) {
  const Q = new Float64Array(n * n);
  for (let i = 0; i < n; i++) Q[i * n + i] = 1;
  const [v, p] = [new Float64Array(n), new Float64Array(n)];
  for (let k = 0; k < n - 2; k++) {
    let rest = 0;
    for (let i = k + 2; i < n; i++) rest += A[i * n + k] ** 2;
    if (rest === 0) continue;
    const first = A[(k + 1) * n + k];
    const alpha = -(first < 0 ? -1 : 1) * Math.sqrt(first * first + rest);
    for (let i = k + 1; i < n; i++) v[i] = A[i * n + k];
    v[k + 1] -= alpha;
    const beta = 2 / (v[k + 1] ** 2 + rest);
    reflectBoth(A, n, k, v, p, beta);
    A[(k + 1) * n + k] = A[k * n + k + 1] = alpha;
    p.fill(0);
    for (let i = k + 1; i < n; i++) for (let j = 0; j < n; j++) p[j] += v[i] * Q[i * n + j];
    for (let i = k + 1; i < n; i++) for (let j = 0; j < n; j++) Q[i * n + j] -= beta * v[i] * p[j];
  }
  const d = Float64Array.from({ length: n }, (_, i) => A[i * n + i]);
  const e = Float64Array.from({ length: n }, (_, i) => (i < n - 1 ? A[(i + 1) * n + i] : 0));
  return { d, e, Q };
}

/**
 * A ← H A H below and right of k, H = I - β v vᵀ: A - v wᵀ - w vᵀ with w = p - (β/2)(p·v) v, p = β A v.
 * @param {Matrix} A @param {number} n @param {number} k @param {Float64Array} v @param {Float64Array} p
 * @param {number} beta
 */
function reflectBoth(A, n, k, v, p, beta) {
  let along = 0;
  for (let i = k + 1; i < n; i++) {
    let sum = 0;
    for (let j = k + 1; j < n; j++) sum += A[i * n + j] * v[j];
    p[i] = beta * sum;
    along += p[i] * v[i];
  }
  for (let i = k + 1; i < n; i++) p[i] -= 0.5 * beta * along * v[i];
  for (let i = k + 1; i < n; i++) for (let j = k + 1; j < n; j++) A[i * n + j] -= v[i] * p[j] + p[i] * v[j];
}

/**
 * One implicit QR step on the block lo … hi.
 * @param {Float64Array} d @param {Float64Array} e @param {Matrix} Q @param {number} n @param {number} lo
 * @param {number} hi
 */
function shiftedStep(d, e, Q, n, lo, hi) {
  const half = (d[hi - 1] - d[hi]) / 2;
  const square = e[hi - 1] ** 2;
  const shift = d[hi] - square / (half + (half < 0 ? -1 : 1) * Math.hypot(half, e[hi - 1]));
  let x = d[lo] - shift;
  let z = e[lo];
  for (let k = lo; k < hi; k++) {
    const r = Math.hypot(x, z);
    const c = r === 0 ? 1 : x / r;
    const s = r === 0 ? 0 : z / r;
    if (k > lo) e[k - 1] = r;
    const [a, b, f] = [d[k], e[k], d[k + 1]];
    d[k] = c * c * a + 2 * c * s * b + s * s * f;
    d[k + 1] = s * s * a - 2 * c * s * b + c * c * f;
    e[k] = (c * c - s * s) * b + c * s * (f - a);
    x = e[k];
    if (k < hi - 1) {
      z = s * e[k + 1];
      e[k + 1] *= c;
    }
    for (let at = k * n, below = at + n, end = at + n; at < end; at++, below++) {
      const q = Q[at];
      const w = Q[below];
      Q[at] = c * q + s * w;
      Q[below] = c * w - s * q;
    }
  }
}
