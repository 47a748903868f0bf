"""Saving and resuming a solve, bit for bit: the loop's part, and which solve a file belongs to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from drago._validation import shown
from drago._version import __version__
from drago.certificate.bounds import tangent_bound
from drago.certificate.certificate import Certificate, lower_bound, relative, uncertified
from drago.certificate.certify import judge_with
from drago.files.checkpoint import CheckpointError, State, fingerprint, load, place, save
from drago.files.forms import inner
from drago.loop.best import Entry
from drago.loop.messages import warn
from drago.loop.method import Method
from drago.loop.protocol import Start
from drago.loop.saved import check_loop, check_whole
from drago.problem import DROProblem, Evaluation, NonFiniteLossError
from drago.result import Record

if TYPE_CHECKING:
    from drago.loop.loop import Loop

# Saving may take this share of the time.
_SHARE = 0.05
# By how much a saved point may claim too much, which is rounding: of objectives and of their
# differences, relative to the objective, and of gaps, relative to themselves.
_OF_VALUES = 1e-12
_OF_DIFFERENCES = 1e-15
_OF_GAPS = 1e-6
# Passes that it may cost to judge it again, on top of twice what that cost before.
_CREDIT = 4.0


class Checkpoints:
    """The file of a solve, and when to write it.

    Parameters
    ----------
    path : str or path
    every : float
        Seconds between two savings; more where one takes long.
    is_first : bool
        Whether this is the process that writes the file.
    """

    def __init__(self, path: str | os.PathLike[str], every: float, is_first: bool = True) -> None:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise TypeError(f"checkpoint must be the path of a file, but {shown(path)} was given.")
        if is_first and not os.path.isdir(os.path.dirname(os.path.abspath(place(path)))):
            raise FileNotFoundError(f"there is no folder for the checkpoint {os.fspath(path)}.")
        self.path, self.every = path, every
        self._next = 0.0
        self._identity = ""
        self._has_failed = False

    def begin(self, loop: Loop, method: Method) -> Callable[[], str] | None:
        """Restore what was saved for this very solve; returns what goes on from there, or None."""
        self._identity = identity(loop, method)
        # Where vectors of the rows are kept, those of the file are read to.
        rows = loop.problem.rows
        found = rows.shared(lambda: load(self.path, getattr(rows, "room", None)))
        if found is None:
            return None
        arrays, settings = found
        if settings.get("identity") != self._identity:
            raise CheckpointError(
                f"The checkpoint {os.fspath(self.path)} belongs to another problem, solver or "
                "random_state. Give another path, or delete it to start anew."
            )
        try:
            check_whole(arrays, settings)
            mine, its = ((inner(arrays, f"{part}."), settings[part]) for part in ("loop", "method"))
            check_loop(loop.judge.exact, loop.oracle, mine)
            self._unpack(loop, *mine)
            return method.resume(loop.problem, loop, its)
        except CheckpointError as error:
            raise CheckpointError(
                f"The checkpoint {os.fspath(self.path)} cannot be used: {error}. Delete it to "
                "start anew."
            ) from None

    def rest(self, loop: Loop, snapshot: Callable[[], State]) -> None:
        """A moment at which the solve could be resumed: save it where that is due.

        Where that fails the solve goes on: its answer is worth more than the file. It is tried
        again, but said once.
        """
        began = time.perf_counter()
        rows = loop.problem.rows
        is_early = bool(rows.said(began < self._next))
        if is_early and not loop.clock.is_running_out:
            return
        arrays, settings = snapshot()
        mine, more = _pack(loop)
        names = {f"method.{name}": np.asarray(array) for name, array in arrays.items()}
        names |= {f"loop.{name}": np.asarray(array) for name, array in mine.items()}
        try:
            if rows.is_first:
                more = {"identity": self._identity, "loop": more, "method": settings}
                save(self.path, names, more)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                warn(
                    f"The checkpoint {os.fspath(self.path)} could not be saved ({error}): the "
                    "solve goes on without it. What was saved before can still be used.",
                    UserWarning,
                )
        ended = time.perf_counter()
        self._next = ended + max(self.every, (ended - began) / _SHARE)

    def _unpack(self, loop: Loop, arrays: dict[str, Any], settings: dict[str, Any]) -> None:
        loop.clock.resume(settings["elapsed"], settings["_evaluating"])
        spent = ("_looks", "_judged_iter", "_next_look", "_extra_passes")
        loop.budget.resume(*(settings[name] for name in spent))
        loop.goal.factor = settings["_factor"]
        loop.oracle.memory = settings["oracle"]
        loop.ledger.notes = settings["notes"]
        loop.ledger.records = [Record(*values) for values in settings["records"]]
        if "start.w" in arrays:
            loop.start_at = Start(arrays["start.w"], arrays["start.b"])
        with loop.clock.of_evaluations():
            self._judge_again(loop, arrays, settings)

    def _judge_again(self, loop: Loop, arrays: dict[str, Any], settings: dict[str, Any]) -> None:
        """Take the saved points for the best, as far as the problem confirms them."""
        claims = [name for name in ("best", "dual") if name in settings]
        exact = loop.judge.exact
        entries = [_judged_again(exact, name, inner(arrays, f"{name}."), settings[name])
                   for name in claims]  # fmt: skip
        if all(is_confirmed for _, is_confirmed in entries):
            loop.best.put(entries[0][0], entries[-1][0])
        else:
            for entry, _ in entries:
                loop.best.keep(*entry)
            warn(
                f"The checkpoint {os.fspath(self.path)} claims more than the problem confirms: "
                "what was found in its place is used.",
                UserWarning,
            )


def identity(loop: Loop, method: Method) -> str:
    """A digest of everything that the course of a solve depends on, but for its limits."""
    problem, start = loop.problem, loop.start_at
    uncertainty = problem.uncertainty
    return fingerprint(
        *problem.rows.content(),
        method.layout,
        *_described(problem.loss),
        *_described(getattr(uncertainty, "given", uncertainty)),
        problem.divergence.name,
        *_described(problem.constraint),
        problem.fit_intercept,
        problem.mu,
        problem.nu,
        repr(method.with_threads(None)),
        loop.random_state,
        __version__,
        *((None,) if start is None else (start.w, start.b, _exported(problem, start.q))),
    )


def _exported(problem: DROProblem, q: Any) -> Any:
    return None if q is None else problem.rows.saved(q)


def _described(thing: Any) -> list[Any]:
    """A class and its parameters, as far as they can be told apart from one process to another."""
    out: list[Any] = [type(thing).__qualname__]
    for name, value in sorted(vars(thing).items()):
        if name.startswith("_of_"):
            continue
        if isinstance(value, (str, int, float, bool, np.ndarray)) or value is None:
            out += [name, value]
        elif callable(value):
            # What it does cannot be told, but its name can.
            out += [name, getattr(value, "__qualname__", type(value).__qualname__)]
        else:
            out += [name, *_described(value)] if hasattr(value, "__dict__") else [name, repr(value)]
    return out


# What is kept of a certificate. The rest follows, from the problem.
_CLAIM = ("primal", "gap", "bound", "restricted_to", "n_passes", "stationarity")


def _pack(loop: Loop) -> State:
    arrays: dict[str, Any] = {}
    budget, clock, ledger = loop.budget, loop.clock, loop.ledger
    settings: dict[str, Any] = {
        "_judged_iter": budget.judged_iter,
        "_looks": budget.looks,
        "_next_look": budget.next_look,
        "_factor": loop.goal.factor,
        "_extra_passes": budget.passes,
        "_evaluating": clock.evaluating,
        "elapsed": clock.elapsed,
        "notes": ledger.notes,
        "oracle": loop.oracle.memory,
        "records": [list(asdict(record).values()) for record in ledger.records],
    }
    entries = {"best": loop.best.point, "dual": loop.best.dual}
    if loop.best.dual is loop.best.point:
        del entries["dual"]
    for name, (certificate, w, b) in entries.items():
        q = loop.judge.exact.rows.saved(certificate.dual_weights)
        arrays |= {f"{name}.w": w, f"{name}.b": b, f"{name}.q": q}
        settings[name] = {key: getattr(certificate, key) for key in _CLAIM}
        settings[name]["bound"] = certificate.bound.partition(",")[0]
    if loop.start_at is not None:
        arrays["start.w"], arrays["start.b"] = loop.start_at.w, loop.start_at.b
    return arrays, settings


def _judged_again(
    problem: DROProblem, name: str, arrays: dict[str, Any], claim: dict[str, Any]
) -> tuple[Entry, bool]:
    """What the problem says of a saved point, and whether that is what was saved.

    What was saved is used where it claims no more than what is found now, up to rounding, so that
    the solve goes on bit for bit; otherwise what is found.
    """
    w, b, q = arrays["w"], arrays["b"], problem.rows.restored(arrays["q"])
    primal, gap = claim["primal"], claim["gap"]
    radius, slope = claim["restricted_to"], claim["stationarity"]
    try:
        with np.errstate(all="ignore"):
            ev = problem.evaluate(w, b)
            found = _found(problem, ev, q, claim)
    except NonFiniteLossError as error:
        raise CheckpointError(f"loop.{name}.w is no point of the problem: {error}") from None
    size = max(abs(primal), problem.scale)

    def is_no_less(claimed: float, now: float, size: float) -> bool:
        return now <= (1.0 + _OF_GAPS) * claimed + _OF_DIFFERENCES * size

    is_confirmed = abs(found.primal - primal) <= _OF_VALUES * size
    is_confirmed = is_confirmed and is_no_less(gap, found.gap, size)
    if slope is not None and found.stationarity is not None:
        flat = is_no_less(slope, found.stationarity, problem.reference_slope)
        is_confirmed = is_confirmed and flat
    if not is_confirmed:
        return (found, w, b), False
    bound = claim["bound"] if radius is None else _over_a_ball(radius)
    known = {"restricted_to": radius, "stationarity": slope, "n_passes": claim["n_passes"]}
    saved = _certificate(uncertified(problem, primal), gap, q, bound, **known)
    return (saved, w, b), True


def _found(problem: DROProblem, ev: Evaluation, q: Any, claim: dict[str, Any]) -> Certificate:
    """The certificate of a saved point, with no more than twice the effort that its own took."""
    radius, own = claim["restricted_to"], problem.uncertainty
    if problem.is_convex and (radius is not None or claim["gap"] == np.inf):
        exact = problem.dual_oracle().weights(ev.losses, problem.nu)
        found = uncertified(problem, problem.primal(ev.w, ev.losses, exact))
        if radius is None:
            return found
        gap = tangent_bound(problem, ev, exact, problem.gradient(ev, exact), radius)
        return _certificate(found, gap, exact, _over_a_ball(radius), restricted_to=radius)
    # A set that cannot tell its own weights gets those that it gives itself.
    trusted = None if own.is_users and not own.can_check else q
    effort, rest = 2.0 * claim["n_passes"] + _CREDIT, 0.1 * _OF_GAPS * claim["gap"]
    return judge_with(problem, ev, trusted, credit=effort, rest=rest)


def _certificate(point: Certificate, gap: float, q: Any, bound: str, **more: Any) -> Certificate:
    """With a gap and the weights that it rests on."""
    primal = point.primal
    given = gap, primal, point.reference, point.cancelling
    dual, rel_gap = (f(*given) for f in (lower_bound, relative))
    return replace(point, dual=dual, gap=gap, rel_gap=rel_gap, dual_weights=q, bound=bound, **more)


def _over_a_ball(radius: float) -> str:
    return f"tangent, ||w|| <= {radius:.3g}"
