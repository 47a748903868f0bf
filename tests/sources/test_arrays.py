"""Arrays in files, in memory and behind slices: what is read is what NumPy holds."""

import numpy as np
import pytest
import scipy.sparse

import drago
from drago.files.blocks import Column, Held, SourceChangedError
from source_checks import SMALL, Sliced, check_sums, features, files_in, whole

RNG = np.random.default_rng(0)
N, D = 3000, 7
X = RNG.normal(size=(N, D))
Y = X @ np.arange(1.0, D + 1) + RNG.normal(size=N)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_memory_map_is_read_in_place(tmp_path, dtype):
    path = tmp_path / "x.npy"
    np.save(path, X.astype(dtype))
    for given in (path, np.load(path, mmap_mode="r")):
        source = drago.from_arrays(given, Y, memory_limit=SMALL, cache_dir=tmp_path / "cache")
        blocks = source.open("squared")
        column = blocks.columns["X"]
        assert isinstance(column, Column) and column.path == str(path)
        np.testing.assert_array_equal(features(blocks), X.astype(dtype))
        np.testing.assert_array_equal(whole(blocks)["y"], Y)
        assert column.dtype == dtype and len(blocks.ends) > 1
        check_sums(blocks)
        assert "X.bin" not in [file.name for file in files_in(tmp_path)]


def test_a_slice_of_a_memory_map_begins_where_it_does(tmp_path):
    raw = np.memmap(tmp_path / "x.bin", dtype=np.float64, mode="w+", shape=(N + 50, D), offset=24)
    raw[:50], raw[50:] = -1.0, X
    raw.flush()
    for given, expected in ((raw[50:], X), (raw[50:][700:2500], X[700:2500])):
        source = drago.from_arrays(given, expected[:, 0], memory_limit=SMALL, cache_dir=tmp_path)
        blocks = source.open("squared")
        assert blocks.columns["X"].path == str(tmp_path / "x.bin")
        np.testing.assert_array_equal(features(blocks), expected)


@pytest.mark.parametrize("layout", ["columns", "float16", "int16", "swapped", "copy on write"])
def test_what_cannot_be_read_in_place_is_copied(tmp_path, layout):
    path, mode = tmp_path / "x.npy", "r"
    stored, expected = X, X
    if layout == "columns":
        stored = np.asfortranarray(X)
    elif layout == "swapped":
        stored = X.astype(">f8")
    elif layout == "copy on write":
        mode = "c"
    else:
        stored = expected = (100 * X).astype(layout)
    np.save(path, stored)
    given = np.load(path, mmap_mode=mode)
    source = drago.from_arrays(given, Y, memory_limit=SMALL, cache_dir=tmp_path / "cache")
    blocks = source.open("squared")
    assert blocks.columns["X"].path.startswith(str(tmp_path / "cache"))
    assert blocks.columns["X"].dtype == np.float64
    np.testing.assert_array_equal(features(blocks), expected.astype(np.float64))
    check_sums(blocks)


def test_what_fits_is_held(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, X)
    for given in (path, X, Sliced(X)):
        blocks = drago.from_arrays(given, Y, memory_limit="1GB", cache_dir=tmp_path / "c").open(
            "squared"
        )
        assert all(isinstance(column, Held) for column in blocks.columns.values())
        np.testing.assert_array_equal(features(blocks), X)
    assert not (tmp_path / "c").exists()


def test_an_array_in_memory_is_not_copied():
    blocks = drago.from_arrays(X, Y, memory_limit=1).open("squared")
    assert np.shares_memory(features(blocks), X)


