"""One chunk of one array as a file: compressed, and with a checksum by which it is known to be what was written."""

import functools
import os
import pathlib
from typing import Any

import numpy as np

COMPRESSOR: dict[str, Any] = {"cname": "lz4", "clevel": 1, "shuffle": "bitshuffle"}
"""The fastest compressor that is any good at floats: see the measurements in the docs."""

CHUNK_NAMES: dict[str, Any] = {"name": "default", "separator": "."}
"""Zarr's name for the names of :func:`chunk_name`: no folder for every chunk, which takes longer than its bytes."""

_CRC_BYTES = 4


def chunk_name(chunk: int, n_dims: int) -> str:
    """Return the name of the file of a chunk along time, in the folder of its array."""
    return ".".join(map(str, ("c", chunk, *(0 for _ in range(n_dims - 1)))))


def codecs() -> tuple[Any, ...]:
    """Return what Zarr is told about the bytes of a file."""
    from zarr.codecs import BloscCodec, Crc32cCodec

    return BloscCodec(**COMPRESSOR), Crc32cCodec()


def write_chunk(file: pathlib.Path, rows: np.ndarray, n_rows: int) -> None:
    """Write a file that Zarr's codecs of :func:`codecs` read; nothing may rely on it before the call returns.

    Zarr's own way of writing takes about a millisecond of Python for every chunk, and several threads that keep memory.

    Args:
        file: where.
        rows: values ``[T, ...]``, in the byte order and the type of the array.
        n_rows: rows of a chunk; zeros fill up what is missing.
    """
    import google_crc32c

    if len(rows) < n_rows:
        rows = np.concatenate([rows, np.zeros((n_rows - len(rows), *rows.shape[1:]), rows.dtype)])
    compressed = compress(rows)
    with file.open("wb") as out:
        out.write(compressed)
        out.write(google_crc32c.value(compressed).to_bytes(_CRC_BYTES, "little"))


def compress(rows: np.ndarray) -> bytes:
    """Return what a chunk's file begins with."""
    return _compressor().encode(np.ascontiguousarray(rows))


def has_its_checksum(file: pathlib.Path) -> bool:
    """Whether the last four bytes of a file are the CRC32C of the others, little-endian."""
    import google_crc32c

    with file.open("rb") as stored:
        contents = stored.read(max(0, os.fstat(stored.fileno()).st_size - _CRC_BYTES))
        checksum = stored.read()
    return bool(contents) and google_crc32c.value(contents) == int.from_bytes(checksum, "little")


@functools.cache
def _compressor() -> Any:
    from numcodecs.blosc import BITSHUFFLE, Blosc

    return Blosc(cname=COMPRESSOR["cname"], clevel=COMPRESSOR["clevel"], shuffle=BITSHUFFLE)
