"""The book of a solve: the best point, a line for each certificate, and the callback."""

from dataclasses import asdict, replace

import numpy as np
import pytest

import cases
from drago.certificate.certificate import uncertified
from drago.loop.clock import Clock
from drago.loop.ledger import Ledger
from drago.loop.protocol import Iterate


class Time:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def problem():
    return cases.make("squared", fit_intercept=True)


def opened(problem, callback=None):
    """A ledger with the trivial model, its clock, and the time of that."""
    now = Time()
    clock = Clock(now=now)
    ledger = Ledger(problem, clock, callback)
    ledger.open((uncertified(problem, problem.reference[0]), *problem.origin))
    return ledger, clock, now


def at(problem, n_iter=3):
    return Iterate(*problem.origin, n_iter, 2.0, 50)


def test_it_has_no_best_point_before_it_is_open(problem):
    ledger = Ledger(problem, Clock())
    assert not ledger.is_open
    ledger.open((uncertified(problem, 1.0), *problem.origin))
    assert ledger.is_open and ledger.best.primal == 1.0


def test_a_line_says_what_is_best_and_what_it_took(problem):
    ledger, clock, now = opened(problem)
    now.now += 5.0
    with clock.of_evaluations():
        now.now += 2.0
    certificate = replace(ledger.best.point[0], primal=0.25, gap=0.0625, dual=0.1875)
    ledger.best.keep(certificate, *problem.origin)
    ledger.write(at(problem), 9.5)
    (record,) = ledger.records
    assert asdict(record) == {
        "n_iter": 3,
        "n_passes": 9.5,
        "n_oracle_calls": 50,
        "time": 7.0,
        "solver_time": 5.0,
        "primal": 0.25,
        "dual": 0.1875,
        "gap": 0.0625,
        "rel_gap": ledger.best.rel_gap,
    }


def test_without_a_callback_nobody_has_had_enough(problem):
    ledger, *_ = opened(problem)
    ledger.write(at(problem), 1.0)
    assert ledger.report() is False


@pytest.mark.parametrize("answer", [None, False, True, "enough", StopIteration])
def test_the_callback_sees_the_last_line_and_its_time_is_not_the_methods(problem, answer):
    seen = []

    def callback(state):
        seen.append(state)
        now.now += 4.0
        if answer is StopIteration:
            raise StopIteration
        return answer

    ledger, clock, now = opened(problem, callback)
    ledger.write(at(problem, 1), 1.0)
    ledger.write(at(problem, 2), 3.0)
    assert ledger.report() is (answer not in (None, False))
    (state,) = seen
    last = asdict(ledger.records[-1])
    assert {name: getattr(state, name) for name in last if hasattr(state, name)} == {
        name: value for name, value in last.items() if name not in ("n_oracle_calls", "solver_time")
    }
    coef, intercept = problem.to_public(*ledger.best.point[1:])
    np.testing.assert_array_equal(state.coef, coef)
    assert state.intercept == intercept
    assert clock.evaluating == 4.0 and clock.elapsed == 4.0
