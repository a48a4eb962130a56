# SPDX-License-Identifier: Apache-2.0
"""GET /metrics, and the dashboard that reads it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from running import ROOT, RunningServer

DASHBOARD = ROOT / "docs" / "grafana-dashboard.json"
NAME = re.compile(r"\b(?:modcache|server)_[a-z0-9_]+")
LABEL = re.compile(r"\b([a-z]+)=[~\"]")
# What PromQL itself has, and what a scrape adds.
SCRAPED_LABELS = {"job", "instance"}


def families(text: str) -> dict[str, str]:
    """The type of each metric, by its name."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def series(text: str) -> set[str]:
    """The names of all samples, also those that a histogram has three of."""
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


def expressions(node: Any) -> Iterator[str]:
    """Each query of a dashboard, wherever in it."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("expr", "query", "definition") and isinstance(value, str):
                yield value
            yield from expressions(value)
    elif isinstance(node, list):
        for item in node:
            yield from expressions(item)


@pytest.fixture(scope="module")
def text(shared: RunningServer) -> str:
    for _ in range(3):
        shared.predict(1, "a")
    shared.ask("GET", "/nowhere")
    answer = shared.ask("GET", "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return answer.text


def test_counters_and_histograms_and_nothing_else(text: str) -> None:
    kinds = families(text)
    assert set(kinds.values()) == {"counter", "histogram"}
    for name, kind in kinds.items():
        assert NAME.fullmatch(name), name
        assert name.endswith("_total") == (kind == "counter"), name
    for name in series(text):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in kinds or kinds.get(base) == "histogram", name


def test_the_server_s_own_counters(shared: RunningServer, text: str) -> None:
    before = shared.metrics()
    shared.predict(1, "a")
    shared.ask("POST", "/predict", "{}")
    grown = {
        name: value - before.get(name, 0)
        for name, value in shared.metrics().items()
        if value != before.get(name, 0) and name.startswith("server_")
    }
    assert grown['server_requests_total{route="/predict",code="200"}'] == 1
    assert grown['server_requests_total{route="/predict",code="400"}'] == 1
    assert grown["server_predict_duration_seconds_count"] == 2  # the one that was refused, too
    assert grown['server_predict_duration_seconds_bucket{le="+Inf"}'] == 2
    assert grown["server_predict_duration_seconds_sum"] > 0
    assert 'route="other",code="404"' in text


def test_runs_that_fail_are_timed(start: Callable[..., RunningServer]) -> None:
    server = start(shape="")
    began = time.monotonic()
    for _ in range(5):
        answer = server.ask("POST", "/predict", {"input": [[1.0, 2.0]]})
        assert answer.status == 422  # what the model throws
    took_s = time.monotonic() - began
    metrics = server.metrics()
    assert metrics["server_predict_duration_seconds_count"] == 5
    assert 0 < metrics["server_predict_duration_seconds_sum"] < took_s
    assert server.ask("GET", "/status").json["minute"]["p99_ms"] > 0


def test_no_label_is_what_a_client_chose(shared: RunningServer, text: str) -> None:
    for number in range(50):
        shared.ask("GET", f"/nowhere/{number}")
        shared.ask("POST", "/predict", {"input": [], "id": f"id{number}"})
    assert len(shared.metrics()) - len(series(text)) < 250
    assert "nowhere" not in shared.ask("GET", "/metrics").text


def test_buckets_only_grow(text: str) -> None:
    buckets: dict[str, list[float]] = {}
    for line in text.splitlines():
        if found := re.match(r'(\w+)_bucket\{(.*?),?le="[^"]+"\} (\S+)', line):
            buckets.setdefault(found.group(1) + found.group(2), []).append(float(found.group(3)))
    assert len(buckets) >= 4
    for counts in buckets.values():
        assert counts == sorted(counts)


def test_the_dashboard_asks_for_what_there_is(text: str) -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [query for query in expressions(dashboard) if NAME.search(query)]
    assert len(queries) >= 10
    known = series(text)
    labels = set(re.findall(r'(\w+)="', text)) | SCRAPED_LABELS
    for query in queries:
        assert set(NAME.findall(query)) <= known, query
        assert set(LABEL.findall(query)) <= labels, query
    counters = {name for name, kind in families(text).items() if kind == "counter"}
    for query in queries:  # a counter by itself says nothing
        for name in NAME.findall(query):
            if name in counters and "label_values" not in query:
                assert re.search(rf"(rate|increase)\({name}\b", query), query


def test_a_dashboard_that_asks_for_something_else_is_found(text: str) -> None:
    assert not set(NAME.findall("rate(modcache_hit_total[5m])")) <= series(text)
