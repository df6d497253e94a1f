"""The callback in the real Trainer of Hugging Face transformers, with a model from a configuration."""

import pytest

from unlazy import Monitor, WatchOptions
from unlazy.core.errors import UnlazyWarning

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the trainer itself
    pytest.mark.filterwarnings("error::unlazy.core.errors.UnlazyWarning"),
]
POINTS, LENGTH, WORDS = 32, 8, 20


def data():
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, WORDS, (POINTS, LENGTH), generator=generator)
    probes = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    return probes, (words[:, 0] < WORDS // 2).long()


def classifier():
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=LENGTH, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def fit(model, callbacks, folder, **options):
    probes, labels = data()
    rows = [{**{key: value[i] for key, value in probes.items()}, "labels": labels[i]} for i in range(POINTS)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=8, use_cpu=True, save_strategy="no", report_to="none",
        disable_tqdm=True, learning_rate=1e-2, logging_strategy="no", **{"num_train_epochs": 3} | options,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=callbacks)
    trainer.train()
    return trainer


def watching(*args, **options):
    from unlazy.diagnostics.callbacks import TransformersWatch

    return TransformersWatch(*args, options=WatchOptions(measures=("gap", "features")), **options)


def test_steps_of_the_optimizer_are_counted(tmp_path):
    logged = []
    callback = watching(*data(), every=2, log=logged.append, path=tmp_path / "run.json")
    fit(classifier(), [callback], tmp_path, gradient_accumulation_steps=2)
    record = callback.monitor.record
    assert record.step == record.planned_steps == 3 * 2 and [c.step for c in record.checks] == [2, 4, 6]
    assert record.step_size == 1e-2 and record.checks[-1].gap > 0 and 0 <= record.checks[-1].error <= 1
    assert any(name.endswith("attention.self.query") for name in record.checks[-1].layers)
    assert [set(numbers) >= {"unlazy/gap", "unlazy/loss"} for numbers in logged] == [True] * 3
    assert str(Monitor.load(tmp_path / "run.json")) == str(callback.monitor)


def test_the_training_is_not_changed(tmp_path):
    weights = []
    for callbacks in ([], [watching(*data(), every=1)]):
        model = classifier()
        fit(model, callbacks, tmp_path)
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights))


def test_what_cannot_be_watched_is_trained(tmp_path):
    callback = watching({"words": data()[0]["input_ids"]})
    with pytest.warns(UnlazyWarning, match=r"watch could not start: .*Training continues"):
        trainer = fit(classifier(), [callback], tmp_path)
    assert trainer.state.global_step == 12 and callback.monitor is None
