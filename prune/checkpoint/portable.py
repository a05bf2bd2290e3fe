"""Portable code: what a checkpoint carries so that it opens where headwise is not installed."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

from headwise.analysis.sites import paths
from headwise.prune.checkpoint.auto_class import auto_classes
from headwise.prune.checkpoint.own_code import code_of
from headwise.prune.surgery.replay import replay

_HEAD = '''"""Opens this checkpoint, whose attention heads were cut, with `trust_remote_code=True`.

Written by headwise. The first part applies the edits that config.json lists under "headwise" to a freshly
built stock model; the last part says for which classes.
"""
'''

_TAIL = '''

def _pruned(stock):
    """The stock class, under its own name, whose construction ends with the recorded edits."""

    def construct(self, config, *args, **kwargs):
        stock.__init__(self, config, *args, **kwargs)
        replay(self, config.headwise["edits"])

    def save_pretrained(self, save_directory, *args, **kwargs):
        stock.save_pretrained(self, save_directory, *args, **kwargs)
        # Some releases leave the code of a class behind that has the name of a stock one.
        if not os.path.exists(os.path.join(save_directory, "modeling_headwise.py")):
            shutil.copyfile(__file__, os.path.join(save_directory, "modeling_headwise.py"))

    # transformers leaves out the renaming of old weights for classes from outside, unless told that this is none.
    body = {"__init__": construct, "save_pretrained": save_pretrained, "__module__": __name__}
    return type(stock.__name__, (stock,), {**body, "is_custom_code": classmethod(lambda cls: False)})

'''


def portable_code(model: Any) -> str:
    """The text of `modeling_headwise.py` for a model: the replay that `load` uses, then a line per class."""
    parts = [_body(inspect.getsource(paths)), _body(inspect.getsource(sys.modules[replay.__module__]))]
    imports = sorted({line for part in parts for line in part[0] if "headwise" not in line})
    plain = [line for line in imports if line.startswith("import ")]
    others = [line for line in imports if line.startswith("from ")]
    names = sorted(set(auto_classes(model).values()))
    own = [reference.split(".") for reference in code_of(model).values()]
    classes = "".join(f"from .{file} import {name}\n\n{name} = _pruned({name})\n" for file, name in own) or "".join(
        f"{name} = _pruned(transformers.{name})\n" for name in names
    )
    plain = sorted({*plain, "import os", "import shutil"})
    header = "\n".join(["from __future__ import annotations", "", *plain, *others, "", "import transformers"])
    return _HEAD + "\n" + header + "\n\n" + "\n\n".join(part[1].strip() for part in parts) + "\n" + _TAIL + classes


def auto_map(model: Any) -> dict[str, str]:
    """What config.json must say for every Auto class that can open this kind of model."""
    own = {auto: reference.split(".")[1] for auto, reference in code_of(model).items()}
    return {auto: f"modeling_headwise.{name}" for auto, name in (own or auto_classes(model)).items()}


def _body(source: str) -> tuple[list[str], str]:
    """Import lines and the rest of a module's text, its own docstring and imports left out."""
    source = re.sub(r'\A""".*?"""\n', "", source, count=1, flags=re.S)
    lines = source.splitlines()
    top = [line for line in lines if re.match(r"(import|from) ", line) and "__future__" not in line]
    rest = [line for line in lines if not re.match(r"(import|from) ", line)]
    return top, "\n".join(rest)
