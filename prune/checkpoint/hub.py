"""Upload: a cut model as a repository of the hub that opens without headwise, too."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from headwise.analysis.corpus.fetching import not_fetched
from headwise.analysis.errors import BadInput
from headwise.prune.checkpoint import save


def push_to_hub(
    model: nn.Module, repo_id: str, *, processor: Any = None, private: bool | None = None, revision: str | None = None,
    token: str | None = None, message: str = "Upload a model with attention heads cut", facts: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Everything that `save` writes, as one commit of a repository, which is made if it is not there.

    The model's own `push_to_hub` uploads the weights and the record alone, which `headwise.prune.load` can open; this one
    adds the code for `trust_remote_code=True`, the card, and the dense folder's companions.

    Args:
        model: a cut model.
        repo_id: `owner/name`, or `name` for the owner of the token.
        processor: a tokenizer or processor to upload with it.
        private: whether a new repository is private; by default as the owner's account says.
        revision: a branch to commit to, which is made if it is not there.
        token: of the hub; by default the one that is logged in.
        message: of the commit.
        facts: what the card should tell besides.

    Returns:
        What `huggingface_hub` says about the commit.

    Raises:
        BadInput: if the model cannot be saved, or the hub does not take it.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as place:
        folder = save(model, Path(place) / "model", processor=processor, facts=facts)
        try:
            name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            if revision is not None and not revision.startswith("refs/"):
                api.create_branch(name, branch=revision, exist_ok=True)
            return api.upload_folder(repo_id=name, folder_path=folder, revision=revision, commit_message=message)
        except Exception as error:
            reason = not_fetched(error)
            if not reason:
                raise
            raise BadInput(
                f"{repo_id} cannot be uploaded: {reason}; that takes a token that may write there"
            ) from error