def test_slices_go_to_blocks(tmp_path):
    source = drago.from_arrays(
        Sliced(X), Sliced(Y), memory_limit=SMALL, cache_dir=tmp_path, feature_names="abcdefg"
    )
    blocks = source.open("squared")
    np.testing.assert_array_equal(features(blocks), X)
    np.testing.assert_array_equal(whole(blocks)["y"], Y)
    assert blocks.feature_names == tuple("abcdefg") and blocks.memory_limit == SMALL
    check_sums(blocks)
    assert blocks.digest == ""  # nobody knows whether these are the same rows next time
    assert len(files_in(tmp_path)) == 3  # X, y and the lock
    del blocks, source
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("limit", [SMALL, "1GB"])
def test_arrays_of_zarr(tmp_path, limit):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    arrays = {}
    for name, values in (("X", X), ("y", Y)):
        chunks = (256, *values.shape[1:])
        arrays[name] = zarr.create_array(
            tmp_path / f"{name}.zarr", shape=values.shape, chunks=chunks, dtype=values.dtype
        )
        arrays[name][:] = values
    blocks = drago.from_arrays(**arrays, memory_limit=limit, cache_dir=tmp_path / "c").open(
        "squared"
    )
    np.testing.assert_array_equal(features(blocks), X)
    np.testing.assert_array_equal(whole(blocks)["y"], Y)


@pytest.mark.parametrize("limit", [SMALL, "1GB"])
@pytest.mark.parametrize("kind", ["one file", "several", "matrix"])
def test_csr_matrices(tmp_path, kind, limit):
    sparse = scipy.sparse.random(N, 40, 0.2, "csr", random_state=0)
    given = [tmp_path / f"{k}.npz" for k in range(3)]
    for k, path in enumerate(given):
        scipy.sparse.save_npz(path, sparse[1000 * k : 1000 * (k + 1)])
    if kind == "one file":
        given = tmp_path / "all.npz"
        scipy.sparse.save_npz(given, sparse)
    elif kind == "matrix":
        given = sparse
    blocks = drago.from_arrays(given, Y, memory_limit=limit, cache_dir=tmp_path / "c").open(
        "squared"
    )
    np.testing.assert_array_equal(features(blocks), sparse.toarray())
    found = whole(blocks)
    assert found["indptr"].dtype == np.int64 and found["indices"].dtype == np.int32
    check_sums(blocks)
    assert (len(blocks.ends) > 1) == (limit == SMALL)


@pytest.mark.parametrize("limit", [SMALL, "1GB"])
@pytest.mark.parametrize("kind", ["memory map", "slices", "memory"])
def test_rows_of_weight_zero_are_dropped(tmp_path, kind, limit):
    np.save(tmp_path / "x.npy", X)
    given = {"memory map": tmp_path / "x.npy", "slices": Sliced(X), "memory": X}[kind]
    weight = RNG.integers(0, 3, N).astype(float)
    groups, baseline = RNG.choice(["b", "a", "c"], N), RNG.normal(size=N)
    source = drago.from_arrays(
        given, Y, sample_weight=weight, groups=groups, baseline=baseline,
        memory_limit=limit, cache_dir=tmp_path / "c",
    )  # fmt: skip
    blocks, there = source.open("squared"), weight > 0
    found = whole(blocks)
    np.testing.assert_array_equal(features(blocks), X[there])
    for name, values in (("y", Y), ("sample_weight", weight), ("baseline", baseline)):
        np.testing.assert_array_equal(found[name], values[there])
    assert blocks.group_names.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(blocks.group_names[found["groups"]], groups[there])
    check_sums(blocks)


