"""Plots of the report as inline SVG: one style, one colour for each modality, text kept as text.

Owns how a plot looks. Knows nothing of runs or tables: it is handed numbers and labels. The same numbers give
the same characters.
"""

import io
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {"text": "#0b5c8f", "image": "#c4561d", "video": "#1a7f5a", "special": "#8a8f98"}
OTHER_COLOURS = ("#0b5c8f", "#c4561d", "#1a7f5a", "#7a4b9d", "#a8812a", "#5b6b7b")
INK, FAINT = "#3a4048", "#d9dde2"
SMOOTHING_FRAC = 0.05  # width of the running mean as a fraction of the points
MIN_POINTS_TO_SMOOTH = 20

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "omniloom",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eceff2",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True)
class Series:
    """Named points; `None` and NaN values are left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the finite points as two arrays."""
        x, y = np.asarray(self.x, float), np.asarray([np.nan if v is None else v for v in self.y], float)
        keep = np.isfinite(y)
        return x[keep], y[keep]


def lines(
    series: Sequence[Series],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log_y: bool = False,
    marks: Mapping[str, float] | None = None,
    wide: bool = False,
) -> Markup:
    """Draw lines over steps: faint points and, where there are many, their running mean.

    `marks` are named positions on the x axis, drawn as thin vertical lines.
    """

    def draw(axes: Axes) -> None:
        for i, one in enumerate(series):
            x, y = one.points()
            colour = COLOURS.get(one.name, OTHER_COLOURS[i % len(OTHER_COLOURS)])
            smooth = _running_mean(y)
            if smooth is not y:
                axes.plot(x, y, color=colour, alpha=0.22, linewidth=1)
            axes.plot(
                x, smooth, color=colour, label=one.name, marker="o" if len(x) < 4 else None, markersize=4
            )
        for name, position in (marks or {}).items():
            axes.axvline(position, color=INK, linewidth=0.9, linestyle=(0, (3, 3)))
            axes.annotate(
                name,
                (position, 1),
                xycoords=("data", "axes fraction"),
                xytext=(4, -9),
                textcoords="offset points",
                fontsize=8.5,
                color=INK,
            )
        if log_y:
            axes.set_yscale("log")
        if len(series) > 1:
            axes.legend(loc="best", ncols=1 + (len(series) > 4))
        axes.set(title=title, xlabel=x_label, ylabel=y_label)

    ends = "; ".join(f"{s.name} from {_ends(s)}" for s in series if len(s.points()[1]))
    return _svg(draw, f"Line plot. {title}: {ends or 'no values'}.", (9.6, 3.1) if wide else (4.7, 2.9))


def histogram(values: Sequence[float], title: str, x_label: str, y_label: str = "rows") -> Markup:
    """Draw the distribution of one score, its quartiles marked."""
    array = np.asarray(values, float)
    quartiles = np.percentile(array, (25, 50, 75))

    def draw(axes: Axes) -> None:
        axes.hist(
            array,
            bins=min(40, max(8, int(np.sqrt(len(array)) * 1.5))),
            color="#7fa9c4",
            edgecolor="white",
            linewidth=0.6,
        )
        for quartile in quartiles:
            axes.axvline(quartile, color=INK, linewidth=0.9, linestyle=(0, (3, 3)))
        axes.grid(axis="x", visible=False)
        axes.set(title=title, xlabel=x_label, ylabel=y_label)

    label = (
        f"Histogram. {title}: {len(array)} values from {array.min():.3g} to {array.max():.3g}, "
        f"median {quartiles[1]:.3g}."
    )
    return _svg(draw, label, (4.7, 2.7))


def shares(rows: Mapping[str, Mapping[str, float]], title: str) -> Markup:
    """Draw one stacked bar a row, each cut into shares of its sum."""
    kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))

    def draw(axes: Axes) -> None:
        names = list(rows)[::-1]
        left = np.zeros(len(names))
        for i, kind in enumerate(kinds):
            width = np.array([100 * rows[n].get(kind, 0) / max(1, sum(rows[n].values())) for n in names])
            colour = COLOURS.get(kind, OTHER_COLOURS[i % len(OTHER_COLOURS)])
            axes.barh(names, width, left=left, color=colour, label=kind, height=0.62)
            for y, (w, start) in enumerate(zip(width, left, strict=True)):
                if w >= 6:
                    axes.text(
                        start + w / 2, y, f"{w:.0f}%", ha="center", va="center", color="white", fontsize=8.5
                    )
            left += width
        axes.set(title=title, xlim=(0, 100), xlabel="share of tokens (%)")
        axes.grid(axis="y", visible=False)
        axes.legend(
            ncols=len(kinds), loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2, handlelength=1
        )

    label = "; ".join(
        f"{name}: " + ", ".join(f"{kind} {value:.0f}" for kind, value in row.items())
        for name, row in rows.items()
    )
    return _svg(draw, f"Stacked bars. {title}. {label}.", (9.6, 0.95 + 0.42 * len(rows)))


def _running_mean(y: np.ndarray) -> np.ndarray:
    if len(y) < MIN_POINTS_TO_SMOOTH:
        return y
    half = max(1, int(len(y) * SMOOTHING_FRAC / 2))
    sums = np.concatenate([[0.0], np.cumsum(y)])
    index = np.arange(len(y))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(y))
    return (sums[high] - sums[low]) / (high - low)


def _ends(series: Series) -> str:
    y = series.points()[1]
    return f"{y[0]:.3g} to {y[-1]:.3g}"


def _svg(draw: Callable[[Axes], None], label: str, size: tuple[float, float]) -> Markup:
    """Draw on a fresh figure and return it as a labelled SVG element, its ids made unique by its content."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        sink = io.StringIO()
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = sink.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    prefix = f"p{zlib.crc32(text.encode()):08x}"
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", text)
    width, height = (round(72 * side) for side in size)
    opening = (
        f'<svg class="plot" role="img" aria-label="{Markup.escape(label)}" viewBox="0 0 {width} {height}">'
    )
    return Markup(re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1))
