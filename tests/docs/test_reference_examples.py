"""Every example of the reference runs, and says what stands below it where something does."""

import doctest
import importlib
import inspect
import pkgutil

import numpy as np
import pytest

import unlazy

SKIPPED = ("unlazy.cli", "unlazy.lab.experiments")
"""Subpackages without examples."""
ELSEWHERE = {
    "unlazy.estimators.persistence.registry.register",  # a class is cut short there; the guide has all of it
    "unlazy.training.rich.limit.rich_limit",  # minutes at its own settings; the theorist's cookbook has a smaller one
}


def examples():
    found = []
    for info in pkgutil.walk_packages(unlazy.__path__, "unlazy."):
        if not info.name.startswith(SKIPPED):
            module = importlib.import_module(info.name)
            found += [t for t in doctest.DocTestFinder(exclude_empty=True).find(module) if t.examples]
    return {t.name: t for t in found if t.name not in ELSEWHERE}


def names():
    """What an example may take for granted: points, labels, kernels, and everything that has a name at the top."""
    import jax
    import jax.numpy as jnp
    import pandas as pd
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline

    from unlazy.estimators.preprocessing.table_encoder import TableEncoder

    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(60, 3)), rng.normal(size=(5, 3))
    y, network = np.sin(X[:, 0]), unlazy.MLP(1, "relu", sigma_b=0.5)
    labels = (y > 0).astype(int)
    given = {name: getattr(unlazy, name) for name in unlazy.__all__}
    given |= {name: getattr(unlazy.layers, name) for name in ("Dense", "Shape", "myrtle")}
    return given | {
        "unlazy": unlazy, "jax": jax, "jnp": jnp, "np": np, "make_pipeline": make_pipeline, "RidgeCV": RidgeCV,
        "TableEncoder": TableEncoder, "X": X, "Z": Z, "y": y, "labels": labels, "one_hot": np.eye(2)[labels],
        "kernel": unlazy.Gaussian(1.0), "network": network, "key": jax.random.key(0),
        "coefficients": rng.normal(size=5), "images": rng.normal(size=(4, 3)),
        "frame": pd.DataFrame(X, columns=list("abc")),
        "model": unlazy.KernelRegressor().fit(X, y),
    }  # fmt: skip


class _Said(doctest.OutputChecker):
    def check_output(self, want, got, optionflags):
        return want == "" or super().check_output(want, got, optionflags)


@pytest.mark.slow
def test_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one of them saves a file
    known, problems = names(), []
    for name, test in examples().items():
        test.globs = {**known, **test.globs}
        runner = doctest.DocTestRunner(_Said(), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
        if runner.run(test, out=problems.append).failed:
            problems.append(name)
    assert not problems, "".join(problems)


@pytest.mark.slow
def test_every_name_at_the_top_says_what_it_is():
    bare = [n for n in unlazy.__all__ if not (getattr(unlazy, n).__doc__ or "").strip() and n != "__version__"]
    assert bare == []


def test_every_name_at_the_top_has_an_example():
    callable_ = [n for n in unlazy.__all__ if callable(getattr(unlazy, n))]
    assert [n for n in callable_ if ">>>" not in inspect.getdoc(getattr(unlazy, n))] == []