@pytest.mark.parametrize("limit", [SMALL, "1GB"])
@pytest.mark.parametrize(
    "labels",
    [["no", "yes"], [False, True], [3, 1], ["z", "y", "x", "w"], [2.0, 5.0, -1.0]],
    ids=["words", "flags", "whole numbers", "four words", "whole floats"],
)
def test_labels_become_numbers_in_their_order(tmp_path, labels, limit):
    y = np.array(labels)[RNG.integers(0, len(labels), N)]
    source = drago.from_arrays(Sliced(X), y, memory_limit=limit, cache_dir=tmp_path)
    blocks = source.open("multinomial")
    np.testing.assert_array_equal(blocks.classes, np.unique(y))
    codes = whole(blocks)["y"]
    assert codes.dtype == np.int64 or limit == SMALL
    np.testing.assert_array_equal(blocks.classes[codes.astype(int)], y)
    if len(labels) == 2:
        codes = whole(source.open("logistic"))["y"]
        assert codes.dtype == np.float64
        np.testing.assert_array_equal(codes, np.unique(y, return_inverse=True)[1])
    else:
        with pytest.raises(ValueError, match="y must hold 0 and 1 for the logistic loss"):
            source.open("logistic")
    check_sums(blocks)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("limit", [SMALL, "1GB"])
def test_standardised_on_the_way(tmp_path, limit, weighted):
    far = X * 10.0 ** np.arange(-3, 4) + 1e6
    far[:, 3] = 5.0  # does not change
    weight = RNG.uniform(0.5, 2.0, N) if weighted else None
    np.save(tmp_path / "x.npy", far)
    source = drago.from_arrays(
        tmp_path / "x.npy", Y, sample_weight=weight, standardize=True, memory_limit=limit,
        cache_dir=tmp_path / "c",
    )  # fmt: skip
    blocks = source.open("squared")
    exact = far.astype(np.longdouble)
    mean = np.average(exact, axis=0, weights=weight)
    scale = np.sqrt(np.average((exact - mean) ** 2, axis=0, weights=weight))
    scale[3] = 1.0
    np.testing.assert_allclose(blocks.mean, mean.astype(float), rtol=1e-14)
    np.testing.assert_allclose(blocks.scale, scale.astype(float), rtol=1e-7)
    np.testing.assert_allclose(features(blocks), ((exact - mean) / scale).astype(float), atol=1e-5)
    check_sums(blocks)
    w, b = RNG.normal(size=D), 0.7
    coef, intercept = source.original(w, b)
    there = features(blocks) @ w + b
    np.testing.assert_allclose(far @ coef + intercept, there, atol=1e-4)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), far)  # as it was


def test_sparse_features_are_only_scaled(tmp_path):
    sparse = scipy.sparse.random(N, 40, 0.2, "csr", random_state=0)
    dense = sparse.toarray()
    for limit in (SMALL, "1GB"):
        source = drago.from_arrays(
            sparse, Y, standardize=True, memory_limit=limit, cache_dir=tmp_path
        )
        blocks = source.open("squared")
        np.testing.assert_allclose(blocks.scale, dense.std(axis=0), rtol=1e-12)
        assert not blocks.mean.any()
        np.testing.assert_allclose(features(blocks), dense / dense.std(axis=0), rtol=1e-12)
        check_sums(blocks)


@pytest.mark.parametrize("limit", [SMALL, "1GB"])
def test_what_is_not_finite_is_named(tmp_path, limit):
    wrong = X.copy()
    wrong[2500, 4] = np.nan
    source = drago.from_arrays(
        Sliced(wrong), Y, memory_limit=limit, cache_dir=tmp_path, feature_names="abcdefg"
    )
    with pytest.raises(ValueError, match="first in column 'e' of row 2500"):
        source.open("squared")
    assert files_in(tmp_path) == []
    for name in ("y", "sample_weight", "baseline"):
        given = {"y": Y, name: np.where(np.arange(N) == 7, np.inf, 1.0)}
        source = drago.from_arrays(Sliced(X), **given, memory_limit=limit, cache_dir=tmp_path)
        with pytest.raises(ValueError, match=f"{name} contains 1 NaN or infinite entries"):
            source.open("squared")
    assert files_in(tmp_path) == []


