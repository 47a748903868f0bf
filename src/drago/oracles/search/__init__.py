"""The weights of capped simplices and balls for many rows, by a search without a sort.

With ``r_i = (u_i - tau) / c``, one threshold decides::

    chi2:    q_i = p_i clip(r_i, 0, cap)
    KL:      q_i = p_i cap exp(min(r_i, 0))
    vertex:  q_i = p_i cap above tau, 0 below, and what is left shared by the rows at tau
    ball:    q_i ~ p_i max(u_i - tau, 0)

KL balls, for which ``q_i ~ p_i exp(theta u_i)``, are searched on CUDA devices alone, and for
``theta``: see `drago.oracles.search.ball`.

The sum of the weights falls as ``tau`` rises; of a ball, the room that the radius leaves does. A
pass over the rows gives the sum, and how fast it changes, at two thresholds. The first two come
from a sample of the rows, or lie next to an old threshold. The next are the Newton step from the
better end of the bracket and the root of a cubic through both ends; where that is slow, the middle
of the bracket, between its ends or among the floats. So 3 to 6 passes are usual, and some dozens
the most; the vertex, whose sum jumps, takes about 10.

``tau`` is kept as ``ref - c x``, ``ref`` a float and ``x`` small: differences to a nearby `ref` are
exact, so the weights are right also where ``c`` is far below the rounding of the losses. The
search is over when the weights sum to 1 up to rounding; what is missing is shared by the rows
between the bounds.

On CUDA devices one kernel does it all (`drago.oracles.search.launch`), without a look at a
value. On processors (`drago.oracles.rounds.arrays`) looks cost nothing, and rows whose place
is settled are left behind.
"""

from __future__ import annotations

import functools
import math
import warnings
from types import ModuleType

import torch
from torch import Tensor

from drago.oracles.rounds import arrays

VERTEX, CHI2, KL, BALL = arrays.VERTEX, arrays.CHI2, arrays.KL, arrays.BALL
KL_BALL = 4
# From how many rows on this is faster than the sums of `drago.oracles.thresholds`.
_LEAST_ROWS = {"cpu": 1 << 12, "cuda": 1 << 11}


@functools.cache
def _kernels() -> ModuleType | None:
    """The module of the CUDA kernels, None where Triton is missing or too old."""
    try:
        from drago.oracles.search import launch
    except Exception:
        return None
    return launch


_broken: set[torch.device] = set()


def takes(u: Tensor, *others: object) -> bool:
    """Whether `weights` is the way to go for these losses: many, in float64, without gradients."""
    least = _LEAST_ROWS.get(u.device.type)
    if least is None or not least <= u.shape[0] < 2**31 - 2**20 or u.dtype != torch.float64:
        return False
    if torch.compiler.is_compiling():
        return False
    given = [u, *(x for x in others if isinstance(x, Tensor))]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return False
    if u.device.type == "cpu":
        return True
    return torch.version.hip is None and u.device not in _broken and _kernels() is not None


def searches(kind: int, bound: float, device: torch.device) -> bool:
    """Whether there is something to search: processors sum where that is all there is to do."""
    if device.type != "cpu":
        return True
    return kind != KL_BALL and (bound < math.inf or kind not in (VERTEX, KL))


def new_memory(device: torch.device | str) -> Tensor:
    """What `weights` may start from and updates: nothing yet.

    Three numbers: the threshold of the last call, of a KL ball ``1 / theta``; how far it had moved;
    and the passes over the rows that the call took.
    """
    return torch.full((3,), math.nan, dtype=torch.float64, device=device)


def weights(
    kind: int,
    u: Tensor,
    p: Tensor | None,
    c: float | Tensor,
    bound: float,
    out: Tensor | None = None,
    memory: Tensor | None = None,
) -> Tensor | None:
    """``argmax_q <u, q> - c Omega(q)`` over a capped simplex or a ball, where `takes` says so.

    Parameters
    ----------
    kind : {VERTEX, CHI2, KL, BALL, KL_BALL}
        `VERTEX` takes no notice of `c`; `KL_BALL` is not for processors.
    u : float64 tensor of shape (n,)
        Any value, also NaN, in rows of weight 0.
    p : float64 tensor of shape (n,) or None
        None for equal weights, which are then not read.
    c : float or tensor of shape ()
        Positive, or the number 0 with a ball. Except on processors the value of a tensor is not
        looked at.
    bound : float
        The cap, above 1 and infinite for none; the radius of a ball, positive.
    out : float64 tensor of shape (n,), optional
        Where the weights go; may be `u` itself.
    memory : tensor, optional
        From `new_memory`: the search starts from the threshold of the last call.

    Returns
    -------
    q : tensor of shape (n,) or None
        `out` if given. NaN if a row with weight is not finite. None, on a CUDA device, where the
        kernel could not be built: a warning says why, and `takes` refuses from then on.
    """
    q = torch.empty_like(u) if out is None else out
    with torch.no_grad():
        if u.device.type == "cpu":
            start = None if memory is None else (float(memory[0]), float(memory[1]))
            shares = None if p is None else p.detach().numpy()
            found = arrays.search(kind, u.detach().numpy(), shares, float(c), bound, start)
            q.copy_(torch.from_numpy(found.q[0]))
            if memory is not None:
                memory[0], memory[1], memory[2] = found.threshold, found.moved, found.passes
            return q
        if isinstance(c, Tensor):
            c = c.to(u).reshape(())
        kernels = _kernels()
        assert kernels is not None
        target = q if q.is_contiguous() else torch.empty(u.shape, dtype=u.dtype, device=u.device)
        nominal = None if p is None else p.contiguous()
        try:
            kernels.search(kind, u.contiguous(), nominal, c, bound, target, memory)
        except Exception as error:  # of many kinds: no compiler, a version without what is needed
            _broken.add(u.device)
            warnings.warn(
                f"the search on {u.device} could not be built, sorting instead: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        if target is not q:
            q.copy_(target)
    return q
