"""Functions whose demand follows the size of their input."""

import random
from functools import cache

from bench.workloads import images, storage
from bench.workloads.workload import THREADS, Workload, log_uniform, log_uniform_int

_KI = 1 << 10
_MI = 1 << 20

_PART_BYTES = 4 * _MI
_FILE_BYTES = _MI
_THUMBNAILS = (1280, 640, 200)  # pixels


def _uploader_input(rng: random.Random) -> bytes:
    return rng.randbytes(log_uniform_int(rng, 64 * _KI, 48 * _MI))


def _uploader(body: bytes) -> int:
    """Signs and sends the body to the object storage, large ones in parts and in parallel."""
    from concurrent.futures import ThreadPoolExecutor

    view = memoryview(body)
    parts = [view[i : i + _PART_BYTES] for i in range(0, len(body), _PART_BYTES)]
    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(storage.put, parts))


def _thumbnailer_input(rng: random.Random) -> bytes:
    width = log_uniform_int(rng, 160, images.LARGEST[0])
    return images.jpeg(images.photograph(rng, width, width * 3 // 4), images.some_quality(rng))


def _thumbnailer(body: bytes) -> int:
    import io

    from PIL import Image

    picture = Image.open(io.BytesIO(body)).convert("RGB")
    size = 0
    for pixels in _THUMBNAILS:
        thumbnail = picture.copy()
        thumbnail.thumbnail((pixels, pixels))
        size += len(images.jpeg(thumbnail, 85))
    return size


@cache
def _log_lines() -> bytes:
    rng = random.Random(7)  # noqa: S311
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(2000)]
    lines = (
        f"{i:09d} {rng.choice(('INFO', 'WARN', 'ERROR'))} {rng.getrandbits(32):08x} "
        + " ".join(rng.choices(words, k=rng.randint(3, 20)))
        for i in range(200_000)
    )
    return "\n".join(lines).encode()


def _compression_input(rng: random.Random) -> bytes:
    lines = _log_lines()
    size = log_uniform_int(rng, 32 * _KI, 12 * _MI)
    start = rng.randrange(len(lines) - size)
    return lines[start : start + size]


def _compression(body: bytes) -> int:
    """Packs the files that the body consists of."""
    import io
    import zipfile

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        for i in range(0, len(body), _FILE_BYTES):
            files.writestr(f"{i // _FILE_BYTES}.log", body[i : i + _FILE_BYTES])
    return len(archive.getvalue())


def _dna_input(rng: random.Random) -> bytes:
    bases = log_uniform_int(rng, 4 * _KI, 512 * _KI)
    sequence = "".join(rng.choices("ACGT", k=bases))
    return "\n".join([">sequence", *(sequence[i : i + 70] for i in range(0, bases, 70))]).encode()


def _dna(body: bytes) -> int:
    """Draws a sequence as a curve: each base goes up or down, and right."""
    import json

    import numpy as np

    lines = body.splitlines()
    bases = np.frombuffer(b"".join(line for line in lines if not line.startswith(b">")), dtype=np.uint8)
    turns = np.zeros((256, 2))
    for base, turn in {"A": (0.5, -0.5), "C": (-0.5, 0.5), "T": (-0.5, -0.5), "G": (0.5, 0.5)}.items():
        turns[ord(base)] = turn
    ys = np.cumsum(turns[bases].ravel())
    xs = np.linspace(0.5, len(bases), len(ys))
    return len(json.dumps({"x": xs.tolist(), "y": ys.tolist()}))


def _html_input(rng: random.Random) -> bytes:
    import json

    size = log_uniform(rng, 2 * _KI, 2 * _MI)
    rows = [
        {"name": f"user {rng.getrandbits(40):x}", "visits": rng.randint(0, 999), "note": f"<{rng.random()}>"}
        for _ in range(max(1, round(size / 75)))
    ]
    return json.dumps({"title": "Visitors", "rows": rows}).encode()


def _html(body: bytes) -> int:
    import html
    import json
    import string

    request = json.loads(body)
    row = string.Template("<tr class='$kind'><td>$name</td><td>$visits</td><td>$note</td></tr>")
    rows = [
        row.substitute(
            {key: html.escape(str(value)) for key, value in r.items()}, kind=("even", "odd")[i % 2]
        )
        for i, r in enumerate(request["rows"])
    ]
    page = string.Template("<html><title>$title</title><table>$rows</table></html>")
    return len(page.substitute(title=request["title"], rows="\n".join(rows)).encode())


WORKLOADS = (
    Workload("uploader", "UL", True, _uploader_input, _uploader),
    Workload("thumbnailer", "TN", True, _thumbnailer_input, _thumbnailer),
    Workload("compression", "CP", True, _compression_input, _compression),
    Workload("dna-visualization", "DV", True, _dna_input, _dna),
    Workload("dynamic-html", "DH", True, _html_input, _html),
)