def test_negative_weights_and_labels_that_are_none(tmp_path):
    weight = np.ones(N)
    weight[11] = -1.0
    with pytest.raises(ValueError, match=r"nonnegative, but is -1 in row 11"):
        drago.from_arrays(X, Y, sample_weight=weight).open("squared")
    with pytest.raises(ValueError, match="no rows of positive weight"):
        drago.from_arrays(X, Y, sample_weight=np.zeros(N), cache_dir=tmp_path).open("squared")
    with pytest.raises(ValueError, match="numbers that are not whole"):
        drago.from_arrays(X, Y).open("logistic")
    missing = np.array(["a", None] * (N // 2), dtype=object)
    with pytest.raises(ValueError, match="y has rows without a label"):
        drago.from_arrays(X, missing).open("logistic")


def test_a_file_that_changes_is_scanned_again_or_refused(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, X)
    source = drago.from_arrays(path, Y, memory_limit=SMALL, cache_dir=tmp_path / "c")
    blocks = source.open("squared")
    assert source.open("squared") is blocks
    np.save(path, 2.0 * X)
    with pytest.raises(SourceChangedError, match=r"x\.npy was changed"):
        blocks.columns["X"].read(0, 1)
    path.unlink()
    with pytest.raises(SourceChangedError, match=r"x\.npy is gone"):
        source.open("squared")


def test_frames_have_names():
    pandas = pytest.importorskip("pandas")
    blocks = drago.from_arrays(pandas.DataFrame(X, columns=list("abcdefg")), Y).open("squared")
    assert blocks.feature_names == tuple("abcdefg")
    np.testing.assert_array_equal(features(blocks), X)


def test_a_source_has_no_unit_before_it_is_scanned():
    source = drago.from_arrays(X, Y, standardize=True)
    with pytest.raises(ValueError, match="was not scanned yet"):
        source.original(np.ones(D))


def test_a_source_is_light_and_says_what_it_is(tmp_path):
    np.save(tmp_path / "x.npy", X)
    source = drago.from_arrays(tmp_path / "x.npy", Y, memory_limit="2GB", standardize=True)
    assert repr(source) == (
        "Source(arrays (x.npy, 3000 x 7 of float64), standardize=True, memory_limit='2 GB')"
    )
    with pytest.raises(ValueError, match="has no target"):
        drago.from_arrays(X).open("squared")


@pytest.mark.parametrize(
    "given, message",
    [
        ({"X": X[:, 0]}, "two dimensions"),
        ({"X": X[:0]}, "at least one row"),
        ({"X": X, "y": Y[1:]}, "y must have one entry for each of the 3000 rows"),
        ({"X": X.astype(complex)}, "real numbers"),
        ({"X": "x.csv"}, r"path of a \.npy file"),
        ({"X": X, "feature_names": ["a"]}, "7 names"),
        ({"X": X, "dtype": "int8"}, "dtype must be"),
        ({"X": X, "memory_limit": "4 apples"}, "memory_limit must be"),
        ({"X": X, "memory_limit": 0}, "memory_limit must be"),
    ],
)
def test_what_cannot_be_a_source(given, message):
    with pytest.raises(ValueError, match=message):
        drago.from_arrays(**{"y": None, **given})


def test_problems_of_what_is_held(tmp_path):
    settings = {"uncertainty": drago.CVaR(0.2), "shift_cost": 0.1}
    weight, groups = RNG.integers(0, 3, N).astype(float), RNG.integers(0, 3, N)
    baseline = RNG.uniform(size=N)
    more = {"sample_weight": weight, "groups": groups, "baseline": baseline}
    for given in (X, scipy.sparse.csr_matrix(X)):
        source = drago.from_arrays(given, Y, **more)
        found = drago.solve(drago.DROProblem(source, **settings))
        expected = drago.solve(drago.DROProblem(given, Y, **more, **settings))
        assert found.status == "optimal"
        np.testing.assert_allclose(found.primal, expected.primal, rtol=1e-9)
    with pytest.raises(TypeError, match="y was given beside Source"):
        drago.DROProblem(source, Y)
    with pytest.raises(ValueError, match="y is missing"):
        drago.DROProblem(X)
