"""What theory predicts
====================

Formulas are plain functions of arrays, so you can plot a prediction before running anything: how the risk of any kernel
decreases in steps with the number of samples, and from which size on Theorem 1 bounds the risk of Algorithm 1 [D6].

    python examples/what_theory_expects.py
"""

import matplotlib.pyplot as plt
import numpy as np

from unlazy.theory.activations import hermite
from unlazy.theory.feature_learning import bounds

d, degree = 10, 4
# g = He_2/2 + He_4/√48 in the normalized Hermite basis: half of the variance in each degree
share = np.zeros(degree + 1)
share[[2, 4]] = np.sqrt(0.5)
print("information exponent of g:", hermite.information_exponent(share))

n = np.geomspace(5, 2 * d**degree, 200)
risk = [bounds.kernel_staircase(float(count), d, share) for count in n]
enough = bounds.one_step_samples(d, r=1)
print(f"Algorithm 1: the bound applies from the order of {enough:g} samples")
print(f"kernels: the order of {d**degree:,} samples for all of g")

plt.figure(figsize=(6, 3))
plt.semilogx(n, risk, drawstyle="steps-post", label="any kernel, d → ∞")
plt.axvline(enough, linestyle="--", label="d² r κ²")
plt.xlabel("samples")
plt.ylabel("risk")
plt.legend()
plt.show()
