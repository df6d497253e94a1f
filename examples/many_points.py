"""Many points
===========

Kernel regression with twenty thousand points on a laptop. The solution reports how it was computed and how accurate it
is. Products of a kernel matrix with a vector are also available directly, without forming the matrix.

    python examples/many_points.py
"""

import numpy as np

import unlazy
from unlazy.products import matmul

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, size=(20_000, 4)).astype(np.float32)
y = np.sin(3 * X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=len(X)).astype(np.float32)
kernel = unlazy.Gaussian(0.7)

solution = unlazy.solve(kernel, X, y, ridge=1.0, method=unlazy.NystromCG(centers=1000))
print(solution)
Z = rng.uniform(-1, 1, size=(1000, 4)).astype(np.float32)
error = np.sqrt(np.mean((np.asarray(solution.predict(Z)) - np.sin(3 * Z[:, 0]) * Z[:, 1]) ** 2))
print(f"RMSE against the noiseless target: {error:.3f} (noise 0.1)")
with unlazy.precision("float64"):
    again = matmul(kernel, Z.astype(np.float64), solution.centers, solution.coefficients)
    far = np.abs(np.asarray(again) - np.asarray(solution.predict(Z.astype(np.float64)))).max()
print(f"predictions are one product K @ V: difference {far:.1e}")
