"""zoo.results: arithmetic, pages, the index, and that they are the same each time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo import results
from zoo.results import (
    Claim,
    Headline,
    Report,
    Run,
    Runs,
    bar_figure,
    beats,
    default_report,
    find_report,
    main,
    read_runs,
    write_index,
    write_page,
    write_runs,
)

COMMITTED = Path(__file__).parents[1] / "results"
SCORES = {"l2": [0.30, 0.34, 0.29], "bct": [0.41, 0.40, 0.45], "hbct": [0.52, 0.55, 0.48]}


def make_runs(scores: dict[str, list[float]] = SCORES, scenario: str = "arch") -> Runs:
    return Runs(
        Run(
            name=f"{scenario}-{method}-{seed}",
            status="finished",
            parameters={"scenario": scenario, "method": method},
            seed=seed,
            metrics={"p_com": value, "cross": value + 0.2},
            minutes=1.5,
            command="python -m zoo.sweep demo",
        )
        for method, values in scores.items()
        for seed, value in enumerate(values)
    )


REPORT = Report(
    title="A demonstration",
    paper="A Paper",
    arxiv="2506.05826",
    rows={"scenario": {"arch": "New arch"}, "method": {"hbct": "HBCT", "bct": "BCT|2020", "l2": "L2"}},
    columns={"p_com": "P_com", "cross": "cross mAP"},
    published={("arch", "hbct"): {"p_com": 0.555}, ("arch", "old"): {"p_com": 0.0}},
    published_source="Table 1 (CIFAR-100)",
    headline=Headline("p_com", ("arch", "hbct"), "MNIST here"),
    claims=[
        beats("HBCT beats BCT.", "p_com", {"method": "hbct"}, [{"method": "bct"}, {"method": "l2"}], margin=0.05),
        beats("L2 beats BCT.", "p_com", {"method": "l2"}, [{"method": "bct"}]),
        beats("HBCT beats HOC.", "p_com", {"method": "hbct"}, [{"method": "hoc"}]),
    ],
    notes=["A note."],
)


def page(folder: Path, runs: Runs, report: Report | None = REPORT) -> str:
    write_runs(folder / "runs.csv", runs)
    write_page(folder, report)
    return (folder / "table.md").read_text(encoding="utf-8")


def cells(text: str, start: str) -> list[str]:
    """The cells of the table row that begins so."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), max_size=8))
def test_statistic_is_numpy_s(values: list[float]) -> None:
    mean, sd, n = make_runs({"m": values}).statistic("p_com")
    finite = np.array([value for value in values if not math.isnan(value)])
    assert n == len(finite)
    if n:
        np.testing.assert_allclose(mean, np.mean(finite), rtol=1e-12, atol=1e-9)
    else:
        assert math.isnan(mean)
    if n > 1:
        np.testing.assert_allclose(sd, np.std(finite, ddof=1), rtol=1e-9, atol=1e-9)
    else:
        assert math.isnan(sd)


def test_runs_answer_questions() -> None:
    runs = make_runs()
    assert len(runs.where({"method": "bct", "scenario": "arch"})) == 3
    assert not runs.where({"method": "bct", "unknown": 1})
    assert runs.where({"method": "l2"}).by_seed("p_com") == {0: 0.30, 1: 0.34, 2: 0.29}
    assert runs.where({"method": "l2"}).values("absent") == []


def test_page_shows_mean_spread_number_and_published_figure(tmp_path: Path) -> None:
    text = page(tmp_path, make_runs())
    mean, sd = np.mean(SCORES["hbct"]), np.std(SCORES["hbct"], ddof=1)
    spread = f"{sd:.3f}"
    assert cells(text, "scenario") == ["scenario", "method", "n", "P_com", "*published*", "cross mAP"]
    assert cells(text, "New arch | HBCT") == [
        "New arch",
        "HBCT",
        "3",
        f"{mean:.3f} ± {spread}",
        "0.555",
        f"{mean + 0.2:.3f} ± {spread}",
    ]
    assert cells(text, "New arch | old") == ["New arch", "old", "0", "–", "0.000", "–"], "published only"
    assert "Made by `python -m zoo.sweep demo`: 9 of 9 runs finished." in text
    assert "*Published*: Table 1 (CIFAR-100)." in text
    assert "[arXiv 2506.05826](https://arxiv.org/abs/2506.05826)" in text
    assert "A note." in text


