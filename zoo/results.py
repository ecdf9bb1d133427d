"""Result pages: what a sweep reached, beside what its paper published.

A sweep leaves ``results/NAME/runs.csv``; everything else in that folder (summary.json, table.md, figure.png)
and ``results/README.md`` is made from it here, byte for byte the same each time::

    python -m zoo.results [NAME ...]

What a page shows is a :class:`Report`, kept as data in ``zoo/<paper>/report.py``::

    from zoo.results import Headline, Report, beats

    HBCT = {"model": "hyperbolic_bct", "model.method": "hbct"}
    REPORTS = {
        "hyperbolic_bct": Report(
            title="Backward-compatible training in hyperbolic space",
            paper="Learning Along the Arrow of Time",
            arxiv="2506.05826",
            rows={
                "model": {"hyperbolic_bct": "New-arch", "hyperbolic_bct_ext": "Ext-class"},
                "model.method": {"l2": "L2", "bct": "BCT", "hbct": "HBCT"},
            },
            columns={"compat/cross_map": "cross mAP", "compat/p_com_map": "P_com (mAP)"},
            published={("hyperbolic_bct", "hbct"): {"compat/p_com_map": 0.555}},
            published_source="Table 1, CIFAR-100, ResNet-18 to ViT-B/16",
            headline=Headline("compat/p_com_map", ("hyperbolic_bct", "hbct")),
            claims=[
                beats(
                    "New-arch: HBCT is above every Euclidean method.",
                    "compat/p_com_map",
                    HBCT,
                    [HBCT | {"model.method": method} for method in ("l2", "bct")],
                    margin=0.03,
                )
            ],
        )
    }

``report.py`` is read by its path, without its package: it imports nothing of its paper, so a page is made
without torch. A sweep that no paper describes gets :func:`default_report`.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import importlib.util
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Claim",
    "Headline",
    "Report",
    "Run",
    "Runs",
    "Statistic",
    "bar_figure",
    "beats",
    "default_report",
    "find_report",
    "read_runs",
    "write_index",
    "write_page",
    "write_runs",
]

RUNS, SUMMARY, TABLE, FIGURE, INDEX = "runs.csv", "summary.json", "table.md", "figure.png", "README.md"

_GENERATED = "<!-- Made by python -m zoo.results from {source}; edits are lost. -->"

# Okabe and Ito's palette: told apart with any common colour blindness.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


class Statistic(NamedTuple):
    """Mean and spread of one metric."""

    mean: float
    """NaN without a value."""
    sd: float
    """Sample standard deviation (ddof = 1); NaN with fewer than two values."""
    n: int
    """How many runs have a value."""


@dataclass(frozen=True)
class Run:
    """One run of a sweep."""

    name: str
    """Its folder's name."""
    status: str
    """``finished``, ``failed``, ``interrupted`` or ``missing``."""
    parameters: Mapping[str, Any]
    """The swept parameters, without the seed."""
    seed: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Test metrics by name; those of the runs it builds on as ``before.NAME.METRIC``."""
    minutes: float | None = None
    command: str = ""
    """The command of the whole sweep."""


class Runs(tuple[Run, ...]):
    """Runs, with the questions that a report asks of them."""

    __slots__ = ()

    def where(self, parameters: Mapping[str, Any]) -> Runs:
        """Those with the given parameter values."""
        return Runs(run for run in self if all(run.parameters.get(name) == value for name, value in parameters.items()))

    def values(self, metric: str) -> list[float]:
        """The finite values of a metric, in the order of the runs."""
        found = (run.metrics.get(metric, math.nan) for run in self)
        return [value for value in found if math.isfinite(value)]

    def by_seed(self, metric: str) -> dict[int | None, float]:
        """Seed -> finite value of a metric; the last one where a seed was used more than once."""
        return {run.seed: value for run in self if math.isfinite(value := run.metrics.get(metric, math.nan))}

    def statistic(self, metric: str) -> Statistic:
        """Mean and sample standard deviation of a metric's finite values."""
        values = self.values(metric)
        return Statistic(
            mean=statistics.fmean(values) if values else math.nan,
            sd=statistics.stdev(values) if len(values) > 1 else math.nan,
            n=len(values),
        )


