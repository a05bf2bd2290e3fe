"""Export: a model, cut or dense, as an ONNX file or a `torch.export` program, checked against itself."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.analysis.corpus.batching import token_limit
from headwise.analysis.errors import BadInput, causes, first_line
from headwise.analysis.gates.uncached import uncached
from headwise.prune.export.onnx_runtime import onnxruntime
from headwise.prune.folder import new_file
from headwise.prune.speed.inputs import inputs_to_time, reads
from headwise.prune.speed.operations import operations, parameters, size_in_bytes
from headwise.prune.tasks.outcome import judging
from headwise.prune.tasks.text_classification import pad_known

#: The exported program's output may differ by this share of the largest output: other kernels, other rounding.
_TOLERANCE = 1e-4
#: Sizes of the example, and of the other example that dynamic shapes are checked on. None is 0 or 1, which
#: the exporter would take for constants.
_EXAMPLE, _OTHER = (2, 8), (3, 11)
#: Bytes of weights that one ONNX file can hold: a protocol buffer ends at two gigabytes.
_ONE_FILE = 2_000_000_000
#: Lengths at which operations are counted: a constant, a part a token, a part a pair of tokens.
_COUNTED = (4, 8, 12)


def to_onnx(model: nn.Module, file: str | Path, *, overwrite: bool = False) -> float:
    """Write the model as ONNX with any batch and length, and check it in onnxruntime.

    The file takes the forward's main inputs and gives its first output (logits, else hidden states). Weights of
    more than two gigabytes, which one file cannot hold, go into a second one beside it, `<file>.data`. Hooks and
    training flags of the model are as before.

    Args:
        model: reads tokens, or sees images, or hears; on any device.
        file: where to write.
        overwrite: replace an existing file.

    Returns:
        The largest difference to the model's own output on another batch and length, as a share of it.

    Raises:
        BadInput: the file exists, onnx or onnxruntime is missing, or the model cannot be exported or comes
            out different; no file is left then.
    """
    try:
        runtime = onnxruntime()
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError as error:
        raise BadInput(f"ONNX needs more packages ({error.name}): pip install 'headwise[export]'") from error
    path = _free(file, overwrite, beside=[f"{Path(file).name}.data"])
    with _exportable(model) as forward, new_file(path) as work:
        try:
            example = _inputs(model, *_EXAMPLE)
            program = torch.onnx.export(
                forward, kwargs=example, dynamo=True, dynamic_shapes=_dynamic(model, example), verbose=False,
                input_names=list(example), output_names=["output"],
            )  # fmt: skip
            program.model.metadata_props.update(_told(model))  # type: ignore[union-attr]
            program.save(work, external_data=size_in_bytes(model) > _ONE_FILE)  # type: ignore[union-attr]
            session = runtime.InferenceSession(str(work), providers=["CPUExecutionProvider"])
            other = _inputs(model, *_OTHER)
            named = {entry.name for entry in session.get_inputs()}
            feed = {name: value.cpu().numpy() for name, value in other.items() if name in named}
            difference = _difference(torch.from_numpy(session.run(None, feed)[0]), forward(**other))
            _check(difference, model)
        except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
            raise BadInput(f"{type(model).__name__} cannot be exported as ONNX: {_reason(error)}") from error
    return difference


def to_program(model: nn.Module, file: str | Path, *, overwrite: bool = False) -> float:
    """Write the model as a `torch.export` program (`.pt2`) with any batch and length, and check it.

    Args:
        model: reads tokens, or sees images, or hears.
        file: where to write.
        overwrite: replace an existing file.

    Returns:
        The largest difference to the model's own output on another batch and length, as a share of it.

    Raises:
        BadInput: the file exists, or the model cannot be exported or comes out different; no file is left.
    """
    path = _free(file, overwrite)
    with _exportable(model) as forward, new_file(path) as work:
        try:
            example = _inputs(model, *_EXAMPLE)
            program = torch.export.export(forward, (), example, dynamic_shapes=_dynamic(model, example), strict=False)
            torch.export.save(program, work)
            other = _inputs(model, *_OTHER)
            difference = _difference(torch.export.load(work).module()(**other), forward(**other))
            _check(difference, model)
        except (torch._dynamo.exc.TorchDynamoException, RuntimeError, ValueError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"{type(model).__name__} cannot be exported: {first_line(error)}") from error
    return difference


def _reason(error: BaseException) -> str:
    """What an exporter stumbled over: its own error tells how to ask its makers, with what it came of underneath."""
    return first_line([*causes(error)][-1])


def _told(model: nn.Module) -> dict[str, str]:
    """What a file says of its model beside the graph, so that it can be timed: see `onnx_speed`."""
    facts: dict[str, Any] = {"parameters": parameters(model), "class": type(model).__name__}
    if reads(model):
        config: Any = model.config
        facts |= {"vocabulary": config.get_text_config().vocab_size, "max_length": token_limit(None, model)}
        counted = [operations(model, _inputs(model, 1, length)) for length in _COUNTED]
        facts["operations"] = np.linalg.solve(np.vander(_COUNTED, increasing=True), counted).tolist()
    return {f"headwise.{name}": json.dumps(value) for name, value in facts.items()}


class _Forward(nn.Module):
    """Inputs in, one tensor out, no cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.extra = uncached(model)

    def _output(self, inputs: dict[str, Any]) -> Tensor:
        output = self.model(**inputs, **self.extra)
        found: Tensor = output.logits if getattr(output, "logits", None) is not None else output[0]
        return found


