"""Four processes that are the ranks of a gloo group, and what tests have them do.

Starting a process takes seconds, so there is one pool for all tests; smaller groups are made of its
first ranks.
"""

import os
import signal
import tempfile
import time
import traceback
from dataclasses import replace

import numpy as np

WORLD = 4


class Pool:
    """The processes; `run` has a function of this module run on the first ranks."""

    def __init__(self):
        from torch import multiprocessing

        spawn = multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.ends, self.processes = [], []
        for rank in range(WORLD):
            mine, theirs = spawn.Pipe()
            process = spawn.Process(target=serve, args=(rank, self.folder.name, theirs))
            process.start()
            self.ends.append(mine)
            self.processes.append(process)

    def run(self, work, n_ranks, *arguments):
        """What it returns on each rank, in their order."""
        for end in self.ends[:n_ranks]:
            end.send((work.__name__, n_ranks, arguments))
        found = []
        for rank, end in enumerate(self.ends[:n_ranks]):
            assert end.poll(400), f"rank {rank} does not answer"
            found.append(end.recv())
        for rank, (is_error, value) in enumerate(found):
            assert not is_error, f"rank {rank}: {value}"
        return [value for _, value in found]

    def close(self):
        for end in self.ends:
            end.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
        self.folder.cleanup()


def serve(rank, folder, end):
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    groups = [dist.new_group(list(range(size))) for size in range(1, WORLD + 1)]
    while (job := end.recv()) is not None:
        name, n_ranks, arguments = job
        try:
            found = globals()[name](groups[n_ranks - 1], rank, n_ranks, *arguments)
            end.send((False, found))
        except BaseException:
            end.send((True, traceback.format_exc()))
    os._exit(0)  # threads of torch's own sometimes abort a process that ends in the usual way


