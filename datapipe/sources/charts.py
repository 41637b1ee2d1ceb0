"""Charts and diagrams of Office documents as text.

Owns the words and numbers of a chart (`c:chart`, and the newer `cx:chart`) as a table, and those of a
SmartArt diagram in the order of its outline. The numbers are those that the document shows, not those of the
workbook behind them.
"""

import datetime
import itertools
import re

from lxml import etree

from datapipe.sources.items import prose
from datapipe.sources.office import NAMESPACES, qualified

_DATE_CODE = re.compile(r"(?:\\.|\"[^\"]*\"|\[[^\]]*\])|([ymd])", re.IGNORECASE)
_DAY_ZERO = datetime.datetime(1899, 12, 30)
_MAX_POINTS = 10_000

Column = dict[int, str]  # what stands in it, by the number of the row


def chart_table(root: etree._Element) -> str:
    """Return a chart part as text: its title, then a table of the categories and one column for each series.

    Returns "" for a chart that shows no data.

        Sales by region
         | 2023 | 2024
        East | 1 | 2.5
    """
    is_new = root.tag == qualified("cx:chartSpace")
    columns = _new_columns(root) if is_new else _columns(root)
    rows = sorted({row for column in columns for row in column if row >= 0})[:_MAX_POINTS]
    lines = [" | ".join(column.get(row, "") for column in columns) for row in [-1, *rows]] if rows else []
    title = _title(root.find(".//cx:chart/cx:title" if is_new else "c:chart/c:title", NAMESPACES), root)
    return "\n".join([title] * bool(title) + [line for line in lines if line.strip(" |")])


def _columns(root: etree._Element) -> list[Column]:
    """Return the columns of a chart, row -1 for their heads. Series over the same categories share them."""
    columns: list[Column] = []
    categories: Column = {}
    for number, series in enumerate(root.iter(qualified("c:ser")), start=1):
        name = _series_name(series) or f"Series {number}"
        points = [_points(series.find(f"c:{part}", NAMESPACES)) for part in ("cat", "xVal")]
        own = points[0] or points[1]
        values = [("", _points(series.find(f"c:{part}", NAMESPACES))) for part in ("val", "yVal")]
        values.append((" (size)", _points(series.find("c:bubbleSize", NAMESPACES))))
        if own and own != categories:
            categories = own
            columns.append({-1: "", **own})
        columns += [{-1: name + suffix, **found} for suffix, found in values if found]
    return columns


def _series_name(series: etree._Element) -> str:
    text = series.find("c:tx", NAMESPACES)
    return "" if text is None else _cell("".join(v.text or "" for v in text.iter(qualified("c:v"))))


def _points(data: etree._Element | None) -> Column:
    """Return the cached points of a reference; levels of categories are joined, the widest first."""
    if data is None:
        return {}
    levels = list(data.iter(qualified("c:lvl"))) or [data]
    code = data.findtext(".//c:formatCode", "", NAMESPACES)
    found = [_level(level, code, data.find(".//c:strCache", NAMESPACES) is not None) for level in levels]
    joined: Column = {}
    for row in sorted(found[0]):
        parts = (
            [_at_or_before(level, row) for level in reversed(found)] if len(found) > 1 else [found[0][row]]
        )
        joined[row] = " / ".join(part for part in parts if part)
    return joined


def _level(level: etree._Element, code: str, is_text: bool) -> Column:
    points = itertools.islice(level.iter(qualified("c:pt")), _MAX_POINTS)
    texts = {_int(p.get("idx")): p.findtext("c:v", "", NAMESPACES) for p in points}
    return {row: _cell(text if is_text else number(text, code)) for row, text in texts.items()}


def _at_or_before(level: Column, row: int) -> str:
    """Return the outer category over a row, which stands at the first row it covers."""
    place = max((r for r in level if r <= row), default=None)
    return "" if place is None else level[place]


