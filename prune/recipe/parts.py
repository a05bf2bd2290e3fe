"""The plain parts of a recipe: which model, which texts, what is measured."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import PydanticCustomError, core_schema

if TYPE_CHECKING:
    from headwise.analysis.corpus.texts import Corpus

Item = TypeVar("Item", bound=Hashable)


class OneOf:
    """Marks a field that takes one method out of a table of methods, told apart by `kind`.

    The tables (`SCORES`, `TASKS`, …) are the only list of methods there is; the recipe's schema and its
    messages follow from them.
    """

    def __init__(self, table: Mapping[str, type[BaseModel]]) -> None:
        self.table = table

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        choices: dict[Hashable, core_schema.CoreSchema] = {
            kind: handler.generate_schema(method) for kind, method in self.table.items()
        }
        return core_schema.tagged_union_schema(choices, discriminator="kind")


def _each_once(items: tuple[Item, ...]) -> tuple[Item, ...]:
    if not items:
        raise PydanticCustomError("empty_list", "an empty list says nothing; leave the field out")
    twice = sorted({str(item) for item in items if items.count(item) > 1})
    if twice:
        raise PydanticCustomError("repeated", "{items} more than once; name each once", {"items": ", ".join(twice)})
    return items


Count = Annotated[int, Field(ge=1, le=1_000_000)]
Counts = Annotated[tuple[Count, ...], AfterValidator(_each_once)]
Column = Annotated[str, Field(min_length=1, max_length=500)] | Annotated[int, Field(ge=-1, le=1_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=500)]


class Part(BaseModel):
    """A frozen block of the recipe that knows all its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Checkpoint(Part):
    """Which checkpoint is pruned; the command line overrides it."""

    id: Name | None = Field(default=None, description="hub id or folder; `embedded`: the model of the demo extra")
    revision: Name | None = Field(default=None, description="branch, tag or commit of a hub checkpoint")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(default="auto", description="what weights load as")


class Texts(Part):
    """Where texts come from."""

    source: Name = Field(
        default="embedded", description="`embedded`, a file (text, CSV, TSV, JSONL, parquet, Arrow) or a data set"
    )
    config: Name | None = Field(
        default=None, description="a data set's configuration; the source may say it as `name:config`"
    )
    split: Name | None = Field(default=None, description="a data set's split")
    revision: Name | None = Field(default=None, description="branch, tag or commit of a data set of the hub")
    samples: Count | None = Field(default=None, description="how many are drawn (seeded, by label); all if left out")
    text: Column | None = Field(default=None, description="the column of the text, by name or number")
    pair: Column | None = Field(default=None, description="the column of the second text, if the task has pairs")
    label: Column | None = Field(default=None, description="the column of the label")
    choices: Column | tuple[Column, ...] | None = Field(
        default=None, description="the column with the possible answers, or a list with a column for each"
    )
    header: bool | None = Field(default=None, description="whether a CSV or TSV begins with a header line")

    @property
    def address(self) -> str:
        """The source with its configuration, as `read_source` takes it.

        >>> Texts(source="nyu-mll/glue", config="sst2").address
        'nyu-mll/glue:sst2'
        """
        return f"{self.source}:{self.config}" if self.config else self.source

    def read(self) -> Corpus:
        """All texts of the source; drawing `samples` of them is left to who knows the seed.

        Raises:
            BadInput: nothing there, not readable, or no such column.

        >>> len(Texts().read()) > 100
        True
        """
        from headwise.analysis.corpus.reading import read_source

        return read_source(
            self.address, split=self.split, revision=self.revision, text=self.text, label=self.label, pair=self.pair,
            choices=self.choices, header=self.header,
        )  # fmt: skip


class Calibration(Texts):
    """The texts that decide: evidence, scores and repair."""

    samples: Count | None = Field(default=1024, description="how many are drawn (seeded, by label); null for all")


class Evaluation(Texts):
    """The texts that judge; no part of them may have decided."""


class Data(Part):
    """Texts that decide and texts that judge."""

    calibration: Calibration = Calibration()
    evaluation: Evaluation | None = Field(
        default=None, description="texts that judge; if left out, the calibration's source is split in two"
    )
    batch_size: Annotated[int, Field(ge=1, le=65_536)] = Field(default=32, description="texts a batch")
    max_length: Annotated[int, Field(ge=2, le=1_000_000)] | None = Field(
        default=None, description="tokens a text; longer texts are cut off; the model's own limit if left out"
    )


class Speed(Part):
    """The grid that speed is measured on."""

    batches: Counts = Field(default=(1, 8), description="texts a batch")
    lengths: Counts = Field(default=(32, 128), description="tokens a text")
    rounds: Annotated[int, Field(ge=3, le=10_000)] = Field(
        default=30, description="paired rounds in each cell of the grid"
    )
    seconds: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        120, description="the most that timing may take, roughly; null for no limit"
    )


class Limits(Part):
    """What the run must reach; broken: the run is written and marked, exit code 3."""

    drop: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="the largest drop in the task's metric that the data may leave possible"
    )
    speedup: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="the least speed-up: dense time / cut time"
    )
    size: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="the most that may be left of the dense model's bytes, as a share"
    )


class Reach(Part):
    """What the result must be, instead of how much goes."""

    drop: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="remove as much as surely stays below this drop, judged on a fifth of the calibration texts",
    )
    milliseconds: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None,
        description="remove as little as brings a forward pass under this time, by a table of this machine",
    )
    batch: Count | None = Field(default=None, description="texts of that pass; the most that `speed` names if left out")
    length: Count | None = Field(default=None, description="tokens a text; the most that `speed` names if left out")
    table: Name | None = Field(
        default=None, description="latency.json of an earlier run, beside the recipe, instead of measuring"
    )

    @model_validator(mode="after")
    def _one_result(self) -> Reach:
        given = [name for name in ("drop", "milliseconds") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of drop, milliseconds (got {', '.join(given) or 'none'})")
        idle = [name for name in ("batch", "length", "table") if getattr(self, name) is not None]
        if self.milliseconds is None and idle:
            raise ValueError(f"{', '.join(idle)} belong to milliseconds; leave them out")
        return self
