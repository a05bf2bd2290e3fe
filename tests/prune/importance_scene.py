"""What tests of scores share: tiny models, texts of token ids, a loss, and autograd as the oracle."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.texts import Text
from headwise.analysis.gates import gated
from headwise.analysis.sites import find_sites, heads_of
from headwise.prune.importance import Calibration


def bert(**more):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 40}
    config = BertConfig(vocab_size=50, num_labels=3, initializer_range=0.4, **{**sizes, **more})
    return BertForSequenceClassification(config)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=50, initializer_range=0.3))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            intermediate_size=40, vocab_size=50, initializer_range=0.3,
        )
    )  # fmt: skip


def albert():
    from transformers import AlbertConfig, AlbertForSequenceClassification

    return AlbertForSequenceClassification(
        AlbertConfig(
            hidden_size=32, embedding_size=16, num_attention_heads=4, num_hidden_layers=3,
            intermediate_size=40,
            vocab_size=50, num_labels=3, initializer_range=0.3,
        )
    )  # fmt: skip


MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama, "albert": albert}


def made(name, dtype=torch.float64):
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):
            parameter.data.normal_(0, 0.2)
    return model.eval()


ROWS = [np.random.default_rng(i).integers(1, 50, size=3 + i % 5).tolist() for i in range(12)]


def batched(size=4, left=False, width=0, rows=ROWS):
    found = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        longest = max(width, *map(len, part))
        ids, valid = torch.zeros(len(part), longest, dtype=torch.long), torch.zeros(len(part), longest).bool()
        for place, row in enumerate(part):
            at = slice(longest - len(row), None) if left else slice(0, len(row))
            ids[place, at], valid[place, at] = torch.tensor(row), True
        inputs = {"input_ids": ids, "attention_mask": valid.long()}
        if left:
            inputs["position_ids"] = (valid.long().cumsum(-1) - 1).clamp(min=0)
        empty = torch.full_like(ids, -1)
        tokens = Tokens(ids, valid, torch.zeros_like(valid), empty, torch.stack([empty, empty], -1))
        texts = [Text(" ".join(map(str, row)), label=sum(row) % 3) for row in part]
        found.append(Batch(inputs, texts, {"": tokens}))
    return found


class Labels:
    """Cross entropy of the label, or of the next token."""

    def losses(self, model, batch):
        logits = model(**batch.inputs).logits
        if logits.ndim == 2:
            target = torch.tensor([text.label for text in batch.texts])
            return nn.functional.cross_entropy(logits, target, reduction="none")
        valid = batch.tokens[""].valid
        real = valid[:, 1:] & valid[:, :-1]
        each = nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2), batch.inputs["input_ids"][:, 1:], reduction="none"
        )
        return (each * real).sum(1) / real.sum(1).clamp(min=1)


def calibration(model, batches=None, **more):
    return Calibration(model, find_sites(model), batched() if batches is None else batches, Labels(), **more)


def gate_gradients(model):
    """Oracle: the gradient of every text's loss at every gate, one text and one gate tensor at a time."""
    rows = []
    for batch in batched(1):
        gates = {n: torch.ones(s.heads, dtype=torch.float64, requires_grad=True) for n, s in find_sites(model).items()}
        with gated(model, gates=gates):
            Labels().losses(model, batch).sum().backward()
        rows.append(torch.cat([gate.grad for gate in gates.values()]).numpy())
    return np.array(rows)


def flat(scores):
    return np.concatenate([scores[name] for name in scores])


def blocks(model):
    from headwise.prune.selection import blocks_of

    return blocks_of(find_sites(model))


def evidence_of(model, **arrays):
    return SimpleNamespace(heads=heads_of(find_sites(model)), arrays=arrays)
