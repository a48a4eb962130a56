# SPDX-License-Identifier: Apache-2.0
"""Messages name the cause first, then the cure, in the situations that users make."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from modcache._library import exit_summary
from torch import nn
from torch.utils.checkpoint import checkpoint

X, IDS = torch.rand(4, 8), torch.arange(4)


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Returns the messages since the last call of it."""

    def read() -> str:
        modcache.flush()
        return capfd.readouterr().err

    read()
    return read  # type: ignore[return-value]


class Droops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.dropout = nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.linear(x))


class DroopsToo(Droops):
    pass


class Normalizes(nn.Sequential):
    """A class of its own: each is warned of once."""


class Draws(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.rand(4)


class PlainLinear(nn.Linear):
    pass


def test_training_mode_of_a_frozen_module_whose_parent_trains(said: Any) -> None:
    model = nn.Sequential(Droops().requires_grad_(False).eval(), nn.Linear(4, 2))
    model.train()
    modcache.lookup_or_run(model[0], X, IDS)
    text = said()
    assert "not caching Droops.forward: Droops is in training mode: call m.eval(), or" in text
    assert "freeze=True" in text
    model[0].eval()
    modcache.lookup_or_run(model[0], X, IDS)
    modcache.lookup_or_run(model[0], X, IDS)
    assert modcache.stats()["hits_memory"] == 4


def test_training_mode_of_a_norm(said: Any) -> None:
    module = Normalizes(nn.Linear(8, 4), nn.BatchNorm1d(4)).requires_grad_(False)
    modcache.lookup_or_run(module, X, IDS)
    text = said()
    assert "warning: not caching Normalizes.forward: Normalizes is in training mode" in text
    assert "changed" in text


def test_training_mode_is_not_blamed_for_other_draws(said: Any) -> None:
    modcache.lookup_or_run(Draws(8, 4).requires_grad_(False), X, IDS)
    text = said()
    assert "training mode" not in text
    assert "random numbers were drawn by aten::rand" in text


@pytest.mark.scripts
def test_training_mode_of_a_scripted_module(said: Any) -> None:
    scripted = torch.jit.script(DroopsToo().requires_grad_(False))
    modcache.lookup_or_run(scripted, X, "a")
    assert "DroopsToo is in training mode: call m.eval() (" in said()


def test_the_input_requires_grad(said: Any) -> None:
    module = modcache.cached(PlainLinear(8, 4), key="ids", freeze=True)
    module(X.clone().requires_grad_(), ids=IDS)
    text = said()
    assert ": the input requires grad" in text
    assert "x.detach()" in text
    assert "0 tensors" not in text


class Checkpointed(nn.Module):
    """Keeps flag and hook as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.layer = nn.Linear(4, 4)
        self.gradient_checkpointing = True
        self.embedding.register_forward_hook(lambda module, args, output: output.requires_grad_())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, self.embedding(ids), use_reentrant=False)  # type: ignore[no-any-return]


def test_gradient_checkpointing(said: Any) -> None:
    modcache.lookup_or_run(Checkpointed().requires_grad_(False).eval(), IDS, IDS)
    text = said()
    assert ": gradient checkpointing is on in Checkpointed" in text
    assert "gradient_checkpointing_disable()" in text


def test_gradient_checkpointing_of_transformers(said: Any) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    model = transformers.BertModel(config).requires_grad_(False).eval()
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    modcache.lookup_or_run(model, torch.ones(4, 3, dtype=torch.long), IDS)
    assert ": gradient checkpointing is on in BertModel" in said()


def test_past_keys_and_values(said: Any) -> None:
    """A stand-in for transformers' DynamicCache, by its name."""
    cache = type("DynamicCache", (), {"__module__": "transformers.cache_utils"})

    class Generates(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return {"logits": super().forward(x), "past_key_values": cache()}

    modcache.lookup_or_run(Generates(8, 4).requires_grad_(False), X, IDS)
    text = said()
    assert "Generates.forward: it also returns past keys and values" in text
    assert "use_cache=False" in text
    assert "config.use_cache = False" in text


def test_past_keys_and_values_of_transformers(said: Any) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=8, n_layer=1, n_head=1, vocab_size=10, bos_token_id=1, eos_token_id=2
    )
    model = transformers.GPT2Model(config).requires_grad_(False).eval()
    tokens = torch.ones(4, 3, dtype=torch.long)
    for _ in range(2):
        found = modcache.lookup_or_run(model, tokens, IDS)
        assert isinstance(found.past_key_values, transformers.DynamicCache)
    assert modcache.stats()["hits_memory"] == 4
    assert "modcache" not in said()  # transformers says that the name is an old one


class Unshowable(UserDict):  # type: ignore[type-arg]
    """A mapping that keeps its items where nobody finds them."""

    __slots__ = ("hidden",)

    def __init__(self, **items: Any) -> None:
        self.hidden = items
        self.attached = iter(())  # a value without a text

    def __getitem__(self, name: str) -> Any:
        return self.hidden[name]


class TakesMapping(nn.Linear):
    def forward(self, batch: Any) -> torch.Tensor:
        return super().forward(batch["x"])


def test_a_mapping_that_cannot_be_told(said: Any) -> None:
    module = TakesMapping(8, 4).requires_grad_(False)
    modcache.lookup_or_run(module, Unshowable(x=X), IDS)
    text = said()
    assert "not caching TakesMapping.forward: its input holds a" in text
    assert "Unshowable; pass dict(batch) in its place, or call it with **batch" in text
    modcache.lookup_or_run(module, {"x": X}, IDS)
    modcache.lookup_or_run(module, {"x": X}, IDS)
    assert modcache.stats()["hits_memory"] == 4


def test_evaluation_between_steps_stores_a_copy_each_time(caplog: Any) -> None:
    class Trains(nn.Linear):
        pass

    model = Trains(8, 4)
    encoder = modcache.cached(model, key="ids")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(3):
        encoder(X, ids=IDS).sum().backward()
        optimizer.step()
        with torch.no_grad():
            encoder(X, ids=IDS)
        found = [r.getMessage() for r in caplog.records if "Trains.forward" in r.getMessage()]
        assert len(found) == (epoch > 0)
    assert "is not frozen" in found[0]
    assert 'modcache.mode("off")' in found[0]


def test_new_weights_now_and_then_are_no_training(caplog: Any) -> None:
    model = PlainLinear(8, 4)
    encoder = modcache.cached(model, key="ids")
    for _ in range(2):
        with torch.no_grad():
            encoder(X, ids=IDS)
            model.weight.mul_(2)
    frozen = modcache.cached(PlainLinear(8, 4), key="ids", freeze=True)
    for _ in range(4):
        frozen(X, ids=IDS)
        frozen.weight.mul_(2)
    assert not [r for r in caplog.records if "fingerprints" in r.getMessage()]


def test_a_summary_at_exit_says_why_so_little_hit(tmp_path: Path) -> None:
    script = tmp_path / "trains.py"
    script.write_text(
        "import modcache, torch, sys\n"
        "modcache.configure(dir=sys.argv[1], log=sys.argv[2])\n"
        "encoder = modcache.cached(torch.nn.Linear(8, 4), key='ids')\n"
        "for _ in range(3):\n"
        "    encoder(torch.rand(50, 8), ids=torch.arange(50))\n"
    )

    def run(level: str) -> str:
        command = [sys.executable, str(script), str(tmp_path / "cache"), level]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    text = run("warning")
    assert text.count("only 0 of 150 look-ups hit") == 1
    last = text.strip().splitlines()[-1]
    assert "150 calls or rows were not kept, since their results require grad" in last
    assert "2 tensors of Linear require grad" in last, "the first cause"
    assert "look-ups hit" not in run("error")


@pytest.mark.parametrize(
    ("counts", "level", "text"),
    [
        ({"misses": 99}, None, ""),
        ({"misses": 500, "hits_disk": 500}, None, ""),
        ({"misses": 1000, "stored": 1000}, logging.INFO, "1,000 were stored"),
        ({"misses": 200, "key_conflicts": 190}, logging.WARNING, "190 keys came with another"),
        ({"bypassed_impure": 200}, logging.WARNING, "no function of the module's state"),
    ],
)
def test_the_summary(counts: dict[str, int], level: int | None, text: str) -> None:
    found = exit_summary.summary(counts, "first")
    assert (found and found[0]) == level
    assert text in (found[1] if found else "")
