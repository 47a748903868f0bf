"""Folds and samples by the numbers of rows."""

import itertools

import numpy as np
import pytest
from scipy import sparse

import drago
from drago.files.blocks import Blocks, Held
from drago.sources.numbers import folds_of, keys_of, sample_of
from drago.sources.scanned import BlocksReader


def slow_key(number, seed=0):
    """SplitMix64, in Python's integers."""
    whole = 2**64
    z = ((number + 1) * 0x9E3779B97F4A7C15 + (slow_key(seed - 1) if seed else 0)) % whole
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % whole
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % whole
    return z ^ (z >> 31)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_keys_are_those_of_the_formula(seed):
    numbers = np.array([0, 1, 2, 1000, 2**40, 2**62])
    assert keys_of(numbers, seed).tolist() == [slow_key(int(n), seed) for n in numbers]


def test_keys_of_the_first_rows():
    """The first numbers of the generator from the state 0, as they are published."""
    assert [hex(key) for key in keys_of(np.arange(3)).tolist()] == [
        "0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f",
    ]  # fmt: skip


@pytest.mark.parametrize("n_folds", [2, 5, 7])
def test_folds_are_equal_in_size_and_depend_on_the_number_alone(n_folds):
    numbers = np.arange(100_000)
    folds = folds_of(numbers, n_folds, 3)
    sizes = np.bincount(folds)
    assert sizes.size == n_folds
    assert abs(sizes - 1e5 / n_folds).max() < 5 * np.sqrt(1e5 / n_folds)
    np.testing.assert_array_equal(folds_of(numbers[5000:], n_folds, 3), folds[5000:])
    assert (folds_of(numbers, n_folds, 4) != folds).mean() > 0.4


def batches_of(X, y, size, **more):
    names = {"X": X, "y": y, **more}
    return [
        {name: values[k : k + size] for name, values in names.items()}
        for k in range(0, X.shape[0], size)
    ]


RNG = np.random.default_rng(2)
X = RNG.normal(size=(3000, 4))
Y = np.where(X[:, 0] > 0, "yes", "no")
WEIGHT = RNG.integers(0, 3, 3000).astype(float)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("size", [37, 700, 3000])
def test_samples_do_not_depend_on_the_batches(is_sparse, size):
    kept = WEIGHT > 0
    rows = np.sort(np.argsort(keys_of(np.arange(kept.sum()), 19))[:500])
    features = sparse.csr_matrix(X) if is_sparse else X
    given = batches_of(features, Y, size, sample_weight=WEIGHT, groups=Y)
    found = drago.from_batches(given).sample(500, random_state=9)
    assert found.n_rows == kept.sum() and found.words == f"500 rows drawn from {kept.sum()}"
    np.testing.assert_array_equal(found.numbers, rows)
    np.testing.assert_array_equal(found.X.toarray() if is_sparse else found.X, X[kept][rows])
    np.testing.assert_array_equal(found.y, Y[kept][rows])
    np.testing.assert_array_equal(found.groups, Y[kept][rows])
    np.testing.assert_array_equal(found.sample_weight, WEIGHT[kept][rows])


@pytest.mark.parametrize("seed", [0, 3])
def test_a_sample_lies_across_all_folds(seed):
    numbers = drago.from_arrays(X, Y).sample(500, random_state=seed).numbers
    assert np.bincount(folds_of(numbers, 5, seed)).min() > 60


def test_a_small_source_is_taken_whole():
    found = drago.from_arrays(X, X[:, 1]).sample()
    np.testing.assert_array_equal(found.X, X)
    np.testing.assert_array_equal(found.y, X[:, 1])
    assert found.words == "all 3000 rows" and found.frame() is found.X


def test_no_more_than_a_quarter_of_the_limit():
    wide = np.ones((3000, 100))
    found = drago.from_arrays(wide, wide[:, 0], memory_limit=4_000_000).sample()
    assert found.X.shape == (1250, 100)


def test_a_frame_has_the_names_of_the_features():
    pytest.importorskip("pandas")
    source = drago.from_arrays(X, Y, feature_names=["a", "b", "c", "d"])
    assert list(source.sample(10).frame().columns) == ["a", "b", "c", "d"]


def test_nothing_to_draw_from():
    with pytest.raises(ValueError, match="no rows of positive weight"):
        sample_of([], 5, 0)
    with pytest.raises(ValueError, match="size must"):
        drago.from_arrays(X, Y).sample(0)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("limit", [200_000, "1GB"])
def test_some_rows_are_a_source_of_their_own(tmp_path, is_sparse, limit):
    features = sparse.csr_matrix(X) if is_sparse else X
    given = batches_of(features, Y, 700, sample_weight=WEIGHT, groups=Y)
    source = drago.from_batches(given, cache_dir=tmp_path, memory_limit=limit)
    part = source.part(True, lambda rows: folds_of(rows, 4) != 1, "all but a fold")
    kept = WEIGHT > 0
    rows = folds_of(np.arange(kept.sum()), 4) != 1
    found = part.sample()
    np.testing.assert_array_equal(found.X.toarray() if is_sparse else found.X, X[kept][rows])
    np.testing.assert_array_equal(found.y, (Y[kept][rows] == "yes").astype(int))
    blocks = part.scanned(labels=True)
    assert blocks.n_samples == rows.sum() and blocks.classes.tolist() == [0, 1]
    np.testing.assert_array_equal(
        blocks.columns["sample_weight"].read(0, blocks.n_samples), WEIGHT[kept][rows]
    )


@pytest.mark.parametrize("is_sparse", [False, True])
def test_rows_come_in_the_order_of_the_source(is_sparse):
    """Whatever their order in the blocks."""
    ends, order = (1000, 1001, 3000), []
    for first, last in itertools.pairwise((0, *ends)):
        order.append(RNG.permutation(last - first))
    places = np.concatenate([o + start for o, start in zip(order, (0, *ends))])
    columns = {"y": Held(X[places, 1]), "order": Held(np.concatenate(order))}
    if is_sparse:
        rows = sparse.csr_matrix(X[places])
        names = ("data", "indices", "indptr")
        columns |= {name: Held(getattr(rows, name)) for name in names}
    else:
        columns["X"] = Held(X[places])
    reader = BlocksReader(Blocks(3000, 4, columns, ends), "rows")
    found = sample_of(reader.batches(False), 5000, 0)
    np.testing.assert_array_equal(found.X.toarray() if is_sparse else found.X, X)
    np.testing.assert_array_equal(found.y, X[:, 1])
    reader = BlocksReader(Blocks(3000, 4, columns, ends), "rows", lambda n: n % 3 == 1)
    np.testing.assert_array_equal(sample_of(reader.batches(False), 5000, 0).y, X[1::3, 1])
