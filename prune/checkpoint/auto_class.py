"""Auto classes of transformers: which of them open a model."""

from __future__ import annotations

from typing import Any

from transformers.models.auto import modeling_auto


def auto_classes(model: Any) -> dict[str, str]:
    """Auto class name to the stock class it would build for this model's configuration.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(num_hidden_layers=1, hidden_size=16, num_attention_heads=2))
    >>> auto_classes(model)["AutoModelForSequenceClassification"]
    'BertForSequenceClassification'
    """
    found: dict[str, str] = {}
    own = type(model).__name__
    for name, auto in vars(modeling_auto).items():
        mapping = getattr(auto, "_model_mapping", None)
        if not name.startswith("Auto") or mapping is None or type(model.config) not in mapping:
            continue
        classes = mapping[type(model.config)]
        listed = [c.__name__ for c in (classes if isinstance(classes, (tuple, list)) else (classes,))]
        found[name] = own if own in listed else listed[0]
    if own not in found.values():
        found.setdefault("AutoModel", own)
    return found


def auto_class(model: Any) -> str:
    """The auto class that opens a model as the class it is; `AutoModel` if there is none.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> auto_class(BertForMaskedLM(BertConfig(num_hidden_layers=1, hidden_size=16, num_attention_heads=2)))
    'AutoModelForMaskedLM'
    >>> from transformers import BertModel
    >>> auto_class(BertModel(BertConfig(num_hidden_layers=1, hidden_size=16, num_attention_heads=2)))
    'AutoModel'
    """
    own = type(model).__name__
    # Code that a checkpoint brings says itself behind which of them it stands.
    said = getattr(type(model), "_auto_class", None)
    if said is not None:
        return str(said)
    opening = [auto for auto, name in auto_classes(model).items() if name == own]
    # Several open a bare encoder; the one that everybody knows comes first.
    return "AutoModel" if "AutoModel" in opening or not opening else opening[0]
