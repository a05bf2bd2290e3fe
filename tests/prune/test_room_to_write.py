"""What a model writes is bounded by its positions: known before it writes, and said."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from headwise.analysis.sites import find_sites
from headwise.prune.speed import compare_speed
from headwise.prune.surgery import cut
from headwise.prune.tasks.room_to_write import room_to_write, told_room
from tests.models import build, cuttable


def timed(dense, **how):
    smaller = cut(copy.deepcopy(dense), {next(iter(find_sites(dense))): [0]})
    return compare_speed(dense, smaller, rounds=2, batches=(1,), **how)


def test_models_that_hear_are_timed_and_write_no_more_than_they_have_positions_for():
    found = timed(build(cuttable("whisper")), lengths=(8,), new_tokens=100)
    assert found["generation"][0]["new_tokens"] == 60
    assert found["generation"][0]["cache_bytes"]["dense"] > 0
    assert found["attention"]["blocks"]
    assert found["notes"] == ["60 tokens are written instead of 100: there the model's positions end"]


def test_a_prompt_leaves_positions_for_what_is_written():
    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=99, n_positions=24, bos_token_id=1, eos_token_id=2)
    model = GPT2LMHeadModel(config).eval()
    found = timed(model, lengths=(24,), new_tokens=8)
    assert (found["generation"][0]["length"], found["generation"][0]["new_tokens"]) == (17, 8)
    assert found["notes"] == ["generation is timed after 17 tokens instead of 24, for 8 more to have positions"]
    assert [row["length"] for row in found["rows"]] == [24]
    found = timed(model, lengths=(8,), new_tokens=500)
    assert (found["generation"][0]["length"], found["generation"][0]["new_tokens"]) == (1, 24)
    assert len(found["notes"]) == 2


@pytest.mark.parametrize(("name", "room"), [("whisper", 60), ("bart", 64), ("encoder-decoder", 64), ("t5", None)])
def test_all_the_room_that_there_is_can_be_written(name, room, caplog):
    model = build(cuttable(name))
    assert room_to_write(model) == room
    assert told_room(model, 70) == (room or 70)
    assert ("positions end after" in caplog.text) == (room is not None)
    if room is not None:
        ends = {"max_new_tokens": room, "min_new_tokens": room, "do_sample": False, "decoder_start_token_id": 0}
        given = (
            {"input_features": torch.randn(1, 8, 64)} if name == "whisper" else {"input_ids": torch.tensor([[5, 6]])}
        )
        assert model.generate(**given, **ends).shape[-1] >= room
