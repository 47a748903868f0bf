"""The clock, by a time that goes only when it is told to."""

import time

import pytest

from drago.loop.clock import Clock


class Time:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def now():
    return Time()


def test_it_begins_when_it_is_made(now):
    clock = Clock(now=now)
    assert clock.elapsed == 0.0 and clock.evaluating == 0.0
    now.now += 7.0
    assert clock.elapsed == 7.0


def test_without_a_limit_it_is_never_late(now):
    clock = Clock(now=now)
    now.now += 1e9
    assert clock.left is None and not clock.is_late and not clock.is_running_out


def test_a_limit_comes_down_to_zero_and_no_further(now):
    clock = Clock(10.0, now)
    now.now += 9.0
    assert clock.left == 1.0 and not clock.is_late
    now.now += 1.0
    assert clock.left == 0.0 and clock.is_late
    now.now += 5.0
    assert clock.left == 0.0 and clock.is_late


def test_no_time_at_all_is_late_from_the_start(now):
    assert Clock(0.0, now).is_late


def test_what_was_spent_before_counts_for_the_limit_alone(now):
    clock = Clock(10.0, now, spent=4.0)
    now.now += 5.0
    assert clock.elapsed == 5.0 and clock.left == 1.0
    now.now += 1.0
    assert clock.is_late


def test_passes_that_would_end_after_the_limit_are_too_late(now):
    clock = Clock(10.0, now)
    now.now += 2.0
    clock.visited(0.0)
    now.now += 3.0
    with clock.of_evaluations():
        now.now += 1.0
    clock.visited(2.0)
    assert clock.pace == 1.5 and clock.left == 4.0
    assert clock.is_late_for(3.0) and not clock.is_late_for(2.0)
    clock.visited(2.0)
    assert clock.pace == 1.5


def test_in_the_first_half_of_the_limit_it_is_not_late_for_anything(now):
    clock = Clock(10.0, now)
    now.now += 4.0
    clock.visited(1.0)
    assert not clock.is_late_for(1e9)
    now.now += 1.0
    assert clock.is_late_for(1e9)
    assert not Clock(now=now).is_late_for(1e9) and Clock(0.0, now).is_late_for(0.0)


def test_evaluations_count_in_the_time_and_apart(now):
    clock = Clock(10.0, now)
    with clock.of_evaluations():
        now.now += 2.0
    now.now += 3.0
    with clock.of_evaluations():
        now.now += 1.0
    assert clock.elapsed == 6.0 and clock.evaluating == 3.0 and clock.left == 4.0


def test_what_ends_by_an_exception_has_taken_its_time_nevertheless(now):
    clock = Clock(now=now)
    with pytest.raises(KeyboardInterrupt), clock.of_evaluations():
        now.now += 2.0
        raise KeyboardInterrupt
    assert (clock.elapsed, clock.evaluating) == (2.0, 2.0)


@pytest.mark.parametrize("since_rest", [1.0, 2.0])
def test_time_runs_out_where_two_more_rounds_do_not_fit(now, since_rest):
    """The last round took as long as the time since the last rest; the next may take longer."""
    clock = Clock(10.0, now)
    now.now += 5.0
    clock.rest()
    now.now += since_rest
    assert clock.is_running_out == (5.0 + 3.0 * since_rest >= 10.0)


def test_a_resumed_clock_goes_on_but_its_limit_is_fresh(now):
    clock = Clock(10.0, now)
    now.now += 1.0
    clock.resume(elapsed=50.0, evaluating=20.0)
    now.now += 2.0
    assert clock.elapsed == 53.0 and clock.evaluating == 20.0 and clock.left == 7.0


def test_by_default_it_is_the_time_of_the_machine():
    before = time.perf_counter()
    clock = Clock(1000.0)
    time.sleep(0.01)
    assert 0.01 <= clock.elapsed <= time.perf_counter() - before
    assert 0.0 < clock.left <= 1000.0 - 0.01
