"""Figures of an upgrade, drawn without a global matplotlib state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with any colour vision.
GREY, BLUE, ORANGE, GREEN = "#999999", "#0072B2", "#E69F00", "#009E73"

_BARS = (
    ("old", "old query, old gallery", GREY),
    ("cross", "new query, old gallery", ORANGE),
    ("self", "new query, new gallery", BLUE),
    ("independent", "independent model, re-embedded", GREEN),
)


def compatibility_figure(scores: Mapping[str, float]) -> Figure:
    """Bars of who searches whose gallery, for CMC@1 and mAP.

    Args:
        scores: Values by name, e.g. ``cross_map``, as :class:`~zoo.retrieval.CompatibilityScore` names them. What is
            missing is left out.

    Returns:
        The figure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bars = [bar for bar in _BARS if f"{bar[0]}_map" in scores]
    figure = Figure(figsize=(7.2, 0.7 + 0.45 * len(bars)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    panels[0].invert_yaxis()
    for axes, (metric, title) in zip(panels, (("cmc1", "CMC@1"), ("map", "mAP")), strict=True):
        values = [scores.get(f"{key}_{metric}", float("nan")) for key, _, _ in bars]
        axes.barh(range(len(bars)), values, color=[colour for _, _, colour in bars])
        for row, value in enumerate(values):
            axes.text(value + 0.01, row, f"{value:.3f}", va="center", fontsize=9)
        axes.set_yticks(range(len(bars)), [label for _, label, _ in bars])
        axes.set_xlim(0, 1.12)
        axes.set_xticks([0, 0.5, 1])
        share = scores.get(f"p_com_{metric}")
        axes.set_title(title if share is None else f"{title}   (P_com {share:+.2f})", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
