# SPDX-License-Identifier: Apache-2.0
"""Operators with kernels in Python: what torch lists of them changes while it is read."""

from collections.abc import Iterator

import pytest
import torch
from modcache._code.operators import unseen_kernel_of


class Changing(set[str]):
    """Loses an entry while it is walked, as torch's set does when a library is collected."""

    def __iter__(self) -> Iterator[str]:
        for entry in super().__iter__():
            yield entry
            self.discard(entry)


def test_entries_that_go_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = Changing(["mine/first/CPU", "mine/second/CPU", "mine/third/Meta"])
    monkeypatch.setattr(torch.library, "_impls", entries)

    assert "mine::first" in unseen_kernel_of("mine::first")
    assert "mine::second" in unseen_kernel_of("mine::second")
    assert unseen_kernel_of("mine::third") == ""


def test_as_many_entries_as_before_that_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.library, "_impls", {"mine/first/CPU"})
    assert unseen_kernel_of("mine::second") == ""

    monkeypatch.setattr(torch.library, "_impls", {"mine/second/CPU"})

    assert unseen_kernel_of("mine::first") == ""
    assert "mine::second" in unseen_kernel_of("mine::second")
