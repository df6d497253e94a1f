"""Image data as tables: scikit-learn's digits, and MNIST-like idx or npz files."""

import gzip
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unlazy.core.errors import UnlazyError
from unlazy.tasks.table import TableTask

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def digits(classes: Sequence[int] | None = None) -> TableTask:
    """Load scikit-learn's 8×8 digits with pixels in [0, 1].

    Parameters
    ----------
    classes : sequence of int, optional
        Classes to keep; all by default.

    Returns
    -------
    TableTask
        Labels are ±1 for two classes and one-hot columns for more.

    Raises
    ------
    ValueError
        If `classes` are not two or more different known classes.

    Examples
    --------
    >>> from unlazy.tasks import digits
    >>> task = digits(classes=[3, 8])
    >>> task.X.shape, sorted(set(task.y.tolist()))
    ((357, 64), [-1.0, 1.0])
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    return labeled_images(found.data / 16.0, found.target, classes)


def idx_images(images: str | Path, labels: str | Path, classes: Sequence[int] | None = None) -> TableTask:
    """Load MNIST-like data from two idx files, gzipped or not; pixels are scaled to [0, 1].

    Parameters
    ----------
    images, labels : path
        Files of the images and of their labels.
    classes : sequence of int, optional
        Classes to keep; all by default.

    Returns
    -------
    TableTask
        Labels are ±1 for two classes and one-hot columns for more.

    Raises
    ------
    UnlazyError
        If a file cannot be read or the files do not match.

    Examples
    --------
    >>> import struct, tempfile
    >>> from pathlib import Path
    >>> from unlazy.tasks import idx_images
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     images, labels = Path(folder, "images.idx"), Path(folder, "labels.idx")
    ...     _ = images.write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 4, 2, 2) + bytes(range(16)))
    ...     _ = labels.write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 4) + bytes([0, 1, 0, 1]))
    ...     task = idx_images(images, labels)
    >>> task.X.shape, task.y.tolist()
    ((4, 4), [-1.0, 1.0, -1.0, 1.0])
    """
    pixels, targets = read_idx(images), read_idx(labels)
    if pixels.ndim < 2 or targets.ndim != 1 or len(pixels) != len(targets):
        raise UnlazyError(f"{images} holds {pixels.shape} and {labels} {targets.shape}: not images and their labels")
    return labeled_images(_unit_range(pixels.reshape(len(pixels), -1)), targets, classes)


def npz_images(
    path: str | Path, images: str = "x_train", labels: str = "y_train", classes: Sequence[int] | None = None
) -> TableTask:
    """Load images and labels from two arrays of an npz file; pixels are scaled to [0, 1].

    Parameters
    ----------
    path : path
        The npz file.
    images, labels : str, default "x_train" and "y_train"
        Names of the arrays.
    classes : sequence of int, optional
        Classes to keep; all by default.

    Returns
    -------
    TableTask
        Labels are ±1 for two classes and one-hot columns for more.

    Raises
    ------
    UnlazyError
        If the file cannot be read, lacks an array, or the arrays have different lengths.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from unlazy.tasks import npz_images
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "images.npz")
    ...     np.savez(path, x_train=np.zeros((4, 2, 2), np.uint8), y_train=np.array([0, 1, 0, 1]))
    ...     task = npz_images(path)
    >>> task.X.shape, task.y.tolist()
    ((4, 4), [-1.0, 1.0, -1.0, 1.0])
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in (images, labels) if name not in file]
            if missing:
                raise UnlazyError(f"{path} has no array {missing[0]!r}; it has {', '.join(file.files)}")
            pixels, targets = file[images], file[labels]
    except (OSError, ValueError) as problem:
        raise UnlazyError(f"cannot read {path} as npz: {problem}") from None
    if len(pixels) != len(targets):
        raise UnlazyError(f"{path} has {len(pixels)} images and {len(targets)} labels")
    return labeled_images(_unit_range(pixels.reshape(len(pixels), -1)), targets.ravel(), classes)


def labeled_images(X: np.ndarray, labels: np.ndarray, classes: Sequence[int] | None = None) -> TableTask:
    """Keep the chosen classes: labels -1 and +1 for two classes, one-hot columns for more."""
    known = np.unique(labels)
    chosen = known if classes is None else np.asarray(classes)
    absent = [c for c in chosen if c not in known]
    if absent or len(chosen) < 2 or len(set(chosen.tolist())) < len(chosen):
        raise ValueError(f"choose two or more different classes of {known.tolist()}, got {chosen.tolist()}")
    keep = np.isin(labels, chosen)
    one_hot = (labels[keep][:, None] == chosen[None, :]).astype(float)
    return TableTask(X[keep], one_hot[:, 1] - one_hot[:, 0] if len(chosen) == 2 else one_hot)


def read_idx(path: str | Path) -> np.ndarray:
    """Read the array of an idx file: two zero bytes, a type byte, the number of axes, their sizes, the values."""
    try:
        raw = Path(path).read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError) as problem:
        raise UnlazyError(f"cannot read {path}: {problem}") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise UnlazyError(f"{path} is not an idx file (its first bytes are {raw[:4].hex()})")
    axes, dtype = raw[3], np.dtype(_IDX_TYPES[raw[2]])
    start = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", raw[4:start]) if len(raw) >= start else ()
    if len(raw) < start or len(raw) - start != math.prod(shape) * dtype.itemsize:
        raise UnlazyError(f"{path} is truncated or damaged: its header says {shape}, the file has {len(raw)} bytes")
    return np.frombuffer(raw, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def _unit_range(pixels: np.ndarray) -> np.ndarray:
    """Scale bytes to [0, 1]; leave other dtypes unchanged."""
    return pixels / 255.0 if pixels.dtype == np.uint8 else np.asarray(pixels, float)
