# SPDX-License-Identifier: Apache-2.0
"""What an image has beside its pixels: EXIF tags, info, frames."""

from __future__ import annotations

import io
from typing import Any

import modcache
import pytest
import torch
from modcache._call import registered
from modcache._call.carriers import view_of_image, view_of_images, view_of_shared_image
from models import Python

pil: Any = pytest.importorskip("PIL.Image")
ImageOps: Any = pytest.importorskip("PIL.ImageOps")
KEYS = ["a", "b"]
ORIENTATION = 0x0112


def photo(orientation: int = 1, form: str = "JPEG") -> Any:
    exif = pil.Exif()
    exif[ORIENTATION] = orientation
    file = io.BytesIO()
    pil.new("RGB", (4, 2), (10, 20, 30)).save(file, form, exif=exif)
    return pil.open(file)


def edited(orientation: int) -> Any:
    """An image whose tag is not in its info."""
    image = pil.new("RGB", (4, 2))
    image.getexif()[ORIENTATION] = orientation
    return image


def with_info(**info: Any) -> Any:
    image = pil.new("RGB", (4, 2))
    image.info.update(info)
    return image


def frames(form: str) -> Any:
    file = io.BytesIO()
    first, *more = (pil.new("L", (4, 2), 60 * i) for i in range(3))
    first.save(file, form, save_all=True, append_images=more)
    return pil.open(file)


def upright(images: Any) -> torch.Tensor:
    widths = [ImageOps.exif_transpose(image).size[0] for image in images]
    return torch.tensor(widths, dtype=torch.float32)[:, None]


PAIRS: dict[str, Any] = {
    "EXIF": lambda: (photo(1), photo(6)),
    "EXIF in PNG": lambda: (photo(1, "PNG"), photo(6, "PNG")),
    "EXIF edited": lambda: (edited(1), edited(6)),
    "info": lambda: (with_info(dpi=(72, 72)), with_info(dpi=(72, 96))),
    "bytes": lambda: (with_info(icc_profile=b"a"), with_info(icc_profile=b"b")),
    "nested info": lambda: (with_info(photoshop={1: b"a"}), with_info(photoshop={1: "a"})),
    "nothing": lambda: (with_info(), with_info(comment=None)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_an_image_has_beside_its_pixels_counts(name: str, counted: Any) -> None:
    one, other = PAIRS[name]()
    assert one.tobytes() == other.tobytes()
    assert modcache.content_key(one) == modcache.content_key(PAIRS[name]()[0])
    assert modcache.content_key(one) != modcache.content_key(other)
    module = Python(upright)
    for images in ([one, pil.new("L", (9, 2))], [other, pil.new("L", (9, 2))]):
        found = modcache.lookup_or_run(module, images, KEYS, scope="s")
        assert torch.equal(found, upright(images))
    assert counted()["key_conflicts"] == 1


def test_a_sample_keeps_its_exif_tags() -> None:
    images = [photo(6), photo(6, "PNG"), with_info(exif=b"\xff\x00 none")]
    dataset: Any = modcache.CachedDataset(images, scope="s")
    for _ in range(2):
        for number, image in enumerate(images):
            assert dataset[number].info.get("exif") == image.info["exif"]
            assert modcache.content_key(dataset[number]) == modcache.content_key(dataset[number])
        assert upright([dataset[0]]).item() == 2


def test_tags_that_would_be_lost_are_refused() -> None:
    dataset: Any = modcache.CachedDataset([edited(6)], scope="s")
    with pytest.raises(TypeError, match=r"sample is a PIL\.Image\.Image, which cannot be cached"):
        dataset[0]


def test_a_tiff_is_a_sample_as_others_are() -> None:
    dataset: Any = modcache.CachedDataset([photo(6, "TIFF")], scope="s")
    for _ in range(2):
        assert dataset[0].tobytes() == photo(6, "TIFF").tobytes()
    assert modcache.content_key(photo(1, "TIFF")) == modcache.content_key(photo(1, "TIFF"))


@pytest.mark.parametrize("form", ["GIF", "TIFF", "PNG"])
def test_an_image_of_several_frames_is_not_cached(form: str, counted: Any, capfd: Any) -> None:
    class Last(Python):
        """Tells its warning from those of other tests."""

    def last(image: Any) -> torch.Tensor:
        image.seek(2)
        return torch.tensor([float(image.convert("L").getpixel((0, 0)))])

    Last.__qualname__ = f"Last{form}"
    module = Last(last)
    for _ in range(2):
        assert modcache.lookup_or_run(module, frames(form), "k", scope="s").item() == 120
    assert counted() == {"bypassed_type": 2}
    modcache.flush()
    assert "of 3 frames" in capfd.readouterr().err
    with pytest.raises(ValueError, match=r"of 3 frames.*image\.copy\(\)"):
        modcache.content_key(frames(form))
    dataset: Any = modcache.CachedDataset([frames(form)], scope="t")
    with pytest.raises(TypeError, match=r"image\.copy\(\)"):
        dataset[0]
    assert modcache.content_key(frames(form).copy())


def test_an_unknown_object_in_the_info_is_refused(counted: Any) -> None:
    module = Python(lambda image: torch.ones(1))
    modcache.lookup_or_run(module, with_info(odd=object()), "k", scope="s")
    assert counted() == {"bypassed_type": 1}


def test_no_tuple_has_the_content_key_of_an_image() -> None:
    image = photo()
    assert modcache.content_key(image) != modcache.content_key(view_of_image(image))
    x = torch.ones(1, 2)
    shared = modcache.content_keys((x, view_of_shared_image(image)))
    assert modcache.content_keys((x, image)) != shared
    assert modcache.content_keys([image]) != modcache.content_keys(view_of_images([image]))


def test_a_class_of_images_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(pil.Image):  # type: ignore[misc]
        """A user's class, which is no image to the cache."""

    monkeypatch.setattr(registered, "_registered", {})
    for kind in (pil.Image, type(photo())):
        with pytest.raises(TypeError, match=r"cannot be registered: .* PIL images"):
            modcache.register_value(kind, lambda image: ([], None), lambda parts, _: Own())
    modcache.register_value(Own, lambda image: ([], None), lambda parts, _: Own())
