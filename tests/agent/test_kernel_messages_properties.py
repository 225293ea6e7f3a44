"""Lines of Xids and SXids, built from their parts: every part is parsed again."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, strategies as st

from railscope_agent.streams.kernel_messages import (
    KernelMessage,
    parse_kernel_message,
    strip_log_prefix,
)

PREFIXES = st.sampled_from(
    [
        "",
        "[  171.620236] ",
        "kernel: ",
        "[...] ",
        "Nov 20 06:10:11 node kernel: ",
        "<4>[   12.1][  T171] ",
        "kern  :warn  : 2025-01-21T02:21:33,498559+00:00 ",
        "2025-01-17T17:39:30+0000 node.cluster kernel: ",
        "Sat 2026-11-28 13:00:00 UTC node kernel: ",
        "2026 Nov 29 13:00:00 node kernel: ",
        "Sat Nov 28 13:00:00 2026 node kernel: ",
        "1732860000.123456 node kernel: ",
        "[ 1234.567890] node kernel: ",
        "<4>1 2026-11-29T13:00:00.000000+00:00 node kernel - - - ",
        "<4>1 2026-11-29T13:00:00Z node kernel - - - [   12.1] ",
    ]
)
HEX = "0123456789abcdefABCDEF"
HEX_PAIR = st.text(HEX, min_size=2, max_size=2)
FUNCTION = st.integers(0, 7).map(str)
NUMBERS = st.integers(0, 2**32 - 1) | st.integers(0, 200)
SEVERITIES = {"Fatal": "fatal", "Non-fatal": "non_fatal", "Correctable": "correctable"}
PRINTABLE = st.characters(exclude_categories=["Cc", "Cs"])


@st.composite
def texts(draw: st.DrawFn, not_at_start: tuple[str, ...] = ()) -> str:
    """Text that a driver may print after a comma, with any parentheses and commas."""
    part = st.sampled_from(
        ["(", ")", ", ", ": ", "Link 08", "pid=", "name=", "0x1 (None)", "Fatal"]
    )
    text = "".join(draw(st.lists(part | st.text(PRINTABLE, max_size=12), max_size=6)))
    return "" if text.lstrip().startswith(not_at_start) else text


@st.composite
def addresses(draw: st.DrawFn) -> tuple[str, str]:
    """Domain, bus and device: as printed, and as our labels write them."""
    domain = draw(st.text(HEX, min_size=4, max_size=8))
    bus, device = draw(HEX_PAIR), draw(HEX_PAIR)
    return f"{domain}:{bus}:{device}", f"{int(domain, 16):04x}:{bus}:{device}".lower()


@st.composite
def instances(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    """The MIG instance of a line, or none."""
    gpu, compute = draw(st.integers(0, 200)), draw(st.integers(0, 200))
    return draw(
        st.sampled_from(
            [
                ("", {}),
                (f" GPU-I:{gpu:02}", {"gpu_instance": str(gpu)}),
                (
                    f" GPU-I:{gpu:02} GPU-CI:{compute:02}",
                    {"gpu_instance": str(gpu), "compute_instance": str(compute)},
                ),
            ]
        )
    )


@st.composite
def names(draw: st.DrawFn) -> str:
    """Names of processes, with spaces and commas but not one behind the other."""
    part = st.sampled_from([" ", ",", ":", "ray::Worker", "unknown", "<", ">", "'"])
    name = "".join(draw(st.lists(part | st.text(PRINTABLE, max_size=5), min_size=1, max_size=5)))
    return "python3" if ", " in name or not name.strip("<>'") else name


@st.composite
def processes(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    """The process of a line, in the formats of new and old drivers."""
    pid, name = str(draw(st.integers(0, 2**32 - 1))), draw(names())
    facts = {"process": pid, "process_name": name}
    if name in ("<unknown>", "'<unknown>'"):
        del facts["process_name"]
    return draw(
        st.sampled_from(
            [
                ("", {}),
                (f"pid={pid}, name={name}, ", facts),
                (f"pid='{pid}', name={name}, ", facts),
                (f"pid={pid}, ", {"process": pid}),
                ("pid='<unknown>', name=<unknown>, ", {}),
                ("pid=<unknown>, ", {}),
            ]
        )
    )


@dataclass(frozen=True)
class LogLine:
    """A line of the log and its expected event."""

    text: str
    key: tuple[str, ...]
    facts: dict[str, str]


@st.composite
def xid_lines(draw: st.DrawFn) -> LogLine:
    (printed, address), number = draw(addresses()), draw(NUMBERS)
    (instance, facts), (process, more) = draw(instances()), draw(processes())
    function = draw(st.just("") | FUNCTION.map(lambda digit: f".{digit}"))
    where = f"{draw(st.sampled_from(['PCI:', '']))}{printed}{function}{instance}"
    text = draw(texts(not_at_start=("pid=", "name=")))
    return LogLine(
        f"{draw(PREFIXES)}NVRM: Xid ({where}): {number}, {process}{text}",
        (f"{address}.0", str(number)),
        filled(facts | more | {"message": text.lstrip()}),
    )


@st.composite
def sxid_lines(draw: st.DrawFn) -> LogLine:
    (printed, address), function, number = draw(addresses()), draw(FUNCTION), draw(NUMBERS)
    switch = f"nvswitch{draw(st.integers(0, 99))}"
    severity = draw(st.sampled_from(["Fatal", "Non-fatal", "Correctable"]))
    link = draw(st.just("") | st.integers(0, 255).map(str))
    text = draw(texts(not_at_start=("Link ",)))
    message = f"{number:05}, {severity}, {link and f'Link {link:0>2} '}{text}"
    return LogLine(
        f"{draw(PREFIXES)}nvidia-{switch}: SXid (PCI:{printed}.{function}): {message}",
        (switch, str(number), SEVERITIES[severity]),
        filled({"pci_address": f"{address}.{function}", "link": link, "message": text}),
    )


def filled(facts: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in facts.items() if value}


def understood(line: str) -> KernelMessage:
    message = parse_kernel_message(strip_log_prefix(line))
    assert message is not None, line
    return message


@given(xid_lines())
def test_every_part_of_an_xid_line_comes_out(line: LogLine) -> None:
    message = understood(line.text)
    assert message.event_class.name == "xid"
    assert (message.entity.key, message.facts) == (line.key, line.facts)


@given(sxid_lines())
def test_every_part_of_an_sxid_line_comes_out(line: LogLine) -> None:
    message = understood(line.text)
    assert message.event_class.name == "sxid"
    assert (message.entity.key, message.facts) == (line.key, line.facts)


FRAGMENTS = st.sampled_from(
    ["NVRM: Xid (PCI:", "0000:3b:00", ".0", " GPU-I:", " GPU-CI:", "): ", "79", "9" * 5000 + ", Fatal", ", ",
     "pid=", "name=", "'<unknown>'", "Fatal", ", Link ", "Severity 1", "Data {", "\n",
     "\N{ARABIC-INDIC DIGIT TWO}"]
)  # fmt: skip
STARTS = st.sampled_from(
    ["", "NVRM: Xid (PCI:0000:3b:00): ", "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): "]
)


@st.composite
def any_texts(draw: st.DrawFn) -> str:
    return draw(STARTS) + "".join(draw(st.lists(FRAGMENTS | st.text(max_size=3))))


@given(st.text() | any_texts())
def test_any_text_is_understood_or_left_alone(text: str) -> None:
    message = parse_kernel_message(text)
    assert message is None or all(message.facts.values())
