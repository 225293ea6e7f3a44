"""Live terminal view: `railscope top`. The only module that needs the extra `railscope[top]` (Textual).

A thread reads one page after the other, the documents of each at the same time. Data is shown with its age;
after a lost connection the old page stays, marked as such, until a request succeeds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar, TypeAlias

from rich.text import Text
from textual import app, binding, containers, events, message, screen, widgets

from railscope import figures
from railscope.client import cluster_tables, tables, top_views
from railscope.client.connection import ClientError

MAX_INCIDENTS = 5
"""Incidents above the rows of the first view; the view `incidents` has all."""
BARS_FROM_WIDTH = 120
"""Width of the terminal from which ratios have bars."""
_BAR_WIDTH, _EIGHTHS = 6, " ▏▎▍▌▋▊▉█"
_DRAWN_WIDGETS = 5
_TICK_SECONDS = 0.5
_JOIN_SECONDS = 0.2
_STYLES: Mapping[str, str] = {
    "degraded": "yellow", "warning": "yellow", "stale": "magenta", "unknown": "magenta", "partial": "yellow",
    "failed": "bold red", "critical": "bold red", "down": "bold red",
}  # fmt: skip
"""Styles of words; the words themselves carry the meaning."""
_STATES = ("state", "severity", "link")
_KEYS = "? help  / filter  o sort  Enter open  Esc back  q quit"
_Bindings: TypeAlias = list[binding.BindingType]

HELP = """\
{views}

Enter  open the row: tenant, job, node or rail, GPU with its NIC
Esc    back
/      filter rows by words that are in any column, and by key=value:
       gpu-node-3 state=degraded. * matches any text. An empty filter shows
       all rows. GPUs: state, rail, node, gpu (UUID), tenant, workload.
o O    sort by the next column, or in the other direction; a click on the
       head of a column does both. Esc: the order of the view.
> <    next and previous rows of a long view
Space  read now
q      quit, also Ctrl-C

A dash is an absent value: the line at the bottom has the reason.
The head line states the age of the data. After a lost connection the rows
are old, and the head line states since when.

