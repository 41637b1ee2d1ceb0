"""Tables on a page: which hold data, and which column a cell stands in.

Owns the two questions. A table that only lays a page out is read as blocks, cell by cell, so its inner
tables, lists and pictures stay in order; a table of data becomes rows.
"""

import re

from selectolax.lexbor import LexborNode

_ADMONITIONS = frozenset(("note", "tip", "warning", "caution", "important", "admonition", "admonitionblock"))
_BLOCKS_IN_CELLS = "pre, figure, h1, h2, h3, h4, article, iframe, video"
_MAX_NESTED = 8  # below as many tables nothing holds data
_LONG_CELL_CHARS = 400
_LONG_ONLY_CELL_CHARS = 80  # in a table of one row
_MAX_CELLS_LOOKED_AT = 400
_MAX_SPAN = 50
_MAX_FILLED = 10_000  # empty cells that spans may add to one table


def holds_data(node: LexborNode, num_tables_around: int) -> bool:
    """Return whether a table holds data; one that lays a page out has blocks, long texts or tables in it."""
    if num_tables_around > _MAX_NESTED or node.attributes.get("role") in ("presentation", "none"):
        return False
    parent = node.parent
    classes = (parent.attributes.get("class") or "").split() if parent is not None else []
    if _ADMONITIONS.intersection(classes) or len(node.css("table")) > 1:
        return False
    if node.css_first(_BLOCKS_IN_CELLS) is not None:
        return False
    if node.css_first("th") is not None:
        return True
    cells, num_rows = node.css("td")[:_MAX_CELLS_LOOKED_AT], len(node.css("tr"))
    if len(cells) < 2 or any(len(cell.css("p, li")) > 1 for cell in cells):
        return False
    longest = max(len((cell.text() or "").strip()) for cell in cells)
    return longest <= (_LONG_ONLY_CELL_CHARS if num_rows == 1 else _LONG_CELL_CHARS)


class Grid:
    """The columns of an open table: how many cells spans put before and behind each cell."""

    def __init__(self) -> None:
        self.column = 0
        self.rows_left: dict[int, int] = {}  # by column, for how many more rows a cell reaches down
        self.num_filled = 0

    def before(self) -> int:
        """Begin a cell; return how many cells of rows above reach into this row before it."""
        first = self.column
        while self.rows_left.get(self.column, 0) > 0:
            self.rows_left[self.column] -= 1
            self.column += 1
        return self.filled(self.column - first)

    def behind(self, node: LexborNode) -> int:
        """End a cell; return over how many more columns it reaches."""
        columns, rows = (_span(node.attributes.get(name)) for name in ("colspan", "rowspan"))
        if rows > 1:
            self.rows_left.update((self.column + i, rows - 1) for i in range(columns))
        self.column += columns
        return self.filled(columns - 1)

    def end_row(self) -> None:
        for column in [c for c in self.rows_left if c >= self.column]:
            self.rows_left[column] -= 1
        self.rows_left = {c: n for c, n in self.rows_left.items() if n > 0}
        self.column = 0

    def filled(self, number: int) -> int:
        allowed = max(0, min(number, _MAX_FILLED - self.num_filled))
        self.num_filled += allowed
        return allowed


def _span(value: str | None) -> int:
    found = re.match(r"\s*(\d{1,5})", value or "")
    return min(max(1, int(found.group(1))), _MAX_SPAN) if found else 1
