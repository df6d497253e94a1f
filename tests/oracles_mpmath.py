"""NNGP and NTK of piecewise linear networks in 50-digit arithmetic, straight from the definitions [K7, K8]."""

import mpmath as mp


def reference(x, z, sigma_w, sigma_b, slope=0.0, residual=0.0):
    """(Σ, Θ, Θ(x,x), Θ(z,z)) of float inputs taken exactly; the first layer divides by d."""
    with mp.workdps(50):
        both = _recursion(x, z, sigma_w, sigma_b, slope, residual)
        diagonals = (_recursion(p, p, sigma_w, sigma_b, slope, residual) for p in (x, z))
        return (*both, *(theta for _, theta in diagonals))


def _recursion(x, z, sigma_w, sigma_b, slope, residual):
    x, z = [mp.mpf(float(v)) for v in x], [mp.mpf(float(v)) for v in z]
    sw, sb = [mp.mpf(float(s)) ** 2 for s in sigma_w], [mp.mpf(float(s)) ** 2 for s in sigma_b]
    slope, skip = mp.mpf(slope), mp.mpf(residual) ** 2
    d = len(x)
    q12, q11, q22 = (sw[0] * mp.fdot(a, b) / d + sb[0] for a, b in ((x, z), (x, x), (z, z)))
    theta = q12
    for l in range(1, len(sw)):
        s2 = skip if l < len(sw) - 1 else mp.mpf(0)
        p = mp.sqrt(q11 * q22)
        angle = mp.acos(min(mp.mpf(1), max(mp.mpf(-1), q12 / p))) if p else mp.pi / 2
        cosine = mp.cos(angle)
        # E relu relu = p (sin θ + (π-θ) cos θ)/(2π); leaky: relu(a) - slope relu(-a)
        same = p * (mp.sin(angle) + (mp.pi - angle) * cosine) / (2 * mp.pi)
        opposite = same - p * cosine / 2
        value = (1 + slope**2) * same - 2 * slope * opposite
        derivative = (1 + slope**2) * (mp.pi - angle) / (2 * mp.pi) + 2 * slope * angle / (2 * mp.pi)
        theta = sw[l] * value + sb[l] + theta * (s2 + sw[l] * derivative)
        q12 = s2 * q12 + sw[l] * value + sb[l]
        gain = (1 + slope**2) / 2
        q11, q22 = (s2 * q + sw[l] * gain * q + sb[l] for q in (q11, q22))
    return q12, theta
