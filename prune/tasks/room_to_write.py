"""Room to write: how many tokens a model can write before its positions end."""

from __future__ import annotations

import logging
from typing import Any

from headwise.analysis.corpus.batching import token_limit

log = logging.getLogger("headwise")

#: Models that hear begin what they write with as many tokens at most: that it begins, language, task, no times.
_BEGINNING = 4


def room_to_write(model: Any, read: int = 1) -> int | None:
    """The most tokens that a model can write after a prompt of so many; None where positions set no end.

    What an encoder-decoder reads takes no room: it has positions of its own for what it writes.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, n_positions=16))
    >>> room_to_write(model, read=10)
    7
    """
    if not getattr(model.config, "is_encoder_decoder", False):
        limit = token_limit(None, model)
        # The last token that is written is never read again.
        return None if limit is None else max(limit - read + 1, 0)
    decoder = model.config.get_text_config(decoder=True)
    heard = getattr(decoder, "max_target_positions", None)
    if isinstance(heard, int):
        return max(heard - _BEGINNING, 1)
    names = ("max_decoder_position_embeddings", "max_position_embeddings")
    known = [limit for name in names if isinstance(limit := getattr(decoder, name, None), int) and limit > 0]
    return known[0] if known else None


def told_room(model: Any, wanted: int) -> int:
    """As many tokens as are wanted, or as many as the model can write, with a notice.

    >>> from transformers import T5Config, T5ForConditionalGeneration
    >>> told_room(T5ForConditionalGeneration(T5Config(d_model=8, d_ff=8, num_layers=1, num_heads=1, vocab_size=9)), 64)
    64
    """
    room = room_to_write(model)
    if room is None or wanted <= room:
        return wanted
    log.warning("new_tokens: the model's positions end after %d written tokens; %d were asked for", room, wanted)
    return room
