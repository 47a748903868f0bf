"""Suboptimality against oracle calls, the x-axis of the paper's left panels."""

from benchopt import BasePlot


class Plot(BasePlot):
    name = "oracle_calls"
    type = "scatter"
    options = {"dataset": ..., "objective": ...}  # noqa: RUF012

    def plot(self, df, dataset, objective):
        some = df.query("dataset_name == @dataset and objective_name == @objective")
        curves = []
        for solver, runs in some.groupby("solver_name"):
            points = runs.groupby("stop_val")[["objective_oracle_calls", "objective_value"]]
            middle = points.median()
            curves.append(
                {
                    "x": middle["objective_oracle_calls"].tolist(),
                    "y": middle["objective_value"].tolist(),
                    "label": solver,
                    **self.get_style(solver),
                }
            )
        return curves

    def get_metadata(self, df, dataset, objective):
        return {
            "title": f"{objective}\n{dataset}",
            "xlabel": "oracle calls",
            "ylabel": "normalised suboptimality",
        }
