r"""From a kernel to a feature, by hand
===================================

A one-hour tutorial. In plain NumPy you build a kernel machine, a wide network and a gradient step that learns a
feature, and check each of them with one line of the library. All you need is linear algebra and gradients. Type along,
and stop at each **Try**.

    python examples/from_a_kernel_to_a_feature.py
"""

import jax
import matplotlib.pyplot as plt
import numpy as np

import unlazy

rng = np.random.default_rng(0)

# %%
# 1. A kernel machine (10 minutes)
# --------------------------------
# Ten samples of a sine wave. A kernel measures the similarity of two inputs; here we use the Gaussian kernel. The
# prediction at x is a weighted sum of its similarities to the training points, with weights chosen so that the
# prediction is correct at those points [K2].

x = np.sort(rng.uniform(-3, 3, 10))
y = np.sin(2 * x)
grid = np.linspace(-3.5, 3.5, 200)


def gaussian(a, b, bandwidth=0.7):
    """exp(-(a - b)²/(2h²)) for every pair."""
    return np.exp(-((a[:, None] - b[None, :]) ** 2) / (2 * bandwidth**2))


ridge = 1e-6
weights = np.linalg.solve(gaussian(x, x) + ridge * np.eye(len(x)), y)
by_hand = gaussian(grid, x) @ weights
with unlazy.precision("float64"):
    solution = unlazy.solve(unlazy.Gaussian(0.7), x[:, None], y, ridge=ridge)
    by_library = np.asarray(solution.predict(grid[:, None]))
print(f"largest difference between NumPy and unlazy: {np.abs(by_hand - by_library).max():.1e}")

plt.figure(figsize=(6, 3))
plt.plot(grid, by_hand, label="kernel machine")
plt.plot(grid, np.sin(2 * grid), "--", label="target")
plt.plot(x, y, "o", label="points")
plt.legend()

# %%
# **Try:** a bandwidth of 0.2, then 3. What does the machine predict between the points?
#
# 2. It learns one mode after another (10 minutes)
# ------------------------------------------------
# Now train the same machine by gradient descent from zero. In the eigenbasis of K every mode is learned independently:
# after time t, the fraction :math:`1 - e^{-\lambda_i t}` of it [K3]. Large eigenvalues belong to slowly varying
# functions, so these are learned first.

K = gaussian(x, x)
values, modes = np.linalg.eigh(K)


def flow(t):
    """Predictions on the grid after training for time t."""
    learned = -np.expm1(-values * t)
    return gaussian(grid, x) @ (modes @ (learned / values * (modes.T @ y)))


plt.figure(figsize=(6, 3))
for t in (0.1, 1, 10, 1000):
    plt.plot(grid, flow(t), label=f"t = {t:g}")
plt.plot(x, y, "ko")
plt.legend()
print("fractions learned at t = 1, largest eigenvalue first:", np.round(-np.expm1(-values[::-1]), 3))
with unlazy.precision("float64"):
    path = unlazy.decompose(unlazy.Gaussian(0.7), x[:, None]).flow(y, [1.0])
    print(f"difference at t = 1: {np.abs(flow(1.0) - np.asarray(path.predict(grid[:, None]))[0]).max():.1e}")

# %%
# **Try:** How long does it take until half of the mode with the smallest eigenvalue is learned? (ln 2 over the
# eigenvalue.)
#
# 3. A wide network is a kernel machine (10 minutes)
# --------------------------------------------------
# Take a network with one hidden layer of w random neurons, :math:`f(x) = \sqrt{2/w}\,\sum_i v_i\,\mathrm{relu}(u_i\cdot
# x/\sqrt d)` up to constants, and compute the inner product of its gradients at two inputs. As w grows, it no longer
# depends on the random weights: it converges to the neural tangent kernel [K8, K9].

d = 3
a, b = rng.normal(size=(2, d))


def tangent_by_hand(width):
    """∇f(a)·∇f(b) of a random ReLU network: a sum over output weights, and a sum over first-layer weights."""
    U, v = rng.normal(size=(width, d)), rng.normal(size=width)
    first, second = (np.sqrt(2 / d) * U @ z for z in (a, b))
    heads = 2 / width * np.sum(np.maximum(first, 0) * np.maximum(second, 0))
    both_on = (first > 0) & (second > 0)
    return heads + 2 / width * np.sum(v**2 * both_on) * (2 / d) * (a @ b)


limit = float(unlazy.NTK(unlazy.MLP(1, "relu")).gram(a[None], b[None])[0, 0])
for width in (10, 1000, 100_000):
    print(f"width {width:>7,}: {np.mean([tangent_by_hand(width) for _ in range(20)]):.4f}   (NTK {limit:.4f})")

# %%
# Training a very wide network of this kind is therefore sections 1 and 2 with another kernel: its features never move.
# It is *lazy*.
#
# **Try:** ``unlazy play``, stage *Lazy to rich*, with the slider at the left end: network and kernel coincide.
#
# 4. What a fixed kernel cannot do (10 minutes)
# ---------------------------------------------
# Now take inputs in fifteen dimensions and a target that depends on one direction u only, a polynomial of degree four
# in u·x. A kernel does not know u, and needs as many samples as if all directions mattered [A1].

d, n = 15, 1000
u = np.zeros(d)
u[0] = 1.0


