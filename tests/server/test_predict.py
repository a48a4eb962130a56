# SPDX-License-Identifier: Apache-2.0
"""POST /predict: the model's output, by which keys, in every form of a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from running import RunningServer, sample

Start = Callable[..., RunningServer]
STORE_ALL = ("--set", "admission=all")


@pytest.mark.parametrize("form", ["scripted", "frozen", "plain", "rows", "exported"])
def test_each_form_of_a_model_is_answered_from_the_cache(start: Start, form: str) -> None:
    server = start(*STORE_ALL, form=form)
    first = server.predict(1, "a")
    assert server.predict(1, "a") == first
    assert server.counted() == (1, 1, 0)
    assert server.predict(2, "b") != first


def test_the_answer_is_that_of_the_model_without_a_cache(server: RunningServer) -> None:
    cached = [server.predict(1, "a") for _ in range(3)]
    assert server.mode("off") == "off"
    assert cached == [server.predict(1, "a")] * 3


def test_a_content_key_where_there_is_no_id(server: RunningServer) -> None:
    outputs = [server.predict(number) for number in (1, 2, 1, 2, 1, 2)]
    assert outputs == outputs[:2] * 3
    assert outputs[0] != outputs[1]
    assert server.counted()[0] >= 2


def test_an_integer_is_the_id_of_its_digits(server: RunningServer) -> None:
    for each in (7, "7", 7):
        server.predict(1, each)
    assert server.counted()[0] >= 1


def test_rows_with_ids_of_their_own(start: Start) -> None:
    server = start(form="rows")
    rows = {"input": sample(1) + sample(2) + sample(3)}
    for _ in range(2):
        both = server.ask("POST", "/predict", {**rows, "ids": ["a", "b", 3]}).json["output"]
    hits = server.counted()[0]
    alone = server.predict(2, "b")
    assert server.counted()[0] == hits + 1
    assert alone[0] == pytest.approx(both[1], abs=1e-6)


@pytest.mark.parametrize("form", ["scripted", "frozen", "plain", "rows", "exported"])
def test_rows_are_bounded_in_every_form_of_a_model(start: Start, form: str) -> None:
    server = start("--rows", "20", form=form)
    many = sample(1) * 21
    for keys in ({"id": "a"}, {"ids": ["a"] * 21}, {}):
        answer = server.ask("POST", "/predict", {"input": many, **keys})
        assert answer.status == 413
        assert "more than 20" in answer.error
    assert server.ask("POST", "/predict", {"input": sample(1) * 20}).status == 200


def test_a_shape_that_fixes_the_rows_is_their_bound(start: Start) -> None:
    server = start("--rows", "1", form="plain", shape="3x32")
    assert server.ask("POST", "/predict", {"input": sample(1) * 3}).status == 200
    assert server.ask("POST", "/predict", {"input": sample(1) * 2}).status == 400
    assert server.ask("POST", "/predict", {"input": sample(1) * 4}).status == 413


def test_the_id_of_one_input_with_another_one_is_no_hit(server: RunningServer) -> None:
    one, other = server.predict(1, "a"), server.predict(2, "a")
    assert one != other
    assert server.predict(1, "a") == one


def test_a_header_bypasses_the_cache_for_one_request(server: RunningServer) -> None:
    before = server.predict(1, "a")
    bypassed = server.counted()[2]
    for wish in ("no-cache", "max-age=0, no-store", "No-Cache", "no-cache=x , a"):
        assert server.predict(1, "a", Cache_Control=wish) == before
    assert server.counted()[2] == bypassed + 4
    for wish in ("max-age=0", "xno-cachex", "", "a=no-cache"):
        assert server.predict(1, "a", Cache_Control=wish) == before
    assert server.counted()[2] <= bypassed + 5, "a first sight, at most"
    assert server.mode() == "on"


def test_what_was_stored_is_there_for_the_next_server(start: Start) -> None:
    server = start()
    output, _, _ = (server.predict(1, "a") for _ in range(3))
    assert server.stop() == 0
    server = start()
    assert server.predict(1, "a") == output
    assert server.counted()[:2] == (1, 0)


def test_what_is_asked_for_once_is_not_stored(server: RunningServer) -> None:
    for number in range(20):
        server.predict(number, f"once/{number}")
    assert server.ask("GET", "/status").json["totals"]["stored"] == 0
    for _ in range(3):
        server.predict(1, "often")
    totals = server.ask("GET", "/status").json["totals"]
    assert (totals["stored"], totals["hits"]) == (1, 1)


BAD_BODIES = {
    "no JSON": ('{"input": [1', "is not JSON"),
    "no object": ("[1]", "is no object"),
    "no input": ('{"id": "a"}', "there is no 'input'"),
    "another member": ('{"input": [[1]], "key": 1}', "there is no 'key'"),
    "input twice": ('{"input": [[1]], "input": [[1]]}', "'input' is there twice"),
    "a text as input": ('{"input": "x"}', "'input' holds a text"),
    "a text in the input": ('{"input": [["x"]]}', "'input' holds a text"),
    "a truth": ('{"input": [[true]]}', "'input' holds true or false"),
    "null": ('{"input": [[null]]}', "'input' holds null"),
    "an object in the input": ('{"input": [{}]}', "an object inside"),
    "lists of two lengths": ('{"input": [[1, 2], [3]]}', "differ in length or depth"),
    "lists of two depths": ('{"input": [[1], 2]}', "differ in length or depth"),
    "an empty list beside a number": ('{"input": [[], 2]}', "differ in length or depth"),
    "another shape": ('{"input": [[1, 2]]}', "'input' is 1x2; this model takes ?x32"),
    "an id of another type": ('{"input": [[1]], "id": [1]}', "'id' holds a list"),
    "an empty id": ('{"input": [[1]], "id": ""}', "an id is empty"),
    "a fraction as id": ('{"input": [[1]], "id": 1.5}', "'id' holds a number with a fraction"),
    "an exponent in an id": ('{"input": [[1]], "id": 1e3}', "'id' holds a number with a fraction"),
    "an id of 30 digits": (
        '{"input": [[1]], "id": 123456789012345678901234567890}',
        "'id' holds an integer beyond 64 bits",
    ),
    "a negative id of 30 digits": (
        '{"input": [[1]], "ids": [-123456789012345678901234567890]}',
        "'ids' holds an integer beyond 64 bits",
    ),
    "id and ids": ('{"input": [[1]], "id": 1, "ids": [1]}', "are both there"),
    "ids that are none": ('{"input": [[1]], "ids": 1}', "'ids' holds no list"),
    "ids of another number": ('{"input": [[1]], "ids": [1, 2]}', "there are 2 ids"),
    "a reserved id": ('{"input": [[1]], "id": "content:1"}', "the server's own"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_body_is_an_error_that_says_what_is_valid(shared: RunningServer, name: str) -> None:
    body, reason = BAD_BODIES[name]
    body = body.replace("[[1]]", str(sample(1)))
    answer = shared.ask("POST", "/predict", body)
    assert answer.status == 400
    assert reason in answer.error


def test_a_model_s_own_error_is_told_in_one_line(start: Start) -> None:
    server = start(shape="")
    answer = server.ask("POST", "/predict", {"input": [1, 2, 3], "id": "a"})
    assert answer.status == 422
    assert "the model failed on this input: RuntimeError: mat1 and mat2" in answer.error
    assert "\n" not in answer.error


def test_a_shape_that_the_model_does_not_take_is_told_at_the_start(start: Start) -> None:
    with pytest.raises(AssertionError, match=r"the model failed on this input: .*cannot be mul"):
        start(shape="?x31")


def test_other_requests_are_told_what_is_valid(shared: RunningServer) -> None:
    assert "valid are POST" in shared.ask("GET", "/predict").error
    assert "valid are /predict, /metrics, /cache/mode, /healthz" in shared.ask("GET", "/x").error
    text = shared.ask("POST", "/predict", "x", {"Content-Type": "text/plain"})
    assert text.status == 415
    assert "valid is application/json" in text.error
    for method in ("DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert shared.ask(method, "/predict").status == 405
