"""The results page of hyperbolic_bct: what is shown, and the paper's figures beside ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.results import Claim, Headline, Report, Runs, beats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARCH, EXT = "hyperbolic_bct", "hyperbolic_bct_ext"
SCENARIOS = {ARCH: "New-arch", EXT: "Ext-class"}
METHODS = {
    "independent": "independent (Euclidean)",
    "l2": "l2",
    "bct": "BCT",
    "bct_strong": "BCT, weight 3",
    "hot_refresh": "Hot-Refresh",
    "hoc": "HOC",
    "advbct": "AdvBCT",
    "independent_hyperbolic": "independent (hyperbolic)",
    "hbct_no_entailment": "HBCT without entailment",
    "hbct": "HBCT",
    "influence_only": "influence only (ours)",
    "hbct_influence": "HBCT + influence (ours)",
}
# The paper's baselines, at the weights they are commonly used with.
EUCLIDEAN = ("l2", "bct", "hot_refresh", "hoc", "advbct")
TRAINED = [method for method in METHODS if not method.startswith("independent")]

COLUMNS = {
    "compat/self_cmc1": "self CMC@1",
    "compat/cross_cmc1": "cross CMC@1",
    "compat/p_up_cmc1": "P_up CMC@1",
    "compat/p_com_cmc1": "P_com CMC@1",
    "compat/self_map": "self mAP",
    "compat/cross_map": "cross mAP",
    "compat/p_up_map": "P_up mAP",
    "compat/p_com_map": "P_com mAP",
}

# Table 1 of the paper, CIFAR-100: CMC@1 self, cross, P_up, P_com, then mAP likewise.
PUBLISHED = {
    (EXT, "independent"): (0.716, 0.019, 0, -1.052, 0.654, 0.019, 0, -0.845),
    (EXT, "l2"): (0.712, 0.478, -0.005, 0.302, 0.653, 0.342, -0.002, 0.093),
    (EXT, "bct"): (0.695, 0.447, -0.029, 0.210, 0.624, 0.328, -0.046, 0.054),
    (EXT, "hot_refresh"): (0.715, 0.498, -0.001, 0.360, 0.649, 0.348, -0.007, 0.110),
    (EXT, "advbct"): (0.708, 0.459, -0.011, 0.244, 0.642, 0.337, -0.018, 0.080),
    (EXT, "hoc"): (0.713, 0.490, -0.003, 0.336, 0.651, 0.346, -0.005, 0.106),
    (EXT, "independent_hyperbolic"): (0.722, 0.002, 0, -1.428, 0.656, 0.012, 0, -0.979),
    (EXT, "hbct_no_entailment"): (0.726, 0.555, 0.006, 0.435, 0.655, 0.388, -0.001, 0.176),
    (EXT, "hbct"): (0.722, 0.572, -0.001, 0.495, 0.655, 0.398, -0.001, 0.209),
    (ARCH, "independent"): (0.900, 0.021, 0, -3.706, 0.879, 0.029, 0, -2.744),
    (ARCH, "l2"): (0.896, 0.778, -0.005, 0.343, 0.873, 0.728, -0.006, 0.337),
    (ARCH, "bct"): (0.897, 0.830, -0.004, 0.623, 0.882, 0.750, 0.003, 0.432),
    (ARCH, "hot_refresh"): (0.897, 0.810, -0.003, 0.517, 0.876, 0.743, -0.003, 0.402),
    (ARCH, "advbct"): (0.891, 0.797, -0.011, 0.449, 0.868, 0.737, -0.012, 0.374),
    (ARCH, "hoc"): (0.895, 0.813, -0.006, 0.534, 0.877, 0.744, -0.002, 0.408),
    (ARCH, "independent_hyperbolic"): (0.897, 0.009, 0, -4.085, 0.882, 0.011, 0, -2.876),
    (ARCH, "hbct_no_entailment"): (0.898, 0.6915, 0.001, -0.178, 0.882, 0.680, -0.001, 0.099),
    (ARCH, "hbct"): (0.893, 0.886, -0.004, 0.937, 0.879, 0.782, -0.004, 0.555),
}


def variant(scenario: str, method: str) -> dict[str, str]:
    """The parameters of a row."""
    return {"model": scenario, "model.method": method}


def trained_methods_gain(runs: Runs) -> tuple[bool | None, str]:
    """Every trained method is better than keeping the old model."""
    means = {m: runs.where(variant(ARCH, m)).statistic("compat/p_com_map").mean for m in TRAINED}
    if any(mean != mean for mean in means.values()):
        return None, "runs are missing"
    worst = min(means, key=lambda m: means[m])
    return means[worst] > 0, f"the lowest P_com (mAP) is {means[worst]:+.3f}, of {METHODS[worst]}"


def cross_beats_old(runs: Runs) -> tuple[bool | None, str]:
    """HBCT's queries search the old gallery better than the old model's do."""
    hbct = runs.where(variant(ARCH, "hbct"))
    cross, old = hbct.statistic("compat/cross_cmc1"), hbct.statistic("compat/old_cmc1")
    if cross.n == 0:
        return None, "runs are missing"
    return cross.mean - old.mean >= 0.08, f"{cross.mean:.3f} against {old.mean:.3f} ({cross.mean - old.mean:+.3f})"


def figure(runs: Runs) -> Figure:
    """P_com (mAP) of every trained method in both scenarios, with its seeds, beside the paper's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(9.5, 4.6), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = canvas.subplots(1, 2, sharex=True, sharey=True)
    rows = [method for method in TRAINED if runs.where({"model.method": method})]
    for axes, (scenario, label) in zip(panels, SCENARIOS.items(), strict=True):
        for row, method in enumerate(rows):
            found = runs.where(variant(scenario, method))
            mean = found.statistic("compat/p_com_map").mean
            if mean != mean:
                continue
            hyperbolic = METHODS[method].startswith(("HBCT", "influence"))
            axes.barh(row, mean, color="#0072B2" if hyperbolic else "#999999", alpha=0.85)
            values = found.values("compat/p_com_map")
            axes.plot(values, [row] * len(values), "o", color="black", markersize=3, alpha=0.6)
            if (scenario, method) in PUBLISHED:
                theirs = PUBLISHED[scenario, method][7]
                axes.plot(theirs, row, "D", markerfacecolor="white", markeredgecolor="#D55E00", markersize=6)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_title(label, fontsize=11)
        axes.set_xlabel("P_com (mAP)")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(rows)), [METHODS[method] for method in rows])
    panels[0].invert_yaxis()
    canvas.suptitle("Share of the possible retrieval gain that comes without re-embedding the gallery", fontsize=11)
    paper = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": "#D55E00", "markersize": 6}
    ours = {"marker": "o", "color": "black", "alpha": 0.6, "markersize": 3}
    panels[0].plot([], [], linestyle="", label="the paper, CIFAR-100", **paper)
    panels[0].plot([], [], linestyle="", label="our seeds, MNIST-5k (bar: mean)", **ours)
    canvas.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return canvas


