# SPDX-License-Identifier: Apache-2.0
"""Data of other libraries: NumPy arrays and scalars, PIL images, torchvision's tv_tensors.

In results and samples, such a value goes into the library inside a *carrier*, a named tuple of
this file. In arguments it is compared as the tensors of its *view*: an array by its elements, an
image by a digest of its pixels, so that an edited image is another input. Nothing is imported
before a stored value needs it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import json
import numbers
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from modcache._code.names import is_installed, plain_name, short_name
from modcache._code.objects import is_a

_DIGEST_BYTES = 32
_NUMBERS = _DIGEST_BYTES // 8
_IMAGE = "modcache:image"
_IMAGE_INFO = (type(None), bool, int, float, str, bytes)  # what is kept of an image's ``info``
_ORIENTATION = 0x0112  # the EXIF tag that ImageOps.exif_transpose reads


class UnviewableError(ValueError):
    """A value cannot be told apart from others. The text names it."""


# The names of these classes and of their fields are on disk.
class NumpyArray(NamedTuple):
    """An array of a dtype that torch has."""

    data: torch.Tensor


class NumpyScalar(NamedTuple):
    """A scalar: the text of its dtype, and its bytes in hexadecimal digits."""

    dtype: str
    data: str


class Image(NamedTuple):
    """A PIL image: uint8 [bytes], a palette ("RGB", its bytes in hexadecimal) and info as JSON."""

    mode: str
    width: int
    height: int
    palette: tuple[str, str] | None
    info: str
    pixels: torch.Tensor


class TvTensor(NamedTuple):
    """A tensor with what torchvision knows of it, as JSON."""

    kind: str
    attributes: str
    data: torch.Tensor


def carrier_of(value: Any) -> Any:
    """Returns a value of another library in its carrier; None: it is none that is known.

    An array and a tv_tensor share their memory with the carrier where torch can. An image that
    cannot be read is not known.
    """
    if is_array(value):
        tensor = tensor_of_array(value) if value.dtype.isnative else None
        return None if tensor is None else NumpyArray(tensor)
    if _is_numpy_scalar(value):
        return NumpyScalar(value.dtype.str, value.tobytes().hex())
    if is_image(value):
        with contextlib.suppress(Exception):  # whatever a decoder raises
            return _carrier_of_image(value)
    return _carrier_of_tv_tensor(value) if is_tv_tensor(value) else None


def is_carried(kind: type) -> bool:
    """Whether values of a class go in carriers, which nothing else can say."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and is_installed(kind):
        plain = (numpy.number, numpy.bool_, numpy.character, numpy.datetime64)
        if kind in (numpy.ndarray, numpy.memmap) or issubclass(kind, plain):
            return True
    return _is_class_of_images(kind)


def has_rows(carrier: Any) -> bool:
    """Whether the first dimension of a value in a carrier may be that of the rows of a batch."""
    return not isinstance(carrier, Image)


# ----- NumPy


