"""Clusters of many sizes with jobs of many shapes, second by second.

A job is a sequence of steps; each has a gap (input), compute, and exchange. A rank that is done earlier spins until the
others are. Phases interrupt the steps: start, checkpoint, evaluation, rollout, restart. Nothing here is derived from the
thresholds of the diagnosis.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench import drawn_cluster
from railscope_collector.diagnosis.slot_sums import Floats

KINDS = (
    "dense", "sharded", "pipeline", "experts", "reinforcement", "inference", "single", "notebook",
)  # fmt: skip
_PHASE_SECONDS = {"evaluation": (20.0, 600.0), "down": (20.0, 400.0), "start": (20.0, 300.0), "rollout": (40.0, 400.0)}  # fmt: skip
SYNCHRONOUS = frozenset({"dense", "sharded", "pipeline", "experts"})


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


class Drift:
    """Noise that changes slowly: logarithms of factors, with a standard deviation and a time constant."""

    def __init__(
        self, rng: np.random.Generator, shape: tuple[int, ...], deviation: float, seconds: float
    ) -> None:
        self._rng, self._deviation, self._seconds = rng, deviation, seconds
        self._state: Floats = rng.normal(0, deviation, shape)

    def next(self) -> Floats:
        """Return the factors of the next second."""
        noise = self._rng.normal(0, 1, self._state.shape)
        self._state += -self._state / self._seconds + self._deviation * noise * np.sqrt(
            2 / self._seconds
        )
        factors: Floats = np.exp(self._state)
        return factors


@dataclass(slots=True)
class JobReadings:
    """Readings of one second: GPUs (nodes, GPUs), NICs (nodes, rails); storage operations of each node."""

    utilization: Floats
    activity: Floats
    tensor: Floats
    power: Floats
    nvlink: Floats
    send: Floats
    receive: Floats
    cpu: float
    reads: float
    writes: float


@dataclass(slots=True)
class ShapedJob(drawn_cluster.DrawnJob):
    """A job with its shape; `rate` is the share of the line rate while it exchanges."""

    seed: int = 0
    gpus: tuple[int, int] = (0, 8)
    rails: int = 8
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    phase: str = "work"
    phase_seconds: float = 0.0
    claimed: bool = True

    step_seconds: float = 1.0
    step_noise: float = 0.02
    exchange_share: float = 0.2
    gap_share: float = 0.0
    overlaps: bool = False
    checkpoint_period: float = 1800.0
    checkpoint_seconds: float = 30.0
    checkpoint_style: str = "idle"
    evaluation_period: float = 3600.0
    restart_period: float = 20_000.0
    shares: Floats = field(default_factory=lambda: np.ones((1, 1)))
    nic_shares: Floats = field(default_factory=lambda: np.ones((1, 1)))
    watts: float = 600.0
    starved_share: float = 0.0
    """Gap of a step in which ranks wait for input, relative to the step without it."""
    starved_steps: int = 0
    _drift: Drift | None = None
    _nic_drift: Drift | None = None
    _load: Drift | None = None
    _step: list[float] = field(default_factory=list)

    def draw_shape(self) -> None:
        """Draw all parameters."""
        rng = self.rng = np.random.default_rng(self.seed)
        nodes, gpus = len(self.nodes), self.gpus[1] - self.gpus[0]
        self.step_seconds = log_uniform(rng, 0.3, 45)
        self.step_noise = float(rng.choice([0.005, 0.02, 0.08, 0.2]))
        self.exchange_share = float(rng.uniform(0.05, 0.4))
        self.gap_share = float(rng.choice([0.0, 0.0, 0.02, 0.1]))
        self.overlaps = self.kind == "sharded"
        self.checkpoint_period = log_uniform(rng, 300, 5000)
        self.checkpoint_seconds = log_uniform(rng, 4, 120)
        self.checkpoint_style = str(rng.choice(["idle", "spin", "background"]))
        self.evaluation_period = log_uniform(rng, 1000, 10_000)
        self.restart_period = log_uniform(rng, 4000, 40_000)
        self.watts = float(rng.uniform(450, 680))
        uneven = {"pipeline": 0.25, "experts": 0.06}.get(self.kind, 0.01)
        of_node = np.exp(rng.normal(0, uneven, (nodes, 1)))
        shares = of_node * np.exp(rng.normal(0, 0.01, (nodes, gpus)))
        self.shares = shares / shares.max()
        nics = np.exp(
            rng.normal(
                0, 0.3 if self.kind in {"pipeline", "inference"} else 0.03, (nodes, self.rails)
            )
        )
        if self.kind == "pipeline" and self.rails > 1:
            nics[:, rng.integers(3, size=self.rails) == 0] = 0.0
        self.nic_shares = nics / max(float(nics.max()), 0.1)
        if self.kind == "single" or nodes == 1:
            self.nic_shares = np.zeros_like(self.nic_shares)
        deviation = 0.12 if self.kind == "experts" else 0.01
        self._drift = Drift(rng, shares.shape, deviation, log_uniform(rng, 10, 600))
        self._nic_drift = Drift(rng, nics.shape, 2 * deviation, log_uniform(rng, 10, 300))
        self._load = Drift(rng, (nodes, 1), float(rng.uniform(0.3, 1.2)), log_uniform(rng, 20, 900))
        self.phase = str(rng.choice(["work", "work", "work", "start", "checkpoint", "evaluation"]))
        self.phase_seconds = float(rng.uniform(5, 200))

    def next(self) -> JobReadings:
        """Return the readings of the next second."""
        self._advance()
        if self.kind in {"inference", "notebook"}:
            return self._serve()
        if self.phase in {"work", "evaluation"}:
            return self._work()
        if self.phase == "rollout":
            return self._serve()
        return self._pause()

    # Phases ------------------------------------------------------------------------------------

    def _advance(self) -> None:
        if self.hangs:
            self.phase = "work"
            return
        self.phase_seconds -= 1
        if self.phase != "work":
            if self.phase_seconds <= 0:
                after = {"down": "start", "work": "work"}
                self.phase = after.get(self.phase, "work")
                self.phase_seconds = self._length()
                self.claimed = True
            return
        draw = self.rng.random()
        for phase, period in (
            ("checkpoint", self.checkpoint_period),
            ("evaluation", self.evaluation_period),
            ("down", self.restart_period),
            ("rollout", 150.0 if self.kind == "reinforcement" else 1e9),
        ):
            if draw < 1 / period:
                self.phase, self.phase_seconds = phase, 0.0
                self.phase_seconds = self._length()
                # A failed job may keep its nodes until it runs again, or the scheduler may queue it again.
                self.claimed = phase != "down" or self.rng.random() < 0.5  # noqa: PLR2004 - either
                return
            draw -= 1 / period

    def _length(self) -> float:
        low, high = _PHASE_SECONDS.get(self.phase, (1.0, 1.0))
        if self.phase == "checkpoint":
            low, high = 0.6 * self.checkpoint_seconds, 1.6 * self.checkpoint_seconds
        return log_uniform(self.rng, low, high) if high > low else 1e9

    # Readings ----------------------------------------------------------------------------------

    def _work(self) -> JobReadings:
        assert self._drift is not None  # noqa: S101 - drawn
        assert self._nic_drift is not None  # noqa: S101 - drawn
        gap, compute, exchange = self._seconds()
        is_evaluation = self.phase == "evaluation"
        share = np.minimum(self.shares * self._drift.next(), 1.0) * compute
        if self.overlaps:
            share = np.minimum(share + 0.8 * exchange, 1.0)
        level = 0.7 if is_evaluation else 1.0
        waits = np.maximum(1 - gap - share, 0.0)  # spinning
        activity = self.activity * level * share + drawn_cluster.SPIN_ACTIVITY * waits
        watts = (
            self.watts * level * share
            + drawn_cluster.SPIN_WATTS * waits
            + (drawn_cluster.IDLE_WATTS + 40) * gap
        )
        noise = self.rng.lognormal(0, 0.01, activity.shape)
        moved = self.exchange_share / (1 + self.starved_share) if self.overlaps else exchange
        send = self.rate * moved * self.nic_shares * self._nic_drift.next()
        send = send * (0.2 if is_evaluation else 1.0) * self.rng.lognormal(0, 0.02, send.shape)
        shape = activity.shape
        use = (1 - gap) * self.rng.uniform(0.97, 1.0, shape) * (0.9 if is_evaluation else 1.0)
        nvlink = 150e9 * (0.3 * compute + moved) * self.rng.lognormal(0, 0.03, shape)
        return JobReadings(
            use,
            activity * noise,
            0.5 * share * level * noise,
            watts * noise,
            nvlink * (1.0 if shape[1] > 1 else 0.0),
            send,
            np.roll(send, 1, axis=0),
            0.3,
            20.0,
            0.5,
        )

    def _seconds(self) -> tuple[float, float, float]:
        """Return the shares of gap, compute and exchange of the next second."""
        left, found = 1.0, [0.0, 0.0, 0.0]
        while left > 1e-6:  # noqa: PLR2004 - rounding
            if not self._step:
                step = self.step_seconds * float(self.rng.lognormal(0, self.step_noise))
                gap, moved = self.gap_share * step, self.exchange_share * step
                starved = self.starved_share * step
                self.starved_steps += starved > 0 and self.phase == "work"
                self._step = [gap + starved, step - gap - moved, moved]
            number = 3 - len(self._step)
            used = min(left, self._step[0])
            found[number] += used
            self._step[0] -= used
            left -= used
            if self._step[0] <= 1e-9:  # noqa: PLR2004 - rounding
                self._step.pop(0)
        return found[0], found[1], found[2]

    def _serve(self) -> JobReadings:
        assert self._load is not None  # noqa: S101 - drawn
        load = np.minimum(0.35 * self._load.next(), 1.0)
        if self.kind == "notebook":
            load = load * (self.rng.random(load.shape) < 0.1)  # noqa: PLR2004 - used now and then
        if self.phase == "rollout":
            load = np.minimum(load + 0.5, 1.0)
        shape = len(self.nodes), self.gpus[1] - self.gpus[0]
        share = load * self.rng.uniform(0.9, 1.0, shape)
        send = 0.06 * load * self.nic_shares * (self.rng.random() < 0.7)  # noqa: PLR2004 - transfers of caches
        return JobReadings(
            np.minimum(share * 1.2, 1.0),
            0.3 * share,
            0.12 * share,
            drawn_cluster.IDLE_WATTS + 300 * share,
            20e9 * share,
            send,
            np.roll(send, 1, axis=0),
            0.2,
            2.0,
            0.1,
        )

    def _pause(self) -> JobReadings:
        """Return the readings of a start, a checkpoint or a restart."""
        shape = len(self.nodes), self.gpus[1] - self.gpus[0]
        zeros, nics = np.zeros(shape), np.zeros((len(self.nodes), self.rails))
        if self.phase == "checkpoint" and self.checkpoint_style == "background":
            readings = self._work()
            readings.writes, readings.cpu = 80.0, 0.5
            return readings
        spins = self.phase == "checkpoint" and self.checkpoint_style == "spin"
        writes = 200.0 if self.phase == "checkpoint" else 0.1
        reads = 400.0 if self.phase == "start" else 1.0
        use = np.ones(shape) if spins else zeros + (0.1 if self.phase == "start" else 0.02)
        watts = drawn_cluster.SPIN_WATTS * 0.8 if spins else drawn_cluster.IDLE_WATTS + 40
        return JobReadings(
            use,
            use * drawn_cluster.SPIN_ACTIVITY,
            zeros,
            np.full(shape, watts),
            zeros,
            nics + 1e-5,
            nics + 1e-5,
            0.15,
            reads,
            writes,
        )


MIN_BUSY = 0.05
NIC_LACKS: dict[str, tuple[str, ...]] = {
    "mlx5": (),
    "mlx5 virtual function": ("paus", "storm", "marked", "notifications", "slow_restart", "corrected", "uncorrected", "line_bytes", "write_stalled", "discarded", "priority", "expected", "pcie"),
    "bnxt": ("pausing_seconds", "paused_seconds", "write_stalled", "storm", "corrected", "line_bytes", "adaptive", "roce_received_packets", "ignored", "pcie"),
    "irdma": ("pausing_seconds", "paused_seconds", "write_stalled", "storm", "corrected", "line_bytes", "uncorrected", "adaptive", "rdma_", "roce_received_packets", "ignored", "slow_restart"),
    "ena": ("paus", "storm", "marked", "notifications", "slow_restart", "corrected", "uncorrected", "line_bytes", "write_stalled", "discarded", "priority", "rdma_", "roce_", "out_of", "ack", "naks", "expected", "pcie"),
}  # fmt: skip
"""Quantities that kinds of adapters lack, by the beginning of their names."""

GPU_LACKS: dict[str, tuple[str, ...]] = {
    "all": (),
    "no activity": ("sm_activity", "tensor_activity"),
    "few": ("sm_activity", "tensor_activity", "energy", "nvlink"),
}


class ShapedCluster(drawn_cluster.DrawnCluster):
    """A cluster with jobs of drawn shapes; `draw` returns the readings of the next second."""

    def __init__(self, seed: int, *, fault: bool = False) -> None:
        rng = np.random.default_rng([seed, 7])
        pods, of_pod = int(rng.choice([1, 1, 2, 3])), int(rng.choice([3, 4, 6, 8, 12, 20]))
        if fault:
            of_pod = max(of_pod, 4)
        super().__init__(seed, pods, of_pod, benign=False)
        self.rails = int(rng.choice([8, 8, 4, 2, 1]))
        self.gpus = int(rng.choice([8, 8, 4]))
        self.fabric = str(rng.choice(["rails", "rails", "unknown", "racks"]))
        self.nic_kind = str(rng.choice(list(NIC_LACKS), p=[0.6, 0.1, 0.1, 0.1, 0.1]))
        self.gpu_kind = str(rng.choice(list(GPU_LACKS), p=[0.5, 0.3, 0.2]))
        self.has_claims = bool(rng.integers(7))
        self.has_mounts = bool(rng.integers(3))
        self.has_arrivals = bool(rng.integers(3))
        if fault:
            self.rails, self.gpus = drawn_cluster.RAILS, drawn_cluster.GPUS
            self.fabric, self.nic_kind = "rails", "mlx5"
            self.has_claims = self.has_arrivals = self.has_mounts = True
        self.shaped_jobs = self._shaped_jobs(rng, fault=fault)
        self.jobs: list[drawn_cluster.DrawnJob] = [*self.shaped_jobs]
        self.latency_seconds = log_uniform(rng, 3e-4, 8e-3)
        shape = self.nodes, drawn_cluster.RAILS
        self.levels = {
            "pausing": log_uniform(rng, 1e-7, 5e-4) * np.exp(rng.normal(0, 0.7, shape)),
            "paused": log_uniform(rng, 1e-6, 5e-3) * np.exp(rng.normal(0, 0.7, shape)),
            "marked": log_uniform(rng, 1e-5, 5e-3) * np.exp(rng.normal(0, 0.5, shape)),
            "naks": log_uniform(rng, 1e-5, 0.05) * np.exp(rng.normal(0, 0.7, shape)),
        }
        self.drifts = {
            name: Drift(rng, shape, 0.6, log_uniform(rng, 10, 300)) for name in self.levels
        }
        self.clocks = np.exp(
            rng.normal(0, float(rng.uniform(0.002, 0.03)), (self.nodes, drawn_cluster.GPUS))
        )
        self.storage_load = Drift(rng, (1,), 0.4, log_uniform(rng, 20, 300))
        self.latency_drift = Drift(rng, (self.nodes,), 0.25, 10.0)
        self.offset_seconds = rng.normal(0, float(rng.choice([3e-4, 3e-3, 8e-3])), self.nodes)
        self.claims: list[tuple[ShapedJob, bool]] = []
        self._claimed: dict[str, bool] = {}
        self._storage_slow_until = 0

    def _shaped_jobs(self, rng: np.random.Generator, *, fault: bool) -> list[ShapedJob]:
        free, found = list(range(self.nodes)), list[ShapedJob]()
        if not fault:
            rng.shuffle(free)
        while free:
            kind = str(rng.choice(KINDS))
            size = int(min(len(free), rng.choice([1, 2, 3, 4, 6, 8, 16, 32])))
            if fault and not found:
                kind = str(rng.choice(sorted(SYNCHRONOUS)))
                size = max(3, self.nodes * 2 // 3)
            if kind in {"single", "notebook"}:
                size = 1
            members, free = sorted(free[:size]), free[size:]
            if not rng.integers(10) and found:
                continue  # nodes without a job
            parts = [(0, self.gpus)]
            if size == 1 and not rng.integers(3):
                half = self.gpus // 2
                parts = [(0, half), (half, self.gpus)]
            for gpus in parts:
                share, exchange = float(rng.uniform(0.3, 0.95)), float(rng.uniform(0.35, 0.85))
                name, seed = f"{100 + len(found)}", int(rng.integers(1 << 30))
                job = ShapedJob(members, name, share, exchange, kind, seed, gpus, self.rails)
                job.draw_shape()
                if fault and not found:
                    job.phase, job.restart_period = "work", 1e9
                found.append(job)
        return found

    def job_of(self, node: int) -> ShapedJob | None:
        """Return the job of a node."""
        return next((job for job in self.shaped_jobs if node in job.nodes), None)

    def used_rails(self, node: int) -> list[int]:
        """Return the rails on which the job of a node exchanges data; all for a job that uses none."""
        job = self.job_of(node)
        used = [] if job is None else np.flatnonzero(job.nic_shares[job.nodes.index(node)]).tolist()
        return used or super().used_rails(node)

    def draw(self) -> drawn_cluster.Row:
        """Return the readings of the next second."""
        jobs, self.jobs = self.jobs, []
        row = super().draw()
        self.jobs = jobs
        row.mount |= {"writes": np.full(self.nodes, 0.1), "write_latency": np.zeros(self.nodes)}
        row.mount["operations"] = np.full(self.nodes, 1.0)
        row.node["io"] = np.abs(self.rng.normal(0, 0.01, self.nodes))
        for job in self.shaped_jobs:
            self._add_job(row, job)
        nic = row.nic
        load = np.fmax(nic["send"], nic["receive"])
        factors = {
            name: self.levels[name] * drift.next() * load for name, drift in self.drifts.items()
        }
        nic["marked"] = np.minimum(factors["marked"], 0.3)
        nic["pausing"], nic["paused"] = factors["pausing"], factors["paused"]
        nic["naks"] = nic["order"] = factors["naks"]
        nic["reacts"] = 0.8 * nic["marked"] * nic["send"] * drawn_cluster.LINE_BYTES / 4096
        self._add_storage(row)
        self._move_claims()
        return row

    def _add_job(self, row: drawn_cluster.Row, job: ShapedJob) -> None:
        readings, (first, last) = job.next(), job.gpus
        if job.phase == "down":
            return
        members, gpus = np.array(job.nodes), slice(first, last)
        for name in ("utilization", "activity", "tensor", "power", "nvlink"):
            row.gpu[name][members, gpus] = getattr(readings, name)
        busy = readings.utilization > MIN_BUSY
        row.gpu["clock"][members, gpus] = np.where(busy, 1700e6, 600e6) * self.clocks[members, gpus]
        row.gpu["temperature"][members, gpus] = 35 + 0.05 * readings.power
        for name, values in (("send", readings.send), ("receive", readings.receive)):
            row.nic[name][members, : self.rails] += values
        row.node["cpu"][members] = np.minimum(row.node["cpu"][members] + readings.cpu, 0.95)
        row.node["pressure"][members] = np.abs(self.rng.normal(0, 0.01, len(members)))
        writers = members[:1] if job.checkpoint_style == "spin" else members
        if job.phase in {"checkpoint", "start"}:
            row.node["io"][writers] = self.rng.uniform(0.1, 0.5, len(writers))
        row.mount["operations"][members] += readings.reads
        row.mount["writes"][writers] += readings.writes

    def _add_storage(self, row: drawn_cluster.Row) -> None:
        """Set the latency: it rises with the load of all clients, and with background work of the server."""
        operations = row.mount["operations"] + row.mount["writes"]
        load = operations.sum() / (200.0 * self.nodes)
        if self.slot >= self._storage_slow_until and self.rng.random() < 1 / 4000:
            self._storage_slow_until = self.slot + int(self.rng.uniform(10, 600))
        background = 3.0 if self.slot < self._storage_slow_until else 1.0
        factor = float(self.storage_load.next()[0]) * (1 + 4 * load) * background
        of_node = 1 + operations / 100
        row.mount["latency"] = (
            self.latency_seconds * factor * np.sqrt(of_node) * self.latency_drift.next()
        )
        row.mount["write_latency"] = 3 * row.mount["latency"]

    def _move_claims(self) -> None:
        self.claims.clear()
        for job in self.shaped_jobs:
            if self._claimed.get(job.name, False) != job.claimed:
                self._claimed[job.name] = job.claimed
                self.claims.append((job, job.claimed))
