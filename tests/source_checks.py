"""What the tests of sources share: blocks read back, and their check sums."""

from itertools import pairwise

import scipy.sparse

from drago.files.blocks import checksum

SMALL = 100_000  # less than the rows take


def whole(blocks):
    """All columns as arrays."""
    return {name: column.read(0, column.shape[0]) for name, column in blocks.columns.items()}


def features(blocks):
    """X of blocks, dense."""
    found = whole(blocks)
    if "X" in found:
        return found["X"]
    parts = found["data"], found["indices"], found["indptr"]
    return scipy.sparse.csr_matrix(parts, shape=(blocks.n_samples, blocks.n_features)).toarray()


def check_sums(blocks):
    """Each check sum is that of the bytes of its part."""
    edges = (0, *blocks.ends)
    for name, sums in blocks.sums.items():
        ends = edges
        if name in ("data", "indices"):
            ends = whole(blocks)["indptr"][list(edges)]
        parts = [blocks.columns[name].read(a, b) for a, b in pairwise(ends)]
        assert sums == tuple(checksum(part) for part in parts), name


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


class Sliced:
    """Has a shape, a dtype and slices of rows, as arrays of Zarr have."""

    def __init__(self, array):
        self.shape, self.dtype, self._array = array.shape, array.dtype, array

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        return self._array[rows].copy()
