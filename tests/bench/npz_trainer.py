# SPDX-License-Identifier: Apache-2.0
"""A trainer's cache of latents and captions, an .npz per image, beside modcache.

    PYTHONPATH=python_shim:SITE python tests/bench/npz_trainer.py [--images 500] [--json FILE]

SITE is a folder with what tests/recipes/requirements.txt lists. Images of 256 x 256 become latents
of 4 x 32 x 32, each flipped as well; captions have 5 to 24 tokens of width 768. Each phase is a
process of its own, with a warm page cache and one thread:

fill      encodes all, images and captions; the size and the number of files after it
start     what comes before the first step of a process over a full cache
first     an epoch, until latents and states are ready for the step: milliseconds per image
again     the same once more in the same process
edited    an image is replaced under its name: what is encoded, and whether it is still the old one
new       one image more
damaged   one byte of the stored latents of an image is flipped

`first` and `again` are medians over the rounds, in which the caches take turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import torch
import trainer_caches
from PIL import Image
from trainer_caches import BATCH, CACHES, SIZE, Cache, NpzPerImage, batches, posterior_of

EDITED, DAMAGED = 3, 5


def write_image(folder: Path, number: int, seed: int, caption: str) -> None:
    """A picture of random blots, which PNG makes some 100 kB of."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.randint(256, (64, 64, 3), dtype=torch.uint8, generator=rng)
    image = Image.fromarray(coarse.numpy()).resize((SIZE.image, SIZE.image))
    image.save(folder / f"{number:04}.png")
    (folder / f"{number:04}.txt").write_text(caption, encoding="utf-8")


def images_in(folder: Path, count: int) -> None:
    (folder / "images").mkdir(parents=True)
    captions = trainer_caches.diffusion_models.captions(count)
    for number, caption in enumerate(captions):
        write_image(folder / "images", number, number, caption)


# ----- what processes do


def opened(name: str, folder: str) -> Cache:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return CACHES[name](Path(folder))


def fill(name: str, folder: str) -> dict[str, Any]:
    cache = opened(name, folder)
    begin = time.perf_counter()
    cache.fill()
    seconds = time.perf_counter() - begin
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    files = [path for path in files if path.suffix not in (".png", ".txt")]
    size = sum(path.stat().st_blocks * 512 for path in files)
    return {"fill_s": seconds, "bytes": size, "files": len(files)}


def epoch(cache: Cache) -> float:
    """Asks for each image and its mirror image, in two passes; milliseconds per image."""
    orders = [torch.randperm(len(cache.paths)) for _ in range(2)]
    begin = time.perf_counter()
    for is_flipped, order in enumerate(orders):
        for numbers in batches(len(cache.paths), order):
            cache.batch(numbers, bool(is_flipped))
    return (time.perf_counter() - begin) * 1e3 / 2 / len(cache.paths)


def warm(name: str, folder: str) -> dict[str, float]:
    cache = opened(name, folder)
    begin = time.perf_counter()
    cache.start()
    found = {"start_s": time.perf_counter() - begin}
    found["first_ms"], found["again_ms"] = epoch(cache), epoch(cache)
    if cache.encoded or cache.encoded_captions:
        raise AssertionError(f"{name}: the cache was not warm")
    return found


def after(name: str, folder: str) -> dict[str, Any]:
    """Starts over files that changed, and runs an epoch."""
    cache = opened(name, folder)
    try:
        cache.start()
        epoch(cache)
    except Exception as error:
        return {"died": f"{type(error).__name__}: {error}".split("\n")[0][:100]}
    modcache.flush()
    return {"images": cache.encoded, "captions": cache.encoded_captions}


def latents_of(name: str, folder: str, number: int) -> torch.Tensor:
    cache = opened(name, folder)
    cache.start()
    return cache.batch([number], False).latents[0]


