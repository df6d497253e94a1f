"""Tables with one planted identifier or leak, and tables without any, for the detection of suspects."""

import uuid
from collections.abc import Callable

import numpy as np
import pandas as pd

from unlazy.core.errors import UnlazyError

Rng = np.random.Generator
SIZES = (40, 90, 240, 600)


def numeric_target(rng: Rng, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Three informative inputs of which none explains more than half, an integer and a category; noise."""
    frame = pd.DataFrame(rng.normal(size=(n, 3)), columns=["size", "width", "density"])
    frame["rooms"], frame["color"] = rng.integers(1, 9, n), rng.choice(["red", "green", "blue"], n)
    y = frame["size"] + frame["width"] ** 2 - frame["density"] + 0.3 * frame["rooms"] + 0.4 * rng.normal(size=n)
    return frame, y.to_numpy()


def class_target(rng: Rng, n: int, classes: int = 3) -> tuple[pd.DataFrame, np.ndarray]:
    """The same inputs; classes are quantiles of that target."""
    frame, y = numeric_target(rng, n)
    classes = min(classes, n // 10)  # enough rows of each
    codes = np.searchsorted(np.quantile(y, np.arange(1, classes) / classes), y)
    return frame, np.array([f"class {k}" for k in range(classes)])[codes]


def codes_of(y: np.ndarray) -> np.ndarray:
    """Class codes."""
    return np.unique(y, return_inverse=True)[1]


def in_gaps(rng: Rng, n: int) -> np.ndarray:
    """Increasing row numbers of which a tenth is missing."""
    return np.sort(rng.permutation(n + n // 10)[:n]) + 1


def shuffled(rng: Rng, n: int, start: int = 1) -> np.ndarray:
    """Consecutive integers in random order."""
    return rng.permutation(n) + start


def sparse(rng: Rng, n: int) -> np.ndarray:
    """Distinct integers of six digits."""
    return rng.choice(900_000, n, replace=False) + 100_000


IDENTIFIERS: dict[str, Callable[[Rng, int], object]] = {
    "id": lambda rng, n: shuffled(rng, n),
    "ID": sparse,
    "PassengerId": lambda rng, n: np.arange(1, n + 1),
    "customer_id": lambda rng, n: np.where(np.arange(n) % 20 == 7, 1001, shuffled(rng, n, 1000)),  # some come twice
    "rownames": lambda rng, n: np.arange(1, n + 1).astype(str),
    "Unnamed: 0": in_gaps,
    "row": lambda rng, n: np.arange(n),
    "index": lambda rng, n: np.arange(n)[::-1],
    "case number": sparse,
    "obs": lambda rng, n: shuffled(rng, n, 0),
    "v7": lambda rng, n: np.arange(1, n + 1),
    "v8": lambda rng, n: shuffled(rng, n),
    "X": in_gaps,
    "ref": sparse,
    "uuid": lambda rng, n: [str(uuid.UUID(bytes=rng.bytes(16))) for _ in range(n)],
    "code": lambda rng, n: [f"A{k:05d}" for k in shuffled(rng, n)],
    "sampleNo": lambda rng, n: np.where(np.arange(n) % 9 == 4, np.nan, shuffled(rng, n)),
}
LEAKS: dict[str, Callable[[Rng, np.ndarray], object]] = {
    "noisy copy": lambda rng, y: y + 0.01 * y.std() * rng.normal(size=len(y)),
    "scaled": lambda rng, y: 3 - 2.5 * y,
    "exponential": lambda rng, y: np.exp((y - y.max()) / (2 * y.std())),
    "cube": lambda rng, y: (y - y.min()) ** 3,
    "rank": lambda rng, y: np.argsort(np.argsort(y)) / len(y),
    "reciprocal": lambda rng, y: 1 / (y - y.min() + 1),
    "rounded": lambda rng, y: np.round(4 * y),
    "in thirty bands": lambda rng, y: np.searchsorted(np.quantile(y, np.arange(1, 30) / 30), y),
    "five bands": lambda rng, y: np.array(list("dbeac"))[np.searchsorted(np.quantile(y, [0.2, 0.4, 0.6, 0.8]), y)],
    "flag": lambda rng, y: (y > np.quantile(y, 0.7)).astype(int),
    "clipped": lambda rng, y: np.minimum(y, np.median(y)),
    "with gaps": lambda rng, y: np.where(rng.random(len(y)) < 0.2, np.nan, 2 * y + 1),
}
ZEROS = "of a target with many zeros"
CLASS_LEAKS: dict[str, Callable[[Rng, np.ndarray], object]] = {
    "class code": lambda rng, y: codes_of(y),
    "other code": lambda rng, y: rng.permutation(50)[codes_of(y)],
    "text code": lambda rng, y: np.array([f"k{c}" for c in rng.permutation(50)])[codes_of(y)],
    "score": lambda rng, y: codes_of(y) + 0.05 * rng.normal(size=len(y)),
    "subclass": lambda rng, y: rng.permutation(300)[3 * codes_of(y) + rng.integers(0, 3, len(y))],
    "known for one class": lambda rng, y: np.where(codes_of(y) == 1, rng.normal(size=len(y)), np.nan),
}


def planted(number: int) -> tuple[str, pd.DataFrame, np.ndarray]:
    """One table with a planted column: its name, the inputs in random order, and the target."""
    kinds = [*((name, "id") for name in IDENTIFIERS), *((name, "leak") for name in [*LEAKS, ZEROS]),
             *((name, "class leak") for name in CLASS_LEAKS)]  # fmt: skip
    name, kind = kinds[number % len(kinds)]
    rng = np.random.default_rng([1, number])
    n = SIZES[int(rng.integers(len(SIZES)))]
    if kind == "class leak":
        classes = 2 if "one class" in name else int(rng.choice([2, 3, 5, 30 if n >= 600 else 4]))
        frame, y = class_target(rng, n, classes)
        column = CLASS_LEAKS[name](rng, y)
    elif kind == "leak":
        frame, y = numeric_target(rng, n)
        if name == ZEROS:
            y = np.maximum(y - np.median(y), 0)
            column = 5 * y + 1e-3 * rng.normal(size=n)
        else:
            y = np.sinh(1.5 * (y - y.mean()) / y.std()) if number % 2 else y  # heavy tails
            column = LEAKS[name](rng, y)
    else:
        frame, y = (numeric_target, class_target)[number % 2](rng, n)
        if name == "rownames":  # rows in the order of the target, as in a file of one class after the other
            order = np.argsort(y, kind="stable")
            frame, y = frame.iloc[order].reset_index(drop=True), y[order]
        column = IDENTIFIERS[name](rng, n)
    frame[name] = column
    return name, frame[list(rng.permutation(frame.columns))], y


def series(rng: Rng, n: int, name: str, first: float = 0, step: float = 1, trend: float = 1.0):
    """A table in the order of an equally spaced column, on which the target depends."""
    frame, y = numeric_target(rng, n)
    frame[name] = first + step * np.arange(n)
    return frame, y + trend * y.std() * np.sin(np.arange(n) / n * 4)


def explained(rng: Rng, n: int, share: float, curve: Callable = lambda x: x):
    """A table in which one input explains this share of the variance."""
    frame, _ = numeric_target(rng, n)
    x = curve(frame["size"].to_numpy())
    return frame, x / x.std() * np.sqrt(share) + np.sqrt(1 - share) * rng.normal(size=n)


def with_column(rng: Rng, n: int, name: str, values: object, classes: int = 0):
    """A table with one more column, which is uninformative."""
    frame, y = class_target(rng, n, classes) if classes else numeric_target(rng, n)
    return frame.assign(**{name: values}), y


def separated(rng: Rng, n: int, mistakes: float, classes: int = 2):
    """Classes that one input separates but for a share of mistakes."""
    frame, _ = numeric_target(rng, n)
    x, classes = frame["size"].to_numpy(), min(classes, n // 12)
    code = np.searchsorted(np.quantile(x, np.arange(1, classes) / classes), x)
    wrong = rng.permutation(n)[: max(3, round(mistakes * n))]
    code[wrong] = (code[wrong] + rng.integers(1, classes, len(wrong))) % classes
    return frame, np.array(list("abcdefgh"))[code]


CLEAN: tuple[Callable[[Rng, int], tuple[pd.DataFrame, np.ndarray]], ...] = (
    numeric_target,
    class_target,
    lambda rng, n: class_target(rng, n, 2),
    lambda rng, n: series(rng, n, "time"),
    lambda rng, n: series(rng, n, "day", 1),
    lambda rng, n: series(rng, n, "Year", 1900),
    lambda rng, n: series(rng, n, "dose", 0, 0.5, trend=3.0),
    lambda rng, n: series(rng, n, "dose_mg", 1, 1, trend=5.0),
    lambda rng, n: series(rng, n, "hours elapsed", 0, 2),
    lambda rng, n: series(rng, n, "temperature", 250, 1),
    lambda rng, n: series(rng, n, "t", trend=0.0),
    lambda rng, n: (pd.DataFrame({"year": np.arange(n), "x": rng.normal(size=n)}), np.arange(n) + rng.normal(size=n)),
    lambda rng, n: explained(rng, n, 0.9),
    lambda rng, n: explained(rng, n, 0.9, np.exp),
    lambda rng, n: explained(rng, n, 0.93, np.tanh),
    lambda rng, n: explained(rng, n, 0.995, np.square),  # strong, but not monotone
    lambda rng, n: explained(rng, n, 0.99, lambda x: np.sin(3 * x)),
    lambda rng, n: explained(rng, n, 0.0),
    lambda rng, n: (
        pd.DataFrame({"kind": np.arange(n) % 2, "x": rng.normal(size=n)}),
        np.arange(n) % 2 * 3 + rng.random(n),
    ),
    lambda rng, n: separated(rng, n, 0.1),
    lambda rng, n: separated(rng, n, 0.1, 4),
    lambda rng, n: with_column(rng, n, "population", rng.choice(80_000, n, replace=False)),
    lambda rng, n: with_column(rng, n, "salary", 100 * rng.choice(900, n, replace=False), 3),
    lambda rng, n: with_column(rng, n, "number of steps", rng.choice(20_000, n, replace=False)),
    lambda rng, n: with_column(rng, n, "body mass index", np.round(rng.normal(25, 4, n), 1)),
    lambda rng, n: with_column(rng, n, "citric acid", rng.integers(0, 100, n)),
    lambda rng, n: with_column(rng, n, "rank", rng.permutation(n) + 1),
    lambda rng, n: with_column(rng, n, "store_id", rng.integers(0, 9, n)),
    lambda rng, n: with_column(rng, n, "key", rng.integers(0, 12, n), 4),
    lambda rng, n: with_column(rng, n, "NO", rng.integers(5, 60, n)),
    lambda rng, n: with_column(rng, n, "town", rng.choice([f"town {k}" for k in range(15)], n)),
    lambda rng, n: with_column(rng, n, "zip", 10_000 + rng.integers(0, 30, n)),
    lambda rng, n: with_column(rng, n, "smoker", rng.integers(0, 2, n), 2),
    lambda rng, n: with_column(rng, n, "age", rng.integers(18, 80, n), 2),
    lambda rng, n: with_column(rng, n, "income", np.exp(rng.normal(10, 1, n))),
    lambda rng, n: with_column(rng, n, "score", np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n)), 3),
)


def clean(number: int) -> tuple[pd.DataFrame, np.ndarray]:
    """One table without identifiers and leaks; every fifth has only 30 rows."""
    rng = np.random.default_rng([2, number])
    n = 30 if number % 5 == 4 else SIZES[int(rng.integers(len(SIZES)))]
    return CLEAN[number % len(CLEAN)](rng, n)


def missed(name: str, frame: pd.DataFrame, y: np.ndarray) -> bool:
    """Whether the planted column is still an input, neither refused by `make_table` nor a suspect."""
    from unlazy.comparison.data.leakage import find_suspects
    from unlazy.comparison.data.table import make_table

    try:
        table = make_table(frame, y)
    except UnlazyError as error:  # text with a value per row
        return f"column {name!r}" not in str(error)
    return name in table.frame.columns and name not in {s.name for s in find_suspects(table)}
