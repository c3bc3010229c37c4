"""Pictures to draw inputs from: smooth shapes with grain, so that they compress as photographs do."""

import random
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST = (4000, 3000)
_QUALITIES = (60, 95)


@cache
def scene() -> "Image":
    """A large picture whose parts differ in how much detail they have."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(7)
    width, height = LARGEST
    shapes = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize(
        LARGEST, Image.Resampling.BICUBIC
    )
    roughness = Image.fromarray(rng.integers(0, 24, (6, 8), dtype=np.uint8)).resize(LARGEST)
    grain = rng.standard_normal((height, width), dtype=np.float32) * np.asarray(roughness, dtype=np.float32)
    pixels = np.asarray(shapes).astype(np.int16) + grain.astype(np.int16)[:, :, None]
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def photograph(rng: random.Random, width: int, height: int) -> "Image":
    """A random part of the scene."""
    left = rng.randrange(LARGEST[0] - width + 1)
    top = rng.randrange(LARGEST[1] - height + 1)
    return scene().crop((left, top, left + width, top + height))


def jpeg(picture: "Image", quality: int) -> bytes:
    import io

    body = io.BytesIO()
    picture.save(body, "JPEG", quality=quality)
    return body.getvalue()


def some_quality(rng: random.Random) -> int:
    return rng.randint(*_QUALITIES)
