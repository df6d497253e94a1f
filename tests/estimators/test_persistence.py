"""Saved estimators predict the same bits; a file that differs from what was saved is rejected and runs no code."""

import functools
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import joblib
import numpy as np
import pandas as pd
import pytest
from estimator_roster import NAMES, data, light_first, make, output, target
from jaxtyping import Array, Float
from safetensors.numpy import save as to_bytes
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    OneHotEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

import unlazy
from unlazy.core.errors import UnlazyError, UnlazyWarning
from unlazy.estimators.kernel import KernelClassifier, KernelRegressor
from unlazy.estimators.persistence import files, registry
from unlazy.estimators.persistence.serialization import Decoder, Encoder
from unlazy.estimators.preprocessing.table_encoder import TableEncoder
from unlazy.kernels.base import InnerProductKernel
from unlazy.kernels.metric import with_metric
from unlazy.kernels.networks.infinite_width import LayerKernel
from unlazy.theory.activations.functions import activation

MUTATIONS = 200


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A classifier with text labels and named columns, and its file."""
    X, y = data()
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    path = tmp_path_factory.mktemp("models") / "model.unlazy"
    KernelClassifier().fit(table, target("KernelClassifier", y)).save(path)
    return path, path.read_bytes()


@pytest.mark.slow_cases("FeatureMachineClassifier", "FeatureMachineRegressor", "GaussianProcess", "KernelRegressor")
@pytest.mark.parametrize("name", light_first(NAMES))
def test_predictions_are_bitwise_equal_after_loading(name, tmp_path):
    X, y = data()
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    model = make(name).fit(table, target(name, y))
    expected = output(model, table)
    path = tmp_path / "model"
    model.save(path)
    buffer = io.BytesIO()
    joblib.dump(model, buffer)
    buffer.seek(0)
    for again in (unlazy.load(path), pickle.loads(pickle.dumps(model)), joblib.load(buffer)):
        assert type(again) is type(model) and again.get_params() == model.get_params()
        found = output(again, table)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        assert list(again.feature_names_in_) == ["a", "b", "c"]


def kernels():
    network = unlazy.MLP(3, "gelu", sigma_w=(1.0, 1.5, 1.0, 0.5), sigma_b=0.3, residual=0.5, width=64)
    rng = np.random.default_rng(0)
    L = jnp.asarray(rng.normal(size=(3, 3)))
    return {
        "ntk": unlazy.NTK(network),
        "layers": LayerKernel(unlazy.MLP(1), (0.5, 1.0), (0.0, 1.0)),
        "metric": with_metric(unlazy.NTK(network), L @ L.T),
        "diagonal": with_metric(unlazy.Laplace(2.0), jnp.array([1.0, 0.1, 3.0])),
        "sum": 2.0 * unlazy.Gaussian(1.5) + unlazy.Matern(0.7, 2.5) * unlazy.Polynomial(3),
        "grams": 0.5 * unlazy.ProductLaplace(jnp.array([1.0, 2.0, 3.0])) + unlazy.NNGP(network),
        "leaky": unlazy.NNGP(unlazy.MLP(2, activation("leaky_relu", 0.2))),
        "arc": unlazy.ArcCosine(2) + unlazy.Linear(1.0) + unlazy.RationalQuadratic(2.0, 3.0),
    }


@pytest.mark.parametrize("which", ["ntk", "layers", "metric", "diagonal", "sum", "grams", "leaky", "arc"])
def test_kernels_by_value(which, x64):
    """Every field round-trips bitwise, at any nesting."""
    kernel = kernels()[which]
    encoder = Encoder()
    tree = json.loads(json.dumps(encoder.encode(kernel, "kernel")))
    again = Decoder(encoder.arrays, files.FORMAT).decode(tree)
    assert jax.tree.structure(again) == jax.tree.structure(kernel)
    for left, right in zip(jax.tree.leaves(again), jax.tree.leaves(kernel)):
        assert type(left) is type(right)
        np.testing.assert_array_equal(left, right)


def test_values_without_a_json_form():
    values = {
        "tuple": (1, (2.5, None), [True]), "nan": float("nan"), "big": -(2**70), "inf": -np.inf,
        "table": {"a": 1, 2: slice(1, None)}, "single": np.float32(0.1), "whole": np.int64(3), "type": np.float32,
        "mixed": np.array(["x", None, 1.5], object), "empty": np.zeros((0, 2)), "point": np.array(2.0),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "flags": np.array([True, False]),
        "text": np.array(["ä", "bb"]),
    }  # fmt: skip
    encoder = Encoder()
    again = Decoder(encoder.arrays, files.FORMAT).decode(json.loads(json.dumps(encoder.encode(values, "values"))))
    assert list(again) == list(values)
    for name, value in values.items():
        assert type(again[name]) is type(value), name
        if isinstance(value, np.ndarray):
            assert again[name].dtype == value.dtype and again[name].flags.c_contiguous == value.flags.c_contiguous
            np.testing.assert_array_equal(again[name], value)
        elif name != "nan":
            assert again[name] == value
    assert np.isnan(again["nan"])


def test_a_pipeline_with_encoders(tmp_path):
    X, y = data()
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(color=np.where(X[:, 2] > 0, "red", "blue"))
    table.loc[3, "a"] = np.nan
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["a", "b", "c"]),
            ("words", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["color"]),
        ]
    )
    model = make_pipeline(columns, KernelRegressor()).fit(table, y)
    files.save(model, tmp_path / "pipeline")
    again = unlazy.load(tmp_path / "pipeline")
    np.testing.assert_array_equal(again.predict(table), model.predict(table))
    model.set_params(memory=str(tmp_path))
    with pytest.raises(UnlazyError, match="memory"):  # joblib unpickles from such a folder
        files.save(model, tmp_path / "pipeline")


@pytest.mark.parametrize("step", [
    MaxAbsScaler(), RobustScaler(), PowerTransformer(), QuantileTransformer(n_quantiles=8), PolynomialFeatures(),
    PCA(2), FunctionTransformer(np.arcsinh), SimpleImputer(add_indicator=True), "passthrough",
    TableEncoder().set_output(transform="pandas"),
    ColumnTransformer([("first", StandardScaler(), [0])], remainder="passthrough"),
], ids=lambda step: step if isinstance(step, str) else type(step).__name__)  # fmt: skip
def test_pipelines_with_one_step(step, tmp_path):
    X, y = data()
    model = make_pipeline(step, KernelRegressor("gaussian", bandwidth=2.0, ridge=0.1)).fit(X, y)
    unlazy.save(model, tmp_path / "pipeline")
    again = unlazy.load(tmp_path / "pipeline")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(unlazy.predict_interval(again, X, 0.8), unlazy.predict_interval(model, X, 0.8))


def test_targets_are_transformed_by_functions_of_numpy_alone(tmp_path):
    X, y = data()
    model = TransformedTargetRegressor(KernelRegressor(), func=np.arcsinh, inverse_func=np.sinh).fit(X, y)
    unlazy.save(model, tmp_path / "model")
    np.testing.assert_array_equal(unlazy.load(tmp_path / "model").predict(X), model.predict(X))
    model = TransformedTargetRegressor(KernelRegressor(), func=np.frompyfunc(abs, 1, 1), inverse_func=np.sinh)
    with pytest.raises(UnlazyError, match=r"func is the function .* only the names of the NumPy functions log,"):
        unlazy.save(model, tmp_path / "model")


def test_other_transformers_are_named_with_those_that_files_hold(tmp_path):
    model = make_pipeline(KBinsDiscretizer(2, quantile_method="averaged_inverted_cdf"), KernelRegressor())
    with pytest.raises(UnlazyError, match=r"is a KBinsDiscretizer, which cannot be saved without pickle: .*Pipeline"):
        unlazy.save(model, tmp_path / "model")


def mutants(content: bytes):
    """Bytes changed, cut off, put in, swapped, headers replaced."""
    rng = np.random.default_rng(0)
    header = 8 + int.from_bytes(content[:8], "little")
    for i in range(MUTATIONS):
        raw = bytearray(content)
        kind = i % 8
        if kind == 0:  # one bit anywhere
            raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
        elif kind == 1:  # one byte of the header
            at = int(rng.integers(header))
            raw[at] = (raw[at] + int(rng.integers(1, 256))) % 256
        elif kind == 2:
            raw = raw[: rng.integers(len(raw))]
        elif kind == 3:
            raw += rng.bytes(int(rng.integers(1, 64)))
        elif kind == 4:  # another length of the header
            raw[:8] = int(rng.integers(0, 2 ** int(rng.integers(1, 62)))).to_bytes(8, "little")
        elif kind == 5:
            at, count = int(rng.integers(len(raw))), int(rng.integers(1, 200))
            raw[at : at + count] = rng.bytes(count)
        elif kind == 6:  # a stretch taken out
            at = int(rng.integers(len(raw) - 1))
            del raw[at : at + int(rng.integers(1, 100))]
        else:
            raw = bytearray(rng.bytes(int(rng.integers(0, 300))))
        if bytes(raw) != content:
            yield bytes(raw)


def test_mutated_files_raise_unlazy_error(saved, tmp_path):
    path, content = saved
    unlazy.load(path)
    count = 0
    for raw in mutants(content):
        (tmp_path / "mutant").write_bytes(raw)
        with pytest.raises(UnlazyError, match="mutant"):
            unlazy.load(tmp_path / "mutant")
        count += 1
    assert count == MUTATIONS


def forged(tree, arrays=None, **changes):
    """A file with a right checksum around any tree."""
    versions = {"format": files.FORMAT, "unlazy": files.VERSION, "scikit-learn": "0"}
    document = {**versions, "tree": tree, **changes}
    metadata = {"unlazy": json.dumps(document), "unlazy_checksum": "0" * 64}
    content = to_bytes(arrays or {"t0": np.zeros(2)}, metadata)
    return content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1)


def estimator(**fitted):
    return {"#": "estimator", "class": "KernelRegressor", "given": {}, "fitted": fitted}


@pytest.mark.filterwarnings("ignore::unlazy.core.errors.UnlazyWarning")
@pytest.mark.parametrize(
    "tree",
    [
        {"#": "estimator", "class": "Popen", "given": {"args": ["touch", "hacked"]}, "fitted": {}},
        {"#": "estimator", "class": "os.system", "given": {}, "fitted": {}},
        {"#": "module", "class": "MLP", "fields": {"depth": 2}},
        estimator(__class__={"#": "type", "v": "float64"}),
        estimator(predict=1),
        estimator(__init__=1),
        estimator(x_={"#": "module", "class": "MLP", "fields": {"depth": 10**9, "sigma_w": 1.0, "sigma_b": 0.0}}),
        estimator(x_={"#": "module", "class": "Gaussian", "fields": {"bandwidth": -1.0}}),
        estimator(x_={"#": "activation", "name": "eval", "parameter": None}),
        estimator(x_={"#": "array", "v": "absent", "order": "C", "scalar": False}),
        estimator(x_={"#": "pickle", "v": "gASVBQAAAAAAAACMAWGULg=="}),
        estimator(x_={"#": "dtype", "v": "V8"}),
        {"#": "estimator", "class": "KernelRegressor", "given": {"no_such": 1}, "fitted": {}},
        {"#": "estimator", "class": "Pipeline", "given": {"steps": [], "memory": "cache"}, "fitted": {}},
        {"#": "estimator", "class": ["KernelRegressor"], "given": {}, "fitted": {}},
        {"#": "array", "v": "t0", "order": "C", "scalar": False},
        [], None, 3, "text", {},
    ],
)  # fmt: skip
def test_forged_trees_construct_nothing(tree, tmp_path):
    """A valid checksum is not enough: only registered classes, only fitted attributes, only known kinds."""
    (tmp_path / "forged").write_bytes(forged(tree))
    before = set(os.listdir())
    with pytest.raises(UnlazyError, match="does not describe an estimator"):
        unlazy.load(tmp_path / "forged")
    assert set(os.listdir()) == before


def test_deep_nesting_is_an_error_not_a_crash(tmp_path):
    for depth in (2_000, 200_000):
        raw = '{"format":1,"unlazy":"0.1.0","tree":' + "[" * depth + "]" * depth + "}"
        content = to_bytes({"t0": np.zeros(2)}, {"unlazy": raw, "unlazy_checksum": "0" * 64})
        content = content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1)
        (tmp_path / "deep").write_bytes(content)
        with pytest.raises(UnlazyError):
            unlazy.load(tmp_path / "deep")


def test_versions(tmp_path):
    (tmp_path / "new").write_bytes(forged(estimator(), format=files.FORMAT + 1, unlazy="9.0"))
    with pytest.raises(UnlazyError, match=rf"format {files.FORMAT + 1} .unlazy 9.0.*upgrade"):
        unlazy.load(tmp_path / "new")
    (tmp_path / "new").write_bytes(forged(estimator(), unlazy="9.0"))
    with pytest.warns(UnlazyWarning, match="newer"):
        assert isinstance(unlazy.load(tmp_path / "new"), KernelRegressor)


def test_other_files(tmp_path):
    with pytest.raises(UnlazyError, match=r"cannot read .*absent"):
        unlazy.load(tmp_path / "absent")
    (tmp_path / "tensors").write_bytes(to_bytes({"w": np.zeros(3)}))
    (tmp_path / "pickle").write_bytes(pickle.dumps({"a": 1}))
    (tmp_path / "empty").write_bytes(b"")
    for name in ("tensors", "pickle", "empty"):
        with pytest.raises(UnlazyError, match="is not a file that unlazy saved"):
            unlazy.load(tmp_path / name)


def test_code_is_rejected_when_saving(tmp_path):
    X, y = data()
    model = KernelRegressor(unlazy.NNGP(unlazy.MLP(1, lambda x: x)))
    with pytest.raises(UnlazyError, match=r"KernelRegressor.kernel.*a custom function"):
        model.save(tmp_path / "model")
    model = KernelRegressor().fit(X, y)
    model.extra_ = print
    with pytest.raises(UnlazyError, match=r"KernelRegressor.extra_ .*no code"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UnlazyError, match="cannot write"):
        KernelRegressor().fit(X, y).save(tmp_path / "no" / "folder")


@pytest.mark.slow
def test_loading_needs_no_pickle(saved):
    """In a fresh interpreter where pickle refuses to load anything."""
    code = (
        "import pickle, sys\n"
        "def no(*a, **k): raise SystemExit('pickle was used')\n"
        "import unlazy, joblib\n"
        "pickle.load = pickle.loads = pickle._loads = pickle.Unpickler = no\n"
        "print(unlazy.load(sys.argv[1]).classes_)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(saved[0])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "high" in done.stdout


class Own(InnerProductKernel):
    """(1 + x·z/s)^p of a user."""

    scale: Float[Array, ""] | float
    power: int = eqx.field(static=True, default=2)

    def entry(self, xz, xx, zz):
        return (1 + xz / self.scale) ** self.power


def test_a_user_defined_kernel_is_saved_once_registered(tmp_path, monkeypatch):
    X = np.random.default_rng(0).normal(size=(12, 2))
    model = KernelRegressor(2.0 * Own(3.0, 3)).fit(X, X[:, 0])
    with pytest.raises(UnlazyError, match=r"is a Own, which cannot be saved.*unlazy.estimators.register\(Own\)"):
        model.save(tmp_path / "own")
    monkeypatch.setattr(registry, "_REGISTERED", {})
    assert unlazy.estimators.register(Own) is Own
    model.save(tmp_path / "own")
    back = unlazy.load(tmp_path / "own")
    np.testing.assert_array_equal(back.predict(X), model.predict(X))
    assert eqx.tree_equal(back.kernel, model.kernel)
    monkeypatch.setattr(registry, "_REGISTERED", {})
    with pytest.raises(
        UnlazyError, match=r"holds a 'Own', which is not a class of unlazy: .*register on it before load"
    ):
        unlazy.load(tmp_path / "own")


def test_only_kernels_are_registered_and_no_name_twice(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", {})
    for wrong in (3, Own(1.0), int, KernelRegressor):
        with pytest.raises(ValueError, match="a kernel class"):
            registry.register(wrong)
    with pytest.raises(ValueError, match="'Gaussian' is already used"):
        registry.register(Own, "Gaussian")
    registry.register(Own)
    registry.register(Own)  # a cell of a notebook, run again
    other = type("Own", (Own,), {"__module__": "elsewhere"})
    with pytest.raises(ValueError, match="is already registered as 'Own'"):
        registry.register(other)


def test_files_of_format_1_have_relative_ridges_under_their_old_name(tmp_path):
    given = {"bandwidth": 2.0, "ridge": 0.1, "updates": 3}
    tree = {"#": "estimator", "class": "FeatureMachineRegressor", "given": given, "fitted": {"ridge_": 0.1}}
    (tmp_path / "old").write_bytes(forged(tree, format=1))
    back = unlazy.load(tmp_path / "old")
    assert (back.relative_bandwidth, back.relative_ridge, back.relative_ridge_) == (2.0, 0.1, 0.1)
    assert not hasattr(back, "ridge_")
    (tmp_path / "new").write_bytes(forged(tree))
    with pytest.raises(UnlazyError, match="is relative and was renamed"):
        unlazy.load(tmp_path / "new")


@pytest.mark.parametrize(
    "function",
    [jax.nn.elu, jnp.sign, functools.partial(jax.nn.gelu, approximate=False), "tanh", jnp.tanh],
    ids=["elu", "sign", "gelu", "name", "tanh"],
)
def test_known_functions_of_jax_are_saved_by_their_path(function):
    encoder = Encoder()
    tree = json.loads(json.dumps(encoder.encode(activation(function), "here")))
    assert Decoder(encoder.arrays, files.FORMAT).decode(tree) == activation(function)


def test_a_user_function_with_a_known_name_is_not_saved_by_that_name():
    def relu(x):
        return 2 * x

    with pytest.raises(UnlazyError, match="a custom function"):
        Encoder().encode(activation(relu), "here")


def test_files_of_format_3_have_other_names_of_two_parameters(tmp_path):
    tree = {"#": "estimator", "class": "GaussianProcess", "given": {"noise": 0.5}, "fitted": {}}
    (tmp_path / "old").write_bytes(forged(tree, format=3))
    assert unlazy.load(tmp_path / "old").relative_noise_variance == 0.5
    tree = {"#": "estimator", "class": "FeatureMachineClassifier", "given": {"categories": ["a", 2]}, "fitted": {}}
    (tmp_path / "old").write_bytes(forged(tree, format=3))
    assert unlazy.load(tmp_path / "old").categorical == ["a", 2]
    (tmp_path / "new").write_bytes(forged(tree))
    with pytest.raises(UnlazyError, match="categories"):
        unlazy.load(tmp_path / "new")


def test_a_progress_callback_is_not_saved(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = unlazy.KernelRegressor("gaussian", progress=print).fit(X, X[:, 0])
    model.save(tmp_path / "model")
    again = unlazy.load(tmp_path / "model")
    assert again.progress is False and np.array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize("name", ["kernel_regressor", "network_regressor", "feature_machine", "two_layer", "zca"])
def test_files_of_format_2_load_and_predict_the_same(name):
    """Saved before parameters and attributes were spelled the American way (tests/data/README.md)."""
    folder = Path(__file__).resolve().parents[1] / "data" / "format_2"
    expected = np.load(folder / "expected.npz")
    model, X = unlazy.load(folder / f"{name}.unlazy"), expected["X"]
    found = model.transform(X.reshape(30, 3, 1, 1)) if name == "zca" else model.predict(X)
    # the same arithmetic in float32 at worst, on another machine
    np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-6)
