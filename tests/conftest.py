"""What every test starts from: no network, one thread, quiet libraries."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# Programs that tests start hold back what they print, as those of users do: it may be lost when they end.
os.environ.pop("PYTHONUNBUFFERED", None)

import torch
import transformers

from tests import checking

checking.install()
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
