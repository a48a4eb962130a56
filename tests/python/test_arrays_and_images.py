# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays and PIL images as arguments, results and samples."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from modcache._call.tagged import tagged
from models import Python

KEYS = ["a", "b", "c"]
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)

# ----- NumPy


def test_rows_of_an_array_are_cached_and_the_module_gets_arrays(counted: Any) -> None:
    def double(x: Any) -> torch.Tensor:
        assert type(x) is np.ndarray
        return torch.from_numpy(x * 2)

    module = Python(double)
    modcache.lookup_or_run(module, ROWS[1:2], ["b"], scope="s")
    assert counted() == {"misses": 1, "stored": 1}
    for _ in range(2):
        found = modcache.lookup_or_run(module, ROWS, KEYS, scope="s")
        assert torch.equal(found, torch.from_numpy(ROWS * 2))
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 4}
    modcache.lookup_or_run(module, ROWS + 1, KEYS, scope="s")
    assert counted()["key_conflicts"] == 3


def test_an_array_is_no_tensor_and_has_its_byte_order(counted: Any) -> None:
    module = Python(lambda x: torch.tensor([float(len(str(getattr(x, "dtype", x))))]))
    inputs = [ROWS, torch.from_numpy(ROWS), ROWS.astype(">f4"), ROWS.astype("f8"), ROWS.tolist()]
    for _ in range(2):
        for given in inputs:
            modcache.lookup_or_run(module, given, "k", scope="s")
    assert counted() == {"misses": 5, "stored": 5, "hits_memory": 5}


def test_arrays_with_odd_strides_and_without_the_right_to_write(counted: Any) -> None:
    module = Python(lambda x: torch.tensor(x.sum(1)))
    locked = ROWS.copy()
    locked.flags.writeable = False
    modcache.lookup_or_run(module, locked, KEYS, scope="s")
    for same in (ROWS, ROWS[::-1][::-1], np.asfortranarray(ROWS)):
        found = modcache.lookup_or_run(module, same, KEYS, scope="s")
        assert torch.equal(found, torch.tensor(ROWS.sum(1)))
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 9}


def test_a_wrong_number_of_rows_in_an_array_is_an_error() -> None:
    module = Python(lambda x, _: x)
    for other in (1, object()):
        with pytest.raises((ValueError, RuntimeError), match=r"2 keys were given|2 keys"):
            modcache.lookup_or_run(module, (ROWS, other), KEYS[:2], scope="s")


@pytest.mark.parametrize("key", ["k", KEYS], ids=["whole", "rows"])
def test_arrays_and_scalars_come_back_from_a_call(
    key: Any, reopen: Callable[[], None], counted: Any
) -> None:
    result = {
        "array": ROWS.astype("f8"),
        "deep": [np.arange(6).reshape(3, 2)[:, ::-1], (np.float32(1.5), np.str_("ü"))],
        "more": (np.bool_(True), np.int8(-3), np.complex64(2j), np.datetime64("2020-01-01")),
    }

    def picked(x: torch.Tensor) -> Any:
        rows = x.long().tolist()
        arrays = {"array": result["array"][rows], "deep": [result["deep"][0][rows]]}
        return {**result, **arrays, "deep": [*arrays["deep"], result["deep"][1]]}

    module = Python(picked)
    for round_ in range(3):
        if round_ == 2:
            reopen()
        found = modcache.lookup_or_run(module, torch.arange(3.0), key, scope="s")
        assert type(found["array"]) is np.ndarray
        assert found["array"].dtype == np.float64
        assert (found["array"] == ROWS).all()
        assert (found["deep"][0] == [[1, 0], [3, 2], [5, 4]]).all()
        for one, other in zip(
            found["deep"][1] + found["more"], result["deep"][1] + result["more"], strict=True
        ):
            assert type(one) is type(other)
            assert one == other
        if round_:
            found["array"][:] = 7
    assert counted()["stored"] == (1 if key == "k" else 3)


def test_an_array_that_no_tensor_can_hold_is_not_stored(counted: Any, capfd: Any) -> None:
    swapped = ROWS.astype(ROWS.dtype.newbyteorder())
    for value in (
        np.array(["a"]),
        np.ma.ones(3),
        np.array([None]),
        swapped,
        np.str_(),
        np.bytes_(),
    ):
        modcache.lookup_or_run(Python(lambda x, value=value: value), torch.ones(3), "k", scope="s")
    assert counted() == {"bypassed_type": 6}


def test_samples_keep_a_byte_order_and_empty_text() -> None:
    samples = [ROWS.astype(ROWS.dtype.newbyteorder()), np.str_(), np.bytes_()]
    dataset: Any = modcache.CachedDataset(samples, scope="s")
    for _ in range(2):
        for number, value in enumerate(samples):
            assert type(dataset[number]) is type(value)
            assert dataset[number].dtype == value.dtype
            assert np.all(dataset[number] == value)