def share(values, rank, n_ranks, cuts=None):
    """This rank's rows; equal shares where no cuts are given."""
    if values is None:
        return None
    n = len(values)
    ends = [n * k // n_ranks for k in range(n_ranks + 1)] if cuts is None else [0, *cuts, n]
    return values[ends[rank] : ends[rank + 1]]


def make(group, rank, n_ranks, data, settings, cuts=None):
    """The problem of all rows, of which each rank has its own."""
    import torch

    import drago
    from cases import SETS_OF_STORES

    if "set" in settings:  # by its name: a user's function cannot be sent
        uncertainty, divergence = SETS_OF_STORES[settings["set"]]
        settings = {k: v for k, v in settings.items() if k != "set"}
        settings |= {"uncertainty": uncertainty, "divergence": divergence}
    given = {name: share(values, rank, n_ranks, cuts) for name, values in data.items()}
    X, y = torch.from_numpy(given.pop("X")), torch.from_numpy(given.pop("y"))
    return drago.DROProblem(X, y, process_group=group, **given, **settings)


def facts(problem, result):
    """What all ranks should agree on, and the weights of all rows."""
    q = problem.rows.ranks.joined(result.dual_weights).numpy()
    return {
        "bits": (
            result.coef.tobytes(),
            np.float64(result.intercept).tobytes(),
            result.primal.hex(),
        ),
        "gap": float(result.gap).hex(),
        "coef": result.coef,
        "intercept": result.intercept,
        "q": q,
        "n_iter": result.n_iter,
        "status": str(result.status),
        "message": result.message,
        "own": len(result.dual_weights),
    }


def solved(group, rank, n_ranks, data, settings, options=None, cuts=None):
    import drago

    problem = make(group, rank, n_ranks, data, settings, cuts)
    return facts(problem, drago.solve(problem, **{"tol": 1e-6, **(options or {})}))


def solved_by(group, rank, n_ranks, data, settings, solver):
    import drago

    problem = make(group, rank, n_ranks, data, settings)
    method = getattr(drago, solver[0])(**solver[1])
    return facts(problem, drago.solve(problem, method, tol=1e-6))


def refused(group, rank, n_ranks, data, settings, options, changes):
    """The error on each rank, where one of them is given something else."""
    import warnings

    import torch

    import drago

    for name, value in changes.get(rank, {}).items():
        (data if name in data or name in ("sample_weight", "groups") else settings)[name] = value
    try:
        given = dict(data)
        X, y = torch.from_numpy(given.pop("X")), torch.from_numpy(given.pop("y"))
        problem = drago.DROProblem(X, y, process_group=group, **given, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drago.solve(problem, **options)
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def weighed(group, rank, n_ranks, few, cases):
    """Weights of all rows, call after call of one oracle, for each case."""
    import torch

    import drago
    from drago.oracles import rank_search

    rule = rank_search._RULE
    rank_search._RULE = replace(rule, few=few, sample=64)
    out = []
    try:
        for u, weight, c, settings in cases:
            losses = share(u, rank, n_ranks)
            problem = drago.DROProblem(
                torch.zeros(len(losses), 1),
                torch.from_numpy(losses),
                sample_weight=share(weight, rank, n_ranks),
                process_group=group,
                shift_cost=c,
                **settings,
            )
            oracle, found = problem.dual_oracle(), []
            for k in range(3):
                q = oracle.weights(torch.from_numpy(losses * (1.0 + 0.01 * k)), c)
                found.append(problem.rows.ranks.joined(q).numpy())
            out.append(found)
    finally:
        rank_search._RULE = rule
    return out


def resumed(group, rank, n_ranks, data, settings, path, max_iter, cuts=None):
    """A solve that ends early and one that goes on from its file; without the file elsewhere."""
    import warnings

    import drago

    problem = make(group, rank, n_ranks, data, settings, cuts)
    method = drago.LBFGS(metric="auto", memory=40, progressive=True)
    # Only the first rank knows the file.
    path = path if rank == 0 else path + ".not.here"
    options = {"tol": 1e-9, "checkpoint": path, "checkpoint_every": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = None
        if max_iter is not None:
            first = facts(problem, drago.solve(problem, method, max_iter=max_iter, **options))
        try:
            last = facts(problem, drago.solve(problem, method, **options))
        except drago.CheckpointError as error:
            return first, str(error), os.path.exists(path)
        return first, last, os.path.exists(path)


def limited(group, rank, n_ranks, data, settings):
    """Time limits, callbacks and interrupts that differ from rank to rank."""
    import warnings

    import drago

    problem = make(group, rank, n_ranks, data, settings)
    method = drago.GradientDescent()
    out = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        time.sleep(0.05 * rank)
        out.append(facts(problem, drago.solve(problem, method, tol=0.0, time_limit=0.3)))
        calls = []

        def enough(progress):
            calls.append(progress.n_iter)
            return True

        out.append(facts(problem, drago.solve(problem, method, tol=0.0, callback=enough)))
        out.append(len(calls))

        def interrupt(progress):
            os.kill(os.getpid(), signal.SIGINT)

        # Callbacks run on the first rank, so that it alone is interrupted.
        out.append(facts(problem, drago.solve(problem, method, tol=0.0, callback=interrupt)))
    return out


def fitted(group, rank, n_ranks, kind, X, y, settings, **fit):
    """An estimator that every rank gives all rows."""
    import torch.distributed as dist

    import drago

    # Estimators take the default group.
    world, dist.group.WORLD = dist.group.WORLD, group
    try:
        model = getattr(drago, kind)(device="cpu", **settings).fit(X, y, **fit)
    finally:
        dist.group.WORLD = world
    return model.coef_, model.intercept_, model.dual_weights_, model.result_.message


def moved(group, rank, n_ranks, X, y, settings):
    """A problem on arrays of which each rank takes its share, and one of this process alone."""
    import drago

    problem = drago.DROProblem(X, y, **settings)
    together = drago.solve(problem, tol=1e-6, device="cpu", process_group=group)
    again = drago.solve(problem, tol=1e-6, device="cpu", process_group=group, warm_start=together)
    alone = drago.solve(problem, tol=1e-6, device="cpu", process_group=False)
    return [(r.coef, r.intercept, r.dual_weights, r.n_iter) for r in (together, again, alone)]
