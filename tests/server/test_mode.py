# SPDX-License-Identifier: Apache-2.0
"""PUT /cache/mode: the switch, and errors."""

from __future__ import annotations

import pytest
from running import RunningServer


def test_mode_is_set_for_the_next_request(server: RunningServer) -> None:
    for mode in ("read", "refresh", "verify", "off", "on"):
        assert server.mode(mode) == mode
        assert server.ask("GET", "/cache/mode").json == {"mode": mode, "process": mode}


@pytest.mark.parametrize("body", ["", "off", "[]", "{}", '{"mode": 1}', '{"mode": "of"}'])
def test_bad_body(shared: RunningServer, body: str) -> None:
    answer = shared.ask("PUT", "/cache/mode", body)
    assert answer.status == 400
    assert 'valid is an object such as {"mode": "off"}' in answer.error
    assert shared.mode() == "on"


def test_body_of_a_type_that_another_site_may_send(shared: RunningServer) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = shared.ask("PUT", "/cache/mode", '{"mode": "off"}', {"Content-Type": kind})
        assert answer.status == 415
    assert shared.mode() == "on"