def test_a_memory_mapped_array_comes_back_as_an_array(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, ROWS)
    mapped = np.load(path, mmap_mode="r+")
    module = Python(lambda x: x)
    dataset: Any = modcache.CachedDataset([mapped], scope="t")
    for round_ in range(2):
        found = modcache.lookup_or_run(module, mapped, KEYS, scope="s")
        assert type(found) is (np.ndarray if round_ else np.memmap)
        sample = dataset.__getitems__([0])[0]
        assert type(sample) is np.ndarray
        assert (sample == ROWS).all()
        assert (found == ROWS).all()
        sample[:] = 7
    assert (mapped == ROWS).all()


# ----- PIL


@pytest.fixture
def pil() -> Any:
    return pytest.importorskip("PIL.Image")


MODES = ["1", "L", "P", "RGB", "RGBA", "LA", "PA", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16"]


def image_of(pil: Any, mode: str = "RGB", size: tuple[int, int] = (13, 7), start: int = 0) -> Any:
    width, height = size
    values = (torch.arange(width * height * 3) * 7 + start).to(torch.uint8).tolist()
    image = pil.frombytes("RGB", size, bytes(values))
    if mode == "I;16":
        return image.convert("I").convert("I;16")
    if mode == "LAB":
        return pil.frombytes("LAB", size, bytes(values))
    if mode == "P":
        return image.quantize(9)
    first = {"PA": "P", "LA": "L"}.get(mode, mode)
    return image.convert(first).convert(mode)


def same(one: Any, other: Any) -> bool:
    return (
        (one.mode, one.size, one.getpalette(None))
        == (other.mode, other.size, other.getpalette(None))
        and one.tobytes() == other.tobytes()
        and one.info == other.info
        and one.convert("RGB").tobytes() == other.convert("RGB").tobytes()
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_sample_with_an_image_comes_back(
    mode: str, pil: Any, reopen: Callable[[], None], counted: Any
) -> None:
    image = image_of(pil, mode)
    image.info.update({"dpi": (72, 72.5), "exif": b"\xff\x00", "comment": "ü", "odd": object()})
    dataset: Any = modcache.CachedDataset([(image, 3)], scope="s")
    del_odd = image_of(pil, mode)
    del_odd.info.update({"dpi": (72, 72.5), "exif": b"\xff\x00", "comment": "ü"})
    for round_ in range(3):
        if round_ == 2:
            reopen()
        found, label = dataset[0]
        assert type(found) is pil.Image
        assert same(found, del_odd)
        assert label == 3
        found.putpixel((0, 0), found.getpixel((1, 1)))
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1, "hits_disk": 1}


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "webp", "bmp"])
def test_a_file_that_was_opened_comes_back_as_its_pixels(
    suffix: str, pil: Any, tmp_path: Path
) -> None:
    path = tmp_path / f"image.{suffix}"
    image_of(pil).save(path)

    class Files:
        def __getitem__(self, index: int) -> Any:
            return pil.open(path)

    dataset: Any = modcache.CachedDataset(Files(), scope="s")
    for _ in range(2):
        found = dataset[0]
        assert found.tobytes() == pil.open(path).tobytes()
        assert found.convert("RGB").tobytes() == pil.open(path).convert("RGB").tobytes()


def test_a_transparent_palette_comes_back(pil: Any) -> None:
    image = image_of(pil, "P")
    image.info["transparency"] = 3
    dataset: Any = modcache.CachedDataset([image], scope="s")
    for _ in range(2):
        assert dataset[0].convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


def test_a_truncated_file_is_an_error_of_the_sample(pil: Any, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    image_of(pil, size=(200, 200)).save(path)
    path.write_bytes(path.read_bytes()[:200])

    class Files:
        def __getitem__(self, index: int) -> Any:
            return pil.open(path)

    dataset: Any = modcache.CachedDataset(Files(), scope="s")
    with pytest.raises(TypeError, match=r"sample is a PIL\.PngImagePlugin"):
        dataset[0]


def mean_of(images: list[Any]) -> torch.Tensor:
    return torch.stack([torch.tensor(list(image.tobytes())).float().mean() for image in images])


def test_a_list_of_images_is_a_batch_of_rows(pil: Any, counted: Any) -> None:
    module = Python(lambda images, scale: mean_of(images) * scale)
    images = [image_of(pil, size=(5 + i, 4), start=i) for i in range(3)]
    expected = mean_of(images) * 2
    modcache.lookup_or_run(module, (images[:2], 2), ["p", "q"], scope="s")  # proves the rows
    modcache.lookup_or_run(module, (images[1:2], 2), ["b"], scope="s")
    assert counted() == {"misses": 3, "stored": 3}
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(module, (images, 2), KEYS, scope="s"), expected)
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 4}


def test_an_edited_image_under_the_same_key_is_run_again_and_only_it(
    pil: Any, counted: Any
) -> None:
    module = Python(mean_of)
    images = [image_of(pil, size=(300, 200), start=i) for i in range(3)]
    modcache.lookup_or_run(module, images, KEYS, scope="s")
    images[1].putpixel((7, 7), (1, 2, 3))
    counted()
    found = modcache.lookup_or_run(module, images, KEYS, scope="s")
    assert torch.equal(found, mean_of(images))
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 2, "key_conflicts": 1}


