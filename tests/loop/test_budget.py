"""What certificates may cost, and when they are due by count."""

import numpy as np
import pytest

from drago.loop.budget import Budget
from drago.loop.protocol import Iterate

SMALL, LARGE = 1 << 19, (1 << 19) + 1


def at(n_iter, n_passes, **more):
    return Iterate(np.zeros((1, 1)), np.zeros(1), n_iter, n_passes, 0, **more)


def test_credit_is_half_of_the_methods_work_and_a_little_more():
    budget = Budget(SMALL)
    assert budget.credit(0.0) == 4.0
    assert budget.credit(100.0) == 54.0
    budget.spend(30.0)
    assert budget.credit(100.0) == 24.0


def test_credit_never_falls_below_what_tells_success():
    budget = Budget(SMALL)
    budget.spend(1000.0)
    assert budget.credit(10.0) == 4.0


@pytest.mark.parametrize(("n_entries", "is_cheap"), [(SMALL, False), (LARGE, True)])
def test_the_first_certificate_on_large_data_is_a_cheap_look(n_entries, is_cheap):
    budget = Budget(n_entries)
    assert budget.is_first_look == is_cheap
    assert budget.credit(100.0) == (1.0 if is_cheap else 54.0)
    budget.looked(1)
    assert not budget.is_first_look and budget.credit(100.0) == 54.0


def test_a_metric_costs_passes_but_no_credit():
    budget = Budget(SMALL)
    budget.spend(2.0)
    budget.spend_on_metric(8.0)
    assert budget.credit(20.0) == 12.0  # 4 + 20/2 - 2
    assert budget.total(20.0) == 30.0 and budget.passes == 2.0


def test_looks_are_due_where_a_tenth_of_the_passes_pays_for_one_more():
    budget = Budget(LARGE)
    assert not budget.is_look_due(at(5, 9.9))
    assert budget.is_look_due(at(5, 10.0))
    budget.spend(1.0)
    assert not budget.is_look_due(at(5, 19.9))
    assert budget.is_look_due(at(5, 20.0))


def test_looks_thin_out():
    """The iterations of looks whenever one is due: each 1.5 times the one before, or the next."""
    budget, seen = Budget(LARGE), []
    for n_iter in range(1, 101):
        if budget.is_look_due(at(n_iter, 1e6)):
            budget.looked(n_iter)
            seen.append(n_iter)
    assert seen == [1, 2, 4, 7, 11, 17, 26, 40, 61, 92]
    assert budget.looks == len(seen) and budget.judged_iter == 92 and budget.next_look == 139


@pytest.mark.parametrize(("n_entries", "due"), [(SMALL, False), (LARGE, True)])
def test_an_estimate_that_measures_the_gap_spares_looks_on_small_data(n_entries, due):
    assert Budget(n_entries).is_look_due(at(5, 1e6, is_measured=True)) == due
    assert Budget(n_entries).is_look_due(at(5, 1e6))


def test_nothing_is_judged_before_the_first_look():
    budget = Budget(SMALL)
    assert budget.judged_iter == -1 and budget.looks == 0 and budget.next_look == 1


def test_a_method_that_goes_on_is_looked_at_soon_and_has_its_share():
    budget = Budget(SMALL)
    budget.looked(100)
    assert not budget.is_spent(1e300)
    budget.hand_over(100, allowed=50.0)
    assert budget.next_look == 101
    assert not budget.is_spent(50.0) and budget.is_spent(50.1)


def test_a_resumed_budget_goes_on():
    budget, other = Budget(LARGE), Budget(LARGE)
    budget.spend(3.5)
    budget.looked(12)
    other.resume(budget.looks, budget.judged_iter, budget.next_look, budget.passes)
    for n_passes in (1.0, 40.0):
        assert other.credit(n_passes) == budget.credit(n_passes)
        assert other.total(n_passes) == budget.total(n_passes)
        for n_iter in (18, 19):
            due = budget.is_look_due(at(n_iter, n_passes))
            assert other.is_look_due(at(n_iter, n_passes)) == due
    assert other.judged_iter == 12 and not other.is_first_look
