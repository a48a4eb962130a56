# SPDX-License-Identifier: Apache-2.0
"""POST /predict: the model's output, the keys it is cached under, and errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from running import RunningServer, sample

Start = Callable[..., RunningServer]
STORE_ALL = ("--set", "admission=all")
FORMS = ("scripted", "frozen", "plain", "rows", "exported")


@pytest.mark.parametrize("form", FORMS)
def test_hit_in_each_form_of_model(start: Start, form: str) -> None:
    server = start(*STORE_ALL, form=form)
    first = server.predict(1, "a")
    assert server.predict(1, "a") == first
    assert server.counted() == (1, 1, 0)
    assert server.predict(2, "b") != first


def test_hit_equals_output_in_mode_off(server: RunningServer) -> None:
    cached = [server.predict(1, "a") for _ in range(3)]
    assert server.mode("off") == "off"
    assert cached == [server.predict(1, "a")] * 3


def test_content_key_without_id(server: RunningServer) -> None:
    outputs = [server.predict(number) for number in (1, 2, 1, 2, 1, 2)]
    assert outputs == outputs[:2] * 3
    assert outputs[0] != outputs[1]
    assert server.counted()[0] >= 2


@pytest.mark.parametrize("form", ["rows", "exported"])
def test_content_keys_of_rows(start: Start, form: str) -> None:
    server = start(*STORE_ALL, form=form)
    rows = {"input": sample(1) + sample(2) + sample(3)}
    assert server.ask("POST", "/predict", rows).status == 200
    assert server.ask("POST", "/predict", {"input": sample(2) + sample(1)}).status == 200
    assert server.counted() == (2, 3, 0)


def test_integer_and_its_digits_are_one_id(server: RunningServer) -> None:
    for each in (7, "7", 7):
        server.predict(1, each)
    assert server.counted()[0] >= 1


def test_ids_of_rows(start: Start) -> None:
    server = start(form="rows")
    rows = {"input": sample(1) + sample(2) + sample(3)}
    for _ in range(2):
        output = server.ask("POST", "/predict", {**rows, "ids": ["a", "b", 3]}).json["output"]
    hits = server.counted()[0]
    alone = server.predict(2, "b")
    assert server.counted()[0] == hits + 1
    assert alone[0] == pytest.approx(output[1], abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_more_than_max_rows(start: Start, form: str) -> None:
    server = start("--max-rows", "20", form=form)
    for keys in ({"id": "a"}, {"ids": ["a"] * 21}, {}):
        answer = server.ask("POST", "/predict", {"input": sample(1) * 21, **keys})
        assert answer.status == 413
        assert "21 rows; valid are up to 20" in answer.error
    assert server.ask("POST", "/predict", {"input": sample(1) * 20}).status == 200


def test_shape_that_fixes_the_rows(start: Start) -> None:
    server = start("--max-rows", "1", form="plain", shape="3x32")
    assert server.ask("POST", "/predict", {"input": sample(1) * 3}).status == 200
    assert server.ask("POST", "/predict", {"input": sample(1) * 2}).status == 400
    assert server.ask("POST", "/predict", {"input": sample(1) * 4}).status == 400


def test_id_of_another_input_is_a_miss(server: RunningServer) -> None:
    one, other = server.predict(1, "a"), server.predict(2, "a")
    assert one != other
    assert server.predict(1, "a") == one


def test_cache_control_bypasses_the_cache(server: RunningServer) -> None:
    before = server.predict(1, "a")
    bypassed = server.counted()[2]
    for directives in ("no-cache", "max-age=0, no-store"):
        assert server.predict(1, "a", Cache_Control=directives) == before
    assert server.counted()[2] == bypassed + 2
    assert server.predict(1, "a", Cache_Control="max-age=0") == before
    assert server.mode() == "on"


def test_next_server_hits_what_was_stored(start: Start) -> None:
    server = start()
    output, _, _ = (server.predict(1, "a") for _ in range(3))
    assert server.stop() == 0
    server = start()
    assert server.predict(1, "a") == output
    assert server.counted()[:2] == (1, 0)


def test_key_is_stored_at_its_second_request(server: RunningServer) -> None:
    for number in range(20):
        server.predict(number, f"once/{number}")
    assert server.ask("GET", "/status").json["totals"]["stored"] == 0
    for _ in range(3):
        server.predict(1, "often")
    totals = server.ask("GET", "/status").json["totals"]
    assert (totals["stored"], totals["hits"]) == (1, 1)


BAD_BODIES = {
    "no JSON": ('{"input": [1', "is not JSON"),
    "NaN": ('{"input": [[NaN]]}', "is not JSON"),
    "no object": ("[1]", "is not an object"),
    "no input": ('{"id": "a"}', "there is no 'input'"),
    "unknown member": ('{"input": [[1]], "key": 1}', "unknown member 'key'"),
    "string as input": ('{"input": "x"}', "'input' contains string"),
    "string in input": ('{"input": [["x"]]}', "'input' contains string"),
    "boolean": ('{"input": [[true]]}', "'input' contains boolean"),
    "null": ('{"input": [[null]]}', "'input' contains null"),
    "object in input": ('{"input": [{}]}', "'input' contains object"),
    "number beyond float32": ('{"input": [[1e39]]}', "'input' contains 1e+39"),
    "deep nesting": ('{"input": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested deeper than 8"),
    "lists of two lengths": ('{"input": [[1, 2], [3]]}', "differ in length or depth"),
    "lists of two depths": ('{"input": [[1], 2]}', "differ in length or depth"),
    "empty list next to a number": ('{"input": [[], 2]}', "differ in length or depth"),
    "wrong shape": ('{"input": [[1, 2]]}', "'input' is 1x2; this model takes ?x32"),
    "list as id": ('{"input": ROW, "id": [1]}', "an id is array"),
    "empty id": ('{"input": ROW, "id": ""}', "an id is an empty string"),
    "fraction as id": ('{"input": ROW, "id": 1.5}', "a number that is not a 64-bit integer"),
    "id of 30 digits": (f'{{"input": ROW, "id": {"1" * 30}}}', "not a 64-bit integer"),
    "id and ids": ('{"input": ROW, "id": 1, "ids": [1]}', "are both present"),
    "number as ids": ('{"input": ROW, "ids": 1}', "'ids' is number"),
    "too many ids": ('{"input": ROW, "ids": [1, 2]}', "'ids' is array of size 2; valid is a list"),
    "reserved id": ('{"input": ROW, "id": "content:1"}', "reserved"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_body(shared: RunningServer, name: str) -> None:
    body, reason = BAD_BODIES[name]
    answer = shared.ask("POST", "/predict", body.replace("ROW", str(sample(1))))
    assert answer.status == 400
    assert reason in answer.error
    assert len(answer.error) <= 1000


@pytest.mark.parametrize("name", ["fraction", "beyond 64 bits"])
def test_number_that_an_int64_model_does_not_take(start: Start, name: str) -> None:
    server = start("--dtype", "int64", form="plain", shape="")
    number = {"fraction": "1.5", "beyond 64 bits": str(2**63)}[name]
    answer = server.ask("POST", "/predict", f'{{"input": [[{number}]]}}')
    assert answer.status == 400
    assert f"'input' contains {number}; this model takes numbers of dtype Long" in answer.error


def test_body_longer_than_the_limit(start: Start) -> None:
    server = start("--max-body-bytes", "1000")
    assert server.ask("POST", "/predict", " " * 1001).status == 413
    assert "--max-body-bytes" in server.ask("POST", "/predict", " " * 1001).error
    assert len(server.predict(1, "a")[0]) == 4


def test_exception_of_the_model(start: Start) -> None:
    server = start(shape="")
    answer = server.ask("POST", "/predict", {"input": [1, 2, 3], "id": "a"})
    assert answer.status == 422
    assert "the model failed on this input: RuntimeError: mat1 and mat2" in answer.error
    assert "\n" not in answer.error


def test_shape_that_the_model_does_not_take_fails_at_start(start: Start) -> None:
    with pytest.raises(AssertionError, match=r"the model failed on this input: .*cannot be mul"):
        start(shape="?x31")


def test_other_requests(shared: RunningServer) -> None:
    for method, path in (("GET", "/predict"), ("DELETE", "/predict"), ("GET", "/x")):
        answer = shared.ask(method, path)
        assert answer.status == 404
        assert f"there is no {method} {path}; valid are POST /predict, GET" in answer.error
    text = shared.ask("POST", "/predict", "x", {"Content-Type": "text/plain"})
    assert text.status == 415
    assert "valid is application/json" in text.error
