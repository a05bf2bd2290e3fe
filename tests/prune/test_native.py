"""The native form: what a stock configuration does not take is said with what it takes."""

import re

import pytest
import torch
import transformers

from headwise.analysis.errors import BadInput
from headwise.prune.checkpoint import save
from headwise.prune.checkpoint.native import native_reason
from headwise.prune.surgery import cut


def small(cls, config, **more):
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 50}
    torch.manual_seed(0)
    return cls(config(**sizes, num_attention_heads=12, head_dim=4, **more)).eval()


@pytest.mark.parametrize("kv_heads", [12, 6])
def test_numbers_of_heads_that_the_configuration_takes_are_named_and_taken(kv_heads, tmp_path):
    def model():
        return small(transformers.LlamaModel, transformers.LlamaConfig, num_key_value_heads=kv_heads)

    group = 12 // kv_heads
    with pytest.raises(
        BadInput, match=r"LlamaConfig refuses these numbers .* heads a site that it takes instead:"
    ) as told:
        save(cut(model(), {"0": [0, 1], "1": [2, 3]}), tmp_path / "ten", form="native")
    (listed,) = re.findall(r"instead: ([\d, ]+)\.", str(told.value))
    taken = [int(number) for number in listed.split(", ")]
    assert taken == [n for n in range(11, 0, -1) if n % group == 0 and 48 % n == 0]
    for number in taken:
        assert native_reason(cut(model(), {site: list(range(number, 12)) for site in "01"})) == ""


def test_nothing_is_named_where_no_other_number_would_do():
    reason = native_reason(cut(small(transformers.BertModel, transformers.BertConfig), {"0": [0], "1": [0]}))
    assert reason
    assert "instead" not in reason
