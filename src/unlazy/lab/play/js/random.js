// Random numbers that a seed repeats, so that a link shows everyone the same draws.

/**
 * Uniform numbers in [0, 1) from a 32-bit seed: a Weyl sequence through a mixing function.
 * @param {number} seed
 * @returns {() => number}
 */
export function uniforms(seed) {
  let state = Math.imul(seed + 1, 0x9e3779b1) >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
    z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
    return ((z ^ (z >>> 16)) >>> 0) / 4294967296;
  };
}

/**
 * Independent N(0, 1) numbers (Box and Muller 1958).
 * @param {() => number} uniform
 * @param {number} count
 */
export function normals(uniform, count) {
  const found = new Float64Array(count);
  for (let i = 0; i < count; i += 2) {
    const size = Math.sqrt(-2 * Math.log(1 - uniform()));
    const angle = 2 * Math.PI * uniform();
    found[i] = size * Math.cos(angle);
    if (i + 1 < count) found[i + 1] = size * Math.sin(angle);
  }
  return found;
}
