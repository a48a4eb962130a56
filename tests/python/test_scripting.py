# SPDX-License-Identifier: Apache-2.0
"""The list of tests that need TorchScript names tests that there are."""

from __future__ import annotations

from pathlib import Path

from scripting import FILES, TESTS, scripts

HERE = Path(__file__).parent


def test_every_entry_names_a_test() -> None:
    assert [name for name in FILES | set(TESTS) if not (HERE / name).exists()] == []
    for name, listed in TESTS.items():
        text = (HERE / name).read_text(encoding="utf-8")
        tests = [test for test in listed if not test.startswith("[")]
        assert [test for test in tests if f"def {test}(" not in text] == [], name


def test_an_entry_is_a_file_a_test_or_a_parameter() -> None:
    assert scripts("test_lower.py", "test_any", "")
    assert scripts("test_any.py", "test_any", "disk only-scripted")
    assert scripts("test_script.py", "test_a_tuple_becomes_the_arguments", "")
    assert scripts("test_lazy.py", "test_any", "path with scope-key")
    assert not scripts("test_lazy.py", "test_any", "factory-key")
    assert not scripts("test_rows.py", "test_any", "eager")
