"""What shapes of files are made of: strict numbers and words, in records that may hold more, and lack any field."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

Amount = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Words = Annotated[str, Field(strict=True)]
Yes = Annotated[bool, Field(strict=True)]
Sides = dict[str, Amount | None]

#: Fields that a page reads; a file may hold more, and lack any that has a default.
LENIENT = ConfigDict(extra="allow", frozen=True)
