# SPDX-License-Identifier: Apache-2.0
"""cache::lookup_or_run_file: a TorchScript file that is loaded when it has to run."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from file_opens import FileOpens
from lazy_models import X, by_file, rows_by_file, saved
from models import Encoder, EncoderOfTwoMethods, TwoInputs, frozen, in_form
from padded_rows import States, assert_padded, padded_batch, sentences
from processes import ProcessRunner
from torch import nn

lookup_or_run_file = torch.ops.cache.lookup_or_run_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "encoder.pt"


# ----- what it returns, and whose entries it shares


@pytest.mark.parametrize("key", ["k", ["a", "b"], torch.tensor([7, 9])])
@pytest.mark.parametrize("scope", ["", "encoder@1"])
def test_it_is_the_file_s_module_and_hits(path: Path, key: Any, scope: str, counted: Any) -> None:
    module = saved(path, Encoder())
    rows = 1 if isinstance(key, str) else 2
    assert torch.equal(by_file(path, X, key, scope=scope), module(X))
    assert counted() == {"misses": rows, "stored": rows}
    assert torch.equal(by_file(path, X, key, scope=scope), module(X))
    assert counted() == {"hits_memory": rows}


@pytest.mark.parametrize("face", ["scripted", "loaded"])
def test_entries_are_those_of_the_module_loaded_by_anybody(
    path: Path, face: str, counted: Any
) -> None:
    module = in_form(saved(path, Encoder()), "scripted" if face == "scripted" else "loaded")
    first = modcache.lookup_or_run(module, X, "a")
    counted()
    assert torch.equal(by_file(path, X, "a"), first)
    assert counted() == {"hits_memory": 1}
    by_file(path, X, "b")
    modcache.lookup_or_run(module, X, "b")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_method_and_tuple_input(path: Path) -> None:
    module = saved(path, EncoderOfTwoMethods())
    assert torch.equal(by_file(path, X, "k", method="negated"), -module(X))
    assert torch.equal(by_file(path, X, "k"), module(X))
    saved(path, TwoInputs())
    assert torch.equal(by_file(path, (X, X / 2, 3), "k"), (X - X / 2) * 3)


def padded_by_file(path: str, scope: str, batch: Any) -> tuple[list[Any], dict[str, int]]:
    """Looks rows of their own length up by their numbers, in any process."""
    tokens, mask = batch
    ids = torch.arange(len(tokens))
    options: Any = {"mask": mask, "pad_value": 4.0, "scope": scope}
    found = lookup_or_run_file(path, (tokens, mask), ids, **options)
    return found.tolist(), modcache.stats()


@pytest.mark.parametrize("scope", ["", "states@1"])
def test_rows_of_their_own_length_are_found_without_loading(
    path: Path, scope: str, processes: ProcessRunner
) -> None:
    states = saved(path, States())
    batch = padded_batch(sentences())
    found, stats = processes.run(padded_by_file, str(path), scope, batch).value
    assert stats["misses"] == stats["stored"] == 6
    assert_padded(torch.tensor(found), states(*batch), batch[1], 4.0)
    opens = FileOpens(path)
    longer = tuple(nn.functional.pad(part, (0, 2)) for part in batch)
    found, stats = processes.run(padded_by_file, str(path), scope, longer).value
    assert stats["hits_disk"] == 6
    assert_padded(torch.tensor(found), states(*longer), longer[1], 4.0)
    assert not opens.any_so_far()
    opens.close()


def test_a_mask_of_other_rows_is_refused(path: Path) -> None:
    saved(path, States())
    tokens, mask = padded_batch(sentences())
    with pytest.raises(ValueError, match="lookup_or_run_file: 6 keys were given, but the mask is"):
        lookup_or_run_file(str(path), (tokens, mask), [*"abcdef"], mask=mask[:5])


class CallsFile(nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, keys: list[str]) -> torch.Tensor:
        return self.head(torch.ops.cache.lookup_or_run_file(self.path, x, keys))


def test_a_scripted_model_names_its_encoder_by_path(path: Path, counted: Any) -> None:
    encoder = saved(path, Encoder())
    model = frozen(CallsFile(str(path)))
    expected = model.head(encoder(X))
    for form in (torch.jit.script(model), in_form(model, "loaded"), model):
        assert torch.equal(form(X, ["a", "b"]), expected)
    frozen_model = torch.jit.freeze(torch.jit.script(model))
    assert torch.equal(frozen_model(X, ["a", "b"]), expected)
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 6}


def test_what_was_trained_does_not_require_grad_any_more(path: Path, counted: Any) -> None:
    torch.jit.script(Encoder().eval()).save(str(path))
    assert not by_file(path, X, "k").requires_grad
    assert counted() == {"misses": 1, "stored": 1}


def test_an_input_that_requires_grad_gets_its_gradient(path: Path, counted: Any) -> None:
    saved(path, Encoder())
    by_file(path, X, "k")
    x = X.clone().requires_grad_()
    by_file(path, x, "k").sum().backward()
    assert x.grad is not None
    assert counted() == {"misses": 1, "stored": 1, "bypassed_grad": 1}


def test_dropout_in_training_mode_is_not_cached(path: Path, counted: Any) -> None:
    torch.jit.script(nn.Dropout(0.5).train()).save(str(path))
    by_file(path, X, "k")
    assert counted() == {"bypassed_impure": 1}


def test_under_inference_mode_first_and_ordinary_later(path: Path) -> None:
    module = saved(path, Encoder())
    with torch.inference_mode():
        by_file(path, X, "a")
    head = nn.Linear(4, 1)
    head(by_file(path, X, "b")).sum().backward()
    assert torch.equal(by_file(path, X, "a"), module(X))


# ----- nothing is loaded while everything hits


@pytest.mark.parametrize("scope", ["", "encoder@1"])
def test_a_new_process_over_a_warm_cache_does_not_open_the_file(
    path: Path, scope: str, processes: ProcessRunner
) -> None:
    saved(path, Encoder())
    assert processes.run(rows_by_file, str(path), ["a", "b"], scope).value["misses"] == 2
    opens = FileOpens(path)
    stats = processes.run(rows_by_file, str(path), ["b", "a"], scope).value
    assert (stats["hits_disk"], stats["misses"]) == (2, 0)
    assert not opens.any_so_far()
    stats = processes.run(rows_by_file, str(path), ["b", "c"], scope).value
    assert (stats["hits_disk"], stats["misses"]) == (1, 1)
    assert opens.any_so_far()
    opens.close()


def test_a_touched_or_copied_file_is_hashed_and_not_loaded(
    path: Path, processes: ProcessRunner, cache_dir: Path
) -> None:
    saved(path, Encoder())
    processes.run(rows_by_file, str(path), ["a"], "")
    copy = path.with_name("copy.pt")
    copy.write_bytes(path.read_bytes())
    os.utime(path)
    notes = len(list((cache_dir / "notes").iterdir()))
    for place in (path, copy):
        stats = processes.run(rows_by_file, str(place), ["a"], "").value
        assert (stats["hits_disk"], stats["misses"]) == (1, 0)
    assert len(list((cache_dir / "notes").iterdir())) == notes + 1  # of the copy


def test_two_processes_at_once(path: Path, processes: ProcessRunner) -> None:
    saved(path, Encoder())
    keys = [str(number) for number in range(50)]
    children = [processes.start(rows_by_file, str(path), keys, "") for _ in range(2)]
    for child in children:
        outcome = child.wait()
        assert outcome.value["errors"] == 0
        assert outcome.log_lines == []
    assert processes.run(rows_by_file, str(path), keys, "").value["hits_disk"] == 50


def test_threads_share_one_module(path: Path, counted: Any) -> None:
    module = saved(path, Encoder())
    wrong = []

    def ask(number: int) -> None:
        for key in range(20):
            x = X * key
            if not torch.equal(by_file(path, x, f"{key}"), module(x)):
                wrong.append((number, key))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    grown = counted()
    hits = grown["hits_memory"] + grown.get("hits_disk", 0)
    assert (grown["misses"], hits) == (20, 60)


def test_a_forked_child_uses_what_its_parent_loaded(path: Path, counted: Any) -> None:
    module = saved(path, Encoder())
    by_file(path, X, "k", scope="encoder@1")
    path.unlink()  # who loads now fails
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = (
                0 if torch.equal(by_file(path, X * 2, "l", scope="encoder@1"), module(X * 2)) else 2
            )
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


# ----- modes


def test_off_loads_and_runs_and_keeps_nothing(path: Path, cache_dir: Path, counted: Any) -> None:
    module = saved(path, Encoder())
    with modcache.mode("off"):
        assert torch.equal(by_file(path, X, "k"), module(X))
        assert torch.equal(by_file(path, X, ["a", "b"], scope="s"), module(X))
    assert counted() == {"bypassed_off": 3}
    assert not cache_dir.exists()


@pytest.mark.parametrize("mode", ["refresh", "verify", "read"])
def test_other_modes(path: Path, mode: str, counted: Any) -> None:
    module = saved(path, Encoder())
    with modcache.mode(mode):
        assert torch.equal(by_file(path, X, "k"), module(X))
    assert counted() == {"misses": 1, **({"stored": 1} if mode == "refresh" else {})}


# ----- callers' mistakes


def test_what_is_no_torchscript_file(path: Path, tmp_path: Path) -> None:
    torch.save({"weights": X}, path)
    text = tmp_path / "text.pt"
    text.write_text("no model")
    exported = tmp_path / "exported.pt2"
    torch.export.save(torch.export.export(nn.ReLU(), (X,)), exported)
    for wrong in (path, text, exported):
        with pytest.raises(RuntimeError, match="must name a TorchScript file") as caught:
            by_file(wrong, X, "k")
        assert str(wrong) in str(caught.value)


def test_mistakes_say_what_is_valid(path: Path, tmp_path: Path) -> None:
    saved(path, Encoder())
    with pytest.raises(RuntimeError, match="is a directory"):
        by_file(tmp_path, X, "k")
    with pytest.raises(ValueError, match="path is an empty string"):
        lookup_or_run_file("", X, "k")
    with pytest.raises(ValueError, match="key is an empty string"):
        by_file(path, X, "")
    with pytest.raises(ValueError, match="3 keys were given"):
        by_file(path, X, ["a", "b", "c"])
    with pytest.raises(RuntimeError, match=r"_file: .*has no method 'encode'; it has: forward"):
        by_file(path, X, "k", method="encode")


class Structured(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


def test_structured_results_are_named_as_a_mistake(path: Path) -> None:
    saved(path, Structured())
    with pytest.raises(RuntimeError, match=r"_file: .*lookup_or_run_any\(modcache.lazy\(path\)"):
        by_file(path, X, "k")


def test_a_relative_path_starts_at_the_working_directory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = saved(path, Encoder())
    monkeypatch.chdir(path.parent)
    assert torch.equal(by_file(Path(path.name), X, "k"), module(X))


def test_what_records_a_program_is_told_what_it_can_record(path: Path) -> None:
    """Fake ids have no numbers to read: that ended the process."""
    saved(path, Encoder())

    class ByIds(nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return by_file(path, x, ids)

    with pytest.raises(TypeError, match="ids must be plain numbers"):
        torch.export.export(ByIds(), (X, torch.tensor([1, 2])), strict=False)
