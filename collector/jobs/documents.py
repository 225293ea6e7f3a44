"""Consecutive JSON values, on separate lines or spanning several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from collector.jobs.job import BadLines, JobListError


def documents(text: str, bad: BadLines) -> Iterator[tuple[int, Any]]:
    """The values of a text, counted from 1.

    Invalid JSON is a bad line; parsing continues at the next line that begins with a brace.
    """
    decoder = json.JSONDecoder()
    at, number = 0, 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        number += 1
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            bad.add(JobListError(number, "", f"no JSON: {error}", "document"))
            following = text.find("\n{", at + 1)
            at = following if following >= 0 else len(text)
            continue
        yield number, value
