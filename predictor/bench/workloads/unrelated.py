"""Functions whose demand follows what is in their input, and not how long it is.

Those of the paper run for seconds. Inputs here are of such sizes that most calls last for longer than the
100 ms over which a peak is taken: of a shorter call the peak says how long it was, and not what it needs.
"""

import json
import random
import struct
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.workloads import images
from bench.workloads.workload import THREADS, Workload, log_uniform, log_uniform_int

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FORMATS = ((160, 120), (320, 240), (640, 480), (960, 720))
_QUALITIES = (15, 50, 95)
_GIF = (240, 180)

_NODES = (20_000, 400_000)

_VIEW = 448  # pixels of a side
_CELL = 28
_FEATURES = 768
_LAYERS = 4
_BUSY = 40.0  # spread of the brightness of a cell with something in it


@cache
def _frames(size: tuple[int, int], quality: int) -> list[bytes]:
    rng = random.Random(7)  # noqa: S311
    return [images.jpeg(images.photograph(rng, *size), quality) for _ in range(24)]


def _video_input(rng: random.Random) -> bytes:
    """A clip of some frames of some resolution, compressed more or less."""
    frames = _frames(rng.choice(_FORMATS), rng.choice(_QUALITIES))
    start = rng.randrange(len(frames))
    clip = [frames[(start + i) % len(frames)] for i in range(log_uniform_int(rng, 16, 256))]
    return b"".join(struct.pack("<I", len(frame)) + frame for frame in clip)


def _video(body: bytes) -> int:
    """Makes a GIF of the clip. Frames are converted in parallel, on all cores as in LIBRA, figure 1 (a)."""
    import io
    from concurrent.futures import ThreadPoolExecutor

    from PIL import Image

    frames, at = [], 0
    while at < len(body):
        (length,) = struct.unpack_from("<I", body, at)
        frames.append(body[at + 4 : at + 4 + length])
        at += 4 + length

    def converted(frame: bytes) -> Image.Image:
        picture = Image.open(io.BytesIO(frame)).convert("RGB").resize(_GIF)
        return picture.quantize(64, Image.Quantize.FASTOCTREE)

    with ThreadPoolExecutor(THREADS) as pool:
        first, *others = pool.map(converted, frames)
    gif = io.BytesIO()
    first.save(gif, "GIF", save_all=True, append_images=others, duration=100)
    return len(gif.getvalue())


def _recognition_input(rng: random.Random) -> bytes:
    """A picture with some things in it, on a ground with more or less grain."""
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(rng.getrandbits(32))
    pixels = noise.normal(128, log_uniform(rng, 0.5, 20), (_VIEW, _VIEW))
    cells = _VIEW // _CELL
    for cell in rng.sample(range(cells * cells), log_uniform_int(rng, 1, cells * cells)):
        top, left = cell // cells * _CELL, cell % cells * _CELL
        pixels[top : top + _CELL, left : left + _CELL : 2] = 250
        pixels[top : top + _CELL, left + 1 : left + _CELL : 2] = 5
    picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    return images.jpeg(picture, images.some_quality(rng))


@cache
def _weights() -> "list[NDArray[np.float32]]":
    import numpy as np

    rng = np.random.default_rng(7)
    shapes = [(_CELL * _CELL, _FEATURES), *[(_FEATURES, _FEATURES)] * (_LAYERS - 1)]
    return [(rng.standard_normal(s, dtype=np.float32) / np.sqrt(s[0])).astype(np.float32) for s in shapes]


def _recognition(body: bytes) -> int:
    """Finds the cells with something in them, and runs a network on several views of each."""
    import io

    import numpy as np
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(body)).convert("L"), dtype=np.float32)
    side = _VIEW // _CELL
    cells = pixels.reshape(side, _CELL, side, _CELL).swapaxes(1, 2).reshape(-1, _CELL, _CELL)
    busy = cells[cells.std(axis=(1, 2)) > _BUSY]
    if not len(busy):
        return 0
    views = [np.roll(busy, shift, axis=(1, 2)) for shift in np.ndindex(12, 12)]
    features = np.concatenate(views).reshape(-1, _CELL * _CELL) / np.float32(255)
    for layer in _weights():
        features = np.maximum(features @ layer, 0)
    return len(busy) + int(features.argmax(axis=1).sum() > 0)