def sample(count):
    """Inputs, and He_2(t)/2 + He_4(t)/√48 with t = u·x: variance one, half of it in each degree [D9]."""
    X = rng.normal(size=(count, d))
    t = X @ u
    return X, (t**2 - 1) / 2 + (t**4 - 6 * t**2 + 3) / np.sqrt(48)


X, y = sample(n)
X_test, y_test = sample(2000)


def unexplained(predicted):
    """Fraction of the variance that is unexplained; 1 for a constant prediction."""
    return np.mean((predicted - y_test) ** 2) / np.var(y_test)


for name in ("gaussian", "laplace", "ntk"):
    left = unexplained(unlazy.KernelRegressor(name).fit(X, y).predict(X_test))
    print(f"{name:10s} leaves {left:.2f} of the variance unexplained")

# %%
# **Try:** d = 4 instead of 15. Which kernels learn it now, and how large is d⁴?
#
# 5. One gradient step finds the direction (10 minutes)
# -----------------------------------------------------
# A network whose outputs cancel at initialization (output weights ±1 in pairs) has the gradient
# :math:`-2a_j\,\mathrm{mean}_i\; y_i x_i 1\{w_j\cdot x_i > 0\}` in neuron j. In expectation over the inputs this is the
# expected Hessian of the target applied to the neuron, so it points along u [D5]. One step in NumPy:

width = 200
W0 = rng.normal(size=(width, d)) / np.sqrt(d)
heads = rng.choice([-1.0, 1.0], width)
centered = y - y.mean() - X @ (X.T @ y / n)  # without the constant and linear parts [D4]
W1 = 2 * heads[:, None] * (((X @ W0.T > 0) * centered[:, None]).T @ X) / n


def cosines(W):
    """|cosine| between every neuron and u."""
    return np.abs(W @ u) / np.linalg.norm(W, axis=1)


print(f"median |cosine| with u: {np.median(cosines(W0)):.2f} before the step, {np.median(cosines(W1)):.2f} after it")
plt.figure(figsize=(6, 2.6))
plt.hist([cosines(W0), cosines(W1)], bins=20, label=["before", "after one step"])
plt.xlabel("|cosine| between a neuron and u")
plt.legend()

# %%
# The features have moved. Refit the output weights on them to learn the rest of the target; Algorithm 1 of the library
# does both.

scale = 0.5 / np.sqrt(np.mean(np.sum(W1**2, 1)))
biases = rng.normal(size=width)


def features(Z):
    return np.maximum(Z @ (scale * W1).T + biases, 0)


A, B = features(X), features(X_test)
head = np.linalg.solve(A.T @ A + 1e-3 * n * np.eye(width), A.T @ centered)
print(f"NumPy leaves {unexplained(y.mean() + X_test @ (X.T @ y / n) + B @ head):.2f} unexplained")
with unlazy.precision("float64"):
    step = unlazy.one_step(X, y, choose="leave-one-out", key=jax.random.key(0))
    print(f"unlazy.one_step leaves {unexplained(np.asarray(step.predict(X_test))):.2f}")

# %%
# **Try:** n = 50, then n = 5,000. From which n on does the step find u? (Near d² = 225.)
#
# 6. A kernel that learns the feature (10 minutes)
# ------------------------------------------------
# Can a kernel do the same? Fit it and compute the gradients of the fit: their average outer product is a matrix M that
# is large along the directions on which the prediction depends. Measure distances with M and fit again [D11].


def fit_by_hand(L, bandwidth, ridge=1e-2):
    """Gaussian kernel machine in the inputs L x; returns its predictions and M, the AGOP in the inputs x."""
    P, Q = X @ L, X_test @ L
    square = lambda S, T: np.sum(S**2, 1)[:, None] + np.sum(T**2, 1)[None] - 2 * S @ T.T  # noqa: E731
    K = np.exp(-np.maximum(square(P, P), 0) / (2 * bandwidth**2))
    alpha = np.linalg.solve(K + ridge * np.eye(n), y)
    # ∇f(x_i) = Σ_j α_j K_ij (x_j - x_i) L Lᵀ/h²
    pull = (K * alpha) @ P - (K @ alpha)[:, None] * P
    gradients = pull @ L.T / bandwidth**2
    return np.exp(-np.maximum(square(Q, P), 0) / (2 * bandwidth**2)) @ alpha, gradients.T @ gradients / n


L = np.eye(d)
for update in range(4):
    left, M = fit_by_hand(L, bandwidth=np.sqrt(2 * np.sum(L**2)))
    print(f"update {update}: unexplained {unexplained(left):.2f}, share of M along u {u @ M @ u / np.trace(M):.2f}")
    spectrum, axes = np.linalg.eigh(M / np.trace(M))
    L = axes * np.sqrt(np.maximum(spectrum, 0)) @ axes.T

machine = unlazy.recursive_features(unlazy.Gaussian(1.0), X, y, updates=3)
print(f"unlazy.recursive_features leaves {unexplained(np.asarray(machine.predict(X_test))):.2f}")
plt.show()

# %%
# These are the ideas behind the library: kernels [K2], their training [K3], wide networks [K8], what they cannot do
# [A1], and two ways to learn a feature [D4, D11]. The talks compare each of them with measurements, and the page of
# formulas explains the tags.