@dataclass(frozen=True)
class Headline:
    """The one figure of a page that ``results/README.md`` shows."""

    metric: str
    row: tuple[Any, ...]
    """Values of the report's row parameters."""
    note: str = ""
    """What differs between the paper's setting and ours, in a few words."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and whether it shows here."""

    statement: str
    check: Callable[[Runs], tuple[bool | None, str]]
    """Finished runs -> (whether it shows, the figures behind that); None if runs for it are missing."""


@dataclass(frozen=True)
class Report:
    """What the result page of a sweep shows."""

    title: str
    paper: str = ""
    arxiv: str = ""
    """The arXiv id, e.g. ``2506.05826``."""
    rows: Mapping[str, Mapping[Any, str]] = field(default_factory=dict)
    """Parameters that make up a row -> {value: label}, both in the order of the page. Values without a label
    follow, as they are. Runs that share a row are averaged: normally they differ in the seed alone."""
    row_headings: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> heading of its column; by default the last part of its name."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Metric -> heading, in order."""
    published: Mapping[tuple[Any, ...], Mapping[str, float]] = field(default_factory=dict)
    """Row (values of the row parameters) -> {metric: the paper's figure}; shown beside ours. A row that was not
    run shows the paper's figures alone."""
    published_source: str = ""
    """Where in the paper they stand, and in what setting."""
    headline: Headline | None = None
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    """Paragraphs under the table."""
    figure: Callable[[Runs], Figure] | None = None
    """Draws the page's figure from the finished runs; :func:`bar_figure` by default. No pyplot."""
    figure_metrics: Sequence[str] = ()
    """Panels of the default figure; by default the first three columns."""
    figure_limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Metric -> range of its axis in the default figure, where far outliers would squeeze the rest."""
    number_format: str = ".3f"
    """How figures are printed."""

    def __post_init__(self) -> None:
        for key in [*self.published, *([self.headline.row] if self.headline else [])]:
            if not isinstance(key, tuple) or len(key) != len(self.rows):
                raise ValueError(
                    f"report {self.title!r}: a row is a tuple of {len(self.rows)} values ({', '.join(self.rows)}), "
                    f"got {key!r}"
                )
        known = set(self.columns)
        used = {metric for figures in self.published.values() for metric in figures} | set(self.figure_metrics)
        if self.headline:
            used.add(self.headline.metric)
        if used - known:
            raise ValueError(
                f"report {self.title!r}: published, headline and figure_metrics name {sorted(used - known)}, "
                f"which columns lacks ({sorted(known)})"
            )

    def number(self, value: float) -> str:
        """A figure as text; a dash for NaN."""
        return format(value, f"z{self.number_format}") if math.isfinite(value) else "–"

    def cell(self, statistic: Statistic) -> str:
        """Mean ± s.d. as text; without a s.d. for a single value."""
        spread = f" ± {self.number(statistic.sd)}" if statistic.n > 1 else ""
        return self.number(statistic.mean) + spread


def beats(
    statement: str,
    metric: str,
    winner: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]],
    margin: float = 0.0,
) -> Claim:
    """The claim that one variant's mean is above the best mean of some others.

    Args:
        statement: The claim in words.
        metric: The metric; higher is better.
        winner: Parameter values of the variant.
        others: Parameter values of each of the others.
        margin: The least difference that counts as showing it, at least 0, in units of the metric.

    Returns:
        The claim; it cannot be told while one of the variants has no finished run.

    Raises:
        ValueError: If there are no others, or if the margin is negative.
    """
    if margin < 0:
        raise ValueError(f"margin: wanted at least 0, got {margin}")
    if not others:
        raise ValueError(f"others: {statement!r} needs at least one variant to compare with, got none")

    def check(runs: Runs) -> tuple[bool | None, str]:
        means = [runs.where(variant).statistic(metric).mean for variant in (winner, *others)]
        if any(math.isnan(mean) for mean in means):
            return None, "runs are missing"
        ours, best = means[0], max(means[1:])
        wanted = f"; at least {margin:+.3f} wanted" if margin else ""
        return ours > best and ours - best >= margin, f"{ours:.3f} against {best:.3f} ({ours - best:+.3f}{wanted})"

    return Claim(statement, check)


def default_report(name: str, runs: Iterable[Run]) -> Report:
    """The page of a sweep that no paper describes: every parameter that varies, every test metric.

    Args:
        name: Name of the sweep; the page's title.
        runs: Its runs.
    """
    runs = Runs(runs)
    parameters = sorted({parameter for run in runs for parameter in run.parameters})
    varied = [p for p in parameters if len({json.dumps(run.parameters.get(p)) for run in runs}) > 1]
    metrics = sorted({metric for run in runs for metric in run.metrics if not metric.startswith("before.")})
    return Report(
        title=name,
        rows={parameter: {} for parameter in varied or parameters},
        columns={metric: metric for metric in metrics},
        number_format=".4g",
    )


def find_report(name: str) -> Report | None:
    """The report that a paper has for a sweep, or None.

    Raises:
        ValueError: If two papers describe the same sweep.
    """
    found = {}
    for path in sorted(Path(__file__).parent.glob("*/report.py")):
        # By path: importing the paper's package would import torch.
        spec = importlib.util.spec_from_file_location(f"zoo_report_{path.parent.name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if name in module.REPORTS:
            found[path.parent.name] = module.REPORTS[name]
    if len(found) > 1:
        raise ValueError(f"sweep {name!r} has a report in more than one paper: {', '.join(found)}")
    return next(iter(found.values()), None)


def write_runs(path: Path, runs: Iterable[Run]) -> None:
    """Write runs.csv: a row per run, sorted by parameters and seed; figures in full precision.

    Columns: run, status, seed, minutes, command, then ``param.*`` and ``test.*``, each sorted by name.
    """
    runs = sorted(runs, key=lambda run: ([_order(v) for _, v in sorted(run.parameters.items())], _order(run.seed)))
    parameters = sorted({name for run in runs for name in run.parameters})
    metrics = sorted({name for run in runs for name in run.metrics})
    header = ["run", "status", "seed", "minutes", "command"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*header, *(f"param.{name}" for name in parameters), *(f"test.{name}" for name in metrics)])
        for run in runs:
            figures = (run.metrics.get(name, math.nan) for name in metrics)
            writer.writerow(
                [
                    run.name,
                    run.status,
                    "" if run.seed is None else run.seed,
                    "" if run.minutes is None else f"{run.minutes:.2f}",
                    run.command,
                    *(_to_cell(run.parameters[name]) if name in run.parameters else "" for name in parameters),
                    *(repr(float(value)) if math.isfinite(value) else "" for value in figures),
                ]
            )


def read_runs(path: Path) -> Runs:
    """Read runs.csv.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is not one of :func:`write_runs`; the message names file and line.
    """
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream, strict=True)
        missing = {"run", "status", "seed", "minutes", "command"} - set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path}: columns {sorted(missing)} are missing")
        try:
            return Runs(_from_row(row) for row in reader)
        except (ValueError, csv.Error) as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def write_page(folder: Path, report: Report | None = None) -> None:
    """Write summary.json, table.md and figure.png of one sweep from the runs.csv in its folder.

    Args:
        folder: ``results/NAME``.
        report: What to show; by default the paper's report for NAME, or :func:`default_report`.

    Raises:
        FileNotFoundError: If the folder has no runs.csv.
        ValueError: If runs.csv cannot be read.
    """
    every = read_runs(folder / RUNS)
    runs = Runs(run for run in every if run.status == "finished")
    report = report or find_report(folder.name) or default_report(folder.name, every)
    rows = _rows(report, runs)
    counts = {s: sum(r.status == s for r in every) for s in sorted({r.status for r in every} | {"finished"})}
    summary = {
        "sweep": folder.name,
        "title": report.title,
        "paper": report.paper,
        "arxiv": report.arxiv,
        "command": every[0].command if every else "",
        "runs": {"planned": len(every), **counts},
        "headline": _headline(report, rows),
        "claims": [_checked(claim, runs) for claim in report.claims],
        "rows": [_row_summary(report, key, row) for key, row in rows.items()],
    }
    _write(folder / SUMMARY, json.dumps(_without_nan(summary), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    (folder / FIGURE).unlink(missing_ok=True)
    if runs and report.columns:
        _save_figure(report, runs, folder / FIGURE)
    _write(folder / TABLE, _page(report, summary, rows, has_figure=(folder / FIGURE).exists()))


def write_index(root: Path) -> None:
    """Write ``results/README.md``: one row for every page in the folder, from its summary.json."""
    lines = [
        _GENERATED.format(source="the summary.json files here"),
        "# Results",
        "What our runs reached, beside what the papers published. Ours: mean ± sample standard deviation over seeds.",
    ]
    table = [
        ["Paper", "Figure of merit", "Published", "Ours", "Runs", "Claims that show here", "Command"],
        [":--", ":--", "--:", "--:", "--:", "--:", ":--"],
    ]
    for path in sorted(root.glob(f"*/{SUMMARY}")):
        page = json.loads(path.read_text(encoding="utf-8"))
        headline = page["headline"] or {"label": "–", "published": "–", "ours": "–"}
        shown = sum(claim["shows"] is True for claim in page["claims"])
        title = f"[{_escape(page['title'])}]({path.parent.name}/{TABLE})"
        table.append(
            [
                ", ".join(filter(None, [title, _arxiv_link(page["arxiv"])])),
                _escape(headline["label"]),
                headline["published"],
                headline["ours"],
                f"{page['runs']['finished']} of {page['runs']['planned']}",
                f"{shown} of {len(page['claims'])}" if page["claims"] else "–",
                f"`{page['command']}`",
            ]
        )
    lines.append(_markdown_table(table))
    lines.append(
        "Published figures stand in the paper's own setting, which each page names; `python -m zoo.results` makes "
        "every page anew from its runs.csv."
    )
    _write(root / INDEX, "\n\n".join(lines) + "\n")


def bar_figure(
    report: Report,
    runs: Runs,
    metrics: Sequence[str] = (),
    limits: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """Bars of mean ± s.d. for each row, a dot per run, and the published figure where there is one.

    The first of several row parameters groups and colours the bars.

    Args:
        report: Gives rows, labels and published figures.
        runs: Finished runs.
        metrics: A panel for each; by default the report's ``figure_metrics``, or its first three columns.
        limits: Metric -> range of its axis; by default the report's ``figure_limits``. What lies outside is cut,
            and its figure printed at the edge.

    Returns:
        The figure, on an Agg canvas.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    metrics = metrics or report.figure_metrics or list(report.columns)[:3]
    limits = report.figure_limits if limits is None else limits
    rows = {key: row for key, row in _rows(report, runs).items() if row}
    group_of = {key: key[0] if len(key) > 1 else None for key in rows}
    groups = list(dict.fromkeys(group_of.values()))
    places = [i + 0.6 * groups.index(group) for i, group in enumerate(group_of.values())]
    colours = [_COLOURS[groups.index(group) % len(_COLOURS)] for group in group_of.values()]

    figure = Figure(
        figsize=(2.2 + 2.9 * len(metrics), 1.5 + 0.32 * len(rows)), layout=ConstrainedLayoutEngine(w_pad=0.12)
    )
    FigureCanvasAgg(figure)
    legend: dict[str, Any] = {}
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        axes.set_title(report.columns.get(metric, metric), fontsize=10)
        legend |= _draw_panel(axes, report, rows, metric, places, colours, limits.get(metric))
    panels[0].set_yticks(places, [", ".join(_labels(report, key)[-max(1, len(key) - 1) :]) for key in rows])
    panels[0].invert_yaxis()
    if len(groups) > 1:
        from matplotlib.patches import Patch

        names = next(iter(report.rows.values()))
        patches = {names.get(g, str(g)): Patch(color=_COLOURS[i % len(_COLOURS)]) for i, g in enumerate(groups)}
        legend = patches | legend
    figure.legend(
        legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend), frameon=False, fontsize=9
    )
    return figure