def _described(rng: random.Random, parameters: dict[str, Any]) -> bytes:
    """A request for a graph, with a description that has nothing to do with the work."""
    description = rng.randbytes(log_uniform_int(rng, 64, 128 << 10)).hex()
    return json.dumps({**parameters, "seed": rng.getrandbits(32), "description": description}).encode()


def _pagerank_input(rng: random.Random) -> bytes:
    return _described(
        rng,
        {
            "nodes": log_uniform_int(rng, *_NODES),
            "degree": rng.randint(2, 20),
            "damping": rng.uniform(0.5, 0.97),
            "tolerance": log_uniform(rng, 1e-10, 1e-3),
        },
    )


def _random_graph(request: dict[str, Any]) -> Any:
    """A sparse matrix of weights above 0; some nodes have far more neighbours than others."""
    import numpy as np
    from scipy import sparse  # type: ignore[import-untyped]

    nodes, edges = request["nodes"], request["nodes"] * request["degree"]
    rng = np.random.default_rng(request["seed"])
    sources = rng.integers(0, nodes, edges)
    targets = (nodes * rng.random(edges) ** 3).astype(np.int64)
    return sparse.csr_matrix((rng.random(edges) + 0.01, (sources, targets)), shape=(nodes, nodes))


def _pagerank(body: bytes) -> int:
    import numpy as np

    request = json.loads(body)
    nodes, damping = request["nodes"], request["damping"]
    graph = _random_graph(request)
    out = np.maximum(np.asarray(graph.sum(axis=1)).ravel(), 1e-9)
    inward = graph.multiply(1 / out[:, None]).T.tocsr()
    rank = np.full(nodes, 1 / nodes)
    iterations = 0
    while True:
        iterations += 1
        following = (1 - damping) / nodes + damping * (inward @ rank)
        following /= following.sum()
        if np.abs(following - rank).sum() < request["tolerance"]:
            return iterations
        rank = following


def _spanning_tree_input(rng: random.Random) -> bytes:
    return _described(rng, {"nodes": log_uniform_int(rng, *_NODES), "degree": rng.randint(2, 20)})


def _spanning_tree(body: bytes) -> int:
    from scipy.sparse.csgraph import minimum_spanning_tree  # type: ignore[import-untyped]

    return int(minimum_spanning_tree(_random_graph(json.loads(body))).nnz)


def _search_input(rng: random.Random) -> bytes:
    """A graph of separate parts, of very different sizes, and the node to search from."""
    import numpy as np

    nodes = log_uniform_int(rng, *_NODES)
    bounds = sorted({0, nodes, *(int(log_uniform(rng, 2, nodes)) for _ in range(6))})
    noise = np.random.default_rng(rng.getrandbits(32))
    edges = [noise.integers(a, b, ((b - a) * 4, 2), dtype=np.int32) for a, b in pairwise(bounds)]
    start = rng.choice(bounds[:-1])
    return np.array([nodes, start], dtype=np.int32).tobytes() + np.concatenate(edges).tobytes()


def _search(body: bytes) -> int:
    """Finds the shortest way to every node that can be reached."""
    from collections import deque

    import numpy as np

    nodes, start = (int(v) for v in np.frombuffer(body, dtype=np.int32, count=2))
    edges = np.frombuffer(body, dtype=np.int32, offset=8).reshape(-1, 2)
    order = np.argsort(edges[:, 0], kind="stable")
    targets = edges[order, 1]
    first = np.searchsorted(edges[order, 0], np.arange(nodes + 1))
    ways: dict[int, tuple[int, ...]] = {start: ()}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for neighbour in targets[first[node] : first[node + 1]].tolist():
            if neighbour not in ways:
                ways[neighbour] = (*ways[node], node)
                queue.append(neighbour)
    return len(ways)


WORKLOADS = (
    Workload("video-processing", "VP", False, _video_input, _video),
    Workload("image-recognition", "IR", False, _recognition_input, _recognition),
    Workload("pagerank", "GP", False, _pagerank_input, _pagerank),
    Workload("spanning-tree", "GM", False, _spanning_tree_input, _spanning_tree),
    Workload("breadth-first-search", "GB", False, _search_input, _search),
)
