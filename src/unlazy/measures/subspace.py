"""How much of a learned representation lies in the relevant subspace S* [D5]."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import of_any_numbers
from unlazy.core.linalg import dot


@of_any_numbers
def energy(W: Float[Array, "w d"], subspace: Float[Array, "r d"]) -> Float[Array, ""]:
    """‖W Uᵀ‖²_F/‖W‖²_F: the share of the rows of W that lies in S*. r/d for random rows, 1 for perfect ones.

    `subspace` is U with orthonormal rows. Zero for W = 0.
    """
    total = jnp.sum(jnp.square(W))
    inside = jnp.sum(jnp.square(_product(W, subspace.T)))
    return jnp.where(total > 0, inside / jnp.where(total > 0, total, 1), 0.0)


@of_any_numbers
def row_alignment(W: Float[Array, "w d"], subspace: Float[Array, "r d"]) -> Float[Array, " w"]:
    """‖U w_j‖/‖w_j‖ of every row: |cosine| with S*. Zero for a zero row."""
    norms = jnp.linalg.norm(W, axis=1)
    inside = jnp.linalg.norm(_product(W, subspace.T), axis=1)
    return jnp.where(norms > 0, inside / jnp.where(norms > 0, norms, 1), 0.0)


@of_any_numbers
def cosines(first: Float[Array, "r d"], second: Float[Array, "s d"]) -> Float[Array, " k"]:
    """Cosines of the principal angles between two spans of orthonormal rows, largest first, min(r, s) of them."""
    return jnp.clip(jnp.linalg.svd(_product(first, second.T), compute_uv=False), 0, 1)


@of_any_numbers
def principal_angles(first: Float[Array, "r d"], second: Float[Array, "s d"]) -> Float[Array, " k"]:
    """Principal angles in radians, smallest first; small ones from sines, which arccos near 1 would lose.

    Björck and Golub, Numerical methods for computing angles between linear subspaces (1973).
    """
    small, large = (first, second) if first.shape[0] <= second.shape[0] else (second, first)
    across = small - _product(_product(small, large.T), large)
    sines = jnp.clip(jnp.linalg.svd(across, compute_uv=False), 0, 1)[::-1]
    c = cosines(first, second)
    return jnp.where(c > 0.7, jnp.arcsin(sines[: c.shape[0]]), jnp.arccos(c))


@of_any_numbers
def overlap(first: Float[Array, "r d"], second: Float[Array, "s d"]) -> Float[Array, ""]:
    """Root mean square of the principal cosines: 1 when one span lies in the other, √(max(r,s)/d) by chance."""
    return jnp.sqrt(jnp.mean(jnp.square(cosines(first, second))))


@of_any_numbers
def top_directions(W: Float[Array, "w d"], r: int) -> Float[Array, "r d"]:
    """The r leading right singular vectors of W, as rows: what W looks at most."""
    if not 1 <= r <= min(W.shape):
        raise ValueError(f"W of shape {W.shape} has {min(W.shape)} singular directions, r = {r} were asked for")
    return jnp.linalg.svd(W, full_matrices=False)[2][:r]


@of_any_numbers
def top_overlap(W: Float[Array, "w d"], subspace: Float[Array, "r d"]) -> Float[Array, ""]:
    """Overlap of S* with the r leading right singular vectors of W."""
    return overlap(top_directions(W, subspace.shape[0]), subspace)


def _product(first: Float[Array, "a d"], second: Float[Array, "d b"]) -> Float[Array, "a b"]:
    return dot(first, second.astype(first.dtype))