def _draw_panel(
    axes: Axes,
    report: Report,
    rows: Mapping[tuple[Any, ...], Runs],
    metric: str,
    places: Sequence[float],
    colours: Sequence[str],
    limits: tuple[float, float] | None,
) -> dict[str, Any]:
    """Draw one metric; returns what the legend explains."""
    ink = "#222222"
    numbers = [row.statistic(metric) for row in rows.values()]
    axes.barh(places, [number.mean for number in numbers], 0.72, color=colours, alpha=0.85, zorder=2)
    dots, diamonds = [], []
    for (key, row), place, number in zip(rows.items(), places, numbers, strict=True):
        if number.n > 1:
            axes.errorbar(number.mean, place, xerr=number.sd, ecolor=ink, elinewidth=1.2, zorder=3)
            dots += [(value, place) for value in row.values(metric)]
        if metric in report.published.get(key, {}):
            diamonds.append((report.published[key][metric], place))
    legend: dict[str, Any] = {}
    if dots:
        values, heights = zip(*dots, strict=True)
        legend["one run"] = axes.scatter(values, heights, s=7, c=ink, alpha=0.55, linewidths=0, zorder=4)
    if diamonds:
        values, heights = zip(*diamonds, strict=True)
        legend["published"] = axes.scatter(values, heights, s=26, marker="D", fc="white", ec="black", zorder=5)
    if limits:
        axes.set_xlim(*limits)
        for place, number in zip(places, numbers, strict=True):
            if number.n and not limits[0] <= number.mean <= limits[1]:
                _label_cut_bar(axes, report.number(number.mean), place, at_left=number.mean < limits[0])
    axes.axvline(0.0, color=ink, linewidth=0.8, zorder=3)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6, zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return legend