REPORTS = {
    "hyperbolic_bct": Report(
        title="Backward-compatible training in hyperbolic space",
        paper="Learning Along the Arrow of Time: Hyperbolic Geometry for Backward-Compatible Representation Learning",
        arxiv="2506.05826",
        rows={"model": SCENARIOS, "model.method": METHODS},
        row_headings={"model": "scenario", "model.method": "method"},
        columns=COLUMNS,
        published={row: dict(zip(COLUMNS, figures, strict=True)) for row, figures in PUBLISHED.items()},
        published_source="Table 1, CIFAR-100; New-arch is ResNet-18 to ViT-B/16, Ext-class 50 to 100 classes",
        headline=Headline(
            "compat/p_com_map", (ARCH, "hbct"), note="MNIST-5k, MLP to CNN, for CIFAR-100, ResNet to ViT"
        ),
        claims=[
            beats(
                "New-arch: HBCT is above every Euclidean method of the paper, by at least .03.",
                "compat/p_com_map",
                variant(ARCH, "hbct"),
                [variant(ARCH, method) for method in EUCLIDEAN],
                margin=0.03,
            ),
            beats(
                "New-arch: HBCT is also above BCT with the weight that did best on validation images.",
                "compat/p_com_map",
                variant(ARCH, "hbct"),
                [variant(ARCH, "bct_strong")],
            ),
            Claim("New-arch: HBCT's cross CMC@1 is above the old model's own by at least .08.", cross_beats_old),
            Claim("New-arch: every trained method gains something.", trained_methods_gain),
            beats(
                "New-arch: entailment raises P_com (mAP); in the paper from .099 to .555.",
                "compat/p_com_map",
                variant(ARCH, "hbct"),
                [variant(ARCH, "hbct_no_entailment")],
                margin=0.03,
            ),
            beats(
                "Ext-class: entailment raises P_com (CMC@1); in the paper from .435 to .495.",
                "compat/p_com_cmc1",
                variant(EXT, "hbct"),
                [variant(EXT, "hbct_no_entailment")],
                margin=0.03,
            ),
            beats(
                "Ext-class: HBCT is above every Euclidean method of the paper.",
                "compat/p_com_map",
                variant(EXT, "hbct"),
                [variant(EXT, method) for method in EUCLIDEAN],
            ),
            beats(
                "Ours, not the paper's. New-arch: HBCT + influence is above every Euclidean method, by at least .15.",
                "compat/p_com_map",
                variant(ARCH, "hbct_influence"),
                [variant(ARCH, method) for method in (*EUCLIDEAN, "bct_strong")],
                margin=0.15,
            ),
        ],
        notes=[
            "P_com is relative to each geometry's own old and independent model, so read it beside the absolute self "
            "and cross columns. The paper's data and models are far larger; its figures stand here for the order of "
            "the methods, not for their size.",
            "Rows marked ours are extensions with a hyperbolic influence loss and no part of the paper's method.",
        ],
        figure=figure,
    )
}
