"""A kernel as users give it: an object, or a name where names are taken. The one place that tells them apart."""

from typing import Any

from unlazy.kernels.base import Kernel


def given_kernel(value: Any, named: str | None = None) -> Kernel | None:
    """The kernel where one was given, None where `value` is a name; a ValueError for anything else.

    `named` says in words which names are taken: none of them unless told.
    """
    if isinstance(value, Kernel):
        return value
    if named is not None and isinstance(value, str):
        return None
    wanted = "" if named is None else f"{named} or "
    raise ValueError(f"kernel must be {wanted}a kernel of unlazy, for example Laplace(1.0); got {value!r}")
