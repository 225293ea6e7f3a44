"""Batched NVML calls in captures: each entry by itself, failures of the whole call for all."""

from __future__ import annotations

from hypothesis import given, strategies as st
from support.clock import ManualClock
from support.machine import FakeHost

from railscope.capture import Capture, CaptureMetadata, CaptureMoment
from railscope_agent.host import Host
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.redactor import Redactor

FIELDS = "nvmlDeviceGetFieldValues"


def gpu(answers: dict[int, list[int]]) -> FakeHost:
    host = FakeHost()
    for entry, answer in answers.items():
        host.calls[f"nvml.{FIELDS}(0,{entry})"] = answer
    return host


def replay(moments: list[CaptureMoment]) -> Host:
    capture = Capture(CaptureMetadata("n", "b", 0, 0, 1, "t"), tuple(moments))
    return RecordedHost(capture, ManualClock(), lambda: 0)


@given(
    answers=st.dictionaries(
        st.integers(1, 300),
        st.tuples(st.sampled_from([0, 3, 4]), st.integers(0, 2**64 - 1)).map(list),
        min_size=1,
    ),
    data=st.data(),
)
def test_a_capture_answers_any_batch_of_recorded_calls(
    answers: dict[int, list[int]], data: st.DataObject
) -> None:
    recording = RecordingHost(gpu(answers))
    answered = recording.call("nvml", FIELDS, 0, *answers)
    assert answered == [
        [value for _, value in answers.values()],
        [code for code, _ in answers.values()],
    ]
    again = replay(recording.moments)
    asked = data.draw(st.lists(st.sampled_from(sorted(answers)), min_size=1))
    values, codes = again.call("nvml", FIELDS, 0, *asked)
    assert list(zip(codes, values, strict=True)) == [tuple(answers[entry]) for entry in asked]


def test_the_identity_of_the_node_is_redacted() -> None:
    host = FakeHost()
    host.calls = {
        "nvml.nvmlDeviceGetPlatformInfo(0)": {
            "chassisSerialNumber": "RACK1234",
            "slotNumber": "\x01",
        },
        "nvml.nvmlVgpuInstanceGetVmID(11)": ["tenant-a-vm", 1],
    }
    recording = RecordingHost(host, Redactor())
    recording.call("nvml", "nvmlDeviceGetPlatformInfo", 0)
    recording.call("nvml", "nvmlVgpuInstanceGetVmID", 11)
    (moment,) = recording.moments
    assert [secret for secret in ("RACK1234", "tenant-a-vm") if secret in moment.to_line()] == []
