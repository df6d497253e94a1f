"""Rows, vectors and factors over eight devices of one process and over two processes: the numbers of NumPy in float64,
and no device that holds all rows of anything."""

import subprocess
import sys

import pytest

from several_devices import environment, two_processes

COMMON = """
import sys
import numpy as np
import jax, jax.numpy as jnp
{start}
from jax.sharding import NamedSharding, PartitionSpec as P
from unlazy.core.arrays import precision
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.products import product
from unlazy.products.engines import sharded
from unlazy.solvers.methods import nystrom_cg, nystrom_factors
from unlazy.solvers.sharded import factors as sharded_factors
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.method_selection import NystromCG, PreconditionedCG
from unlazy.solvers.solve import SolveOptions
from unlazy.solvers.solve import solve

G = {devices}
assert jax.device_count() == G, jax.devices()
rng = np.random.default_rng(0)
N, D = 403, 5                                             # 403 rows do not divide by 2 or 8
X = rng.normal(size=(N, D)).astype(np.float32)
y = np.stack([np.sin(X[:, 0]), np.cos(X[:, 1])], 1).astype(np.float64)

def laplace(A, B):
    return np.exp(-np.sqrt(((A[:, None].astype(np.float64) - B[None]) ** 2).sum(-1)) / 2.0)

def by_rows(array, n):
    "Spread by rows, as many on every device: none has all of them."
    assert array.sharding.is_equivalent_to(NamedSharding(sharded.device_mesh(), P("rows")), array.ndim), array.sharding
    each = -(-n // G)
    assert all(shard.data.shape[0] == each for shard in array.addressable_shards), array.sharding

def nothing_whole(*_):
    "No device holds N rows of anything, whatever is alive."
    for array in jax.live_arrays():
        for shard in array.addressable_shards:
            assert not shard.data.ndim or shard.data.shape[0] < N, (shard.data.shape, array.sharding)
"""

PRODUCTS = """
for n, m in ((N, None), (16 * G, None), (5, None), (N, 90), (5, 90), (3, 5)):
    sharded.RING_BYTES = 0                                     # any Z counts as long: a ring
    A = np.tile(X, (2, 1))[:n] if n > N else X[:n]
    B = A if m is None else rng.normal(size=(m, D)).astype(np.float32)
    V, U = rng.normal(size=(len(B), 2)), rng.normal(size=(n, 2))
    exact = laplace(A, B)
    with precision("float64"):
        K = product(Laplace(2.0), A.astype(np.float64), None if m is None else B.astype(np.float64), engine="sharded")
        assert K.ring and K.shape == exact.shape
        for side, rows in ((K.left, n), (K.right, len(B))):
            for leaf in jax.tree.leaves(side):
                by_rows(leaf, rows)
        out = K.matmul_sharded(K.shard(V))
        by_rows(out, n)
        assert np.array_equal(K.gather(out), np.asarray(K.matmul(V)))
        assert K.shard(out) is out                       # what is spread stays where it is
        results = [(K.matmul(V), exact @ V, exact @ np.abs(V)), (K.rmatmul(U), exact.T @ U, exact.T @ np.abs(U)),
                   (K.normal(V), exact.T @ exact @ V, exact.T @ exact @ np.abs(V))]
        for a, b, size in results:
            # r = √D: D is off by 2^-53·4·‖x‖‖z‖ < 2^-53·2^8, r by at most the root of that near x = z, where products
            # call pairs closer than that the same; sums of n + m terms besides
            off = np.sqrt(2.0**-53 * 2**8) * (1 if m is None else 0) + 2.0**-53 * (2**12 + 4 * (n + len(B)))
            difference = np.abs(np.asarray(a) - b)
            assert a.shape == b.shape and np.all(difference <= off * size), difference.max()
"""

READING = """
asked = []
def read(start, stop):
    asked.append((start, stop))
    return X[start:stop]
sharded.RING_BYTES = 2**28
K = sharded.sharded_operator_from_reader(Laplace(2.0), read, N, X[:50])
each, own = -(-N // G), [d.id for d in jax.local_devices()]
places = {{i: (min(i * each, N), min((i + 1) * each, N)) for i in range(G)}}
order = [d for d in sharded.device_mesh().devices.ravel()]
mine = {{places[i] for i, d in enumerate(order) if d in jax.local_devices()}}
assert asked[0] == (0, 1) and set(asked[1:]) == mine, (asked, mine)   # no other host's rows
for leaf in jax.tree.leaves(K.left):
    by_rows(leaf, N)
assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(K.right))
"""

