"""Claim: error bars by the evidence cover 85 to 95% at level 90% on tables, as accurate as laplace-torch, and faster.

Five regression tables with 500 training rows, MLPs of two hidden layers of 50: with weight decay, stopped early, and
trained until they interpolate. `unlazy.uncertainty` by the evidence and with 100 held-out rows, beside laplace-torch's
full Gauss-Newton variant with its own tuning of prior precision and noise by the evidence (`--peers`; needs PyTorch and
laplace-torch). Printed are the coverage of 90% intervals and the negative log-likelihood of standardized targets.

    python benchmarks/network_error_bars.py [--only concrete] [--kinds decayed] [--peers] [--record]
"""

import argparse
import os
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from record import add_option, recorder  # noqa: E402

from unlazy import TangentOptions, uncertainty  # noqa: E402

TABLES = ("concrete", "energy", "airfoil", "autompg", "wine")
ROWS, HELD, TEST, WIDTH = 500, 100, 500, 50
KINDS = {"decayed": (5000, 1e-3), "stopped early": (300, 0.0), "interpolating": (20000, 0.0)}
LEVEL = 1.6448536269514722


def load(name: str, folder: Path, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training, held-out and test rows, standardized by the first; fewer of a small table."""
    table = np.load(folder / f"uci_{name}.npz")
    X, y = table["X"].astype(float), table["y"].astype(float).ravel()
    order = np.random.default_rng(seed).permutation(len(X))
    rows = min(ROWS, len(X) // 2)
    held = min(HELD, len(X) // 5)
    train = order[:rows]
    spread = X[train].std(0)
    X, y = (X - X[train].mean(0)) / np.where(spread > 0, spread, 1), (y - y[train].mean()) / y[train].std()
    parts = train, order[rows : rows + held], order[rows + held : rows + held + TEST]
    return [(X[part].astype(np.float32), y[part].astype(np.float32)) for part in parts]


def apply(params: list, X: jax.Array) -> jax.Array:
    """Two hidden layers."""
    for weight, bias in params[:-1]:
        X = jnp.tanh(X @ weight + bias)
    return X @ params[-1][0] + params[-1][1]


def train(X: np.ndarray, y: np.ndarray, steps: int, decay: float, seed: int) -> list:
    """Full-batch Adam."""
    rng = np.random.default_rng(seed)
    shapes = ((X.shape[1], WIDTH), (WIDTH, WIDTH), (WIDTH, 1))
    params = [(jnp.asarray(rng.normal(size=s) * (2 / s[0]) ** 0.5, jnp.float32), jnp.zeros(s[1])) for s in shapes]
    optimizer = optax.adam(3e-3)

    def objective(p: list) -> jax.Array:
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))
        return jnp.mean((apply(p, X)[:, 0] - y) ** 2) + decay / 2 * squares

    @jax.jit
    def run(p: list) -> list:
        def step(carry: tuple, _: None) -> tuple:
            updates, state = optimizer.update(jax.grad(objective)(carry[0]), carry[1])
            return (optax.apply_updates(carry[0], updates), state), None

        return jax.lax.scan(step, (p, optimizer.init(p)), None, length=steps)[0][0]

    return run(params)


def score(mean: np.ndarray, variance: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Coverage and negative log-likelihood."""
    z = (y - mean) / np.sqrt(variance)
    return float(np.mean(np.abs(z) < LEVEL)), float(np.mean(z**2 + np.log(2 * np.pi * variance)) / 2)


def laplace(params: list, X: np.ndarray, y: np.ndarray, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances by laplace-torch."""
    import torch
    from laplace import Laplace

    torch.set_num_threads(1)
    layers: list[torch.nn.Module] = []
    for i, (weight, bias) in enumerate(params):
        layer = torch.nn.Linear(*weight.shape)
        layer.weight.data = torch.tensor(np.asarray(weight.T))
        layer.bias.data = torch.tensor(np.asarray(bias))
        layers += [layer] if i == len(params) - 1 else [layer, torch.nn.Tanh()]
    module = torch.nn.Sequential(*layers)
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(y[:, None]))
    fit = Laplace(module, "regression", subset_of_weights="all", hessian_structure="full")
    fit.fit(torch.utils.data.DataLoader(data, batch_size=len(X)))
    logs = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.Adam(logs, lr=0.1)
    for _ in range(100):  # as in its documentation
        optimizer.zero_grad()
        loss = -fit.log_marginal_likelihood(logs[0].exp(), logs[1].exp())
        loss.backward()
        optimizer.step()
    mean, variance = fit(torch.tensor(Z))
    return (
        mean.detach().numpy()[:, 0],
        variance.detach().numpy()[:, 0, 0] + float(fit.sigma_noise.detach()) ** 2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=TABLES)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), help="how networks are trained")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--peers", action="store_true", help="run laplace-torch too")
    parser.add_argument("--seeds", type=int, default=2)
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    for name in options.only:
        for kind in options.kinds:
            steps, decay = KINDS[kind]
            found: dict[str, list] = {}
            for seed in range(options.seeds):
                (X, y), held, (Z, z) = load(name, options.folder, seed)
                params = train(X, y, steps, decay, seed)
                for way, more in (("evidence", {}), ("held-out rows", {"held_out": held})):
                    began = time.process_time()
                    posterior = uncertainty((apply, params), X, y, options=TangentOptions(dtype="float64"), **more)
                    seen = posterior.predict(Z)
                    seconds = time.process_time() - began
                    found.setdefault(way, []).append((*score(seen.mean, seen.std**2 + seen.noise_variance, z), seconds))
                if options.peers:
                    began = time.process_time()
                    moments = laplace(params, X, y, Z)
                    seconds = time.process_time() - began
                    found.setdefault("laplace-torch", []).append((*score(*moments, z), seconds))
            text = []
            for way, scores in found.items():
                coverage, loss, seconds = np.mean(scores, 0)
                text.append(f"{way} {coverage:.3f} nll {loss:.3f} ({scores[-1][-1]:.1f} s)")
                note(f"coverage, {name} {kind}, {way}", coverage, "share")
                note(f"negative log-likelihood, {name} {kind}, {way}", loss, "nats")
            print(f"{name:9} {kind:14} {'  '.join(text)}", flush=True)


if __name__ == "__main__":
    main()
