"""Learn the kernel
================

Learn a bandwidth for each input, a variance and a noise level by maximizing the log marginal likelihood of a Gaussian
process with SciPy. Irrelevant inputs get long bandwidths.

    python examples/learn_the_kernel.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

import unlazy

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(120, 4))
y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=120)


def model(logs):
    """Kernel and noise variance from the logarithms of six positive parameters."""
    variance, noise, *bandwidths = jnp.exp(logs)
    return variance * unlazy.Gaussian(jnp.stack(bandwidths)), noise


@jax.jit
@jax.value_and_grad
def loss(logs):
    """Negative log marginal likelihood."""
    kernel, noise = model(logs)
    return -unlazy.log_marginal_likelihood(kernel, X, y, noise)


with unlazy.precision("float64"):
    start = loss(np.zeros(6))[0]
    found = minimize(lambda logs: [np.asarray(v) for v in loss(logs)], np.zeros(6), jac=True, method="L-BFGS-B")
    kernel, noise = model(found.x)
    Z = rng.uniform(-2, 2, size=(500, 4))
    predicted = unlazy.posterior(kernel, X, y, Z, noise).mean
    error = np.sqrt(np.mean((predicted - np.sin(2 * Z[:, 0]) - 0.5 * Z[:, 1]) ** 2))

print(f"log marginal likelihood: {-start:.1f} initially, {-found.fun:.1f} after optimization")
print("bandwidths: " + ", ".join(f"{h:.2g}" for h in np.exp(found.x[2:])) + " (the last two inputs are irrelevant)")
print(f"noise {np.sqrt(np.exp(found.x[1])):.3f} (true value 0.1), RMSE of the prediction {error:.3f}")
