"""Fetching: what it means that a hub, or the way to it, does not give something, and what to do about it."""

from __future__ import annotations

import errno

from headwise.analysis.errors import causes, first_line


def not_fetched(error: BaseException) -> str:
    """Why something could not be fetched, however deep a library wrapped that; "" for errors of another kind.

    >>> not_fetched(ValueError("no such column"))
    ''
    """
    from huggingface_hub import constants, errors

    chain = list(causes(error))

    def first(*kinds: type[BaseException]) -> BaseException | None:
        return next((cause for cause in chain if isinstance(cause, kinds)), None)

    hub, log_in = constants.ENDPOINT, "log in (`hf auth login`) or set HF_TOKEN to a token that may read it"
    if first(errors.GatedRepoError):
        return f"it is gated: ask for access on its page at {hub}, then {log_in}"
    if first(errors.RepositoryNotFoundError):
        return f"{hub} has no repository of that name for you; check the name, and if it is private, {log_in}"
    if first(errors.RevisionNotFoundError):
        return "it has no such revision; give a branch, a tag or a whole commit of it"
    answered = next((cause for cause in chain if _status(cause)), None)
    if answered is not None:
        return f"{hub} answers {_status(answered)} ({first_line(answered)}); {_ADVICE.get(_status(answered), _LATER)}"
    if any(_unwritable(cause) for cause in chain):
        return (
            f"what is to be fetched cannot be kept in {constants.HF_HUB_CACHE}: set HF_HOME to a folder that can be written, "
            "or HF_HUB_OFFLINE=1 to take what is there"
        )
    # Also what is raised for a file that is not in the cache, which is no error of the network.
    if first(errors.OfflineModeIsEnabled) or (constants.HF_HUB_OFFLINE and first(errors.LocalEntryNotFoundError)):
        return f"it is not in the cache ({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE forbids to fetch it; fetch it once online"
    broken = next((cause for cause in chain if type(cause).__module__.startswith("httpx")), None)
    broken = broken or first(ConnectionError, TimeoutError) or first(errors.LocalEntryNotFoundError)
    if broken is not None:
        return (
            f"the way to {hub} is broken ({first_line(broken)}); check the network, then run again: a download goes on "
            "where it ended"
        )
    return ""


_LATER = "try again later; with HF_HUB_OFFLINE=1 what is in the cache is taken"
_TOKEN = "your token may not read it: ask for access, or set HF_TOKEN to another one"
_ADVICE = {401: _TOKEN, 403: _TOKEN, 429: "too much was asked: wait a few minutes, or log in (`hf auth login`)"}


def _status(error: BaseException) -> int:
    """The number that a hub answered with; 0 for other errors, and where only a file is missing."""
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    if not isinstance(error, HfHubHTTPError) or isinstance(error, EntryNotFoundError):
        return 0
    return int(getattr(error.response, "status_code", 0) or 0)


def _unwritable(error: BaseException) -> bool:
    """Whether the cache cannot be written."""
    from huggingface_hub import constants

    refused = getattr(error, "errno", None) in (errno.EACCES, errno.EPERM, errno.EROFS)
    return refused and str(getattr(error, "filename", None)).startswith(str(constants.HF_HUB_CACHE))
