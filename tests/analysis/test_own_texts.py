"""Texts of a user's own that are no corpus: refused with how they become one, whatever they are."""

import subprocess
import sys

# In a process of its own: in the tests' own, the types of arguments are checked before the function sees them.
SCRIPT = """
import datasets, sys
from transformers import BertConfig, BertModel
from headwise.analysis import Corpus, Text, analyze, batches
from headwise.analysis.errors import BadInput
rows = datasets.Dataset.from_dict({"text": ["a dog", "a cat"]})
model = BertModel(BertConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16, vocab_size=20, intermediate_size=8))
for given in (rows, rows.to_iterable_dataset(), ["a dog"], "a dog", None):
    for act in (lambda: analyze(model, None, given), lambda: batches(given, None)):
        try:
            act()
        except BadInput as error:
            print(error)
for texts in (["a dog"], rows, rows.to_iterable_dataset(), [{"text": "a"}], [None]):
    try:
        Corpus(texts)
    except BadInput as error:
        print(error)
print(len(Corpus([Text(row["text"]) for row in rows.to_iterable_dataset()])), "texts")
"""


def test_what_is_no_corpus_is_refused_with_how_it_becomes_one():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, check=True)
    *refused, streamed = done.stdout.splitlines()
    assert len(refused) == 15
    assert all("Corpus([Text(line) for line in lines])" in line for line in refused)
    assert [line.split(".")[0] for line in refused[:10:2]] == [
        "corpus: got Dataset", "corpus: got IterableDataset", "corpus: got list", "corpus: got str", "corpus: got NoneType",
    ]  # fmt: skip
    assert refused[10].startswith("Corpus: got str 'a dog' for a text")
    assert streamed == "2 texts"