def test_one_image_under_one_key(pil: Any, counted: Any) -> None:
    module = Python(lambda image: mean_of([image]))
    for mode in ("RGB", "L"):
        image = image_of(pil, mode)
        for _ in range(2):
            found = modcache.lookup_or_run(module, image, "k", scope="s")
            assert torch.equal(found, mean_of([image]))
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2, "key_conflicts": 1}
    module = Python(mean_of)
    for _ in range(2):
        modcache.lookup_or_run(module, [image, image], "k", scope="t")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_an_image_beside_rows_belongs_to_each(pil: Any, counted: Any) -> None:
    module = Python(lambda x, image: x + mean_of([image]))
    x = torch.ones(3, 1)
    for _ in range(2):
        for start in (0, 5):
            image = image_of(pil, start=start)
            found = modcache.lookup_or_run(module, (x, image), KEYS, scope="s")
            assert torch.equal(found, x + mean_of([image]))
    assert counted() == {"misses": 6, "stored": 6, "hits_memory": 6}


def test_a_tuple_of_images_belongs_to_each_row_whatever_its_length(pil: Any, counted: Any) -> None:
    module = Python(lambda x, images: x + mean_of(images).sum())
    x, few = torch.arange(3.0)[:, None], torch.zeros(1, 1)
    for start in (0, 5):
        images = tuple(image_of(pil, start=start + i) for i in range(3))
        modcache.lookup_or_run(module, (x[1:], images), ["p", "q"], scope="s")  # proves the rows
        modcache.lookup_or_run(module, (few, images), KEYS[:1], scope="s")
        found = modcache.lookup_or_run(module, (x, images), KEYS, scope="s")
        assert torch.equal(found, x + mean_of(images).sum())  # type: ignore[arg-type]
    assert counted() == {"misses": 10, "stored": 10, "hits_memory": 2}


def test_without_match_input_the_key_alone_counts(pil: Any, counted: Any) -> None:
    modcache.configure(match="none")
    module = Python(mean_of)
    for size in ((3, 2), (5, 4)):
        images = [image_of(pil, size=size, start=start) for start in range(3)]
        modcache.lookup_or_run(module, images, KEYS, scope="s")
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}


def test_content_keys_of_images(pil: Any) -> None:
    images = [image_of(pil, size=(5 + i, 4)) for i in range(3)]
    keys = modcache.content_keys(images)
    assert len(set(keys)) == 3
    assert modcache.content_key(images[0]) != modcache.content_key(images[0].convert("L"))
    assert keys == [modcache.content_key(image) for image in images]
    x = torch.ones(3, 2)
    assert len(set(modcache.content_keys((x, images)))) == 3
    assert modcache.content_keys((x, images[0])) != modcache.content_keys((x, images[1]))
    encoder = modcache.cached(Python(mean_of), key=modcache.content_keys, scope="s")
    first = encoder(images)
    assert torch.equal(encoder(images[::-1]), first.flip(0))


def test_an_image_as_the_result_of_a_call(pil: Any, counted: Any) -> None:
    module = Python(lambda x: {"image": image_of(pil), "x": x})
    for _ in range(2):
        found = modcache.lookup_or_run(module, torch.ones(3), "k", scope="s")
        assert same(found["image"], image_of(pil))
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    modcache.lookup_or_run(module, torch.ones(3), KEYS, scope="s")
    assert counted() == {"bypassed_type": 3}


def test_how_they_are_named_on_disk_stays_as_it_is(pil: Any) -> None:
    name = "modcache._call.carriers"
    tag, kind, context, items = tagged(ROWS)
    assert (tag, kind, context) == ("o", f"{name}.NumpyArray", "null")
    assert torch.equal(items[0], torch.from_numpy(ROWS))
    assert tagged(np.float32(1)) == ("o", f"{name}.NumpyScalar", "null", ("<f4", "0000803f"))
    image = pil.new("L", (3, 2), 7)
    image.info["dpi"] = (72, 72)
    tag, kind, context, items = tagged(image)
    assert (tag, kind, context) == ("o", f"{name}.Image", "null")
    assert items[:5] == ("L", 3, 2, None, '[["dpi", {"tuple": [72, 72]}]]')
    assert items[5].tolist() == [7] * 6
    assert tagged(image, is_rows=True)[0] == "?"
    encoded = tagged(UserDict(x=1))
    assert encoded == ("o", "collections.UserDict", '[["x"], []]', (1,))


@pytest.mark.parametrize("value", [np.bytes_(b"a\0"), np.str_("a\0")], ids=repr)
def test_text_that_numpy_would_cut_is_not_stored(value: Any) -> None:
    class Gives(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x, value

    for _ in range(2):
        found = modcache.lookup_or_run(Gives(), torch.ones(2), "k", scope="text@1")[1]
        assert (len(found), found == value) == (2, True)
