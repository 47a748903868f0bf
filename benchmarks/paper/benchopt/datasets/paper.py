"""The paper's data sets, from the folder `DRAGO_DATA_DIR`; nothing is downloaded."""

from benchopt import BaseDataset

from drago.datasets import load


class Dataset(BaseDataset):
    """Prepared as in the paper; acsincome1k stands for 1,000 of its 4,000 rows."""

    name = "paper"
    parameters = {  # noqa: RUF012
        "data": ["yacht", "energy", "concrete", "acsincome1k", "kin8nm", "power", "emotion"]
    }

    def get_data(self):
        found = load(self.data, prepare="paper")
        return {"X": found.X, "y": found.y, "task": found.task, "data": self.data}
