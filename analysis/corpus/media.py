"""Images and clips: what an example holds where a model sees or hears instead of reading."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headwise.analysis.errors import BadInput

Kind = Literal["image", "audio"]

#: What the suffixes of files mean.
KINDS: dict[str, Kind] = {
    ".png": "image",
    ".jpg": "image",
    ".jpeg": "image",
    ".bmp": "image",
    ".gif": "image",
    ".tif": "image",
    ".tiff": "image",
    ".webp": "image",
    ".wav": "audio",
    ".flac": "audio",
    ".ogg": "audio",
    ".mp3": "audio",
    ".opus": "audio",
}


@dataclass(frozen=True)
class Media:
    """One image or clip, read again from where it is whenever it is needed: only its hash is kept.

    Attributes:
        kind: `image` or `audio`.
        digest: sixteen hex digits that name the content.
        content: the file, its bytes, or what gives its bytes.
        seconds: how long a clip is, 0 for images.
    """

    kind: Kind
    digest: str
    content: Path | bytes | Callable[[], bytes] = field(repr=False, compare=False)
    seconds: float = field(default=0.0, compare=False)

    def image(self) -> Any:
        """The image as PIL has it, in red, green and blue, turned the right way up.

        Raises:
            BadInput: the file is broken, or was changed since it was first read.
        """
        from PIL import Image, ImageOps

        try:
            return ImageOps.exif_transpose(Image.open(io.BytesIO(self._same()))).convert("RGB")
        except (OSError, ValueError, SyntaxError) as error:
            raise BadInput(f"{self.where}: the image cannot be decoded: {error}") from error

    def wave(self, rate: int) -> np.ndarray:
        """`[sample]` float32 between -1 and 1, one channel, at `rate` samples a second.

        Raises:
            BadInput: the file is broken, or was changed since it was first read.
        """
        from scipy.signal import resample_poly

        sound = _soundfile()
        try:
            samples, own = sound.read(io.BytesIO(self._same()), dtype="float32", always_2d=True)
        except (sound.LibsndfileError, ValueError) as error:
            raise BadInput(f"{self.where}: the clip cannot be decoded: {error}") from error
        mono = samples.mean(axis=1)
        if own != rate:
            common = gcd(int(own), rate)
            mono = resample_poly(mono, rate // common, int(own) // common)
        return np.asarray(mono, dtype=np.float32)

    @property
    def where(self) -> str:
        """The file, or the hash where there is none."""
        return str(self.content) if isinstance(self.content, Path) else f"{self.kind} {self.digest}"

    def _same(self) -> bytes:
        data = _bytes(self.content)
        if _digest(data) != self.digest:
            raise BadInput(f"{self.where}: changed since it was first read; put back what was there, or start afresh")
        return data


def media_of(kind: Kind, content: Path | bytes | Callable[[], bytes]) -> Media:
    """The image or clip, once its head shows that it is one.

    Args:
        kind: `image` or `audio`.
        content: the file, its bytes, or what gives its bytes.

    Raises:
        BadInput: it cannot be read as one, or `soundfile` is missing.

    >>> import numpy, PIL.Image
    >>> held = io.BytesIO()
    >>> PIL.Image.fromarray(numpy.zeros((4, 6, 3), "uint8")).save(held, "PNG")
    >>> media_of("image", held.getvalue()).image().size
    (6, 4)
    """
    data = _bytes(content)
    seconds = _seconds(data) if kind == "audio" else _looked_at(data)
    return Media(kind, _digest(data), content, seconds)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _bytes(content: Path | bytes | Callable[[], bytes]) -> bytes:
    if isinstance(content, Path):
        try:
            return content.read_bytes()
        except OSError as error:
            raise BadInput(f"{content}: {error.strerror or error}") from error
    return content if isinstance(content, bytes) else content()


def _looked_at(data: bytes) -> float:
    from PIL import Image

    try:
        Image.open(io.BytesIO(data)).size  # noqa: B018 - opening reads the head, which is what is tried
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadInput(f"not an image: {error}") from error
    return 0.0


def _seconds(data: bytes) -> float:
    sound = _soundfile()
    try:
        head = sound.info(io.BytesIO(data))
    except (sound.LibsndfileError, ValueError) as error:
        raise BadInput(f"not a clip: {error}") from error
    if head.frames < 1:
        raise BadInput("not a clip: it has no samples")
    return float(head.frames / head.samplerate)


def _soundfile() -> Any:
    try:
        import soundfile
    except ImportError as error:
        raise MissingLibrary("clips need soundfile: pip install 'headwise[audio]'") from error
    return soundfile


class MissingLibrary(BadInput):
    """A library that reads this kind of file is not installed: no reason to skip single files."""
