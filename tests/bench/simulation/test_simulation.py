# SPDX-License-Identifier: Apache-2.0
"""The simulation beside formulas, in cases that have one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import simpy

from simulation.__main__ import number, parser, run_of
from simulation.parameters import Data, Machine, Module, Options, Run, Server
from simulation.scaling import LARGE_RUN, RUNS, SMALL_RUN
from simulation.servers import Servers, Steps
from simulation.simulate import simulate
from simulation.stations import Station
from simulation.worth import Worth

FREE = Machine(
    call_s=0,
    memory_row_s=0,
    disk_row_s=0,
    miss_row_s=0,
    remote_call_s=0,
    remote_row_s=0,
)


@pytest.mark.parametrize("load", [0.3, 0.7, 0.85])
def test_waiting_for_a_station_is_that_of_an_m_d_1_queue(load: float) -> None:
    service_s, arrivals = 1.0, 60_000
    gaps = np.random.default_rng(5).exponential(service_s / load, arrivals)
    env = simpy.Environment()
    station = Station(env)

    def arrive() -> Steps:
        for gap in gaps:
            yield env.timeout(float(gap))
            station.delay(service_s)

    env.run(until=env.process(arrive()))
    expected_s = load * service_s / (2 * (1 - load))
    assert station.waited_s / station.jobs == pytest.approx(expected_s, rel=0.1)
    assert station.busy_s / float(env.now) == pytest.approx(load, rel=0.02)


def test_two_servers_of_a_station_serve_twice_as_much() -> None:
    station = Station(simpy.Environment(), 2)
    assert [station.delay(1.0) for _ in range(4)] == [1.0, 1.0, 2.0, 2.0]


def test_a_trainer_alone_takes_the_sum_of_its_parts() -> None:
    machine = Machine(disk_bytes=0, memory_bytes=0)
    run = Run(trainers=1, epochs=2, data=Data(samples=2560), machine=machine, flushes=True)
    server, module, data = run.server, run.module, run.data
    first, second = simulate(run)
    batches, rows = 10, 256
    missing_s = server.round_trip_s + server.request_s + rows * server.read_s
    each_s = machine.call_s + missing_s + machine.remote_call_s
    each_s += rows * (module.row_s + machine.miss_row_s)
    # The write of the batch before keeps the node busy for a moment of the next question.
    most_wait_s = server.request_s + 512 * server.write_s
    assert batches * each_s <= first.seconds <= batches * (each_s + most_wait_s)
    found_s = missing_s + rows * data.network_bytes / server.nic_bytes_per_s
    each_s = machine.call_s + found_s + machine.remote_call_s + rows * machine.remote_row_s
    assert second.seconds == pytest.approx(batches * each_s, rel=0.01)
    assert second.share("remote") == 1


def test_a_full_card_bounds_an_epoch() -> None:
    """Nothing else takes time, so the bytes over the bandwidth of the nodes are the time."""
    data = Data(samples=40_000, value_bytes=100_000, network_bytes=100_000)
    server = Server(nodes=2, request_s=0, read_s=0, write_s=0, round_trip_s=0, nic_bytes_per_s=1e9)
    run = Run(
        trainers=20,
        epochs=2,
        batch=50,
        data=data,
        server=server,
        module=Module(row_s=1),
        machine=replace(FREE, disk_bytes=0, memory_bytes=0),
        options=Options(timeout_s=60),
        flushes=True,
    )
    _, second = simulate(run)
    assert second.share("remote") == 1
    assert second.seconds == pytest.approx(40_000 * 100_000 / 2e9, rel=0.05)
    assert second.busiest_card > 0.95


def test_each_value_crosses_the_network_once_for_each_machine() -> None:
    run = Run(trainers=5, epochs=40, data=Data(samples=5000), flushes=True)
    epochs = simulate(run)
    read = sum(epoch.counts.remote for epoch in epochs)
    run_rows = sum(epoch.counts.run for epoch in epochs)
    assert run_rows == 5000
    assert read == pytest.approx(4 * 5000, rel=0.01)
    # After k epochs of its fifth a machine has 1 - (4/5)^k of all.
    for k in (1, 2, 5, 10):
        far = epochs[k].counts.remote / 5000
        assert far == pytest.approx((4 / 5) ** k, abs=0.03)


def test_a_directory_that_holds_a_part_finds_that_part() -> None:
    data = Data(samples=4000)
    machine = Machine(memory_bytes=0, disk_bytes=1000 * data.stored_bytes)
    run = Run(trainers=2, epochs=6, data=data, machine=machine, is_sharded=False)
    last = simulate(run)[-1]
    assert last.share("disk") == pytest.approx(0.25)
    assert last.share("remote") == pytest.approx(0.75)


def test_a_server_that_is_too_slow_is_passed_by() -> None:
    module = Module(row_s=1e-6)
    run = Run(trainers=1, batch=64, module=module, server=Server(round_trip_s=0.01))
    machine = Machine(memory_bytes=0, disk_bytes=0)
    second = simulate(replace(run, data=Data(samples=6400), machine=machine))[1]
    assert second.share("passed") > 0.9


def test_a_server_that_answers_late_is_left_alone() -> None:
    run = Run(trainers=1, epochs=1, data=Data(samples=25_600), server=Server(round_trip_s=0.7))
    (epoch,) = simulate(run)
    assert 1 <= epoch.counts.late <= 3
    assert epoch.counts.dropped > 20_000
    assert epoch.seconds < 26 * 1.2 + 3 * 0.5


@pytest.mark.parametrize(("write_s", "found"), [(0.01, 1.0), (0.02, 0.0)])
def test_a_write_may_take_eight_times_as_long_as_a_question(write_s: float, found: float) -> None:
    """256 values take 2.6 s, where the time-out of a question is 0.5 s, or 5.1 s."""
    run = Run(trainers=1, epochs=2, data=Data(samples=256), server=Server(write_s=write_s))
    machine = Machine(memory_bytes=0, disk_bytes=0)
    second = simulate(replace(run, machine=machine, flushes=True))[1]
    assert second.share("remote") == found


def test_a_full_server_holds_as_much_as_it_can() -> None:
    env = simpy.Environment()
    run = Run(data=Data(samples=1000, server_bytes=100), server=Server(memory_bytes=30_000))
    servers = Servers(env, run)
    for begin in range(0, 1000, 50):
        servers.keep(np.arange(begin, begin + 50))
        assert servers.held == min(begin + 50, 255)  # 0.85 of the room for 300
        assert int(servers.find(np.arange(1000)).sum()) == servers.held
        assert servers.find(np.arange(begin, begin + 50)).all()


def test_the_rule_explores_two_percent_of_the_time_of_runs() -> None:
    worth = Worth()
    asked = 0
    for _ in range(1000):
        # A question costs 1.8 ms over what is tolerated, runs 10 ms, and nothing is found.
        if worth.is_worth_asking(10, 0.002):
            asked += 1
            worth.note_question(10, 0, 0.002, 0.002)
        worth.note_runs(0.001, 10)
    assert 0.05 < asked / 1000 < 0.15


@pytest.mark.parametrize(("run", "call_us"), [(SMALL_RUN, 6.5 * 256), (LARGE_RUN, 230 * 32)])
def test_costs_of_a_hit_add_up_to_what_the_page_measured(run: Run, call_us: float) -> None:
    machine, server = run.machine, run.server
    seconds = machine.call_s + machine.remote_call_s + server.request_s
    row_s = machine.remote_row_s + server.read_s + run.data.network_bytes * server.byte_s
    assert seconds + run.batch * row_s == pytest.approx(call_us * 1e-6)


@pytest.mark.parametrize("run", RUNS)
def test_as_many_nodes_are_simulated_as_the_page_says_that_memory_takes(run: Run) -> None:
    of_a_node = 0.85 * run.server.memory_bytes
    assert run.server.nodes == math.ceil(run.data.samples * run.data.server_bytes / of_a_node)


def test_the_same_seed_gives_the_same() -> None:
    run = Run(trainers=3, data=Data(samples=3000))
    assert simulate(run) == simulate(run)
    assert simulate(replace(run, seed=1)) != simulate(run)


def test_the_command_line() -> None:
    arguments = parser().parse_args(
        [
            "--trainers",
            "7",
            "--data-samples",
            "1G",
            "--machine-disk-bytes",
            "2T",
            "--scale",
            "0.001",
        ]
    )
    run = run_of(arguments)
    assert (run.trainers, run.data.samples, run.machine.disk_bytes) == (7, 10**6, 2 * 10**9)
    assert [number(text) for text in ("2Gi", "25G", "20e-6")] == [2 * 2**30, 25e9, 20e-6]
