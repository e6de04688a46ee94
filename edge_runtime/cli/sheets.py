"""Tables of plain text in a terminal. Knows no figure."""

from __future__ import annotations

from rich import box
from rich.table import Table

from ..bench.protocol.sheets import Sheet


def table_of(sheet: Sheet) -> Table:
    """A word that is the same as above is not said again."""
    table = Table(
        title=sheet.title, caption=sheet.caption, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    for place, column in enumerate(sheet.columns):
        word = place < sheet.words
        table.add_column(column, justify="left" if word else "right", overflow="fold", no_wrap=not word)
    before: tuple[str, ...] = ()
    for row in sheet.rows:
        if before and row[0] != before[0]:
            table.add_section()
        same = 0
        while same < sheet.words - 1 and row[: same + 1] == before[: same + 1]:
            same += 1
        table.add_row(*("" for _ in range(same)), *row[same:])
        before = row
    return table
