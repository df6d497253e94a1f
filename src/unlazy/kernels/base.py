"""The contract of a kernel, and what follows from an entry formula."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class Kernel(eqx.Module):
    """A positive semi-definite function of two inputs: `gram` and `diag`."""

    def gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"] | None = None) -> Float[Array, "n m"]:
        """K(X, Z); K(X, X) when Z is left out, exactly symmetric with an exact diagonal."""
        raise NotImplementedError

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """k(x, x) of every row."""
        raise NotImplementedError


class InnerProductKernel(Kernel):
    """A kernel that is one elementwise formula of ⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩."""

    def entry(
        self, xz: Float[Array, "*s"], xx: Float[Array, "*s"], zz: Float[Array, "*s"]
    ) -> Float[Array, "*s"]:
        """k as a function of the three inner products, elementwise; arguments broadcast."""
        raise NotImplementedError

    def gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"] | None = None) -> Float[Array, "n m"]:
        other = X if Z is None else Z
        xx, zz = jnp.sum(X * X, 1)[:, None], jnp.sum(other * other, 1)[None, :]
        return self.entry(X @ other.T, xx, zz)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        xx = jnp.sum(X * X, 1)
        return self.entry(xx, xx, xx)
