# SPDX-License-Identifier: Apache-2.0
"""Modules that hold tokenizers: their vocabulary counts, what each call sets does not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from modcache._code import tokenizer_backends
from modcache._identity import scratch
from torch import nn

Growth = Callable[[], dict[str, int]]


PACKAGE = '''
import json

import torch


class Backend:
    """Has the form of tokenizers.Tokenizer."""

    def __init__(self, words: str) -> None:
        self.words = words.split()
        self.truncation: int | None = None
        self.encode_special_tokens = False

    def __getstate__(self) -> bytes:
        content = {"version": "1.0", "truncation": self.truncation, "added_tokens": self.words}
        return json.dumps(content, separators=(",", ":")).encode()


class Added:
    """Has the form of tokenizers.AddedToken."""

    def __init__(self, content: str) -> None:
        self._content = content

    def __getstate__(self) -> dict:
        return {"content": self._content, "special": True}


Backend.__module__ = Added.__module__ = "tokenizers"


class Tokenizer:
    """Has the form of transformers.PreTrainedTokenizerFast."""

    def __init__(self, words: str) -> None:
        self._tokenizer = Backend(words)
        self.deprecation_warnings: dict[str, bool] = {}
        self.pad_token = Added("[PAD]")

    def __call__(self, text: str, truncation: int | None = None) -> torch.Tensor:
        self._tokenizer.truncation = truncation
        self._tokenizer.encode_special_tokens = True
        self.deprecation_warnings["too long"] = True
        words = [self._tokenizer.words.index(word) for word in text.split()]
        return torch.tensor(words[:truncation])

    @property
    def backend_tokenizer(self) -> Backend:
        return self._tokenizer
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An installed package with classes that have the form of those of Hugging Face."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "like_transformers.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    made = importlib.import_module("like_transformers")
    monkeypatch.delitem(sys.modules, "like_transformers")
    monkeypatch.setitem(sys.modules, "like_transformers", made)
    monkeypatch.setitem(scratch._are_tokenizers, made.Tokenizer, True)
    monkeypatch.setattr(tokenizer_backends, "_KNOWN", {"like_transformers"})
    return made


class Encoder(nn.Module):
    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def forward(self, text: str) -> torch.Tensor:
        return self.tokenizer(text, truncation=2) * 2  # type: ignore[no-any-return]


class Direct(Encoder):
    def forward(self, text: str) -> torch.Tensor:
        backend = self.tokenizer.backend_tokenizer
        return torch.zeros(backend.truncation or 8)


def test_words_count_and_a_call_changes_nothing(counted: Growth, package: Any) -> None:
    module = Encoder(package.Tokenizer("a b c"))
    before = modcache.fingerprint(module)
    for _ in range(2):
        found = modcache.lookup_or_run(module, ("b c a",), "k")
        assert found.tolist() == [2, 4]
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    assert modcache.fingerprint(module) == before
    assert modcache.fingerprint(Encoder(package.Tokenizer("a b c"))) == before
    assert modcache.fingerprint(Encoder(package.Tokenizer("a c b"))) != before
    module.tokenizer._tokenizer.words.append("d")
    assert modcache.fingerprint(module) != before
    module.tokenizer._tokenizer.words.pop()
    module.tokenizer.pad_token = package.Added("[pad]")
    assert modcache.fingerprint(module) != before


def test_settings_count_where_the_user_s_code_reads_the_inner_one(package: Any) -> None:
    module = Direct(package.Tokenizer("a b c"))
    assert modcache.lookup_or_run(module, ("a",), "k").shape == (8,)
    module.tokenizer._tokenizer.truncation = 2
    assert modcache.lookup_or_run(module, ("a",), "k").shape == (2,)


class ByText(Encoder):
    def forward(self, text: str) -> torch.Tensor:
        return torch.zeros(getattr(self.tokenizer, "_tokenizer").truncation or 8)  # noqa: B009


class InDict(Encoder):
    def forward(self, text: str) -> torch.Tensor:
        return torch.zeros(vars(self.tokenizer)["_tokenizer"].truncation or 8)


class InAnyItem(Encoder):
    def forward(self, text: str) -> torch.Tensor:
        return torch.zeros(next(iter(self.tokenizer.__dict__.values())).truncation or 8)


NAME = "backend_tokenizer"


class ByGlobal(Encoder):
    def forward(self, text: str) -> torch.Tensor:
        return torch.zeros(getattr(self.tokenizer, NAME).truncation or 8)


class InPackage(Encoder):
    def forward(self, text: str) -> torch.Tensor:
        return torch.zeros(like_another.limit(self.tokenizer) or 8)


like_another: Any = None


@pytest.mark.parametrize("kind", [ByText, InDict, InAnyItem, ByGlobal, InPackage])
def test_settings_count_where_the_inner_one_is_read_by_other_ways(
    kind: type[Encoder], package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def limit(tokenizer):\n    return tokenizer._tokenizer.truncation\n"
    (tmp_path / "site-packages" / "like_another.py").write_text(code)
    monkeypatch.setattr(
        sys.modules[__name__], "like_another", importlib.import_module("like_another")
    )
    monkeypatch.delitem(sys.modules, "like_another", raising=False)
    monkeypatch.setitem(sys.modules, "like_another", like_another)
    module = kind(package.Tokenizer("a b c"))
    for truncation in (None, 2, 3, 2):
        module.tokenizer._tokenizer.truncation = truncation
        for _ in range(4):
            assert modcache.lookup_or_run(module, ("a",), "k").shape == (truncation or 8,)


def test_settings_count_where_the_inner_one_is_held_itself(package: Any) -> None:
    module = Encoder(package.Backend("a b c"))
    before = modcache.fingerprint(module)
    for name, value in (("truncation", 2), ("encode_special_tokens", True)):
        setattr(module.tokenizer, name, value)
        assert modcache.fingerprint(module) != before
        before = modcache.fingerprint(module)


def test_one_with_parts_in_python_is_refused() -> None:
    def refusing(_: object) -> bytes:
        raise TypeError("Custom PreTokenizer cannot be serialized")

    part = type("Backend", (), {"__module__": "tokenizers", "__getstate__": refusing})()
    with pytest.raises(TypeError, match=r"tokenizer' of Encoder .*Custom PreTokenizer"):
        modcache.fingerprint(Encoder(part))


def test_the_real_one(counted: Growth) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")

    def made(*words: str) -> Any:
        vocabulary = {word: number for number, word in enumerate(("[UNK]", "[PAD]", *words))}
        inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]")

    class Numbers(Encoder):
        def forward(self, text: list[str]) -> Any:
            return self.tokenizer(text, padding=True, return_tensors="pt")["input_ids"]

    module = Numbers(made("a", "b"))
    want = module(["a b", "a"])
    module = Numbers(made("a", "b"))
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(module, (["a b", "a"],), "k"), want)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    assert modcache.fingerprint(Numbers(made("b", "a"))) != modcache.fingerprint(module)