SOLVERS = """
exact = laplace(X, X)
fitted = exact @ np.linalg.solve(exact + 0.1 * np.eye(N), y)
seen = []
def look(p):
    seen.append(p.step)
    nothing_whole()
for kind in ({precisions}):
    s = found = None                                      # a solution holds its coefficients in one piece
    keywords = dict(tolerance=1e-4, options=SolveOptions(precision=kind), progress=look)
    s = solve(Laplace(2.0), X, y, 0.1, method=PreconditionedCG(rank=40), **keywords)
    assert s.converged and f"sharded over {{G}} devices, rank 40" in s.notes[-1], str(s)
    found = np.asarray(s.predict(X))
    assert np.all(np.linalg.norm(found - fitted, axis=0) <= 1e-4 * np.linalg.norm(y, axis=0))
assert isinstance(s.centers, np.ndarray) and len(seen) > 2
Z = X[rng.permutation(N)[:77]]
C, CC = laplace(X, Z), laplace(Z, Z)
fitted = C @ np.linalg.solve(C.T @ C + 0.1 * CC, C.T @ y)
for spread, kind in ((nystrom_factors.SHARDING_THRESHOLD, "float32"), (0.0, "float64"), (0.0, "float32")):
    nystrom_factors.SHARDING_THRESHOLD, s, found = spread, None, None
    keywords = dict(tolerance=1e-4, options=SolveOptions(precision=kind), progress=look)
    s = solve(Laplace(2.0), X, y, 0.1, method=NystromCG(centers=Z), **keywords)
    assert s.converged and "sharded" in s.notes[-1], str(s)
    found = np.asarray(s.predict(X))
    assert np.all(np.linalg.norm(found - fitted, axis=0) <= 1e-4 * np.linalg.norm(y, axis=0))
"""

FACTORS = """
M, c = 77, rng.normal(size=(77, 3))
mesh = sharded.device_mesh()
for sharded_factors.PANEL in (1024, 4):
    with precision("float64"):
        K = sharded_factors.sharded_gram(Gaussian(2.0), X[:M].astype(np.float64), mesh)
        by_rows(K, K.shape[0])
        F = sharded_factors.sharded_factor(K, M, 0.1, mesh)
        outer = sharded_factors.sharded_outer(F.L, M, 3.0, mesh)
        for matrix in (F.L, F.W, outer):
            by_rows(matrix, K.shape[0])
            assert all(s.data.size * G == matrix.size for s in matrix.addressable_shards)
        A = np.exp(-((X[:M, None].astype(np.float64) - X[None, :M]) ** 2).sum(-1) / (2 * 2.0**2)) + 0.1 * np.eye(M)
        L = np.linalg.cholesky(A)
        # backward stable to M·2^-53 of ‖A‖ ≤ M, and inverses lose κ(A) ≤ M/0.1 of that
        off = 4 * M * 2.0**-53 * (M / 0.1)
        size = np.abs(c).max() * M
        for a, b in (
            (sharded_factors.sharded_matmul(K, c, mesh) + 0.1 * c, A @ c), (F.solve(c), np.linalg.solve(L, c)),
            (F.solve_transposed(c), np.linalg.solve(L.T, c)), (sharded.gather(outer, mesh)[:M, :M], 3 * L.T @ L),
        ):
            assert a.shape == b.shape and np.all(np.abs(a - b) <= off * size), np.abs(a - b).max()
        assert sharded_factors.sharded_factor(K, M, -1.0, mesh) is None
"""