def test_rows_keep_the_report_s_order_and_labels(tmp_path: Path) -> None:
    runs = make_runs() + make_runs({"new": [1.0], "l2": [0.5]}, "other")
    text = page(tmp_path, Runs(runs))
    rows = [line.split(" | ")[:2] for line in text.splitlines() if line.startswith(("| New", "| other"))]
    assert rows == [
        ["| New arch", "HBCT"],
        ["| New arch", r"BCT\|2020"],
        ["| New arch", "L2"],
        ["| New arch", "old"],
        ["| other", "L2"],
        ["| other", "new"],
    ]


def test_a_single_run_has_no_spread(tmp_path: Path) -> None:
    assert cells(page(tmp_path, make_runs({"l2": [0.25]})), "New arch | L2")[2:4] == ["1", "0.250"]


def test_a_missing_figure_is_left_out_and_counted(tmp_path: Path) -> None:
    text = page(tmp_path, make_runs({"l2": [0.25, math.nan, 0.35], "bct": [math.nan]}))
    assert cells(text, "New arch | L2")[2:4] == ["3", "0.300 ± 0.071 (n = 2)"]
    assert cells(text, "New arch | BCT")[2:4] == ["1", "–"]
    assert "nan" not in text.lower()


def test_zero_has_no_sign() -> None:
    assert Report(title="t").number(-0.0001) == "0.000"


def test_runs_that_did_not_finish_are_counted_not_averaged(tmp_path: Path) -> None:
    failed = Run("x", "failed", {"scenario": "arch", "method": "l2"}, 3, {"p_com": 100.0, "cross": 100.0})
    missing = Run("y", "missing", {"scenario": "arch", "method": "l2"}, 4)
    text = page(tmp_path, Runs((*make_runs(), failed, missing)))
    assert "9 of 11 runs finished, 1 failed, 1 missing." in text
    assert cells(text, "New arch | L2")[2] == "3"


def test_claims_say_whether_they_show(tmp_path: Path) -> None:
    text = page(tmp_path, make_runs())
    assert "- **shows**: HBCT beats BCT. 0.517 against 0.420 (+0.097; at least +0.050 wanted)" in text
    assert "- **does not show here**: L2 beats BCT. 0.310 against 0.420 (-0.110)" in text
    assert "- **cannot be told yet**: HBCT beats HOC. runs are missing" in text
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert [claim["shows"] for claim in summary["claims"]] == [True, False, None]


@pytest.mark.parametrize(("margin", "shows"), [(0.0, True), (0.0625, True), (0.07, False)])
def test_beats_takes_the_best_of_the_others_and_the_margin(margin: float, shows: bool) -> None:
    runs = make_runs({"a": [0.5], "b": [0.4375], "c": [0.1]})
    claim = beats("a wins", "p_com", {"method": "a"}, [{"method": "c"}, {"method": "b"}], margin)
    assert claim.check(runs)[0] is shows


def test_a_tie_does_not_beat() -> None:
    claim = beats("a wins", "p_com", {"method": "a"}, [{"method": "b"}])
    assert claim.check(make_runs({"a": [0.5], "b": [0.5]}))[0] is False


def test_summary_holds_the_numbers_in_full(tmp_path: Path) -> None:
    page(tmp_path, make_runs())
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    row = next(row for row in summary["rows"] if row["parameters"]["method"] == "bct")
    assert row["metrics"]["p_com"]["n"] == 3
    assert row["metrics"]["p_com"]["mean"] == pytest.approx(np.mean(SCORES["bct"]), rel=1e-15)
    assert row["metrics"]["p_com"]["sd"] == pytest.approx(np.std(SCORES["bct"], ddof=1), rel=1e-14)
    assert summary["runs"] == {"planned": 9, "finished": 9}