def _label_cut_bar(axes: Axes, text: str, place: float, *, at_left: bool) -> None:
    axes.annotate(
        f"← {text}" if at_left else f"{text} →",
        (0.0 if at_left else 1.0, place),
        xycoords=axes.get_yaxis_transform(),
        xytext=(3 if at_left else -3, 0),
        textcoords="offset points",
        ha="left" if at_left else "right",
        va="center",
        fontsize=8,
        bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85},
        zorder=6,
    )


def _save_figure(report: Report, runs: Runs, path: Path) -> None:
    """Draw and save with matplotlib's own defaults, whatever the machine's settings, and no date or version."""
    import matplotlib.style

    with matplotlib.style.context("default"):
        figure = report.figure(runs) if report.figure else bar_figure(report, runs)
        figure.savefig(path, format="png", dpi=150, metadata={"Software": None})


def _rows(report: Report, runs: Runs) -> dict[tuple[Any, ...], Runs]:
    """Row -> its runs, in the order of the page; a row that only the paper has is empty."""
    rows: dict[tuple[Any, ...], list[Run]] = {key: [] for key in report.published}
    for run in runs:
        rows.setdefault(tuple(run.parameters.get(name) for name in report.rows), []).append(run)

    def place(key: tuple[Any, ...]) -> list[tuple[int, Any]]:
        orders = [list(labels) for labels in report.rows.values()]
        return [
            (order.index(value), ()) if value in order else (len(order), _order(value))
            for order, value in zip(orders, key, strict=True)
        ]

    return {key: Runs(rows[key]) for key in sorted(rows, key=place)}