LOW_RANK = """
from unlazy.solvers.methods.pivoted_cholesky import randomly_pivoted_cholesky
from unlazy.solvers.sharded.cholesky import sharded_cholesky

A = laplace(X, X)
with precision("float64"):
    K = sharded.sharded_operator(Laplace(2.0), X.astype(np.float64))
    lost = dict(spread=[], host=[])
    for seed in range(8):
        F = sharded_cholesky(K, 40, np.random.default_rng(seed))
        by_rows(F, N)
        assert not np.asarray(F)[N:].any()                # rows that pad
        F = K.gather(F)
        rest = A - F @ F.T
        assert F.shape == (N, 40)
        # what a Cholesky factor leaves is positive, and nothing at its pivots: 40 zeros of the diagonal. Entries near
        # x = z are off by the root of 2^-53·2^8 (above), tiny against what is left elsewhere
        assert np.linalg.eigvalsh(rest)[0] > -1e-5 and np.sum(np.abs(np.diag(rest)) < 1e-5) == 40
        lost["spread"].append(np.trace(rest))
        G_, _ = randomly_pivoted_cholesky(Laplace(2.0), jnp.asarray(X, jnp.float64), 40, np.random.default_rng(seed), A)
        lost["host"].append(np.trace(A - G_ @ G_.T))
    means = [np.mean(v) for v in lost.values()]
    # draws of one law: their means agree within four standard errors
    assert abs(means[0] - means[1]) <= 4 * np.sqrt(sum(np.var(v, ddof=1) / 8 for v in lost.values())), lost
"""

FROM_A_FILE = """
class File:
    "Rows that are read a part at a time, and remembers which."
    shape, asked = X.shape, []
    def __getitem__(self, rows):
        self.asked.append((rows.start, rows.stop))
        return X[rows]

nystrom_factors.SHARDING_THRESHOLD, nystrom_cg.HOST_BLOCK_BYTES, s, found = np.inf, 104 * D * 4, None, None
budget = 4 * N * D * 4 - 1 + nystrom_factors.LIVE_MATRICES * 77 * 77 * 8    # a quarter of what is left does not hold X
keywords = dict(tolerance=1e-4, options=SolveOptions(memory=budget, precision="float32"), progress=look)
s = solve(Laplace(2.0), File(), y, 0.1, method=NystromCG(centers=Z), **keywords)
assert s.converged and "by blocks" in s.notes[-1], str(s)
fitted = C @ np.linalg.solve(C.T @ C + 0.1 * CC, C.T @ y)
found = np.asarray(s.predict(X))
assert np.all(np.linalg.norm(found - fitted, axis=0) <= 1e-4 * np.linalg.norm(y, axis=0))
# of blocks of 104 rows each process reads a device's share at a time (beside samples, which are picked from all rows)
ends = set(File.asked)
here = [i for i, d in enumerate(sharded.device_mesh().devices.ravel()) if d in jax.local_devices()]
for i in range(G):
    assert ((i * 104 // G, (i + 1) * 104 // G) in ends) == (i in here), i
"""

CHECKPOINT = """
def stop(p):
    if p.step == 4:
        raise KeyboardInterrupt
run = dict(method=PreconditionedCG(rank=20), tolerance=1e-6)
run["options"] = SolveOptions(checkpoint=Checkpoint(sys.argv[1], every=0), precision="float64")
try:
    solve(Laplace(2.0), X, y, 0.1, progress=stop, **run)
    raise SystemExit("was to stop")
except KeyboardInterrupt:
    pass
steps = []
s = solve(Laplace(2.0), X, y, 0.1, progress=lambda p: steps.append(p.step), **run)
assert steps[0] == 4 and s.converged, (steps, str(s))
fitted = exact @ np.linalg.solve(exact + 0.1 * np.eye(N), y)
assert np.all(np.linalg.norm(np.asarray(s.predict(X)) - fitted, axis=0) <= 1.01e-6 * np.linalg.norm(y, axis=0))
"""
FINE = '\nprint("fine")\n'


@pytest.mark.slow
@pytest.mark.parametrize("what", ["products", "solvers"])
def test_eight_devices_in_one_process(what, tmp_path):
    parts = {"products": PRODUCTS + READING + LOW_RANK + FACTORS, "solvers": SOLVERS + FROM_A_FILE + CHECKPOINT}
    precisions = {"products": '"float64",', "solvers": '"float32", "float64"'}  # test_sharded multiplies in float32
    program = (COMMON + parts[what] + FINE).format(start="", devices=8, precisions=precisions[what])
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run")], env=environment(8), capture_output=True, text=True,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0 and "fine" in done.stdout, done.stderr[-3000:]


@pytest.mark.slow
def test_two_processes_hold_their_own_rows():
    text = COMMON + READING + SOLVERS + FROM_A_FILE + FACTORS + FINE
    two_processes(lambda start: text.format(start=start, devices=2, precisions='"float32",'), timeout=900)
