"""The mark of an answer is valid for one token, status, request and answer only."""

from __future__ import annotations

from hypothesis import assume, given, strategies as st

from railscope.http_responses import is_marked, response_mark, unread_mark

parts = st.tuples(
    st.text(max_size=20),
    st.sampled_from([200, 400, 403, 409, 413, 422]),
    st.binary(max_size=20),
    st.binary(max_size=20),
)


@given(parts, parts)
def test_a_mark_is_good_for_its_own_answer_only(
    one: tuple[str, int, bytes, bytes], other: tuple[str, int, bytes, bytes]
):
    mark = response_mark(*one)
    assert is_marked(mark, *one)
    assume((one[1], one[2]) != (other[1], other[2]) or one[1] != 413)
    same_length = one[1] == other[1] == 413 and len(one[2]) == len(other[2])
    assume(one != other and not same_length)
    assert not is_marked(mark, *other)


@given(st.text(), st.binary(max_size=40), st.binary(max_size=40))
def test_of_a_body_that_is_too_large_the_length_is_enough(token: str, body: bytes, answer: bytes):
    assert is_marked(unread_mark(token, 413, len(body), answer), token, 413, body, answer)


@given(st.text(), parts)
def test_any_text_may_be_shown_as_a_mark(mark: str, one: tuple[str, int, bytes, bytes]):
    assert not is_marked(mark, *one)