Escape or ? closes this page.
"""


class PageReceived(message.Message):
    """A page, or the error of the request for it."""

    def __init__(self, view: top_views.TopView, page: top_views.TopPage | ClientError) -> None:
        super().__init__()
        self.view, self.page = view, page


class TopHelp(screen.ModalScreen[None]):
    """Help on keys."""

    BINDINGS: ClassVar[_Bindings] = [("escape,question_mark,q,enter", "dismiss", "Close")]
    CSS = "TopHelp { align: center middle; } TopHelp Static { width: 78; height: auto; border: solid; padding: 0 1; }"

    def __init__(self, views: Mapping[str, str]) -> None:
        super().__init__()
        self._views = views

    def compose(self) -> app.ComposeResult:
        """Yield the text."""
        names = "  ".join(f"{key} {name}" for key, name in self._views.items())
        with containers.VerticalScroll():
            yield widgets.Static(Text(HELP.format(views=names)))


class TopApp(app.App[None]):
    """Head line, table, footer; one view at a time."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; max-height: 5; }
    #incidents { height: auto; display: none; }
    #title { height: 1; text-style: bold; }
    #rows { height: 1fr; }
    #foot { height: auto; max-height: 5; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    TopApp:nocolor #rows > .datatable--cursor { text-style: reverse; }
    """
    BINDINGS: ClassVar[_Bindings] = [
        ("q", "quit", "Quit"),
        binding.Binding("ctrl+c", "quit", "Quit", priority=True),
        ("question_mark", "help", "Help"),
        ("slash", "filter", "Filter"),
        ("escape", "leave", "Back"),
        ("space", "refresh_now", "Read now"),
        ("o", "sort_next", "Sort by the next column"),
        ("O", "reverse", "Other direction"),
        ("greater_than_sign", "show_part(1)", "Next rows"),
        ("less_than_sign", "show_part(-1)", "Previous rows"),
    ]

    def __init__(
        self,
        pages: top_views.ClusterPages | top_views.AgentPages,
        server: str,
        interval_seconds: float,
    ) -> None:
        super().__init__(ansi_color="NO_COLOR" in os.environ or None)
        self._pages, self._server, self._interval = pages, server, interval_seconds
        self.view = pages.first()
        self.page: top_views.TopPage | None = None
        """The last page that was received, of this or of the view before."""
        self.failure = ""
        """Error of the last request; empty if it succeeded."""
        self._before: list[top_views.TopView] = []
        self._sorted_by, self._is_reversed = "", False
        """Key of a column; empty for the order of the view."""
        self._filter_error = ""
        self._shown_table = tables.ClientTable("", ())
        """The table of the page, with the columns that have room and in the chosen order."""
        self._received_seconds = self._failed_seconds = time.monotonic()
        self._ended, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._read_pages, daemon=True
        )  # a request must not delay the end

    def compose(self) -> app.ComposeResult:
        """Yield head, title, table, filter and footer."""
        yield widgets.Static(id="head", markup=False)
        yield widgets.Static(id="incidents", markup=False)
        yield widgets.Static(id="title", markup=False)
        yield widgets.DataTable[Text](id="rows", cursor_type="row", zebra_stripes=False)
        yield widgets.Input(id="filter", placeholder="any text, or key=value such as state=failed")
        yield widgets.Static(id="foot", markup=False)

    def on_mount(self) -> None:
        """Start reading."""
        self._table.focus()
        self._draw_head()
        self.set_interval(_TICK_SECONDS, self._draw_head)
        self._thread.start()

    def on_unmount(self) -> None:
        """Stop reading; a request that is in flight ends with the process."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    @property
    def _is_ended(self) -> bool:
        """True if not all widgets are there any more: at the end, messages arrive while they are removed one by one."""
        if self._ended.is_set() or not self.screen_stack:
            return True
        drawn = self._view_screen.query("#head, #incidents, #title, #rows, #foot")
        return len(drawn) < _DRAWN_WIDGETS

    @property
    def _view_screen(self) -> screen.Screen[object]:
        """The screen of the views, also while the help is over it."""
        return self.screen_stack[0]

    @property
    def _table(self) -> widgets.DataTable[Text]:
        return self._view_screen.query_one("#rows", widgets.DataTable)

    # Reading -------------------------------------------------------------------------------------

    def _read_pages(self) -> None:
        """Read the current view again and again, in a thread."""
        while not self._ended.is_set():
            # Before the view is taken: a change of it during the read must wake this thread.
            self._wake.clear()
            view = self.view
            page: top_views.TopPage | ClientError
            try:
                page = self._pages.read(view)
            except ClientError as error:
                page = error
            if not self._ended.is_set():
                self.post_message(PageReceived(view, page))
                self._wake.wait(self._interval)

    def on_page_received(self, received: PageReceived) -> None:
        """Show a page; one of another view than the current one is outdated."""
        if self._is_ended:
            return
        if isinstance(received.page, ClientError):
            if not self.failure:
                self._failed_seconds = time.monotonic()
            self.failure = received.page.message
        else:
            self.failure = ""
            if received.view == self.view and received.page.permitted and not self._before:
                self._show(received.page.permitted, back=True)
            elif received.view == self.view:
                self.page, self._received_seconds = received.page, time.monotonic()
                self._draw_rows()
        self._draw_head()

    # Drawing -------------------------------------------------------------------------------------

    def _draw_head(self) -> None:
        """Show the state of the cluster with the age of the data, or the lost connection."""
        if self._is_ended:
            return
        passed = time.monotonic() - self._received_seconds
        page_age = self.page.age_seconds if self.page else None
        age = "unknown" if page_age is None else tables.show_age(page_age + passed)
        if self.failure:
            lost = tables.show_age(time.monotonic() - self._failed_seconds)
            data = f"; OLD DATA, age {age}" if self.page else ""
            head = Text(
                f"NO DATA for {lost}, retrying{data}: {tables.show_text(self.failure)}", "reverse"
            )
        elif self.page is None:
            head = Text(f"reading {self._server} ...")
        else:
            head = Text(tables.show_text(self.page.head) + f"  data: {age}")
            head.highlight_words(["DEGRADED", "partial"], "yellow")
            head.highlight_words(["FAILED", "UNKNOWN"], "bold red")
        self._view_screen.query_one("#head", widgets.Static).update(head)
        self._view_screen.query_one("#title", widgets.Static).update(
            Text("  ".join(self._title()), no_wrap=True, overflow="ellipsis")
        )
        self._draw_foot()

    def _title(self) -> Iterator[str]:
        yield tables.show_text(self.view.title)
        if self.page is None or self.page.view != self.view:
            yield "(reading)"
        else:
            if self.page.count > len(self.page.table.rows):
                first, last = self.view.offset + 1, self.view.offset + len(self.page.table.rows)
                yield (
                    f"{first}-{last} of {self.page.count} rows" if last >= first else "no more rows"
                )
            yield from map(tables.show_text, self.page.table.notes)
        heads = {column.key: column.head for column in self._shown_table.columns}
        if head := heads.get(self._sorted_by):
            yield f"sorted by {head}{', reversed' if self._is_reversed else ''}"

    def _draw_incidents(self) -> None:
        """Show the open incidents above the rows of the first view."""
        rows = self.page.incidents if self.page and self.page.view == self.view else ()
        text = Text()
        for row in rows[:MAX_INCIDENTS]:
            age = "" if row["age_seconds"] is None else tables.show_age(row["age_seconds"])
            jobs = f"; jobs: {', '.join(row['jobs'])}" if row["jobs"] else ""
            severity = f"{tables.show_text(row['severity']):8}"
            facts = f"  {age:>6}  {tables.show_text(row['title'] + jobs)}"
            text.append(severity, _STYLES.get(row["severity"], ""))
            text.append(tables.cut(facts, self.size.width - tables.cell_width(severity)) + "\n")
        more = len(rows) - MAX_INCIDENTS
        text.append(f"and {more} more: key i\n" if more > 0 else "")
        drawn = self._view_screen.query_one("#incidents", widgets.Static)
        drawn.display = bool(rows)
        drawn.update(text)

    def _draw_rows(self) -> None:
        """Fill the table; the cursor stays on its row."""
        if self.page is None or self._is_ended:
            return
        view, table = self.page.view, self._table
        is_facts = self.page.table.columns == top_views.FACT_COLUMNS
        selected = self._selected_row()
        subject = top_views.row_subject(view, selected) if selected else None
        self._shown_table, widths = self._fit(self.page.table)
        shown = self._shown_table
        scrolled = table.scroll_y
        table.clear(columns=True)
        for column, width in zip(shown.columns, widths, strict=True):
            head = Text(column.head, justify="right" if column.is_number else "left")
            table.add_column(head, width=width, key=column.key)
        for row in shown.rows:
            places = zip(shown.columns, widths, strict=True)
            row_cells = [
                _cell(column, row, self._text(column, row), None if is_facts else width)
                for column, width in places
            ]
            table.add_row(*row_cells, height=None if is_facts else 1)
        self._draw_incidents()
        place = next(
            (
                number
                for number, row in enumerate(shown.rows)
                if top_views.row_subject(view, row) == subject
            ),
            0,
        )
        table.move_cursor(row=place, scroll=place == 0)
        table.scroll_to(y=scrolled, animate=False)

    def _draw_foot(self) -> None:
        """Show the reason for an empty table or for the dashes of the row, else the keys."""
        views = "  ".join(f"{key} {name}" for key, name in self._pages.views.items())
        gap = "\n" if len(views) + len(_KEYS) + 2 > self.size.width else "  "
        foot = f"{views}{gap}{_KEYS}"
        row = self._selected_row()
        if self._filter_error:
            foot = tables.show_text(self._filter_error)
        elif self.page is not None and self.page.view == self.view:
            if self.page.table.absence:
                foot = f"unknown: {tables.show_text(self.page.table.absence)}"
            elif row and (reasons := "; ".join(top_views.absence_reasons(self._shown_table, row))):
                foot = f"- {reasons}"
            elif not self.page.table.rows:
                foot = (
                    "no rows" + (" match the filter" if self.view.filters else "") + f"   {_KEYS}"
                )
        self._view_screen.query_one("#foot", widgets.Static).update(Text(foot))

    def _fit(self, table: tables.ClientTable) -> tuple[tables.ClientTable, list[int]]:
        """Return a table in the chosen order with the columns that have room, and their widths."""
        texts = (
            [column.head, *(self._text(column, row) for row in table.rows)]
            for column in table.columns
        )
        widths = [max(map(tables.cell_width, column)) for column in texts]
        room = self.size.width - 4  # without the padding of the table and its scroll bar
        fitted = tables.fit_columns(table.columns, widths, room)
        rows = tables.sorted_rows(table.rows, self._sorted_by, is_reversed=self._is_reversed)
        columns = tuple(table.columns[place] for place in fitted)
        return replace(table, columns=columns, rows=rows), list(fitted.values())

    def _text(self, column: tables.TableColumn, row: tables.Row) -> str:
        """Return the text of a cell; a ratio has a bar where there is room."""
        text, value = tables.ClientTable("", ()).cell(column, row), row.get(column.key)
        if column.form is not figures.percent or value is None:
            return text
        return f"{_bar(value)} {text:>5}" if self.size.width >= BARS_FROM_WIDTH else text

    def _selected_row(self) -> tables.Row | None:
        place = self._table.cursor_row
        rows = self._shown_table.rows if self.page else ()
        return rows[place] if 0 <= place < len(rows) else None

    # Keys ----------------------------------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        """Change the view by its key."""
        if isinstance(self.focused, widgets.Input) or event.key not in self._pages.views:
            return
        self._show(top_views.TopView(self._pages.views[event.key]))

    def _show(self, view: top_views.TopView, *, back: bool = False) -> None:
        if view == self.view:
            return
        if not back:
            self._before.append(self.view)
        self.view, self._sorted_by, self._is_reversed = view, "", False
        self._table.clear(columns=True)
        self._draw_incidents()
        self._draw_head()
        self._wake.set()

    def on_data_table_row_selected(self, _: widgets.DataTable.RowSelected) -> None:
        """Open the row."""
        row = self._selected_row()
        if row is None or self.page is None or self.page.view != self.view:
            return
        if opened := top_views.opened_view(self.view, row):
            self._show(opened)

    def on_data_table_row_highlighted(self, _: widgets.DataTable.RowHighlighted) -> None:
        """Show the reasons of the row."""
        if not self._is_ended:
            self._draw_foot()

    def on_resize(self) -> None:
        """Fit the columns."""
        self._draw_rows()

    def action_leave(self) -> None:
        """Close the filter, or show the view before."""
        if isinstance(self.focused, widgets.Input):
            self._close_filter()
        elif self._sorted_by:
            self._sort("")
        elif self._before:
            self._show(self._before.pop(), back=True)

    async def action_quit(self) -> None:
        """Stop reading, and end."""
        self._ended.set()
        self._wake.set()
        self.exit()

    def action_refresh_now(self) -> None:
        """Read now."""
        self._wake.set()

    def action_sort_next(self) -> None:
        """Sort by the column after the present one; after the last one, in the order of the view."""
        keys = ["", *(column.key for column in self._shown_table.columns), ""]
        is_shown = self._sorted_by in keys
        self._sort(keys[keys.index(self._sorted_by) + 1] if is_shown else "")

    def action_reverse(self) -> None:
        """Sort in the other direction."""
        self._sort(self._sorted_by, is_reversed=not self._is_reversed)

    def on_data_table_header_selected(self, selected: widgets.DataTable.HeaderSelected) -> None:
        """Sort by a column, or in the other direction."""
        key = str(selected.column_key.value or "")
        self._sort(key, is_reversed=key == self._sorted_by and not self._is_reversed)

    def _sort(self, key: str, *, is_reversed: bool = False) -> None:
        self._sorted_by, self._is_reversed = key, is_reversed
        self._draw_rows()
        self._draw_head()

    def action_show_part(self, step: int) -> None:
        """Show the next or the previous rows, if there are any."""
        offset = self.view.offset + step * top_views.MAX_ROWS
        if self.page is not None and self.page.view == self.view and 0 <= offset < self.page.count:
            self._show(replace(self.view, offset=offset), back=True)

    def action_help(self) -> None:
        """Show the help."""
        self.push_screen(TopHelp(self._pages.views))

    def action_filter(self) -> None:
        """Open the filter with its present text."""
        field = self._view_screen.query_one("#filter", widgets.Input)
        field.value = " ".join(tables.format_filters(self.view.filters))
        field.display = True
        field.focus()

    def on_input_submitted(self, submitted: widgets.Input.Submitted) -> None:
        """Apply the filter; one with an unknown key stays open with the reason."""
        table = self.page.table if self.page else tables.ClientTable("", ())
        keys = top_views.filter_keys(self.view, table)
        try:
            filters = tables.parse_filters(submitted.value.split(), keys)
        except ValueError as error:
            self._filter_error = str(error)
            self._draw_foot()
            return
        self._close_filter()
        self._show(top_views.TopView(self.view.name, self.view.subject, filters))

    def _close_filter(self) -> None:
        self._filter_error = ""
        self._view_screen.query_one("#filter", widgets.Input).display = False
        self._table.focus()


