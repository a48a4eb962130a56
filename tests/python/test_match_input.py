# SPDX-License-Identifier: Apache-2.0
"""match="input": one key for two inputs is a miss that is counted, on every road to the cache."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from processes import PROGRAM
from torch import nn

KEYS = ["a", "b", "c", "d"]
IDS = torch.arange(4)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Outer(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(self.encoder, x, ids, scope="enc@1")


def frozen_encoder() -> Encoder:
    return Encoder().requires_grad_(False).eval()


Road = Callable[[torch.Tensor], torch.Tensor]


def one_key(tmp_path: Path) -> Road:
    module = frozen_encoder()
    return lambda x: modcache.lookup_or_run(module, x, "k")


def rows(tmp_path: Path) -> Road:
    module = frozen_encoder()
    return lambda x: modcache.lookup_or_run(module, x, KEYS)


def scripted(tmp_path: Path) -> Road:
    module = torch.jit.script(frozen_encoder())
    return lambda x: modcache.lookup_or_run(module, x, KEYS)


def scripted_one_key(tmp_path: Path) -> Road:
    module = torch.jit.script(frozen_encoder())
    return lambda x: torch.ops.cache.lookup_or_run(module, x, "k")


def in_a_script(tmp_path: Path) -> Road:
    model = torch.jit.script(Outer(frozen_encoder()).eval())
    return lambda x: model(x, IDS)


def frozen(tmp_path: Path) -> Road:
    model = modcache.freeze(torch.jit.script(Outer(frozen_encoder()).eval()))
    return lambda x: model(x, IDS)


def exported(tmp_path: Path) -> Road:
    model = Outer(frozen_encoder())
    program = torch.export.export(model, (torch.randn(4, 32), IDS)).module()
    return lambda x: program(x, IDS)


def compiled(tmp_path: Path) -> Road:
    model = torch.compile(Outer(frozen_encoder()), backend="aot_eager")
    return lambda x: model(x, IDS)


def a_file(tmp_path: Path) -> Road:
    path = str(tmp_path / "encoder.pt")
    torch.jit.script(frozen_encoder()).save(path)
    return lambda x: torch.ops.cache.lookup_or_run_file(path, x, KEYS)


def cached(tmp_path: Path) -> Road:
    module = modcache.cached(frozen_encoder(), key="ids")
    return lambda x: module(x, ids=KEYS)


def filled(tmp_path: Path) -> Road:
    module = frozen_encoder()

    def road(x: torch.Tensor) -> torch.Tensor:
        if modcache.settings()["mode"] != "off":
            modcache.fill(module, [(x, IDS)], key=1, progress=False)
        return modcache.lookup_or_run(module, x, IDS)

    return road


ROADS = [one_key, rows, scripted, scripted_one_key, in_a_script, frozen, exported, compiled, a_file,
         cached, filled]  # fmt: skip


@pytest.mark.parametrize("tier", ["memory", "disk", "pread"])
@pytest.mark.parametrize("road", ROADS, ids=lambda road: road.__name__)
def test_another_input_is_a_conflict_on_every_road(
    road: Callable[[Path], Road], tier: str, tmp_path: Path, counted: Any
) -> None:
    run = road(tmp_path)
    train, validation = torch.randn(4, 32), torch.randn(4, 32)
    first = run(train)
    if tier != "memory":
        modcache.flush()
        modcache.configure(io="pread" if tier == "pread" else "mmap")
        torch.ops.cache.clear("", tier="memory")
    counted()
    assert torch.equal(run(train.clone()), first)
    assert "key_conflicts" not in counted()
    modcache.configure(mode="off")
    want = run(validation)
    modcache.configure(mode="on")
    counted()
    assert torch.allclose(run(validation), want, atol=1e-6)
    keys = 1 if "one_key" in road.__name__ else 4
    assert counted()["key_conflicts"] == keys
    assert torch.allclose(run(validation), want, atol=1e-6)
    assert "key_conflicts" not in counted(), "the entries were replaced"


class Summed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(x))


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn,
          torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int16, torch.int32,
          torch.int64, torch.uint16]  # fmt: skip


@pytest.mark.parametrize("elements", [1, 7, 100, 2000, 40000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_size(dtype: torch.dtype, elements: int, counted: Any) -> None:
    base = torch.randn(4, elements) * 50
    x = (
        base > 0
        if dtype == torch.bool
        else (
            base.to(dtype)
            if dtype.is_floating_point or dtype.is_complex
            else base.long().abs().to(dtype)
        )
    )
    other = (
        ~x
        if dtype == torch.bool
        else (base * 3 + 7).abs().long().to(dtype)
        if not (dtype.is_floating_point or dtype.is_complex)
        else (base * -3 + 7).to(dtype)
    )
    modcache.lookup_or_run(Summed(), x, KEYS, scope="s")
    modcache.lookup_or_run(Summed(), x.clone(), KEYS, scope="s")
    assert "key_conflicts" not in counted()
    modcache.lookup_or_run(Summed(), other, KEYS, scope="s")
    assert counted()["key_conflicts"] == 4


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["normal", "softmax", "relu", "large"])
@pytest.mark.parametrize("elements", [3, 512, 50000])
def test_rounding_is_no_conflict(
    elements: int, kind: str, narrow: torch.dtype, counted: Any
) -> None:
    x = torch.randn(64, elements)
    x = {"normal": x, "softmax": (4 * x).softmax(1), "relu": x.relu(), "large": 900 * x}[kind]
    keys = list(range(64))
    modcache.lookup_or_run(Summed(), x, keys, scope="s")
    modcache.lookup_or_run(Summed(), x.to(narrow).float(), keys, scope="s")
    last_bits = 1e-7 * x.abs().mean(1, keepdim=True) * torch.randn_like(x)
    modcache.lookup_or_run(Summed(), x * (1 + 1e-6) + last_bits, keys, scope="s")
    assert "key_conflicts" not in counted()


def test_infinities_and_nan_agree_with_themselves(counted: Any) -> None:
    x = torch.randn(4, 100)
    x[0, 3], x[1, 5], x[2, 7] = float("inf"), float("nan"), float("-inf")
    modcache.lookup_or_run(Summed(), x, KEYS, scope="s")
    modcache.lookup_or_run(Summed(), x.half().float(), KEYS, scope="s")
    assert "key_conflicts" not in counted()
    moved = x.clone()
    moved[0, 3], moved[0, 4] = 0.0, float("inf")
    modcache.lookup_or_run(Summed(), moved, KEYS, scope="s")
    assert counted()["key_conflicts"] == 1


def test_strides_do_not_count(counted: Any) -> None:
    x = torch.randn(4, 3, 40, 40)
    modcache.lookup_or_run(Summed(), x, KEYS, scope="s")
    for same in (
        x.to(memory_format=torch.channels_last),
        x.transpose(1, 3).contiguous().transpose(1, 3),
    ):
        modcache.lookup_or_run(Summed(), same, KEYS, scope="s")
    assert "key_conflicts" not in counted()


def test_a_warning_names_causes_and_cures(counted: Any, capfd: Any) -> None:
    for _ in range(3):
        modcache.lookup_or_run(frozen_encoder(), torch.randn(4, 32), KEYS, scope="warned@1")
    text = capfd.readouterr().err
    assert text.count("was stored for another input") == 1
    for part in ("validation", "prefix or a scope", "augment after it", 'match="none"'):
        assert part in text


def test_a_setting_that_changes_at_run_time(counted: Any) -> None:
    module = frozen_encoder()
    x, y = torch.randn(4, 32), torch.randn(4, 32)
    modcache.configure(match="none")
    modcache.lookup_or_run(module, x, KEYS)
    counted()
    modcache.lookup_or_run(module, y, KEYS)
    assert counted() == {"hits_memory": 4}
    modcache.configure(match="input")
    modcache.lookup_or_run(module, y, KEYS)
    assert counted() == {"key_conflicts": 4, "misses": 4, "stored": 4}


def test_two_views_under_one_key_in_a_batch(counted: Any) -> None:
    module = frozen_encoder()
    views = torch.randn(8, 32)
    result = modcache.lookup_or_run(module, views, KEYS * 2)
    assert torch.allclose(result, module(views), atol=1e-6)
    assert counted()["key_conflicts"] == 4
    twice = torch.cat([views[:4], views[:4]])
    modcache.lookup_or_run(module, twice, ["e", "f", "g", "h"] * 2)
    assert "key_conflicts" not in counted()


def test_verify_counts_a_conflict_and_no_difference(counted: Any) -> None:
    module = frozen_encoder()
    modcache.lookup_or_run(module, torch.randn(4, 32), KEYS)
    modcache.set_mode("verify")
    counted()
    modcache.lookup_or_run(module, torch.randn(4, 32), KEYS)
    assert counted() == {"key_conflicts": 4, "misses": 4}


def test_explain_says_that_the_values_differ() -> None:
    module = frozen_encoder()
    x = torch.randn(4, 32)
    modcache.lookup_or_run(module, x, KEYS)
    assert modcache.explain(module, x, KEYS).status == "hit"
    found = modcache.explain(module, torch.randn(4, 32), KEYS)
    assert found.status == "miss"
    assert "other values" in found.reason


def test_what_store_keeps_matches_any_input(counted: Any) -> None:
    torch.ops.cache.store("s", "k", torch.ones(3))
    for _ in range(2):
        result = modcache.lookup_or_run(frozen_encoder(), torch.randn(2, 32), "k", scope="s")
        assert torch.equal(result, torch.ones(3))
    assert "key_conflicts" not in counted()


def test_a_scope_that_keeps_conflicting_stops_storing(counted: Any, capfd: Any) -> None:
    module = frozen_encoder()
    keys = list(range(300))
    train, validation = torch.randn(300, 32), torch.randn(300, 32)

    def run(x: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(module, x, keys, scope="stopped@1")

    for x in (train, validation, train):
        assert torch.allclose(run(x), module(x), atol=1e-6)
    counted()
    assert torch.allclose(run(train), module(train), atol=1e-6)
    assert counted() == {"key_conflicts": 300, "misses": 300}
    assert capfd.readouterr().err.count("stores nothing more") == 1
    modcache.configure(match="input")
    run(train)
    assert counted() == {"key_conflicts": 300, "misses": 300, "stored": 300}


def test_a_data_set_that_changed_once_is_stored_anew(counted: Any) -> None:
    module = frozen_encoder()
    keys = list(range(1000))
    modcache.lookup_or_run(module, torch.randn(1000, 32), keys)
    changed = torch.randn(1000, 32)
    modcache.lookup_or_run(module, changed, keys)
    counted()
    modcache.lookup_or_run(module, changed, keys)
    assert counted() == {"hits_memory": 1000}


def accuracy(mode: str, flips: bool, directory: Path) -> float:
    """Of a head on cached features; training and validation set both have their index as key."""
    modcache.configure(dir=directory, mode=mode)
    torch.manual_seed(7 + flips)  # a scope of its own: each warns once
    encoder = modcache.cached(nn.Sequential(nn.Linear(32, 64), nn.ReLU()), key="ids", freeze=True)
    head = nn.Linear(64, 2)

    def made(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.randint(0, 2, (count,))
        return torch.randn(count, 32) + 2.0 * y[:, None], y

    (x, y), (xv, yv) = made(512), made(256)
    optimizer = torch.optim.Adam(head.parameters(), 0.01)
    for _ in range(6):
        for ids in torch.randperm(512).split(64):
            batch = x[ids].flip(1) if flips and torch.rand(()) < 0.5 else x[ids]
            loss = nn.functional.cross_entropy(head(encoder(batch, ids=ids)), y[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        right = [
            head(encoder(xv[i], ids=i)).argmax(1) == yv[i] for i in torch.arange(256).split(64)
        ]
    return torch.cat(right).float().mean().item()


@pytest.mark.parametrize("flips", [False, True])
def test_training_and_validation_under_the_same_index(
    flips: bool, tmp_path: Path, capfd: Any
) -> None:
    without = accuracy("off", flips, tmp_path / "off")
    assert accuracy("on", flips, tmp_path / "on") == pytest.approx(without, abs=0.01)
    assert without > 0.9
    assert capfd.readouterr().err.count("was stored for another input") == 1


class Features(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(512, generator=torch.Generator().manual_seed(index))


def test_a_narrowed_dataset_before_a_cached_encoder(counted: Any) -> None:
    modcache.configure(dtype="float16")
    dataset = modcache.CachedDataset(Features())
    encoder = modcache.cached(nn.Linear(512, 8), key="ids", freeze=True)
    for epoch in range(2):
        for ids in torch.arange(64).split(16):
            encoder(torch.stack([dataset[int(i)] for i in ids]), ids=ids)
        assert "key_conflicts" not in counted(), f"epoch {epoch}"


def test_a_saved_and_loaded_script_agrees(counted: Any, tmp_path: Path) -> None:
    module = torch.jit.script(frozen_encoder())
    x = torch.randn(4, 32)
    modcache.lookup_or_run(module, x, KEYS)
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    counted()
    modcache.lookup_or_run(torch.jit.load(file), x, KEYS)
    assert counted() == {"hits_memory": 4}


def test_a_pack_keeps_the_samples(counted: Any, cache_dir: Path, tmp_path: Path) -> None:
    module = frozen_encoder()
    x, other = torch.randn(4, 32), torch.randn(4, 32)
    expected = modcache.lookup_or_run(module, x, KEYS)
    modcache.flush()
    pack = tmp_path / "all.modcache"
    subprocess.run([PROGRAM, "pack", cache_dir, pack], check=True, timeout=120)
    modcache.configure(dir=pack)
    counted()
    assert torch.equal(modcache.lookup_or_run(module, x, KEYS), expected)
    assert counted() == {"hits_disk": 4}
    assert torch.allclose(modcache.lookup_or_run(module, other, KEYS), module(other))
    assert counted()["key_conflicts"] == 4