def _labels(report: Report, key: tuple[Any, ...]) -> list[str]:
    return [labels.get(value, _to_text(value)) for labels, value in zip(report.rows.values(), key, strict=True)]


def _row_summary(report: Report, key: tuple[Any, ...], row: Runs) -> dict[str, Any]:
    return {
        "parameters": dict(zip(report.rows, key, strict=True)),
        "label": ", ".join(_labels(report, key)),
        "runs": len(row),
        "metrics": {metric: row.statistic(metric)._asdict() for metric in report.columns},
        "published": dict(report.published.get(key, {})),
    }


def _headline(report: Report, rows: Mapping[tuple[Any, ...], Runs]) -> dict[str, Any] | None:
    if report.headline is None:
        return None
    metric, key, note = report.headline.metric, report.headline.row, report.headline.note
    label = f"{report.columns[metric]}: {', '.join(_labels(report, key))}"
    return {
        "label": f"{label} ({note})" if note else label,
        "published": report.number(report.published.get(key, {}).get(metric, math.nan)),
        "ours": report.cell(rows.get(key, Runs()).statistic(metric)),
    }


def _checked(claim: Claim, runs: Runs) -> dict[str, Any]:
    shows, figures = claim.check(runs)
    return {"statement": claim.statement, "shows": shows, "figures": figures}


