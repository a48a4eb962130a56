# SPDX-License-Identifier: Apache-2.0
"""What one machine computed, another one finds on the server that they share."""

from __future__ import annotations

import machines as shared
import modcache
import pytest
import torch
from machines import Machines, Slow, counted
from torch import nn

HITS = ("hits_memory", "hits_disk", "hits_remote", "misses")


def slow_module() -> Slow:
    return shared.slow_module(run_s=0.2)


def inputs(rows: int = 16, size: int = 8) -> torch.Tensor:
    return torch.arange(rows * size, dtype=torch.float32).reshape(rows, size)


def test_single_keys_are_found_on_another_machine(machines: Machines, address: str) -> None:
    x = inputs(6)
    machines.become("first", address)
    module = slow_module()
    expected = [modcache.lookup_or_run(module, x[i : i + 1], f"k{i}") for i in range(6)]
    assert counted(*HITS) == (0, 0, 0, 6)

    machines.become("second", address)
    module = slow_module()
    found = [modcache.lookup_or_run(module, x[i : i + 1], f"k{i}") for i in range(6)]
    assert counted(*HITS) == (0, 0, 6, 0)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_what_came_from_the_server_is_near_afterwards(machines: Machines, address: str) -> None:
    x = inputs()
    keys = [f"k{i}" for i in range(16)]
    machines.become("first", address)
    expected = modcache.lookup_or_run(slow_module(), x, keys)

    machines.become("second", address)
    module = slow_module()
    torch.testing.assert_close(modcache.lookup_or_run(module, x, keys), expected, rtol=0, atol=0)
    assert counted(*HITS) == (0, 0, 16, 0)
    modcache.reset_stats()
    torch.testing.assert_close(modcache.lookup_or_run(module, x, keys), expected, rtol=0, atol=0)
    assert counted(*HITS) == (0, 16, 0, 0)

    machines.become("second", "")
    torch.testing.assert_close(modcache.lookup_or_run(module, x, keys), expected, rtol=0, atol=0)
    assert counted(*HITS) == (0, 16, 0, 0)


def test_rows_of_a_batch_that_only_the_server_has_are_put_together_with_others(
    machines: Machines, address: str
) -> None:
    x = inputs()
    keys = [f"k{i}" for i in range(16)]
    machines.become("first", address)
    modcache.lookup_or_run(slow_module(), x[:8], keys[:8])

    machines.become("second", address)
    module = slow_module()
    modcache.lookup_or_run(module, x[6:10], keys[6:10])
    assert counted(*HITS) == (0, 0, 2, 2)
    modcache.reset_stats()
    found = modcache.lookup_or_run(module, x, keys)
    # Those that this machine ran lie in its memory, too.
    assert counted(*HITS) == (2, 2, 6, 6)
    torch.testing.assert_close(found, module.linear(x))


def test_a_scripted_module_finds_what_a_scripted_module_stored(
    machines: Machines, address: str
) -> None:
    x = torch.randn(64, 512)

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(512, 512)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(20):
                x = torch.relu(self.linear(x))
            return x

    torch.manual_seed(3)
    scripted = torch.jit.script(Deep().requires_grad_(False).eval())
    machines.become("first", address)
    expected = modcache.lookup_or_run(scripted, x, "one")
    machines.become("second", address)
    torch.testing.assert_close(modcache.lookup_or_run(scripted, x, "one"), expected)
    assert counted(*HITS) == (0, 0, 1, 0)


def test_large_values_come_back_whole(machines: Machines, address: str) -> None:
    x = torch.randn(2, 1_200_000)

    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin().cos().exp().sin().cos().exp().sin().cos().exp()

    machines.become("first", address)
    expected = modcache.lookup_or_run(Wide(), x, "wide")
    machines.become("second", address)
    found = modcache.lookup_or_run(Wide(), x, "wide")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert counted("hits_remote", "misses") == (1, 0)


@pytest.mark.parametrize("tiers", [{"memory": 0}, {"disk": 0}, {"memory": 0, "disk": 0}])
def test_it_works_with_few_nearer_tiers(
    machines: Machines, address: str, tiers: dict[str, int]
) -> None:
    x = inputs()
    keys = [f"k{i}" for i in range(16)]
    machines.become("first", address, **tiers)
    expected = modcache.lookup_or_run(slow_module(), x, keys)
    # It has a scope of its own, as a row of a batch takes less time than a lone one.
    one = modcache.lookup_or_run(slow_module(), x[:1], "single", scope="single")

    machines.become("second", address, **tiers)
    module = slow_module()
    torch.testing.assert_close(modcache.lookup_or_run(module, x, keys), expected, rtol=0, atol=0)
    found = modcache.lookup_or_run(module, x[:1], "single", scope="single")
    torch.testing.assert_close(found, one, rtol=0, atol=0)
    assert counted("hits_remote", "misses") == (17, 0)
    modcache.reset_stats()
    modcache.lookup_or_run(module, x, keys)
    modcache.lookup_or_run(module, x[:1], "single", scope="single")
    memory, disk, remote, misses = counted(*HITS)
    assert (memory + disk + remote, misses) == (17, 0)
    if tiers == {"memory": 0, "disk": 0}:
        assert remote == 17
    else:
        assert remote == 0


