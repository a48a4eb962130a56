# SPDX-License-Identifier: Apache-2.0
"""Methods that put their module into evaluation mode are cached from their second call on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from torch import nn

TEXTS = [f"text {number}" for number in range(8)]
Growth = Callable[[], dict[str, int]]


class Texts(nn.Module):
    """Its result depends on the mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.EmbeddingBag(256, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.embedding(ids))

    def rows(self, sentences: list[str], batch_size: int) -> torch.Tensor:
        return torch.cat(
            [
                torch.cat([self(torch.tensor([list(text.encode())])) for text in part])
                for part in (
                    sentences[start : start + batch_size]
                    for start in range(0, len(sentences), batch_size)
                )
            ]
        )


class Encoder(Texts):
    @torch.no_grad()
    def encode(
        self, sentences: list[str], batch_size: int = 32, show_progress_bar: bool | None = None
    ) -> torch.Tensor:
        """Begins with a default, as sentence-transformers' does."""
        if show_progress_bar is None:
            show_progress_bar = False
        self.eval()
        return self.rows(sentences, batch_size)


class LooksFirst(Texts):
    @torch.no_grad()
    def encode(self, sentences: list[str]) -> torch.Tensor:
        scale = 2.0 if self.training else 1.0
        self.eval()
        return scale * self.rows(sentences, 8)


class GoesBack(Texts):
    @torch.no_grad()
    def encode(self, sentences: list[str]) -> torch.Tensor:
        before = self.training
        self.eval()
        output = self.rows(sentences, 8)
        self.train(before)
        return output


def encoding(model: Any, **more: Any) -> Any:
    return modcache.cached(model.encode, key="sentences", **more)


def is_training(module: nn.Module) -> bool:
    return any(part.training for part in module.modules())


@pytest.mark.parametrize("kind", [Encoder, LooksFirst])
def test_only_the_first_call_of_a_method_that_evaluates_is_not_kept(
    kind: type[Texts], counted: Growth, capfd: pytest.CaptureFixture[str]
) -> None:
    model = kind().requires_grad_(False)
    encode = encoding(model)
    first = encode(TEXTS)
    assert counted() == {"bypassed_impure": 8}
    assert "put the module into evaluation mode" in capfd.readouterr().err
    assert torch.equal(encode(TEXTS), first / (2 if kind is LooksFirst else 1))
    assert counted() == {"misses": 8, "stored": 8}
    assert not is_training(model)


def test_a_function_that_switches_a_module_is_told_so(
    counted: Growth, capfd: pytest.CaptureFixture[str]
) -> None:
    model = Encoder().requires_grad_(False)

    @modcache.cached(key="texts")
    def encode(texts: list[str]) -> torch.Tensor:
        return model.encode(list(texts))  # type: ignore[no-any-return]

    encode(TEXTS)
    assert counted() == {"bypassed_impure": 8}
    assert "switched a module between training and evaluation" in capfd.readouterr().err


def test_a_method_that_restores_the_mode_is_kept_and_leaves_it(counted: Growth) -> None:
    model = GoesBack().requires_grad_(False)
    encode = encoding(model)
    first = encode(TEXTS)
    assert torch.equal(encode(TEXTS), first)
    assert counted() == {"misses": 8, "stored": 8, "hits_memory": 8}
    assert is_training(model)
