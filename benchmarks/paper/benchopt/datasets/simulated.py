"""Drawn data, which need no files."""

from benchopt import BaseDataset

from drago.datasets import make_synthetic


class Dataset(BaseDataset):
    """A linear model with heavy-tailed noise."""

    name = "simulated"
    parameters = {"n_samples": [200], "n_features": [5]}  # noqa: RUF012

    def get_data(self):
        found = make_synthetic(self.n_samples, self.n_features, tail_heaviness=0.2, random_state=0)
        return {"X": found.X, "y": found.y, "task": found.task, "data": self.name}
