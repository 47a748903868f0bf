"""Batches of a user's own reader."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse

import drago
from drago.files.blocks import Held, SourceChangedError
from source_checks import SMALL, check_sums, features, files_in, whole

RNG = np.random.default_rng(1)
N, D = 3000, 7
X = RNG.normal(size=(N, D))
Y = RNG.normal(size=N)
CUTS = [0, 1, 1, 900, 1700, N]  # ragged, and one of them empty


def pieces(*arrays):
    return [tuple(array[a:b] for array in arrays) for a, b in pairwise(CUTS)]


@pytest.mark.parametrize("limit", [SMALL, "1GB"])
@pytest.mark.parametrize("given", ["function", "sequence", "dicts"])
def test_batches_are_the_rows(tmp_path, given, limit):
    batches = pieces(X, Y)
    if given == "dicts":
        batches = [{"X": a, "y": b, "groups": np.full(len(b), "g")} for a, b in batches]
    made = (lambda: iter(batches)) if given == "function" else batches
    source = drago.from_batches(made, memory_limit=limit, cache_dir=tmp_path)
    blocks = source.open("squared")
    np.testing.assert_array_equal(features(blocks), X)
    np.testing.assert_array_equal(whole(blocks)["y"], Y)
    check_sums(blocks)
    is_held = all(isinstance(column, Held) for column in blocks.columns.values())
    assert is_held == (limit == "1GB")
    assert bool(files_in(tmp_path)) != is_held
    assert blocks.group_names is None or blocks.group_names.tolist() == ["g"]


@pytest.mark.parametrize("limit", [SMALL, "1GB"])
def test_sparse_batches(tmp_path, limit):
    sparse = scipy.sparse.random(N, 40, 0.2, "csr", random_state=0, dtype=np.float32)
    source = drago.from_batches(pieces(sparse, Y), memory_limit=limit, cache_dir=tmp_path)
    blocks = source.open("squared")
    np.testing.assert_array_equal(features(blocks), sparse.toarray())
    assert whole(blocks)["data"].dtype == np.float32
    check_sums(blocks)


def test_parts_do_not_depend_on_the_batches(tmp_path):
    one = drago.from_batches([(X, Y)], memory_limit=SMALL, cache_dir=tmp_path).open("squared")
    many = drago.from_batches(pieces(X, Y), memory_limit=SMALL, cache_dir=tmp_path).open("squared")
    assert one.ends == many.ends and one.sums == many.sums and one.digest == many.digest
    other = drago.from_batches([(X[::-1], Y)], memory_limit=SMALL, cache_dir=tmp_path)
    assert "" != one.digest != other.open("squared").digest


def test_frames_have_names():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcdefg"))
    blocks = drago.from_batches([(frame[:100], Y[:100]), (frame[100:], Y[100:])]).open("squared")
    np.testing.assert_array_equal(features(blocks), X)
    assert blocks.feature_names == tuple("abcdefg")


@pytest.mark.parametrize(
    "change",
    [lambda X, y: (X, y + 1), lambda X, y: (X[::-1], y[::-1]), lambda X, y: (X[1:], y[1:])],
    ids=["another target", "another order", "one row less"],
)
def test_a_reader_that_gives_other_rows_is_caught(change):
    calls = []

    def batches():
        calls.append(1)
        yield (X, Y) if len(calls) <= 2 else change(X, Y)

    source = drago.from_batches(batches)
    source.open("squared")
    with pytest.raises(SourceChangedError, match="gave other rows than the first time"):
        list(source.batches(None, labels=False))


def test_what_is_read_once_is_read_once():
    calls = []

    def batches():
        calls.append(1)
        yield X, Y

    source = drago.from_batches(batches)
    for _ in range(3):
        source.open("squared")
    assert len(calls) == 2  # a look at the first batch, and the scan


@pytest.mark.parametrize(
    "batches, message",
    [
        ([], "has no rows"),
        ([(X, Y), (X[:, 1:], Y)], "batch 1 of 2 batches must have 7 features"),
        ([(X, Y), (scipy.sparse.csr_matrix(X), Y)], "in a dense array as the first one"),
        ([(X.astype(np.float32), Y), (X, Y)], "has dtype float64, the first one float32"),
        ([(X, Y), (X, Y, Y)], r"has \['sample_weight', 'y'\] beside X"),
        ([(X, Y[1:])], r"y must have one entry per row"),
        ([{"x": X}], "batch 0 must be"),
        ([X], "batch 0 must be"),
        ([(X,)], "has no target"),
        ([(X[:0], Y[:0])], "has no rows"),
    ],
)
def test_batches_that_do_not_go_together(batches, message):
    with pytest.raises(ValueError, match=message):
        drago.from_batches(batches).open("squared")


def test_a_generator_is_refused():
    with pytest.raises(TypeError, match="give the function that makes it"):
        drago.from_batches((X, Y) for _ in range(2))


def test_a_failing_reader_leaves_nothing(tmp_path):
    def batches():
        yield X, Y
        raise KeyboardInterrupt

    source = drago.from_batches(batches, memory_limit=SMALL, cache_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        source.open("squared")
    assert files_in(tmp_path) == []
