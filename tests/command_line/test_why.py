# SPDX-License-Identifier: Apache-2.0
"""why: what differs between the modules that two scopes stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import FINDINGS, SUCCESS, FillDirectory, Outcome

Program = Callable[..., Outcome]

MANIFEST: dict[str, Any] = {
    "face": "eager",
    "class": "models.Encoder",
    "method": "forward",
    "torch": "2.13.0",
    "python": "3.11.2",
    "created_us": 1_763_765_000_000_000,
    "pid": 4711,
    "code": {"class models.Encoder": "c1", "Encoder.forward": "f1"},
    "attributes": {"scale": "a1"},
    "modules": {"": "models.Encoder", "linear": "torch.nn.Linear"},
    "tensors": {"linear.weight": "w1", "linear.bias": "b1"},
}
OTHER = {
    **MANIFEST,
    "created_us": 1_763_766_000_000_000,
    "torch": "2.14.0",
    "code": {"class models.Encoder": "c2", "Encoder.forward": "f2"},
    "tensors": {"linear.weight": "w2", "linear.bias": "b1", "extra": "e"},
}


@pytest.fixture
def two(directory: Path, writer: FillDirectory) -> Path:
    writer.put(scope="0a11ce", key="k", count=3)
    writer.put(scope="0b0b", key="k")
    writer.put(scope="named", key="k")
    writer.keep_manifest("0a11ce", **MANIFEST)
    writer.keep_manifest("0b0b", **OTHER)
    writer.flush()
    writer.leave()
    return directory


def test_it_says_that_packages_hold_other_values(
    modcache: Program, directory: Path, writer: FillDirectory
) -> None:
    for scope, values in (("a", "v1"), ("b", "v2")):
        writer.put(scope=scope, key="k")
        packages = {"packages": {"library": "1.0 d1"}, "package_values": values}
        writer.keep_manifest(scope, **MANIFEST, **packages)
    writer.flush()
    writer.leave()
    (found,) = modcache("why", directory, "a", "b", "--json").json()["differences"]
    assert (found["kind"], found["a"], found["b"]) == ("package values", "v1", "v2")
    assert "package values" in modcache("why", directory, "a", "b").data


def test_it_names_what_differs(modcache: Program, two: Path) -> None:
    found = modcache("why", two, "0a11ce", "0b0b", "--json").json()
    assert [(d["kind"], d["name"], d["a"], d["b"]) for d in found["differences"]] == [
        ("weight", "extra", None, "e"),
        ("weight", "linear.weight", "w1", "w2"),
        ("code", "Encoder.forward", "f1", "f2"),
        ("torch", None, "2.13.0", "2.14.0"),
    ]
    a, b = found["scopes"]
    assert (a["side"], a["class"], a["process"], a["entries"]) == ("A", "models.Encoder", 4711, 3)
    assert a["created_at"] == "2025-11-21T22:43:20.000000Z"
    assert b["python"] == "3.11.2"


def test_for_people(modcache: Program, two: Path) -> None:
    outcome = modcache("why", two, "0a11ce", "0b0b")
    assert outcome.status == SUCCESS
    lines = [line.split(maxsplit=2) for line in outcome.lines]
    assert ["weight", "extra", "only in B"] in lines
    assert ["weight", "linear.weight", "differs"] in lines
    assert ["torch", "-", "2.13.0 -> 2.14.0"] in lines


def test_the_same_scope_does_not_differ(modcache: Program, two: Path) -> None:
    outcome = modcache("why", two, "0a11ce", "0a11ce")
    assert outcome.status == SUCCESS
    assert "nothing that is on record differs" in outcome.data


def test_the_beginning_of_a_scope_is_enough(modcache: Program, two: Path) -> None:
    assert modcache("why", two, "0a", "0b").status == SUCCESS
    outcome = modcache("why", two, "0", "0b0b")
    assert (outcome.status, outcome.data) == (FINDINGS, "")
    assert "2 scopes begin with '0'" in outcome.messages


def test_a_scope_without_a_manifest_says_so(modcache: Program, two: Path) -> None:
    outcome = modcache("why", two, "0a11ce", "named")
    assert (outcome.status, outcome.data) == (FINDINGS, "")
    assert "scope 'named' has nothing on record" in outcome.messages
    assert "before" not in outcome.messages, "this is the first version"
    outcome = modcache("why", two, "0a11ce", "no such")
    assert outcome.status == FINDINGS
    assert "there is no scope 'no such'" in outcome.messages


def test_alone_it_lists_the_scopes_that_it_knows(modcache: Program, two: Path) -> None:
    scopes = modcache("why", two, "--json").json()["scopes"]
    assert [scope["scope"] for scope in scopes] == ["0a11ce", "0b0b"], "in the order of making"
    assert scopes[0]["class"] == "models.Encoder"


def test_scopes_whose_entries_are_gone_are_known_still(modcache: Program, two: Path) -> None:
    assert modcache("clear", two, "--scope", "0b0b").status == SUCCESS
    assert modcache("why", two, "0a11ce", "0b0b").status == SUCCESS


def test_two_faces_cannot_be_compared(
    modcache: Program, directory: Path, writer: FillDirectory
) -> None:
    writer.keep_manifest("a", **MANIFEST)
    writer.keep_manifest("b", **{**OTHER, "face": "torchscript"})
    outcome = modcache("why", directory, "a", "b")
    assert outcome.status == SUCCESS
    assert "cannot be compared" in outcome.messages
    assert "linear.weight" not in outcome.data


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', "{", '{"format": 1, "scope": 3}'])
def test_a_manifest_that_is_none_is_passed_over(
    modcache: Program, directory: Path, writer: FillDirectory, text: str
) -> None:
    writer.do("note", about="manifest \nscope", text=text)
    assert modcache("why", directory, "--json").json() == {"scopes": []}