def test_everything_is_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page(tmp_path / "a", make_runs())
    monkeypatch.setitem(mpl.rcParams, "font.size", 30.0)
    write_runs(tmp_path / "b" / "runs.csv", reversed(read_runs(tmp_path / "a" / "runs.csv")))
    write_page(tmp_path / "b", REPORT)
    for name in ("runs.csv", "table.md", "figure.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    summaries = [(tmp_path / folder / "summary.json").read_text(encoding="utf-8") for folder in "ab"]
    assert summaries[0].replace('"sweep": "a"', "") == summaries[1].replace('"sweep": "b"', "")
    assert mpl.rcParams["font.size"] == 30.0


@pytest.mark.parametrize("folder", sorted(path.parent for path in COMMITTED.glob("*/runs.csv")), ids=lambda p: p.name)
def test_committed_pages_are_those_of_their_runs(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / folder.name
    copy.mkdir()
    (copy / "runs.csv").write_bytes((folder / "runs.csv").read_bytes())
    write_page(copy)
    for name in ("table.md", "summary.json"):
        assert (copy / name).read_text(encoding="utf-8") == (folder / name).read_text(encoding="utf-8")


values = st.one_of(st.booleans(), st.integers(-9, 9), st.floats(-1, 1), st.text("a1.,\"'\n é", max_size=5), st.none())


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.builds(
            Run,
            name=st.text("ab-", min_size=1, max_size=4),
            status=st.sampled_from(["finished", "failed", "missing"]),
            parameters=st.dictionaries(st.sampled_from(["model.y", "x"]), values).map(
                lambda d: dict(sorted(d.items()))
            ),
            seed=st.none() | st.integers(0, 9),
            metrics=st.fixed_dictionaries({"test/a": st.floats(allow_nan=False, allow_infinity=False)}),
            minutes=st.none() | st.integers(0, 400).map(lambda n: n / 4),
            command=st.just("python -m zoo.sweep demo"),
        ),
        max_size=5,
    )
)
def test_runs_survive_the_file(tmp_path_factory: pytest.TempPathFactory, runs: list[Run]) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.csv"
    write_runs(path, runs)
    # By repr, which tells True from 1 and 0.0 from -0.0.
    assert sorted(map(repr, read_runs(path))) == sorted(map(repr, runs))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run,status\na,finished\n", "columns ['command', 'minutes', 'seed'] are missing"),
        ("", "columns"),
        ("run,status,seed,minutes,command,test.x\na,finished,0,1,c,high\n", "line 2: could not convert"),
        ("run,status,seed,minutes,command,test.x\na,finished,0,1,c\n", "line 2: the number of cells"),
        ("run,status,seed,minutes,command,test.x\na,finished,0,1,c,1,2\n", "line 2: the number of cells"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    path = tmp_path / "demo" / "runs.csv"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_runs(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert main(["--results", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_index_has_published_beside_ours_and_the_command(tmp_path: Path) -> None:
    page(tmp_path / "demo", make_runs())
    write_index(tmp_path)
    assert cells((tmp_path / "README.md").read_text(encoding="utf-8"), "[A demo")[1:] == [
        "P_com: New arch, HBCT (MNIST here)",
        "0.555",
        "0.517 ± 0.035",
        "9 of 9",
        "1 of 3",
        "`python -m zoo.sweep demo`",
    ]


def test_index_keeps_other_papers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page(tmp_path / "first", make_runs())
    write_index(tmp_path)
    (before,) = [line for line in (tmp_path / "README.md").read_text(encoding="utf-8").splitlines() if "first/" in line]
    # The other paper's page stays as it is, even without its runs.
    (tmp_path / "first" / "runs.csv").unlink()
    write_runs(tmp_path / "second" / "runs.csv", make_runs())
    assert main(["second", "--results", str(tmp_path)]) == 0
    index = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert before in index
    assert "second/table.md" in index
    assert str(tmp_path / "second" / "table.md") in capsys.readouterr().out


def test_unknown_name_lists_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(tmp_path / "hyperbolic_bct" / "runs.csv", make_runs())
    assert main(["hyperbolic", "--results", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "Did you mean 'hyperbolic_bct'?" in err
    assert "Known: hyperbolic_bct." in err


def test_default_report_shows_what_varies_and_every_test_metric(tmp_path: Path) -> None:
    runs = Runs(
        Run(f"r{seed}{lr}", "finished", {"lr": lr, "model": "m"}, seed, {"b": lr, "a": 1.0, "before.old.a": 0.5})
        for lr in (0.1, 1.0e-5)
        for seed in (0, 1)
    )
    report = default_report("demo", runs)
    assert list(report.rows) == ["lr"]
    assert list(report.columns) == ["a", "b"]
    text = page(tmp_path, runs, None)
    assert cells(text, "1e-05") == ["1e-05", "2", "1 ± 0", "1e-05 ± 0"]
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith(("| 1e", "| 0.1"))] == [
        "| 1e-05",
        "| 0.1",
    ]


def test_lists_are_labels_too(tmp_path: Path) -> None:
    runs = Runs(Run(f"r{n}", "finished", {"layers": [n, 8]}, 0, {"a": float(n)}) for n in (1, 2))
    assert cells(page(tmp_path, runs, None), "[2, 8]") == ["[2, 8]", "1", "2"]


def test_default_report_of_a_single_variant(tmp_path: Path) -> None:
    text = page(tmp_path, Runs([Run("r", "finished", {}, 0, {"a": 1.0})]), None)
    assert "| n | a |" in text
    assert "| 1 | 1 |" in text


def test_no_finished_run_gives_a_page_without_figure(tmp_path: Path) -> None:
    page(tmp_path, make_runs())
    assert (tmp_path / "figure.png").exists()
    text = page(tmp_path, Runs([Run("r", "failed", {"scenario": "arch", "method": "l2"}, 0)]))
    assert not (tmp_path / "figure.png").exists()
    assert "figure.png" not in text


def test_figure_shows_each_row_its_mean_and_the_published_one() -> None:
    runs = make_runs()
    panels = bar_figure(REPORT, runs).axes
    assert [axes.get_title() for axes in panels] == ["P_com", "cross mAP"]
    assert [text.get_text() for text in panels[0].get_yticklabels()] == ["HBCT", "BCT|2020", "L2"]
    widths = [bar.get_width() for bar in panels[0].patches]
    assert widths == pytest.approx([np.mean(SCORES[m]) for m in ("hbct", "bct", "l2")])
    dots, diamonds = (np.asarray(points.get_offsets()) for points in panels[0].collections[-2:])
    assert sorted(dots[:, 0]) == sorted(value for values in SCORES.values() for value in values)
    assert diamonds[:, 0] == pytest.approx([0.555])
    legend = [text.get_text() for text in panels[0].figure.legends[0].get_texts()]
    assert legend == ["one run", "published"]


def test_bars_outside_the_limits_carry_their_figure() -> None:
    report = Report(title="t", rows={"method": {}}, columns={"p_com": "P"}, figure_limits={"p_com": (-0.5, 1.0)})
    runs = make_runs({"a": [-3.7], "b": [0.5], "c": [2.25]})
    (axes,) = bar_figure(report, runs).axes
    assert axes.get_xlim() == (-0.5, 1.0)
    assert [text.get_text() for text in axes.texts] == ["← -3.700", "2.250 →"]


def test_a_paper_draws_its_own_figure(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    seen = []

    def draw(runs: Runs) -> Figure:
        seen.append(runs)
        return Figure(figsize=(1, 1))

    page(tmp_path, make_runs(), Report(title="t", rows={"method": {}}, columns={"p_com": "P"}, figure=draw))
    assert [len(runs) for runs in seen] == [9]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"headline": Headline("p", ("a",))}, "a row is a tuple of 2 values"),
        ({"published": {"a": {"p": 1.0}}}, "a row is a tuple of 2 values"),
        ({"published": {("a", "b"): {"q": 1.0}}}, "name ['q'], which columns lacks"),
        ({"figure_metrics": ["q"]}, "name ['q'], which columns lacks"),
    ],
)
def test_a_report_that_contradicts_itself_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        Report(title="t", rows={"x": {}, "y": {}}, columns={"p": "P"}, **arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(("others", "margin", "message"), [([], 0.0, "others: "), ([{}], -0.1, "margin: ")])
def test_bad_claims_are_refused(others: list[dict[str, Any]], margin: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        beats("s", "p", {}, others, margin)


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo whose papers cannot be imported, only read by path."""
    for paper, sweep in (("a", "one"), ("b", "two"), ("c", "two")):
        (tmp_path / paper).mkdir()
        (tmp_path / paper / "__init__.py").write_text("raise ImportError('heavy')")
        (tmp_path / paper / "report.py").write_text(
            f"from zoo.results import Report\nREPORTS = {{'{sweep}': Report(title='{paper}')}}"
        )
    monkeypatch.setattr(results, "__file__", str(tmp_path / "results.py"))
    return tmp_path


def test_reports_are_found_without_importing_their_paper(papers: Path) -> None:
    report = find_report("one")
    assert report is not None
    assert report.title == "a"
    assert find_report("three") is None


def test_two_reports_of_one_sweep_are_refused(papers: Path) -> None:
    with pytest.raises(ValueError, match="more than one paper: b, c"):
        find_report("two")


def test_a_page_needs_neither_torch_nor_pyplot(tmp_path: Path) -> None:
    write_runs(tmp_path / "demo" / "runs.csv", make_runs())
    code = (
        "import sys; from zoo.results import main; assert main(sys.argv[1:]) == 0;"
        "assert not {'torch', 'matplotlib.pyplot', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, "--results", str(tmp_path)], check=True, capture_output=True)
    assert (tmp_path / "demo" / "figure.png").exists()


def test_claim_takes_any_check(tmp_path: Path) -> None:
    claim = Claim("Every seed agrees.", lambda runs: (min(runs.by_seed("p_com").values()) > 0, "3 of 3"))
    text = page(tmp_path, make_runs(), Report(title="t", columns={"p_com": "P"}, claims=[claim]))
    assert "- **shows**: Every seed agrees. 3 of 3" in text
