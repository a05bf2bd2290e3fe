"""Heads watched during training: logged, written, without a trace in the training itself."""

import json

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)  # fmt: skip

from headwise.analysis.training import HeadsCallback
from headwise.prune.surgery import cut
from tests.word_tokenizers import of_words

WORDS = ["[PAD]", *(f"w{i}" for i in range(30))]
TEXTS = [" ".join(f"w{(i * k) % 30}" for k in range(1, 12)) for i in range(1, 40)]


class Rows(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        ids = torch.randint(1, 30, (10,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(ids[0] % 2)}


class Logged(TrainerCallback):
    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.append(dict(logs))


def tokenizer():
    return of_words(WORDS, split=pre_tokenizers.WhitespaceSplit(), unk_token="[PAD]", pad_token="[PAD]")


def trained(folder, callback=None, logged=None):
    torch.manual_seed(0)
    config = BertConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16)
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=6, eval_strategy="steps", eval_steps=2, report_to=[], use_cpu=True,
        per_device_train_batch_size=4, disable_tqdm=True, save_strategy="no", logging_steps=100, seed=3,
    )  # fmt: skip
    trainer = Trainer(
        BertForSequenceClassification(config), arguments, train_dataset=Rows(), eval_dataset=Rows(),
        processing_class=tokenizer(), callbacks=[logged] if logged else [],
    )  # fmt: skip
    if callback is not None:
        callback.attach(trainer)
    trainer.train()
    return trainer


def test_heads_are_logged_at_every_evaluation_and_written_at_the_end(tmp_path):
    callback, logged = HeadsCallback(TEXTS), Logged()
    trainer = trained(tmp_path / "with", callback, logged)
    curves = json.loads((tmp_path / "with" / "heads.json").read_text())["curves"]
    assert [row["step"] for row in curves] == [2, 4, 6]
    names = {f"heads/{site}/{what}" for site in "01" for what in ("redundancy", "entropy", "dormant", "roles")}
    assert names <= set(curves[0])
    assert sum("heads/0/entropy" in log for log in logged.logs) == 3
    assert sum("heads/0/entropy" in log for log in trainer.state.log_history) == 3
    assert 0.9 < curves[0]["heads/0/entropy"] <= 1.0
    plain = trained(tmp_path / "without")
    for mine, theirs in zip(trainer.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert not (tmp_path / "without" / "heads.json").exists()


@pytest.mark.parametrize("broken", ["dormant", "copies"])
def test_degenerate_heads_show(broken):
    torch.manual_seed(0)
    config = BertConfig(vocab_size=31, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=16)
    model = BertForSequenceClassification(config).eval()
    attention = model.bert.encoder.layer[0].attention.self
    with torch.no_grad():
        for linear in (attention.query, attention.key):
            torch.nn.init.normal_(linear.weight, std=2)
    callback = HeadsCallback(TEXTS)
    before = callback.measured(model, tokenizer())
    with torch.no_grad():
        if broken == "dormant":
            attention.value.weight[:4] = 0
            attention.value.bias[:4] = 0
        else:
            for linear in (attention.query, attention.key):
                for head in range(1, 4):
                    linear.weight[4 * head : 4 * head + 4] = linear.weight[:4]
    after = callback.measured(model, tokenizer())
    if broken == "dormant":
        assert (before["heads/0/dormant"], after["heads/0/dormant"]) == (0, 1)
    else:
        assert before["heads/0/redundancy"] < 0.9
        assert after["heads/0/redundancy"] == pytest.approx(1, abs=1e-6)
    assert np.isfinite(list(after.values())).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("texts", "told"), [(TEXTS[:4], {"redundancy", "entropy", "dormant", "roles"}),
                                             (["w1", "w2"], {"redundancy", "dormant", "roles"})])  # fmt: skip
def test_what_is_not_there_is_not_logged(texts, told):
    sizes = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 16}
    model = cut(LlamaModel(LlamaConfig(**sizes, num_attention_heads=4)), {"1": [0, 1, 2, 3]})
    found = HeadsCallback(texts).measured(model, tokenizer())
    assert {name.rpartition("/")[2] for name in found if name.startswith("heads/0/")} == told
    assert not [name for name in found if name.startswith("heads/1/")]
    assert np.isfinite(list(found.values())).all()