def _bar(ratio: float) -> str:
    """Return a bar of a fixed width."""
    eighths = round(min(max(ratio, 0.0), 1.0) * _BAR_WIDTH * 8)
    whole, part = divmod(eighths, 8)
    return f"{_EIGHTHS[-1] * whole}{_EIGHTHS[part] if part else ''}".ljust(_BAR_WIDTH)


def _cell(column: tables.TableColumn, row: tables.Row, text: str, width: int | None) -> Text:
    """Return the text of a cell, cut to a width, or to be wrapped."""
    style = _STYLES.get(text.lower(), "") if column.key in _STATES else ""
    if column.key in cluster_tables.PAUSE_KEYS and (share := row.get(column.key)) is not None:
        limits = (
            (cluster_tables.PAUSE_CRITICAL, "failed"),
            (cluster_tables.PAUSE_WARNING, "degraded"),
        )
        style = next((_STYLES[state] for limit, state in limits if share >= limit), "")
    text = text if width is None else tables.cut(text, width)
    return Text(
        text, style, justify="right" if column.is_number else "left", no_wrap=width is not None
    )


def run(
    pages: top_views.ClusterPages | top_views.AgentPages, server: str, interval_seconds: float
) -> None:
    """Run until `q` or Ctrl-C."""
    with suppress(KeyboardInterrupt):
        TopApp(pages, server, interval_seconds).run()