def _page(report: Report, summary: Mapping[str, Any], rows: Mapping[tuple[Any, ...], Runs], *, has_figure: bool) -> str:
    source = ", ".join(filter(None, [report.paper, _arxiv_link(report.arxiv)]))
    counts = dict(summary["runs"])
    planned, finished = counts.pop("planned"), counts.pop("finished")
    others = "".join(f", {number} {status}" for status, number in counts.items())
    parts = [_GENERATED.format(source=RUNS), f"# {report.title}"]
    if source:
        parts.append(f"Paper: {source}.")
    parts.append(f"Made by `{summary['command']}`: {finished} of {planned} runs finished{others}.")
    if has_figure:
        parts.append(f"![{_escape(report.title)}]({FIGURE})")
    parts += [_result_table(report, rows), "Mean ± sample standard deviation over the n runs of a row."]
    if report.published:
        parts.append(f"*Published*: {report.published_source or 'the figures of the paper'}.")
    if summary["claims"]:
        verdict = {True: "shows", False: "does not show here", None: "cannot be told yet"}
        parts.append("## Claims")
        parts.append(
            "\n".join(f"- **{verdict[c['shows']]}**: {c['statement']} {c['figures']}" for c in summary["claims"])
        )
    if report.notes:
        parts += ["## Notes", *report.notes]
    return "\n\n".join(parts) + "\n"


def _result_table(report: Report, rows: Mapping[tuple[Any, ...], Runs]) -> str:
    has_published = {metric for figures in report.published.values() for metric in figures}
    header = [report.row_headings.get(name, name.rpartition(".")[2]) for name in report.rows] + ["n"]
    align = [":--"] * len(report.rows) + ["--:"]
    for metric, heading in report.columns.items():
        header += [heading, "*published*"] if metric in has_published else [heading]
        align += ["--:"] * (2 if metric in has_published else 1)
    table = [[_escape(text) for text in header], align]
    for key, row in rows.items():
        cells = [_escape(label) for label in _labels(report, key)] + [str(len(row))]
        for metric in report.columns:
            number = row.statistic(metric)
            few = f" (n = {number.n})" if 0 < number.n < len(row) else ""
            cells.append(report.cell(number) + few)
            if metric in has_published:
                cells.append(report.number(report.published.get(key, {}).get(metric, math.nan)))
        table.append(cells)
    return _markdown_table(table)


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _arxiv_link(arxiv: str) -> str:
    return f"[arXiv {arxiv}](https://arxiv.org/abs/{arxiv})" if arxiv else ""


def _order(value: Any) -> tuple[int, float, str]:
    """Sort key for parameter values of any types: numbers by size, then the rest as text."""
    if isinstance(value, (int, float)):
        return 0, float(value), ""
    return 1, 0.0, _to_text(value)


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _to_cell(value: Any) -> str:
    """A parameter value as JSON, where text is bare unless it would be read as something else."""
    return json.dumps(value) if _from_cell(_to_text(value)) != value or value == "" else _to_text(value)


def _from_cell(text: str) -> Any:
    """The parameter value of a cell; lists and mappings stay text, so that every value can be a key."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, (list, dict)) else value


def _from_row(row: Mapping[str, str]) -> Run:
    if None in row or None in row.values():
        raise ValueError("the number of cells differs from the header's")
    # An empty cell is a parameter that the run did not have, or a figure that it did not reach.
    parameters = {name.removeprefix("param."): text for name, text in row.items() if name.startswith("param.")}
    metrics = {name.removeprefix("test."): text for name, text in row.items() if name.startswith("test.")}
    return Run(
        name=row["run"],
        status=row["status"],
        parameters={name: _from_cell(text) for name, text in parameters.items() if text},
        seed=int(row["seed"]) if row["seed"] else None,
        metrics={name: float(text) if text else math.nan for name, text in metrics.items()},
        minutes=float(row["minutes"]) if row["minutes"] else None,
        command=row["command"],
    )


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: null instead."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m zoo.results [NAME ...]``: make pages and the index anew.

    Returns:
        The exit code: 0 done, 2 bad input.
    """
    parser = argparse.ArgumentParser(
        prog="python -m zoo.results", description="Make result pages from their runs.csv, and results/README.md."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a folder of results; all of them by default")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    options = parser.parse_args(argv)
    have = sorted(path.parent.name for path in options.results.glob(f"*/{RUNS}"))
    for name in options.names:
        if name not in have:
            near = difflib.get_close_matches(name, have, n=3, cutoff=0.5)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            print(f"error: no {options.results / name / RUNS}.{hint} Known: {', '.join(have)}.", file=sys.stderr)
            return 2
    try:
        for name in options.names or have:
            write_page(options.results / name)
            print(options.results / name / TABLE)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if have:
        write_index(options.results)
        print(options.results / INDEX)
    return 0


if __name__ == "__main__":
    sys.exit(main())