def test_another_input_under_a_key_is_a_conflict_and_its_result_takes_the_place(
    machines: Machines, address: str
) -> None:
    x = inputs()
    machines.become("first", address)
    modcache.lookup_or_run(slow_module(), x[:1], "k")

    machines.become("second", address)
    module = slow_module()
    found = modcache.lookup_or_run(module, x[1:2], "k")
    torch.testing.assert_close(found, module.linear(x[1:2]))
    assert counted("key_conflicts", "misses", "hits_remote") == (1, 1, 0)

    machines.become("third", address)
    found = modcache.lookup_or_run(slow_module(), x[1:2], "k")
    torch.testing.assert_close(found, module.linear(x[1:2]))
    assert counted("hits_remote", "misses") == (1, 0)


def test_what_was_cleared_is_not_found_again(machines: Machines, address: str) -> None:
    x = inputs()
    machines.become("first", address)
    modcache.lookup_or_run(slow_module(), x[:1], "k", scope="s")
    modcache.lookup_or_run(slow_module(), x[:1], "k", scope="t")
    modcache.flush()
    modcache.clear(scope="s")
    modcache.reset_stats()
    modcache.lookup_or_run(slow_module(), x[:1], "k", scope="s")
    assert counted(*HITS) == (0, 0, 0, 1)

    machines.become("second", address)
    modcache.clear()
    modcache.lookup_or_run(slow_module(), x[:1], "k", scope="t")
    assert counted("hits_remote", "misses") == (0, 1)


def test_with_mode_read_nothing_is_written(machines: Machines, address: str) -> None:
    x = inputs()
    machines.become("first", address)
    modcache.lookup_or_run(slow_module(), x[:1], "there")
    machines.become("second", address)
    with modcache.mode("read"):
        modcache.lookup_or_run(slow_module(), x[:1], "there")
        modcache.lookup_or_run(slow_module(), x[:1], "not there")
    assert counted("hits_remote", "misses", "stored") == (1, 1, 0)
    machines.become("third", address)
    modcache.lookup_or_run(slow_module(), x[:1], "not there")
    assert counted("hits_remote", "misses") == (0, 1)


def test_namespaces_do_not_meet(machines: Machines, address: str) -> None:
    x = inputs()
    machines.become("first", address, namespace="a")
    modcache.lookup_or_run(slow_module(), x[:1], "k")
    machines.become("second", address, namespace="b")
    modcache.lookup_or_run(slow_module(), x[:1], "k")
    assert counted("hits_remote", "misses") == (0, 1)


def test_machines_with_different_codecs_share_values(machines: Machines, address: str) -> None:
    x = inputs(64)
    keys = [f"k{i}" for i in range(64)]
    machines.become("first", address, codec="zstd")
    expected = modcache.lookup_or_run(slow_module(), x, keys)
    machines.become("second", address, codec="none")
    torch.testing.assert_close(
        modcache.lookup_or_run(slow_module(), x, keys), expected, rtol=0, atol=0
    )
    assert counted("hits_remote", "misses") == (64, 0)


def test_another_checkpoint_finds_nothing(machines: Machines, address: str) -> None:
    x = inputs()
    machines.become("first", address)
    modcache.lookup_or_run(slow_module(), x[:1], "k")
    machines.become("second", address)
    module = slow_module()
    module.linear.weight.add_(1)
    found = modcache.lookup_or_run(module, x[:1], "k")
    torch.testing.assert_close(found, module.linear(x[:1]))
    assert counted("hits_remote", "misses") == (0, 1)


def test_contains_and_explain_see_what_the_server_has(machines: Machines, address: str) -> None:
    x = inputs()
    machines.become("first", address)
    modcache.lookup_or_run(slow_module(), x[:1], "k", scope="s")
    machines.become("second", address)
    assert modcache.contains("s", "k")
    assert not modcache.contains("s", "other")
    explained = modcache.explain(slow_module(), x[:1], "k", scope="s")
    assert (explained.status, explained.tier) == ("hit", "remote")