def is_array(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")  # no array can be here before it was imported
    return numpy is not None and type(value) in (numpy.ndarray, numpy.memmap)


def tensor_of_array(array: Any) -> torch.Tensor | None:
    """Makes a tensor with the elements of an array; None: torch has no such dtype."""
    numpy: Any = sys.modules["numpy"]
    native = array.dtype.newbyteorder("=")
    if native.kind in "biufc":
        if not _is_borrowable(array):
            array = numpy.array(array, dtype=native, order="C", copy=True)
        with contextlib.suppress(TypeError):
            return torch.from_numpy(array)
    return None


def _is_borrowable(array: Any) -> bool:
    return (
        bool(array.flags.writeable)  # torch warns about others
        and bool(array.dtype.isnative)
        and all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    )


def _is_numpy_scalar(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return (
        numpy is not None
        and isinstance(value, numpy.generic)
        and value.dtype.kind in "biufcSUmM"
        and value.dtype.itemsize > 0  # NumPy makes no scalar of no bytes
        and type(value) is value.dtype.type
        and not (isinstance(value, (str, bytes)) and value[-1:] in ("\0", b"\0"))  # would be cut
    )


def _numpy_array(data: torch.Tensor) -> Any:
    return data.numpy()


def _numpy_scalar(dtype: str, data: str) -> Any:
    import numpy

    kind = numpy.dtype(dtype)
    if kind.hasobject:  # NumPy would take its bytes for addresses
        raise ValueError(f"dtype {kind}")
    return numpy.frombuffer(bytes.fromhex(data), kind)[0]


# ----- PIL


def is_image(value: Any) -> bool:
    """Whether it is a PIL image, of PIL's own classes or of an installed plugin's."""
    return _is_class_of_images(type(value))


def _is_class_of_images(kind: type) -> bool:
    base: Any = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return base is not None and issubclass(kind, base) and is_installed(kind)


def are_images(values: Any) -> bool:
    """Whether a list holds images alone, and at least one."""
    return bool(values) and all(map(is_image, values))


def view_of_image(image: Any) -> tuple[str | torch.Tensor, ...]:
    """An image as the library gets it: its digest."""
    return _IMAGE, *(numbers[0] for numbers in _view_of_digests([_digest_of(image)]))


def view_of_shared_image(image: Any) -> tuple[str, str]:
    """An image that belongs to every row, as the library gets it: the digest as text."""
    return _IMAGE, _digest_of(image).hex()


def view_of_images(images: list[Any]) -> tuple[str | torch.Tensor, ...]:
    """One image for each row, as the library gets them: their digests."""
    return _IMAGE, *_view_of_digests(map(_digest_of, images))


def _view_of_digests(digests: Iterable[bytes]) -> tuple[torch.Tensor, ...]:
    """Returns four tensors of int64, [B]: one digest for each row.

    They have no dimension after the rows, so that padded rows beside them never get a digest cut.
    """
    joined = bytearray(b"".join(digests))
    if not joined:
        return tuple(torch.empty(0, dtype=torch.int64, device="cpu") for _ in range(_NUMBERS))
    rows = torch.frombuffer(joined, dtype=torch.int64).view(-1, _NUMBERS)
    return rows.t().contiguous().unbind()


def _digest_of(image: Any) -> bytes:
    """Hashes mode, size, palette, info, EXIF tags and pixels: BLAKE2b, 32 bytes.

    Raises:
        UnviewableError: the image has several frames, or something unknown in its info.
    """
    if (frames := getattr(image, "n_frames", 1)) != 1:
        kind = short_name(type(image))
        raise UnviewableError(
            f"a {kind} of {frames} frames; pass the one that counts: image.copy()"
        )
    pixels = image.tobytes()  # loads an image that was only opened
    described = (
        image.mode,
        image.size,
        _palette_of(image),
        _text_of(image.info),
        _text_of(_exif_of(image)),
    )
    data = repr(described).encode() + b"\0" + pixels
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _exif_of(image: Any) -> tuple[dict[int, Any], bytes] | None:
    """Returns the EXIF tags, and all of them in bytes if they have a form; None: no valid ones."""
    try:
        exif = image.getexif()
        tags = dict(exif)
    except Exception:  # bytes of another form, which are in ``info``
        return None
    with contextlib.suppress(Exception):  # a tag of a wrong type
        return tags, exif.tobytes() if tags else b""
    return tags, b""


def _text_of(part: Any) -> str:
    """Writes a value of an image's info unambiguously."""
    if isinstance(part, dict):
        items = sorted(f"{_text_of(name)}: {_text_of(value)}" for name, value in part.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(part, (list, tuple, set, frozenset)):
        items = [_text_of(item) for item in part]
        items = sorted(items) if isinstance(part, (set, frozenset)) else items
        return f"{type(part).__name__}({', '.join(items)})"
    if isinstance(part, str):  # Pillow's text in PNG files has attributes
        more = _text_of(vars(part)) if getattr(part, "__dict__", None) else ""
        return str.__repr__(part) + more
    if isinstance(part, bytes):
        return f"{len(part)} bytes {hashlib.blake2b(part, digest_size=32).hexdigest()}"
    if type(part) in _IMAGE_INFO:
        return repr(part)
    if isinstance(part, numbers.Rational):  # a tag of a TIFF file, or an enum
        return f"{int(part.numerator)!r}/{int(part.denominator)!r}"
    raise UnviewableError(f"an image with a {short_name(type(part))} in its info")


def _palette_of(image: Any) -> tuple[str, str] | None:
    palette = image.getpalette(None)
    return None if palette is None else (str(image.im.getpalettemode()), bytes(palette).hex())


def _carrier_of_image(image: Any) -> Image:
    if getattr(image, "n_frames", 1) != 1:
        raise ValueError("frames beside the current one")
    pixels = tensor_of_bytes(image.tobytes())
    info = [[name, _plain(part)] for name, part in image.info.items() if _is_plain(name, part)]
    text = json.dumps(info)
    _check_exif(image, _image("L", 1, 1, None, text, tensor_of_bytes(b"\0")))
    width, height = image.size
    return Image(image.mode, width, height, _palette_of(image), text, pixels)


def _check_exif(image: Any, restored: Any) -> None:
    """Raises ValueError if EXIF tags are not in ``info``. Most of a TIFF's describe the file."""
    ours, theirs = _exif_of(image), _exif_of(restored)
    is_same = ours == theirs
    if hasattr(image, "tag_v2") and ours is not None and theirs is not None:
        is_same = ours[0].get(_ORIENTATION) == theirs[0].get(_ORIENTATION)
    if not is_same:
        raise ValueError("EXIF tags of its own")


def _is_plain(name: Any, part: Any) -> bool:
    if type(part) is tuple:
        return all(type(item) in _IMAGE_INFO and type(item) is not bytes for item in part)
    return type(name) is str and (type(part) in _IMAGE_INFO or isinstance(part, str))


def _plain(part: Any) -> Any:
    """Writes bytes and tuples in JSON, which has neither."""
    if type(part) is bytes:
        return {"bytes": part.hex()}
    return {"tuple": list(part)} if type(part) is tuple else part


def _image(mode: str, width: int, height: int, palette: Any, info: str, pixels: Any) -> Any:
    pil: Any = importlib.import_module("PIL.Image")
    image = pil.frombytes(mode, (width, height), bytes_of(pixels))
    if palette is not None:
        image.putpalette(bytes.fromhex(palette[1]), palette[0])
    for name, part in json.loads(info):
        if isinstance(part, dict):
            part = bytes.fromhex(part["bytes"]) if "bytes" in part else tuple(part["tuple"])
        image.info[name] = part
    return image


# ----- torchvision


def is_tv_tensor(value: Any) -> bool:
    torchvision: Any = sys.modules.get("torchvision.tv_tensors")
    kinds = getattr(torchvision, "TVTensor", None)
    return kinds is not None and is_a(value, kinds) and type(value) in _kinds_in(torchvision)


def view_of_tv_tensor(value: Any) -> tuple[str, str, str, torch.Tensor]:
    """A tv_tensor as the library gets it.  Raises ValueError if its attributes are not known."""
    carrier = _carrier_of_tv_tensor(value)
    if carrier is None:
        raise ValueError(f"a {plain_name(type(value))} with attributes of its own")
    return "modcache:tv_tensor", *carrier


def with_data(value: Any, data: torch.Tensor) -> Any:
    """Returns a tv_tensor of the same class and attributes around other data."""
    made = data.as_subclass(type(value))
    vars(made).update(vars(value))
    return made


def _kinds_in(torchvision: Any) -> list[Any]:
    return [part for part in vars(torchvision).values() if isinstance(part, type)]


def _carrier_of_tv_tensor(value: Any) -> TvTensor | None:
    torchvision: Any = sys.modules["torchvision.tv_tensors"]
    enums = getattr(torchvision, "BoundingBoxFormat", ())
    attributes = {}
    for name, part in vars(value).items():
        if isinstance(part, enums):
            attributes[name] = {"format": part.name}
        elif type(part) is tuple and all(type(item) is int for item in part):
            attributes[name] = {"tuple": list(part)}
        elif type(part) in (type(None), bool, int, float, str):
            attributes[name] = part
        else:
            return None
    data = value.as_subclass(torch.Tensor)
    return TvTensor(type(value).__name__, json.dumps(attributes), data)


def _tv_tensor(kind: str, attributes: str, data: torch.Tensor) -> Any:
    tv_tensors: Any = importlib.import_module("torchvision.tv_tensors")
    made = data.as_subclass(getattr(tv_tensors, kind))
    for name, part in json.loads(attributes).items():
        if isinstance(part, dict):
            formats = tv_tensors.BoundingBoxFormat
            part = formats[part["format"]] if "format" in part else tuple(part["tuple"])
        setattr(made, name, part)
    return made


# ----- bytes


def tensor_of_bytes(data: bytes) -> torch.Tensor:
    """Returns a tensor of bytes, uint8 [size]."""
    if not data:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def bytes_of(data: torch.Tensor) -> bytes:
    """Returns the bytes in a tensor, uint8 [size]."""
    return ctypes.string_at(data.data_ptr(), data.numel())


CARRIERS = frozenset({NumpyArray, NumpyScalar, Image, TvTensor})
# Functions that restore carried values, by the names of their carriers on disk.
RESTORED: dict[str, Callable[..., Any]] = {
    plain_name(NumpyArray): _numpy_array,
    plain_name(NumpyScalar): _numpy_scalar,
    plain_name(Image): _image,
    plain_name(TvTensor): _tv_tensor,
}