def stored_bytes(name: str, folder: str, number: int) -> bytes:
    """The bytes of an image's latents as they lie in a file."""
    cache = opened(name, folder)
    cache.start()
    if isinstance(cache, NpzPerImage):
        return bytes(cache.batch([number], False).latents[0].numpy().tobytes())
    stored = cache.posterior([number], False).parameters[0]  # type: ignore[attr-defined]
    order = sorted(range(stored.dim()), key=stored.stride, reverse=True)
    return bytes(stored.permute(order).contiguous().numpy().tobytes())


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as another:
        return another.apply(function, arguments)


# ----- phases


def edited(name: str, folder: Path) -> dict[str, Any]:
    path = folder / "images" / f"{EDITED:04}.png"
    before = posterior_of([path])[0]
    write_image(folder / "images", EDITED, 10_000, path.with_suffix(".txt").read_text())
    found: dict[str, Any] = in_a_process(after, name, str(folder))
    latents = in_a_process(latents_of, name, str(folder), EDITED)
    now = posterior_of([path])[0]
    return {**found, "is_stale": bool((latents - before).norm() < (latents - now).norm())}


def new(name: str, folder: Path) -> dict[str, Any]:
    number = len(list((folder / "images").glob("*.png")))
    write_image(folder / "images", number, number, "an old house under a tree")
    found: dict[str, Any] = in_a_process(after, name, str(folder))
    return found


def damaged(name: str, folder: Path) -> dict[str, Any]:
    content = in_a_process(stored_bytes, name, str(folder), DAMAGED)
    for path in [*folder.rglob("*.npz"), *folder.rglob("*.seg")]:
        data = bytearray(path.read_bytes())
        if (place := data.find(content)) >= 0:
            data[place + len(content) // 2] ^= 0x40
            path.write_bytes(data)
            found: dict[str, Any] = in_a_process(after, name, str(folder))
            return found
    raise AssertionError(f"{name}: no file has the latents of image {DAMAGED}")


def measured(folder: Path, count: int, rounds: int) -> dict[str, dict[str, Any]]:
    images_in(folder / "all", count)
    found: dict[str, dict[str, Any]] = {}
    folders = {name: folder / str(number) for number, name in enumerate(CACHES)}
    for name, own in folders.items():
        shutil.copytree(folder / "all", own)
        found[name] = in_a_process(fill, name, str(own))
    turns: list[dict[str, dict[str, float]]] = []
    for _ in range(rounds):
        turns.append({name: in_a_process(warm, name, str(own)) for name, own in folders.items()})
    for name, own in folders.items():
        for figure in ("start_s", "first_ms", "again_ms"):
            found[name][figure] = statistics.median(turn[name][figure] for turn in turns)
        for phase in (edited, new, damaged):
            found[name][phase.__name__] = phase(name, own)
    return found


def words(found: dict[str, Any]) -> str:
    if "died" in found:
        return f"dies: {found['died']}"
    text = f"encodes {found['images']} images, {found['captions']} captions"
    return text + {True: "; old latents", False: "; new latents"}.get(found.get("is_stale"), "")


def table(found: dict[str, dict[str, Any]]) -> str:
    lines = []
    first = next(iter(found.values()))
    for name, figures in found.items():
        share = figures["bytes"] / first["bytes"]
        lines += [
            name,
            f"  fill     {figures['fill_s']:8.1f} s, {figures['bytes'] / 1e6:.1f} MB "
            f"({share:.2f}), {figures['files']} files",
            f"  start    {figures['start_s']:8.3f} s",
        ]
        for figure in ("first", "again"):
            value = figures[f"{figure}_ms"]
            ratio = value / first[f"{figure}_ms"]
            lines.append(f"  {figure}    {value:8.3f} ms per image ({ratio:.2f})")
        lines += [f"  {phase:<8} {words(figures[phase])}" for phase in ("edited", "new", "damaged")]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=SIZE.count, help=f"a multiple of {BATCH}")
    parser.add_argument("--rounds", type=int, default=5, help="of first and again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the figures there, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), options.images, options.rounds)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
