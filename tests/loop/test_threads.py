"""How many threads BLAS has during a solve."""

import os
import subprocess
import sys
import textwrap


def test_every_blas_is_limited():
    """That of scipy too, which nobody has loaded before the first certificate."""
    code = """
        from threadpoolctl import threadpool_info
        from drago.loop.threads import at_most

        with at_most(1):
            import scipy.linalg.lapack
            libraries = [one for one in threadpool_info() if one["user_api"] == "blas"]
            assert libraries
            assert all(one["num_threads"] == 1 for one in libraries), libraries
    """
    two = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    command = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(command, check=True, timeout=120, env=os.environ | two)
