"""The commands, their options and examples; what they do is imported when it is done."""

from __future__ import annotations

from typing import Annotated

import typer

from drago._version import __version__
from drago.cli.out import FINE, answering

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Models that stay good on the worst-hit part of the data. Exit codes: 0 fine, 1 it could "
    "not be done (the message says why), 2 wrong usage, 3 done but not certified to the tolerance, "
    "70 a bug, 130 interrupted.",
)

Data = Annotated[
    str, typer.Argument(metavar="DATA", help="CSV, Parquet, Feather, or a folder of Parquet.")
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A file that `drago fit` wrote.")]
Target = Annotated[str, typer.Option(help="The column to predict.")]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        help="Column with the group of each row; not used as a feature. Repeat the option for "
        "several columns; their combinations are the groups."
    ),
]
Weights = Annotated[str | None, typer.Option(help="A column of weights of the rows.")]
Drop = Annotated[list[str] | None, typer.Option(help="A column to leave out (give it again).")]
TaskName = Annotated[str, typer.Option(help="auto, regression or classification.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Memory = Annotated[
    str | None,
    typer.Option(help="Memory for the rows, e.g. 4GB. Larger Parquet data is read in parts."),
]
Seed = Annotated[int, typer.Option(help="Seed for all random choices.")]
Title = Annotated[str | None, typer.Option(help="The title of the report.")]
NoRows = Annotated[bool, typer.Option("--no-rows", help="Leave row data out of the report.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"drago {__version__}")
        raise typer.Exit(FINE)


@app.callback()
def _start(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Called before each command."""


@app.command(epilog="Example: drago audit loans.csv --target late --groups region --report a.html")
def audit(
    data: Data,
    target: Target,
    groups: Groups = None,
    weights: Weights = None,
    drop: Drop = None,
    task: TaskName = "auto",
    report: Annotated[str | None, typer.Option(help="Write an HTML report to this file.")] = None,
    title: Title = None,
    no_rows: NoRows = False,
    time_budget: Annotated[
        float, typer.Option(help="Start no new fold after this many seconds.")
    ] = 60,
    repeats: Annotated[int, typer.Option(help="Number of cross-validation passes.")] = 3,
    seed: Seed = 0,
    memory_limit: Memory = None,
    as_json: Json = False,
) -> None:
    """Who is served worst by a mean model, and what robustness would buy, if anything."""
    with answering("audit", as_json) as out:
        from drago.cli import columns, commands

        asked = columns.Asked(target, groups or [], weights, drop or [])
        commands.audit(
            out, data, asked, task, report, title=title, rows=not no_rows, time_budget=time_budget,
            repeats=repeats, seed=seed, memory_limit=memory_limit,
        )  # fmt: skip


@app.command(epilog="Example: drago fit loans.csv --target late --model loans.drago")
def fit(
    data: Data,
    target: Target,
    model: Annotated[str, typer.Option(help="Where to save the model.")],
    groups: Groups = None,
    weights: Weights = None,
    drop: Drop = None,
    task: TaskName = "auto",
    uncertainty: Annotated[
        str | None,
        typer.Option(
            help="Which reweightings of the rows to guard against: mild, worst_group, excess_tail, "
            "cvar, extremile, esrm, chi2_ball, kl_ball, simplex. The default is worst_group with "
            "--groups, else mild."
        ),
    ] = None,
    tail_fraction: Annotated[
        float | None, typer.Option(help="Fit for the worst such share of the rows (cvar).")
    ] = None,
    shift_cost: Annotated[
        float | None,
        typer.Option(
            help="Price of moving weight between rows, in the unit of the loss. A larger one gives "
            "a model closer to the mean fit."
        ),
    ] = None,
    l2_reg: Annotated[float | None, typer.Option(help="The ridge penalty (1e-3).")] = None,
    loss: Annotated[str | None, typer.Option(help="squared or huber, for regressions.")] = None,
    choose: Annotated[
        bool,
        typer.Option(
            "--choose", help="Choose --uncertainty, --shift-cost and --l2-reg by cross-validation."
        ),
    ] = False,
    max_categories: Annotated[
        int, typer.Option(help="Features that the words of a column become, at most.")
    ] = 50,
    tol: Annotated[float, typer.Option(help="Certified relative gap at which to stop.")] = 1e-4,
    time_limit: Annotated[float | None, typer.Option(help="Seconds for the solver.")] = None,
    seed: Seed = 0,
    include_weights: Annotated[
        bool,
        typer.Option("--include-weights", help="Save the weights of the training rows too."),
    ] = False,
    memory_limit: Memory = None,
    as_json: Json = False,
) -> None:
    """Fit a robust model with a certificate, and save it with all that prepares its columns."""
    with answering("fit", as_json) as out:
        from drago.cli import columns, commands, work

        asked = columns.Asked(target, groups or [], weights, drop or [], max_categories)
        told = work.Settings(
            uncertainty, tail_fraction, shift_cost, l2_reg, loss, choose, tol, time_limit, seed
        )
        commands.fit(
            out, data, asked, task, model, told, include_weights=include_weights,
            memory_limit=memory_limit,
        )  # fmt: skip


@app.command(epilog="Example: drago predict loans.drago new.csv --out predictions.csv --keep id")
def predict(
    model: Model,
    data: Data,
    out_file: Annotated[
        str, typer.Option("--out", help="Where to write: .csv, .tsv, .parquet, .feather.")
    ],
    keep: Annotated[
        list[str] | None, typer.Option(help="A column of DATA to write too (give it again).")
    ] = None,
    memory_limit: Memory = None,
    as_json: Json = False,
) -> None:
    """Predict the rows of a file; classes come with their probabilities."""
    with answering("predict", as_json) as out:
        from drago.cli import commands

        commands.predict(out, model, data, out_file, keep or [], memory_limit)


@app.command(epilog="Example: drago certify loans.drago loans.csv")
def certify(
    model: Model,
    data: Data,
    tol: Annotated[
        float | None, typer.Option(help="The relative gap to reach; that of the fit by default.")
    ] = None,
    memory_limit: Memory = None,
    as_json: Json = False,
) -> None:
    """Prove from scratch how far a model is from the best one for some rows."""
    with answering("certify", as_json) as out:
        from drago.cli import commands

        commands.certify(out, model, data, tol, memory_limit)


@app.command(epilog="Example: drago report loans.drago test.csv --out report.html --no-rows")
def report(
    model: Model,
    data: Data,
    out_file: Annotated[str, typer.Option("--out", help="The HTML file to write.")],
    title: Title = None,
    no_rows: NoRows = False,
    memory_limit: Memory = None,
    as_json: Json = False,
) -> None:
    """Write what a model does on some rows to one self-contained HTML file."""
    with answering("report", as_json) as out:
        from drago.cli import commands

        commands.report(
            out, model, data, out_file, title=title, rows=not no_rows, memory_limit=memory_limit
        )


@app.command(epilog="Example: drago doctor --json")
def doctor(as_json: Json = False) -> None:
    """Versions, threads, caches, graphics card and a timed solve: add it to a bug report."""
    with answering("doctor", as_json) as out:
        from drago.cli import commands

        commands.doctor(out)
