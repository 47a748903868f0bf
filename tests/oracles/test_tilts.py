"""Sums of a KL ball at one theta that tell those at others, beside sums over all rows."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import drago
from drago.oracles.rounds import tilt_looks
from drago.oracles.rounds.tilt import Losses, price_in_ball
from drago.oracles.rounds.tilt_search import TiltSearch

N = 20_000
LOSSES = {
    "normal": lambda rng: rng.normal(size=N) ** 2,
    "heavy": lambda rng: rng.standard_t(3, size=N) ** 2,
    "heavy below": lambda rng: rng.normal(size=N) - rng.standard_t(3, size=N) ** 2,
    "bounded": lambda rng: rng.uniform(size=N),
    "two values": lambda rng: (rng.uniform(size=N) < 0.3).astype(float),
    "one above": lambda rng: np.append(rng.uniform(size=N - 1), 100.0),
    "far away": lambda rng: 1e6 + rng.normal(size=N),
    "few": lambda rng: rng.normal(size=300),
    "almost tied": lambda rng: np.append([9.0, 9.0 - 1e-6], rng.normal(size=N - 2)),
    "a small part above": lambda rng: rng.normal(size=N) + 50.0 * (np.arange(N) < N // 100),
    "two rows above": lambda rng: np.append([1e3, 1e3 + 1e-3], rng.normal(size=198)),
}
RADIUS = 0.5


def parts_of(name):
    """Losses and weights in parts of any size, also smaller ones than the rows that they send."""
    rng = np.random.default_rng(0)
    u = LOSSES[name](rng)
    p = rng.uniform(0.5, 2.0, size=u.size)
    ends = [u.size // 100, u.size // 3, u.size // 2]
    return list(zip(np.split(u, ends), np.split(p / p.sum(), ends)))


def told_at(parts, about, theta):
    told = [tilt_looks.tilts(SimpleNamespace(p=p), u, about, theta) for u, p in parts]
    return tilt_looks.Tilts(told, about, theta)


def middle(parts, theta):
    u = np.concatenate([u for u, _ in parts])
    return tilt_looks.middle(u, len(parts) * tilt_looks.TOP / u.size, theta)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("share", [-0.5, -0.1, 0.0, 1e-3, 0.1, 0.5])
def test_moments_tell_the_sums_nearby_and_how_far_off_they_are(name, share):
    parts = parts_of(name)
    theta = 1.0 / price_in_ball(Losses(parts, RADIUS), 0.0, RADIUS, math.nan)
    tilts = told_at(parts, middle(parts, theta), theta)
    share = np.clip(share, -4.0 / max(tilts.farthest, 1.0), 4.0 / max(tilts.farthest, 1.0))
    found = tilts.at(theta * (1.0 + share))
    u, p = (np.concatenate(each) for each in zip(*parts))
    e = p * np.exp(found.theta * (u - u.max()))
    mean = float(np.dot(e, u - u.max()) / e.sum())
    spent = found.theta * mean - math.log(e.sum())
    rounding = 1e-12 + 1e-15 * found.theta * np.abs(u).max()
    assert abs(math.log(found.total / e.sum())) <= found.error + rounding
    assert abs(found.spent - spent) <= found.error + rounding
    assert share != 0.0 or found.error == 0.0


class _Search(TiltSearch):
    """A search among rows in parts, from any guess; it counts its rounds."""

    def __init__(self, parts, guess, c):
        self.parts, self.n_samples, self.n_rounds = parts, sum(u.size for u, _ in parts), 0
        u, p = (np.concatenate(each) for each in zip(*parts))
        self.rows, self.witness, self.shadow = self, SimpleNamespace(p=p), lambda _: u
        self.uncertainty = drago.KLBall(RADIUS)
        memory = {"anchor": guess, "sampled": guess, "error": 1.0, "moved": 0.0, "searched": c}
        self.memory = memory

    def told(self, function, u, *given):
        self.n_rounds += 1
        return [function(SimpleNamespace(p=p), u, *given) for u, p in self.parts]


@pytest.mark.parametrize("name", sorted({*LOSSES} - {"two values"}))
@pytest.mark.parametrize("guess", [0.2, 0.9, 0.99, 1.001, 1.1, 3.0, 8.0])
def test_theta_is_that_of_all_rows(name, guess):
    """Of a round or two where the guess is near, and of a few where it is far."""
    parts = parts_of(name)
    best = 1.0 / price_in_ball(Losses(parts, RADIUS), 0.0, RADIUS, math.nan)
    search = _Search(parts, guess * best, 0.0)
    found = search._tilted(None, 0.0)
    np.testing.assert_allclose(found.theta, best, rtol=1e-12 if name != "far away" else 1e-8)
    assert abs(found.spent - RADIUS) <= (1e-13 if name != "far away" else 1e-8)
    far = 8 if name == "a small part above" else 3
    assert search.n_rounds <= (2 if abs(guess - 1.0) < 0.2 else far)


@pytest.mark.parametrize("guess", [0.2, 0.9, 1.0])
def test_the_price_alone_decides_in_a_large_ball(guess):
    parts = parts_of("normal")
    best = 1.0 / price_in_ball(Losses(parts, RADIUS), 0.0, RADIUS, math.nan)
    search = _Search(parts, guess * 0.98 * best, 1.0 / (0.98 * best))
    found = search._tilted(None, 1.0 / (0.98 * best))
    assert found.theta == 1.0 / (1.0 / (0.98 * best)) and found.spent < RADIUS