def _new_columns(root: etree._Element) -> list[Column]:
    """Return the columns of a chart of the newer kind (waterfall, treemap, box ...)."""
    columns: list[Column] = []
    data = {d.get("id"): d for d in root.iter(qualified("cx:data"))}
    for place, series in enumerate(root.iter(qualified("cx:series")), start=1):
        reference = series.find("cx:dataId", NAMESPACES)
        found = data.get(reference.get("val")) if reference is not None else None
        if found is None:
            continue
        name = _cell("".join(t.text or "" for t in series.iterfind("cx:tx//cx:v", NAMESPACES)))
        for dimension in found:
            levels = [
                {_int(p.get("idx")): _cell(number(p.text or "", "")) for p in level.iter(qualified("cx:pt"))}
                for level in dimension.iter(qualified("cx:lvl"))
            ]
            is_text = dimension.tag == qualified("cx:strDim")
            columns += [
                {-1: "" if is_text else name or f"Series {place}", **level} for level in reversed(levels)
            ]
    return columns


def _title(title: etree._Element | None, root: etree._Element) -> str:
    """Return the words of a title; of one that is made from the data, the name of the only series."""
    if title is None:
        return ""
    paragraphs = [
        "".join(t.text or "" for t in p.iter(qualified("a:t"))) for p in title.iter(qualified("a:p"))
    ]
    words = prose(" ".join(paragraphs)) or prose("".join(v.text or "" for v in title.iter(qualified("c:v"))))
    if not words and (only := root.findall(".//c:ser", NAMESPACES))[1:] == [] and only:
        return _series_name(only[0])
    return words


def number(text: str, code: str) -> str:
    """Return a number as it is read: no digits that only binary fractions have, dates as dates.

    Args:
        code: the number format; one with days, months or years makes it a date (days since 1899-12-30).

    >>> number("0.30000000000000004", "General"), number("45292", "yyyy\\-mm\\-dd")
    ('0.3', '2024-01-01')
    """
    try:
        value = float(text)
    except ValueError:
        return text
    marks = {m.group(1).lower() for m in _DATE_CODE.finditer(code) if m.group(1)}
    if {"y", "m", "d"} & marks and not (marks == {"d"} or "e" in code.lower()) and 1 <= value < 2_958_466:
        moment = _DAY_ZERO + datetime.timedelta(days=value)
        return moment.date().isoformat() if value == int(value) else moment.isoformat(" ", "minutes")
    if "%" in code:
        return f"{value * 100:.6g}%"
    return f"{value:.10g}"


def diagram_outline(root: etree._Element) -> list[tuple[int, str]]:
    """Return the words of a SmartArt data model as (level, text), in the order of its outline."""
    texts = {p.get("modelId"): _point_text(p) for p in root.iter(qualified("dgm:pt")) if _is_node(p)}
    below: dict[str | None, list[tuple[int, str | None]]] = {}
    for link in root.iter(qualified("dgm:cxn")):
        if link.get("type", "parOf") == "parOf":
            below.setdefault(link.get("srcId"), []).append((_int(link.get("srcOrd")), link.get("destId")))
    start = next((p.get("modelId") for p in root.iter(qualified("dgm:pt")) if p.get("type") == "doc"), None)
    outline: list[tuple[int, str]] = []
    seen: set[str | None] = set()
    waiting: list[tuple[int, str | None]] = [(-1, start)]
    while waiting:
        level, name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        outline += [(level, line) for line in texts.get(name, [])]
        nodes = sorted(below.get(name, []), key=lambda node: node[0], reverse=True)
        waiting += [(level + 1, node) for _, node in nodes]
    return outline + [(0, line) for name, lines in texts.items() if name not in seen for line in lines]


def _is_node(point: etree._Element) -> bool:
    return point.get("type", "node") in ("node", "asst")


def _point_text(point: etree._Element) -> list[str]:
    paragraphs = point.iterfind("dgm:t/a:p", NAMESPACES)
    lines = [prose("".join(t.text or "" for t in p.iter(qualified("a:t")))) for p in paragraphs]
    return [line for line in lines if line]


def _cell(text: str) -> str:
    return prose(text).replace("\n", " ")


def _int(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
