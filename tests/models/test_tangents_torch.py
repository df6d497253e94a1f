"""Rows of Jacobians and products with many vectors of PyTorch networks, against its backward passes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from unlazy.models import as_model  # noqa: E402
from unlazy.models.tangents import tangent_map  # noqa: E402

TOLERANCE = 2e-5
"""Float32, hundreds of terms."""


class Recurrent(torch.nn.Module):
    """Cannot be mapped over points."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = torch.nn.LSTM(3, 4, batch_first=True), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Convolutional(torch.nn.Module):
    """Changes values in place, has statistics, and returns a dictionary."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Linear(27, 2)

    def forward(self, x):
        h = torch.nn.functional.relu(self.norm(self.conv(x)), inplace=True)
        return {"logits": self.head(h.flatten(1)), "hidden": h}


NETWORKS = {
    "mlp": (lambda: torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)), (6, 3)),
    "recurrent": (Recurrent, (6, 4, 3)),
    "convolutional": (Convolutional, (6, 1, 5, 5)),
    "attention": (lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (6, 2, 4)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_products_are_those_of_the_jacobian(name):
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    module, X = make(), torch.randn(shape)
    model = as_model(module)
    tangents = tangent_map(model)
    flags = [part.training for part in module.modules()]
    outputs = model.apply(model.params, X)
    m, c = outputs.shape
    J = tangents.rows(X, np.broadcast_to(np.eye(c), (m, c, c))).numpy()
    direct = np.stack([
        np.concatenate([g.numpy().ravel() for g in model.vjp(model.params, u.reshape(m, c), X).values()])
        for u in np.eye(m * c)
    ])  # fmt: skip
    scale = np.abs(direct).max()
    np.testing.assert_allclose(J, direct, atol=TOLERANCE * scale)
    rng = np.random.default_rng(0)
    U, T = rng.normal(size=(20, m, c)), rng.normal(size=(20, tangents.size))
    pulled = tangents.pull(X, U).numpy()
    np.testing.assert_allclose(pulled, U.reshape(20, -1) @ direct, atol=TOLERANCE * scale * np.sqrt(m * c))
    pushed = tangents.push(X, tangents.to_device(T)).reshape(20, -1)
    np.testing.assert_allclose(pushed, T @ direct.T, atol=TOLERANCE * scale * np.sqrt(tangents.size))
    assert [part.training for part in module.modules()] == flags


def test_some_layers():
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    tangents = tangent_map(as_model(module), ["2"])
    assert tangents.size == 12
    moved = tangents.moved(tangents.random(1, 0), 0)
    assert torch.equal(moved["0.weight"], module[0].weight)
    assert not torch.equal(moved["2.weight"], module[2].weight)


def test_complex_and_frozen_parameters():
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    module[0].weight.requires_grad_(False)
    assert tangent_map(as_model(module)).size == 5 + 12
