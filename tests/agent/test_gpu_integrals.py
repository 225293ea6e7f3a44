"""Samples integrated over time by the agent, because no driver counts them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import Phase, given, settings, strategies as st
from support.gpus import GIBIBYTE, add_gpus
from support.machine import FakeHost
from support.mig import cut
from support.reading import ORIGIN, at_period, readings

from railscope.reading import Absent, Reading
from railscope_agent.host import NvmlError
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nvidia.column_history import (
    LONGEST_SAMPLE_NS,
    Integral,
    IntegratedGauge,
)
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.nvidia.mig_devices import MigSource
from railscope_agent.sources.nvidia.value_tables import LOAD_INTEGRALS

NS = 1_000_000_000
BUSY = "railscope_gpu_busy_seconds_total"
MEMORY = "railscope_gpu_memory_used_byte_seconds_total"
UTILIZATION = "nvml.nvmlDeviceGetUtilizationRates(0)"
MEMORY_INFO = "nvml.nvmlDeviceGetMemoryInfo(0)"
KIBIBYTES = 20 * GIBIBYTE // 1024
"""Memory that the GPUs of `add_gpus` have in use."""

STEPS = st.integers(1, LONGEST_SAMPLE_NS)
PERCENT = st.integers(0, 100)


class IntegratedGpu:
    """One GPU that a test reads at chosen times."""

    def __init__(self, source: GpuSource | MigSource | None = None) -> None:
        self.host = FakeHost()
        add_gpus(self.host, 1)
        self.use(40)
        self.reader = SourceReader(source or GpuSource.load(), self.host, ORIGIN)

    def use(self, percent: int) -> None:
        self.host.calls[UTILIZATION] = {"gpu": percent, "memory": 1}

    def after(self, seconds: float) -> dict[str, Reading]:
        """Return the readings of GPU 0 after so much time."""
        self.host.clock.advance(seconds)
        outcome = self.reader.run()
        assert not outcome.problem
        return {
            name: value for (name, key), value in readings(outcome.frame).items() if "GPU-0" in key
        }


@pytest.mark.parametrize(
    ("joules", "is_accepted"),
    [
        ([500, 10**9, 600], [True, False, True]),
        ([500, 10**9, 10**9 + 100, 10**9 + 200, 10**9 + 300], [True, False, False, False, True]),
        ([500, 400, 600], [True, False, True]),
        ([500, 2, 600], [True, False, True]),
        ([500, 2, 3, 4], [True, False, True, True]),
        ([500, 10**9, 400, 10**9, 600], [True, False, False, False, True]),
    ],
)
def test_energy_that_a_gpu_cannot_have_used_is_an_error_until_it_stays(
    joules: list[int], is_accepted: list[bool]
) -> None:
    gpu, found = IntegratedGpu(), []
    for number in joules:
        gpu.host.calls["nvml.nvmlDeviceGetFieldValues(0,83)"] = [0, number * 1000]
        found.append(gpu.after(10)["railscope_gpu_energy_joules_total"])
    expected = [
        number * 1000 if is_so else Absent.ERROR
        for number, is_so in zip(joules, is_accepted, strict=True)
    ]
    assert found == expected


def test_a_counter_starts_with_the_agent() -> None:
    first = IntegratedGpu().after(1)
    assert first[BUSY] == 0
    assert first[MEMORY] == 0


def test_a_sample_covers_the_time_since_the_previous_one() -> None:
    gpu = IntegratedGpu()
    gpu.after(0)
    gpu.use(100)
    assert gpu.after(1)[BUSY] == NS
    gpu.use(25)
    later = gpu.after(30)
    assert later[BUSY] == NS + 30 * NS // 4
    assert later[MEMORY] == 31 * KIBIBYTES


def test_time_beyond_thirty_seconds_is_not_counted() -> None:
    gpu = IntegratedGpu()
    gpu.after(0)
    counted = gpu.after(1)
    assert gpu.after(30.5)[BUSY] == counted[BUSY]
    assert gpu.after(1)[BUSY] == 2 * NS * 40 // 100


def test_time_of_another_boot_is_not_counted() -> None:
    gpu = IntegratedGpu()
    gpu.after(0)
    counted = gpu.after(1)
    gpu.host.boot_id = "boot-2"
    assert gpu.after(1)[MEMORY] == counted[MEMORY]
    assert gpu.after(1)[MEMORY] == 2 * KIBIBYTES


def test_unreadable_samples_are_neither_reported_nor_counted() -> None:
    gpu = IntegratedGpu()
    gpu.after(0)
    gpu.host.calls[UTILIZATION] = NvmlError(999, "Unknown Error")
    failed = gpu.after(1)
    assert failed[BUSY] is Absent.ERROR
    assert failed[MEMORY] == KIBIBYTES
    gpu.use(50)
    # A sample covers all time since the previous sample.
    assert gpu.after(1)[BUSY] == NS


@pytest.mark.parametrize("wrong", [-1, 101, 2**32 - 1])
def test_an_impossible_utilization_does_not_stay_in_the_counter(wrong: int) -> None:
    gpu = IntegratedGpu()
    gpu.after(0)
    gpu.use(wrong)
    assert gpu.after(1)[BUSY] is Absent.ERROR
    gpu.use(10)
    assert gpu.after(1)[BUSY] == NS // 5


def test_memory_that_only_an_old_driver_reports_has_no_integral() -> None:
    gpu = IntegratedGpu()
    gpu.host.calls[MEMORY_INFO] = {"total": 80 * GIBIBYTE, "used": GIBIBYTE, "free": 0}
    assert gpu.after(1)[MEMORY] is Absent.UNSUPPORTED


def test_counters_continue_after_a_new_probe() -> None:
    source = GpuSource.load()
    gpu = IntegratedGpu(source)
    gpu.after(0)
    assert gpu.after(1)[BUSY] == NS * 40 // 100
    add_gpus(gpu.host, 2)
    gpu.host.calls["nvml.nvmlDeviceGetVbiosVersion(0)"] = "96.00.A5.00.02"
    gpu.reader = SourceReader(source, gpu.host, ORIGIN)
    assert gpu.after(1)[BUSY] == 2 * NS * 40 // 100


def test_a_source_that_is_read_too_rarely_has_no_integrals() -> None:
    assert BUSY in IntegratedGpu(at_period(GpuSource.load(), 30.0)).after(1)
    assert BUSY not in IntegratedGpu(at_period(GpuSource.load(), 30.1)).after(1)


def test_memory_of_each_mig_device_is_counted() -> None:
    gpu = IntegratedGpu(MigSource())
    small, large = cut(gpu.host, 0, ["1g.10gb", "3g.40gb"])
    gpu.reader.run()
    gpu.host.clock.advance(5)
    found = readings(gpu.reader.run().frame)
    for device in (small, large):
        used = found["railscope_mig_memory_used_bytes", ("GPU-0", device)]
        assert isinstance(used, int)
        counted = found["railscope_mig_memory_used_byte_seconds_total", ("GPU-0", device)]
        assert counted == 5 * used // 1024


@given(st.lists(st.tuples(STEPS, PERCENT), max_size=30), st.sampled_from(LOAD_INTEGRALS))
def test_no_rounding_adds_up(steps: list[tuple[int, int]], integrated: IntegratedGauge) -> None:
    integral = Integral(integrated)
    now, counted, exact = 7, integral.take(0, "boot", 7), Fraction()
    weight = integrated.gauge.scale / integrated.counter.scale
    for step, sample in steps:
        now += step
        before, counted = counted, integral.take(sample, "boot", now)
        exact += weight * sample * step / NS
        assert before <= counted <= exact < counted + 1


@given(st.lists(STEPS, min_size=1, max_size=10), st.integers(0, 1 << 50), st.data())
def test_any_split_of_the_same_time_gives_the_same(
    steps: list[int], sample: int, data: st.DataObject
) -> None:
    _, memory = LOAD_INTEGRALS
    whole, split = Integral(memory), Integral(memory)
    instants = [sum(steps[:count]) for count in range(len(steps) + 1)]
    ends = [whole.take(sample, "boot", at) for at in instants]
    between = data.draw(st.lists(st.integers(0, instants[-1])))
    counted = {at: split.take(sample, "boot", at) for at in sorted({*instants, *between})}
    assert [counted[at] for at in instants] == ends


@given(st.lists(st.tuples(st.integers(0, 3 * LONGEST_SAMPLE_NS), PERCENT), max_size=30))
def test_time_without_a_sample_is_not_counted(steps: list[tuple[int, int]]) -> None:
    integral = Integral(LOAD_INTEGRALS[0])
    now = spoken = counted = 0
    integral.take(0, "boot", 0)
    for step, sample in steps:
        now += step
        before, counted = counted, integral.take(sample, "boot", now)
        spoken += step if step <= LONGEST_SAMPLE_NS else 0
        assert before <= counted <= spoken
        if step > LONGEST_SAMPLE_NS:
            assert counted == before


def test_a_clock_that_runs_backwards_takes_nothing_away() -> None:
    integral = Integral(LOAD_INTEGRALS[0])
    assert [integral.take(100, "boot", at * NS) for at in (5, 6, 4, 5)] == [0, NS, NS, 2 * NS]


# Wrong integrals, each of which must be noticed -----------------------------------------------------


class BridgingIntegral(Integral):
    """A sample covers all the time since the previous one, without a limit."""

    def take(self, sample: int, boot_id: str, boot_ns: int) -> int:
        if self._last_ns is not None and boot_ns - self._last_ns > LONGEST_SAMPLE_NS:
            self._last_ns = boot_ns - LONGEST_SAMPLE_NS
        return super().take(sample, boot_id, boot_ns)


class BootBlindIntegral(Integral):
    """A restart of the machine goes unnoticed."""

    def take(self, sample: int, boot_id: str, boot_ns: int) -> int:  # noqa: ARG002 - as the mistake is
        return super().take(sample, "", boot_ns)


class RoundingIntegral(Integral):
    """The remainder below one step is dropped at each sample."""

    def take(self, sample: int, boot_id: str, boot_ns: int) -> int:
        rounded = super().take(sample, boot_id, boot_ns)
        self._sum = rounded * self._step.denominator // self._step.numerator
        return rounded


class DelayedIntegral(Integral):
    """A sample covers the time that follows it."""

    _before = 0

    def take(self, sample: int, boot_id: str, boot_ns: int) -> int:
        integral = super().take(self._before, boot_id, boot_ns)
        self._before = sample
        return integral


SAMPLES = st.lists(
    st.tuples(st.integers(1, 2 * LONGEST_SAMPLE_NS), PERCENT, st.integers(0, 9).map(bool)),
    max_size=20,
)


def holds(kind: type[Integral]) -> Callable[[], None]:
    """Property of an integral: the sum of samples times their durations, rounded down once."""

    @given(SAMPLES, st.sampled_from(LOAD_INTEGRALS))
    def attempt(samples: list[tuple[int, int, bool]], integrated: IntegratedGauge) -> None:
        integral = kind(integrated)
        weight = integrated.gauge.scale / integrated.counter.scale
        now, boot, exact = 7, 0, Fraction()
        integral.take(0, "0", now)
        for step, sample, same_boot in samples:
            now, boot = now + step, boot + (not same_boot)
            if same_boot and step <= LONGEST_SAMPLE_NS:
                exact += weight * sample * step / NS
            assert integral.take(sample, str(boot), now) == exact // 1

    return attempt


def test_an_integral_is_samples_times_time() -> None:
    holds(Integral)()


@pytest.mark.parametrize(
    "wrong", [BridgingIntegral, BootBlindIntegral, RoundingIntegral, DelayedIntegral]
)
def test_a_wrong_integral_is_detected(wrong: type[Integral]) -> None:
    search = settings(max_examples=300, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        search(holds(wrong))()
