"""Bytes of a table file: compression by gzip, bzip2, xz or zip, and the encoding of its text.

Formats are recognized by their first bytes, so that a wrong suffix does no harm.
"""

import bz2
import codecs
import gzip
import io
import lzma
import zipfile
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

from unlazy.core.errors import UnlazyError, join_names

Format = Literal["text", "excel", "parquet", "npz"]
_COMPRESSED = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7zXZ\x00": lzma.decompress}
_OLD_EXCEL = b"\xd0\xcf\x11\xe0"
_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_SAMPLE = 4096


class FileBytes(NamedTuple):
    """Decompressed contents of a file and their format."""

    data: bytes
    format: Format


def read_bytes(path: Path) -> FileBytes:
    """Read and decompress a file; raise UnlazyError if it is empty or holds several files."""
    data = path.read_bytes()
    for start, decompress in _COMPRESSED.items():
        if data.startswith(start):
            try:
                data = decompress(data)
            except (OSError, EOFError, lzma.LZMAError) as error:
                raise UnlazyError(f"{path} is a damaged compressed file ({error}); compress it again") from error
    if not data:
        raise UnlazyError(f"{path} is empty; it must have a header row and one row per sample")
    if data.startswith(b"PAR1"):
        return FileBytes(data, "parquet")
    if data.startswith(_OLD_EXCEL):
        raise UnlazyError(f"{path} is an Excel file of the old format (.xls); save it as .xlsx or CSV")
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")) or path.suffix == ".npz":
        return _open_zip(path, data)
    return FileBytes(data, "text")


def _open_zip(path: Path, data: bytes) -> FileBytes:
    """The one file of a zip archive; Excel and npz files are archives too."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [n for n in archive.namelist() if not n.endswith("/") and not n.startswith("__MACOSX/")]
            if "[Content_Types].xml" in names:
                return FileBytes(data, "excel")
            if path.suffix == ".npz" or (names and all(n.endswith(".npy") for n in names)):
                return FileBytes(data, "npz")
            if not names:
                raise UnlazyError(f"{path} holds no file; pass a CSV, Excel, Parquet or npz file")
            if len(names) != 1:
                raise UnlazyError(
                    f"{path} holds {len(names)} files ({join_names(names)}); unzip it and pass one of them"
                )
            return FileBytes(archive.read(names[0]), "text")
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        if path.suffix == ".npz":
            return FileBytes(data, "npz")  # the reader of npz files says what is wrong
        if path.suffix == ".xlsx":
            raise UnlazyError(f"{path} is a damaged Excel file; save it again") from error
        if not isinstance(error, RuntimeError):  # RuntimeError: it needs a password, or its compression is unknown
            raise UnlazyError(f"{path} is damaged or incomplete; download or save it again") from error
        raise UnlazyError(f"{path} cannot be unzipped ({error}); unzip it and pass the file inside") from error


def find_encoding(path: Path, data: bytes) -> str:
    """Encoding of a text: UTF-8, UTF-16, or else Windows-1252 (Latin-1); raise UnlazyError if it is not a text."""
    for mark, name in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            return name
    sample = data[:_SAMPLE]
    if b"\0" in sample:
        even, odd = sample[::2].count(0), sample[1::2].count(0)
        if max(even, odd) < 0.4 * len(sample) / 2 or min(even, odd) > 0:
            raise UnlazyError(f"{path} is not a text file, so not a CSV; pass a CSV, Excel, Parquet or npz file")
        return "utf-16-be" if even else "utf-16-le"
    for name in ("utf-8", "cp1252"):
        try:
            data.decode(name)
        except UnicodeDecodeError:
            continue
        return name
    return "latin-1"
