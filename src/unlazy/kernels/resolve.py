"""Kernel arguments of public functions: a kernel object, or a name if names are accepted."""

from typing import Any

from unlazy.kernels.base import Kernel


def resolve_kernel(value: Any, named: str | None = None) -> Kernel | None:
    """Return a kernel argument that is a kernel, or None if it is an accepted name.

    Parameters
    ----------
    value : Kernel or str
        The argument.
    named : str, optional
        Description of the accepted names for the error message. No names are accepted by default.

    Returns
    -------
    Kernel or None
        The kernel; None if the argument is a name.

    Raises
    ------
    ValueError
        If the argument is neither.
    """
    if isinstance(value, Kernel):
        return value
    if named is not None and isinstance(value, str):
        return None
    wanted = "" if named is None else f"{named} or "
    raise ValueError(f"kernel must be {wanted}a kernel of unlazy, for example Laplace(1.0); got {value!r}")
