# SPDX-License-Identifier: Apache-2.0
"""Methods that put their module into evaluation mode are cached from their first call on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from modcache._call.evaluation import begin_evaluation
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


def test_a_first_call_in_training_mode_is_kept(counted: Growth, reopen: Callable[[], None]) -> None:
    model = Encoder().requires_grad_(False)
    first = encoding(model)(TEXTS)
    assert not is_training(model)
    assert counted() == {"misses": 8, "stored": 8}
    reopen()
    fresh = Encoder().requires_grad_(False)  # as another process has it
    counted()
    again = encoding(fresh)(TEXTS[::-1]).flip(0)
    assert counted() == {"hits_disk": 8}
    assert torch.equal(again, first)
    assert not is_training(fresh), "as a run would have left it"


def test_evaluation_mode_shares_the_entries(counted: Growth) -> None:
    encoding(Encoder().requires_grad_(False).eval())(TEXTS)
    counted()
    model = Encoder().requires_grad_(False)
    encode = encoding(model)
    encode(TEXTS)
    model.train()
    encode(TEXTS)
    assert counted() == {"hits_memory": 16}


def test_a_method_that_looks_at_the_mode_first_is_not_kept(
    counted: Growth, capfd: pytest.CaptureFixture[str]
) -> None:
    model = LooksFirst().requires_grad_(False)
    encode = encoding(model)
    first = encode(TEXTS)
    assert counted() == {"bypassed_impure": 8}
    assert "put the module into evaluation mode" in capfd.readouterr().err
    assert torch.equal(encode(TEXTS), first / 2)
    assert counted() == {"misses": 8, "stored": 8}


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


def test_a_forward_may_begin_so_too(counted: Growth) -> None:
    class Evaluates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.eval()
            return self.dropout(x)

    x = torch.ones(2, 3)
    module = modcache.cached(Evaluates(), key="ids")
    for _ in range(2):
        assert torch.equal(module(x, ids=torch.arange(2)), x)
        module.train()
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}


ENCODER = Texts().requires_grad_(False)


def embed(sentences: list[str]) -> torch.Tensor:
    ENCODER.eval()
    return ENCODER.rows(sentences, 8)


class Pipeline:
    def __init__(self) -> None:
        self.encoder = Texts().requires_grad_(False)

    @modcache.cached(key="sentences")
    def embed(self, sentences: list[str]) -> torch.Tensor:
        self.encoder.eval()
        return self.encoder.rows(sentences, 8)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Texts(), Texts()

    @torch.no_grad()
    def encode(self, sentences: list[str]) -> torch.Tensor:
        self.first.eval()
        self.second.eval()
        return self.first.rows(sentences, 8) + self.second.rows(sentences, 8)


def test_functions_and_methods_that_evaluate_another_module(counted: Growth) -> None:
    other = Texts().requires_grad_(False)

    def embed_with_other(sentences: list[str]) -> torch.Tensor:
        other.eval()
        return other.rows(sentences, 8)

    pipeline, outer = Pipeline(), Outer().requires_grad_(False)
    for call, modules in (
        (modcache.cached(embed, key="sentences"), [ENCODER]),
        (modcache.cached(embed_with_other, key="sentences"), [other]),
        (pipeline.embed, [pipeline.encoder]),
        (encoding(outer), [outer.first, outer.second]),
    ):
        for number in range(2):
            for module in modules:
                module.train()
            call(TEXTS)
            assert not any(map(is_training, modules))
            expected = {"hits_memory": 8} if number else {"misses": 8, "stored": 8}
            assert counted() == expected


class Beginnings(nn.Linear):
    def plain(self, x: torch.Tensor) -> None:
        self.eval()

    @torch.inference_mode()
    def decorated(self, x: torch.Tensor) -> None:
        self.eval()

    def default(self, x: torch.Tensor | None = None) -> None:
        x = torch if x is None else x  # type: ignore[assignment]
        self.eval()

    def closure(self, x: torch.Tensor) -> Any:
        self.eval()
        return lambda: self

    def in_branch(self, x: bool) -> None:
        if x:
            self.eval()

    def jumps_over(self, x: bool) -> int | None:
        if x:
            return 1
        self.eval()
        return None

    def after_call(self, x: torch.Tensor) -> None:
        print(x)
        self.eval()

    def after_read(self, x: bool) -> None:
        print(self.training)
        self.eval()

    def of_other(self, x: Any) -> None:
        x.eval()
        self.eval()

    def of_property(self, x: Any) -> None:
        self.found.eval()

    @property
    def found(self) -> nn.Module:
        return self

    def other_self(self, x: Any) -> None:
        self = x
        self.eval()

    def with_argument(self, x: Any) -> None:
        self.train(False)

    def in_loop(self, x: Any) -> None:
        for _ in x:
            self.eval()

    def named(self, x: Any) -> Any:
        return self.eval


@pytest.mark.parametrize("method", ["plain", "decorated", "default", "closure"])
def test_every_way_through_the_code_comes_to_eval_first(method: str) -> None:
    module = Beginnings(2, 2)
    begin_evaluation(module, method)
    assert not module.training


@pytest.mark.parametrize(
    "method",
    ["in_branch", "jumps_over", "after_call", "after_read", "of_other", "of_property", "other_self",
     "with_argument", "in_loop", "named", "absent"],
)  # fmt: skip
def test_some_way_does_not(method: str) -> None:
    module = Beginnings(2, 2)
    begin_evaluation(module, method)
    assert module.training


def test_a_module_with_an_eval_of_its_own_is_left_alone() -> None:
    class Counts(Beginnings):
        def eval(self) -> Any:
            raise AssertionError

    begin_evaluation(Counts(2, 2), "plain")


def test_a_call_that_looks_at_the_mode_before_forward_is_left_alone(counted: Growth) -> None:
    class Looks(nn.Module):
        def __call__(self, x: torch.Tensor) -> Any:
            scale = 3.0 if self.training else 2.0
            return scale * super().__call__(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.eval()
            return x

    module = Looks()
    x = torch.ones(1, 2)
    assert torch.equal(modcache.lookup_or_run(module, x, "k"), 3 * x)
    assert torch.equal(modcache.lookup_or_run(module, x, "k"), 2 * x)
    assert counted() == {"bypassed_impure": 1, "misses": 1, "stored": 1}


def test_parts_that_do_more_than_switch_are_switched_by_the_run_alone() -> None:
    class Counts(nn.Linear):
        switched = 0

        def train(self, mode: bool = True) -> Any:
            self.switched += 1
            return super().train(mode)

    class Outer(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.eval()
            return super().forward(x)  # type: ignore[no-any-return]

    plain, other = (Outer(Counts(2, 2)).requires_grad_(False) for _ in range(2))
    plain(torch.ones(1, 2))
    modcache.lookup_or_run(other, torch.ones(1, 2), "k")
    assert other[0].switched == plain[0].switched == 1
    frozen = Outer(modcache.cached(nn.Linear(2, 2), key="ids", freeze=True))
    begin_evaluation(frozen, "forward")
    assert not frozen.training


def test_a_static_forward_does_not_evaluate_the_module_itself() -> None:
    class Static(nn.Module):
        @staticmethod
        def forward(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
            m.eval()
            return x

    module = Static()
    begin_evaluation(module, "forward")
    assert module.training