class _Reads(_Forward):
    """Of tokens."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor | None = None) -> Tensor:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if decoder_input_ids is not None:
            inputs["decoder_input_ids"] = decoder_input_ids
        return self._output(inputs)


class _Sees(_Forward):
    """Of images."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self._output({"pixel_values": pixel_values})


class _Hears(_Forward):
    """Of waves."""

    def forward(self, input_values: Tensor) -> Tensor:
        return self._output({"input_values": input_values})


class _HearsFeatures(_Forward):
    """Of spectra."""

    def forward(self, input_features: Tensor) -> Tensor:
        return self._output({"input_features": input_features})


_READ = set(inspect.signature(_Reads.forward).parameters)
_BY_INPUT: dict[str, type[_Forward]] = {
    "pixel_values": _Sees,
    "input_values": _Hears,
    "input_features": _HearsFeatures,
}


def _forward_of(model: nn.Module) -> nn.Module:
    """The model as a function of its main inputs.

    Raises:
        BadInput: its main input is of a kind that is not exported, or is not all that it needs.
    """
    kind, told = type(model).__name__, "a file takes one kind of input; export the part that is served by itself"
    if reads(model):
        if other := set(inputs_to_time(model, 1, 4)) - _READ:
            raise BadInput(f"{kind} needs {', '.join(sorted(other))} beside tokens, and {told}")
        return _Reads(model)
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise BadInput(
            f"{kind} needs tokens beside what it hears or sees, and {told} (its encoder: model.get_encoder())"
        )
    name = str(getattr(model, "main_input_name", ""))
    if name not in _BY_INPUT:
        raise BadInput(f"{kind}: its main input {name!r} is none of those exported: input_ids, {', '.join(_BY_INPUT)}")
    return _BY_INPUT[name](model)


@contextlib.contextmanager
def _exportable(model: nn.Module) -> Iterator[nn.Module]:
    """The model as a function of token tensors, at rest; what exporters print is kept from the terminal."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with (
            pad_known(model, 0), judging(model), torch.inference_mode(False), torch.no_grad(),
            warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            yield _forward_of(model).eval()
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _inputs(model: nn.Module, batch: int, length: int) -> dict[str, Tensor]:
    found = inputs_to_time(model, batch, length)
    if reads(model):
        return dict(found)
    main = str(getattr(model, "main_input_name", ""))
    return {main: found[main]}


def _dynamic(model: nn.Module, example: Mapping[str, Tensor]) -> dict[str, Any]:
    """Any batch, and any length of tokens that the model's positions allow; images and waves keep their size."""
    batch = torch.export.Dim("batch", min=2)
    if not reads(model):
        return {name: {0: batch} for name in example}
    lengths = {name: "written" if name.startswith("decoder_") else "length" for name in example}
    dims = {name: torch.export.Dim(name, min=2, max=token_limit(None, model)) for name in set(lengths.values())}
    return {name: {0: batch, 1: dims[lengths[name]]} for name in example}


def _difference(found: Tensor, right: Tensor) -> float:
    wide = right.detach().float().cpu()
    if found.shape != wide.shape:
        raise BadInput(f"the exported model gives the shape {tuple(found.shape)}, expected {tuple(wide.shape)}")
    return float((found.detach().float().cpu() - wide).abs().max() / wide.abs().max().clamp(min=1e-12))


def _check(difference: float, model: nn.Module) -> None:
    if not difference <= _TOLERANCE:
        raise BadInput(
            f"{type(model).__name__}: the exported model's output differs by {difference:.1e} of its scale "
            f"(allowed {_TOLERANCE:.0e}); it is not kept"
        )


def _free(file: str | Path, overwrite: bool, beside: Sequence[str] = ()) -> Path:
    path = Path(file)
    for one in (path, *(path.parent / name for name in beside)):
        if one.is_dir():
            raise BadInput(f"{one} is a folder; choose a file")
        if one.exists() and not overwrite:
            raise BadInput(
                f"{one} exists and is left as it is; choose another file, or say --overwrite (overwrite=True)"
            )
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is no folder: make it first, or choose another place")
    return path
