"""The callback in real Lightning trainers, of both packages."""

import importlib
import json

import pytest

from unlazy import Monitor, WatchOptions
from unlazy.core.errors import UnlazyWarning

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the trainers themselves
    pytest.mark.filterwarnings("error::unlazy.core.errors.UnlazyWarning"),
]
PACKAGES = ("lightning.pytorch", "pytorch_lightning")
X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
y = torch.sin(X.sum(1, keepdim=True))


@pytest.fixture
def lightning(request):
    return pytest.importorskip(getattr(request, "param", PACKAGES[0]))


def regression(lightning, wrapped=False):
    """A small network, either the Lightning module itself or its submodule "model"."""
    torch.manual_seed(1)

    class Regression(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

        def forward(self, inputs):
            if wrapped:
                raise NotImplementedError("not a network")
            return self.model(inputs)

        def training_step(self, batch, batch_idx):
            inputs, targets = batch
            return torch.nn.functional.mse_loss(self.model(inputs), targets)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.01)

    return Regression()


def fit(lightning, module, callbacks, folder, **options):
    data = torch.utils.data.TensorDataset(X, y)
    torch.manual_seed(2)
    batches = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    trainer = lightning.Trainer(
        callbacks=callbacks, accelerator="cpu", default_root_dir=folder, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, **{"logger": False, "max_epochs": 3} | options,
    )  # fmt: skip
    trainer.fit(module, batches)
    return trainer


def watching(*args, **options):
    """Imported after the trainer's package, as users do."""
    few = WatchOptions(measures=("gap", "features"))
    return importlib.import_module("unlazy.diagnostics.callbacks").LightningWatch(*args, options=few, **options)


@pytest.mark.parametrize("lightning", PACKAGES, indirect=True)
def test_steps_of_the_optimizer_are_counted(lightning, tmp_path):
    callback = watching(X, y, every=2, path=tmp_path / "run.json")
    fit(lightning, regression(lightning), [callback], tmp_path, accumulate_grad_batches=2)
    record = callback.monitor.record
    assert record.step == record.planned_steps == 3 * 2 and [c.step for c in record.checks] == [2, 4, 6]
    assert record.step_size == 0.01 and record.checks[-1].gap > 0
    assert record.checks[-1].loss < record.initial_loss
    assert str(Monitor.load(tmp_path / "run.json")) == str(callback.monitor)


def test_the_training_is_not_changed(lightning, tmp_path):
    weights = []
    for callbacks in ([], [watching(X, y, every=1)]):
        module = regression(lightning)
        fit(lightning, module, callbacks, tmp_path)
        weights.append([p.detach().clone() for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights))


def test_numbers_go_to_the_loggers(lightning, tmp_path):
    loggers = importlib.import_module(f"{lightning.__name__}.loggers")
    logger = loggers.CSVLogger(tmp_path, version=0)
    fit(lightning, regression(lightning), [watching(X, y, every=4)], tmp_path, logger=logger)
    rows = [row for row in logger.experiment.metrics if "unlazy/gap" in row]
    if not rows:  # written to the file already
        text = next(tmp_path.rglob("metrics.csv")).read_text("utf-8").splitlines()
        head = text[0].split(",")
        rows = [dict(zip(head, line.split(","))) for line in text[1:]]
        rows = [row for row in rows if row["unlazy/gap"]]
    assert [int(row["step"]) for row in rows] == [4, 8, 12]


def test_a_submodule_is_watched(lightning, tmp_path):
    logged = []
    callback = watching(X, network="model", every=6, log=logged.append)
    fit(lightning, regression(lightning, wrapped=True), [callback], tmp_path)
    assert list(callback.monitor.record.checks[-1].layers) == ["0", "2"]
    assert len(logged) == 2 and logged[-1]["unlazy/gap"] == callback.monitor.record.checks[-1].gap


@pytest.mark.parametrize("options", [{}, {"network": "none"}])
def test_what_cannot_be_watched_is_trained(lightning, tmp_path, options):
    callback = watching(X, **options)
    module = regression(lightning, wrapped=True)
    with pytest.warns(UnlazyWarning, match=r"watch could not start: .*Training continues") as seen:
        trainer = fit(lightning, module, [callback], tmp_path)
    assert trainer.global_step == 12 and callback.monitor is None
    assert len([w for w in seen if issubclass(w.category, UnlazyWarning)]) == 1


def test_an_unknown_length_and_an_interruption(lightning, tmp_path):
    class Interrupting(lightning.Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == 5:
                raise ArithmeticError("the loss is lost")

    callback = watching(X, every=2, path=tmp_path / "run.json")
    with pytest.raises(ArithmeticError):
        fit(lightning, regression(lightning), [callback, Interrupting()], tmp_path, max_epochs=-1)
    saved = json.loads((tmp_path / "run.json").read_text("utf-8"))
    assert saved["planned_steps"] is None and saved["step"] == 5
