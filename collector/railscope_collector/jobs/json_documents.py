"""Consecutive JSON values of a text, on separate lines or spanning several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from railscope_collector.jobs.bad_lines import BadLines, JobListError


def parse(text: str, bad: BadLines) -> Iterator[tuple[int, Any]]:
    """The values of a text, counted from 1.

    Invalid JSON is a bad line; parsing continues at the next line that begins with a brace.
    """
    decoder = json.JSONDecoder()
    offset, number = 0, 0
    while offset < len(text):
        if text[offset].isspace():
            offset += 1
            continue
        number += 1
        try:
            value, offset = decoder.raw_decode(text, offset)
        except (ValueError, RecursionError) as error:
            bad.add(JobListError(number, "", f"invalid JSON: {error}", "document"))
            following = text.find("\n{", offset + 1)
            offset = following if following >= 0 else len(text)
            continue
        yield number, value
