# SPDX-License-Identifier: Apache-2.0
"""Why is my cache cold after what I changed yesterday? Manifests of scopes, trained models."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import modcache
import pytest
import torch
from models import Encoder, in_form, set_requires_grad
from processes import ProcessRunner
from torch import nn

X = torch.ones(1, 4)
SOURCE = """
import torch

GAIN = 2.0

def halved(x):
    return x / 2

class Model(torch.nn.Module):
    def forward(self, x):
        return self.scaled(halved(x))

    def scaled(self, x):
        return x * GAIN
"""


def store_something(source: Path, directory: str) -> None:
    """In a process of its own: imports the module and lets it store one entry."""
    modcache.configure(dir=directory)
    modcache.lookup_or_run(imported(source), X, "a")
    modcache.flush()


def explained(source: Path, directory: str) -> dict[str, Any]:
    modcache.configure(dir=directory)
    return modcache.explain(imported(source), X, "a").as_dict()


def imported(source: Path) -> nn.Module:
    sys.path.insert(0, str(source.parent))
    sys.dont_write_bytecode = True
    model: nn.Module = importlib.import_module(source.stem).Model()
    return model


@pytest.mark.parametrize(
    ("before", "after", "kind", "named"),
    [
        ("x * GAIN", "GAIN + x", "code", "Model.scaled"),
        ("x / 2", "x / 4", "code", "halved"),
        ("GAIN = 2.0", "GAIN = 4.0", "attributes", "global GAIN"),
    ],
)
def test_a_file_that_was_edited_between_two_processes(
    before: str, after: str, kind: str, named: str, tmp_path: Path, processes: ProcessRunner
) -> None:
    source, directory = tmp_path / "edited.py", str(tmp_path / "shared")
    source.write_text(SOURCE)
    processes.run(store_something, source, directory)
    assert processes.run(explained, source, directory).value["status"] == "hit"
    source.write_text(SOURCE.replace(before, after))
    found = processes.run(explained, source, directory).value
    assert (found["status"], found[kind]) == ("miss", [named])


def test_a_class_that_was_defined_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def model_of(source: str) -> nn.Module:
        names: dict[str, Any] = {"__name__": "notebook"}
        exec(source, names)
        return names["Model"]()  # type: ignore[no-any-return]

    modcache.lookup_or_run(model_of(SOURCE), X, "a")
    found = modcache.explain(model_of(SOURCE.replace("x * GAIN", "GAIN + x")), X, "a")
    assert found.changed == ["Model.scaled"]


@pytest.fixture
def one_graph() -> Iterator[None]:
    """Runs the graph as it was scripted. What torch makes of one that ran with gradients gives
    results that require grad, under no_grad too, and these are not cached.
    """
    with torch.jit.optimized_execution(False):
        yield


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_trained_evaluated_trained_by_a_fused_optimizer_evaluated(
    face: str, one_graph: None
) -> None:
    encoder: Any = in_form(Encoder(), face)
    set_requires_grad(encoder, False)
    set_requires_grad(encoder.linear, True)
    optimizer = torch.optim.Adam(encoder.linear.parameters(), lr=0.1, fused=True)

    def train() -> None:
        encoder.train()
        for step in range(3):
            optimizer.zero_grad()
            modcache.lookup_or_run(encoder, X, f"train/{step}").sum().neg().backward()
            optimizer.step()

    def evaluate() -> torch.Tensor:
        encoder.eval()
        with torch.no_grad():
            value = modcache.lookup_or_run(encoder, X, "test/0")
            assert torch.equal(value, encoder(X))
        return value

    train()
    first = evaluate()
    with torch.no_grad():
        assert modcache.explain(encoder, X, "test/0").status == "hit"
    train()
    with torch.no_grad():
        found = modcache.explain(encoder, X, "test/0")
    assert found.status == "miss"
    assert sorted(found.changed) == ["linear.bias", "linear.weight"]
    assert not torch.equal(evaluate(), first)


def test_written_once_for_a_scope_and_never_on_a_hit(cache_dir: Path) -> None:
    encoder = Encoder().requires_grad_(False).eval()
    for key in ("a", "b", "a", "b"):
        modcache.lookup_or_run(encoder, X, key)
    modcache.flush()
    assert notes_in(cache_dir) == [
        f"manifest {modcache.fingerprint(encoder)}",
        "scopes Encoder.forward",
    ]


def notes_in(directory: Path) -> list[str]:
    """What the notes of a directory are about, without the namespace."""
    found = []
    for path in (directory / "notes").glob("*"):
        _, _, size, rest = path.read_bytes().split(b"\n", 3)
        found.append(rest[: int(size)].decode().replace("\n", ""))
    return sorted(found)


def test_what_is_not_stored_leaves_no_manifest(cache_dir: Path) -> None:
    modcache.lookup_or_run(Encoder(), X, "a")  # requires grad
    modcache.lookup_or_run(nn.Dropout().train(), X, "a")
    with modcache.mode("read"):
        modcache.lookup_or_run(Encoder().requires_grad_(False).eval(), X, "a")
    modcache.flush()
    assert notes_in(cache_dir) == []


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_neither_counted_nor_in_the_way_of_clear(
    face: str, counted: Callable[[], dict[str, int]], cache_dir: Path
) -> None:
    encoder: Any = in_form(Encoder().requires_grad_(False).eval(), face)
    modcache.lookup_or_run(encoder, X, "scope/a")
    modcache.flush()
    assert counted() == {"misses": 1, "stored": 1}
    assert modcache.stats()["entries_disk"] == 1
    assert modcache.clear(prefix="scope/") == 1
    assert modcache.stats()["entries_disk"] == 0
    assert len(notes_in(cache_dir)) == 2
    modcache.lookup_or_run(encoder, X, "scope/a")
    assert modcache.clear() == 1
    assert notes_in(cache_dir) == []
    modcache.lookup_or_run(encoder, X, "scope/a")  # and is written again
    modcache.flush()
    assert len(notes_in(cache_dir)) == 2


def test_a_queued_manifest_is_not_counted_when_everything_is_cleared() -> None:
    modcache.lookup_or_run(Encoder().requires_grad_(False).eval(), X, "a")
    assert modcache.clear() == 1


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_it_holds_digests_and_no_values(face: str) -> None:
    encoder: Any = in_form(Encoder().requires_grad_(False).eval(), face)
    encoder.scale = 271828.0
    modcache.lookup_or_run(encoder, X, "secret-key")
    text = torch.classes.cache.Explain.manifest(modcache.fingerprint(encoder))
    manifest = json.loads(text)
    assert manifest["format"] == 1
    assert manifest["method"] == "forward"
    assert set(manifest["tensors"]) >= {"linear.weight", "linear.bias", "mean"}
    assert set(manifest["attributes"]) >= {"scale", "table", "offsets"}
    assert any(name.endswith("forward") for name in manifest["code"])
    assert "secret-key" not in text
    assert "271828" not in text


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for index in range(6000):
            self.register_buffer(f"{'long' * 20}_{index}", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_a_model_of_many_weights_keeps_a_manifest_without_them() -> None:
    wide = Wide()
    modcache.lookup_or_run(wide, X, "a")
    text = torch.classes.cache.Explain.manifest(modcache.fingerprint(wide))
    assert 0 < len(text) < 512 << 10
    assert "tensors" not in json.loads(text)


def test_a_full_directory_fails_no_model(cache_dir: Path) -> None:
    modcache.configure(disk="4KiB")
    encoder = Encoder().requires_grad_(False).eval()
    assert torch.equal(modcache.lookup_or_run(encoder, X, "a"), encoder(X))


def test_of_a_class_the_last_eight_scopes_are_known() -> None:
    encoder = Encoder().requires_grad_(False).eval()
    for number in range(10):
        modcache.lookup_or_run(encoder, X, "a", scope=f"encoder@{number}")
    assert torch.classes.cache.Explain.scopes_of_class("Encoder", "forward") == [
        f"encoder@{number}" for number in range(2, 10)
    ]


def test_another_namespace_knows_nothing_of_it() -> None:
    encoder = Encoder().requires_grad_(False).eval()
    modcache.lookup_or_run(encoder, X, "a")
    modcache.configure(namespace="other")
    assert "nothing is known" in modcache.explain(encoder, X, "a").reason


class Slow:
    """An object that is slow to describe."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        time.sleep(0.002)
        return f"Slow({self.number})"


class HoldsSlow(nn.Linear):
    """Takes 0.6 s to be looked at."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        for name in range(10):
            setattr(self, f"held_{name}", {Slow(30 * name + item) for item in range(30)})


def described_in_miss(module: nn.Module, key: str) -> int:
    """Returns how many objects were described."""
    described = [0]

    def note(frame: FrameType, event: str, _: object) -> None:
        described[0] += event == "call" and frame.f_code is Slow.__repr__.__code__

    sys.setprofile(note)
    modcache.lookup_or_run(module, X, key)
    sys.setprofile(None)
    return described[0]


def test_a_manifest_takes_a_bounded_part_of_a_call() -> None:
    module = HoldsSlow().requires_grad_(False)
    with_manifest, without = (described_in_miss(module, key) for key in ("a", "b"))
    assert without >= 300
    assert with_manifest - without < 100  # 0.2 s
    modcache.flush()
    with torch.no_grad():
        module.bias.add_(1)
    assert modcache.explain(module, X, "a").changed == ["bias"]
    module.weight.data = module.weight + 1
    module.new = 1
    assert {"bias", "weight"} <= set(modcache.explain(module, X, "a").changed)
