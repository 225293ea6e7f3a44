"""Thresholds of the diagnosis: settings of the collector, and of `railscope diagnose`.

Most of them multiply or exceed a value of peers or of the device's own past, so sites rarely need to change them. A share of
time is 0 to 1; a load is a share of the line rate. docs/configuration.md lists them with their defaults.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Factor: TypeAlias = Annotated[float, Meta(ge=1, le=1000)]
Amount: TypeAlias = Annotated[float, Meta(ge=0)]


class NetworkThresholds(Struct, frozen=True, kw_only=True):
    """NICs: pause, marks, notifications, retransmissions."""

    min_load: Share = 0.005
    """Load above which a NIC is in use."""
    min_pausing: Share = 0.003
    """Share of time in which a NIC pauses its switch port, beyond that of its peers and of its past: above it, it is a slow
    receiver.
    """
    pausing_factor: Factor = 6.0
    """A slow receiver pauses this many times its own past."""
    pausing_deviations: Amount = 6.0
    """A slow receiver differs from the median of its peers by this many standard deviations."""
    storm_pausing: Share = 0.5
    """Share of time in which a NIC in a PFC storm pauses its switch port."""
    storm_receive: Share = 0.03
    """Load below which such a NIC receives nothing."""
    storm_receive_share: Share = 0.2
    """Share of what a NIC received before, above which it is not stopped: a job with little exchange receives little."""
    min_stall: Share = 0.1
    """Share of time in which PCIe stalls writes of a slow receiver: above it, PCIe is the cause."""
    min_discards: Amount = 0.5
    """Packets per second that a slow receiver discards: above it, PCIe is the cause."""
    socket_share: Share = 0.7
    """Share of the NICs of the same sockets that must be slow receivers for the node to be the cause."""
    min_incast_marked: Share = 0.004
    """Share of marked packets above which a receiver may have an incast."""
    min_incast_receive: Share = 0.02
    """Load above which a receiver may have an incast."""
    incast_receive_factor: Factor = 1.25
    """A receiver of an incast receives this many times what its peers do."""
    incast_variation_factor: Factor = 2.0
    """The past of a receiver counts with this many times its usual variation in addition."""
    continuous_load: Share = 0.2
    """Load from which on ranks exchange most of the time: with less, samples of some NICs contain more exchanges by chance."""
    min_training_exchange: Share = 0.7
    """Share of its past that a job exchanges at least while it trains: in other phases, some of its NICs receive for the others."""
    incast_marks_factor: Factor = 4.0
    """A receiver of an incast has this many times the marks of its peers."""
    line_receive: Share = 0.8
    """Load at which the link of a receiver is full."""
    min_paused_peers: Share = 0.25
    """Share of NICs below a leaf that an incast must pause to have victims."""
    min_marks: Amount = 1.0
    """Marked packets per second above which a NIC must send congestion notifications."""
    min_ignored: Amount = 10.0
    """Congestion notifications per second that a NIC ignores."""
    min_ignored_share: Share = 0.05
    """Share of the notifications that a NIC ignores."""
    min_unprotected: Share = 0.05
    """Share of RDMA traffic outside the lossless priorities."""
    min_unprotected_send: Share = 0.005
    """Load above which a NIC sends enough for such traffic to count."""
    max_unprotected_nics: Share = 0.6
    """Share of NICs with such traffic above which the site has no lossless priorities."""
    node_share: Share = 0.7
    """Share of a node's NICs in use that have a fault: from it on, the node is the cause."""
    min_retries: Amount = 5.0
    """Adaptive retransmissions per second."""
    min_timeouts: Amount = 0.1
    """Acknowledgement timeouts per second of a NIC beyond which it retransmits."""
    retry_factor: Factor = 8.0
    """A retransmitting NIC has this many times the retransmissions of its peers and its past."""
    min_paused: Share = 0.01
    """Share of time in which a victim is paused."""
    paused_factor: Factor = 2.0
    """A victim is paused this many times its own past, beyond `min_paused`."""
    max_victim_pausing: Share = 0.1
    """Time in which a victim pauses its switch port, relative to the time in which it is paused."""


class LeafThresholds(Struct, frozen=True, kw_only=True):
    """Leaf switches and uplinks."""

    min_pause_frames: Amount = 20.0
    """Pause frames per second and NIC below a leaf whose ECN may be inactive."""
    pause_factor: Factor = 8.0
    """Such a leaf has this many times the pause frames of the other leaves and of its past."""
    min_marks: Amount = 2.0
    """Marks per second of each NIC; with more than this usually, none in half a minute shows a changed setting."""
    usual_load: Share = 0.5
    """Share of the usual load from which on marks must not end."""
    min_out_of_order: Amount = 0.2
    """Packets out of order per second and NIC."""
    min_timeouts: Amount = 0.02
    """Acknowledgement timeouts per second and NIC: above it, the fabric loses packets."""
    min_losses: Amount = 0.2
    """Lost packets per second of a NIC."""
    loss_factor: Factor = 4.0
    """A leaf that loses packets has this many times the losses of the others and of its past."""
    loss_share: Share = 0.3
    """Share of the NICs in use below a leaf that lose packets if the leaf does."""
    joined_losses: Share = 0.5
    """Minimum ratio of a leaf's losses to those of another leaf with the same jobs on the same rail. Below it, they are
    attributed to the traffic with that leaf.
    """
    min_reported: Share = 0.1
    """Packets that receivers reported missing, relative to those out of order; spraying reorders without a loss."""
    sender_share: Share = 0.8
    """Share of the missing packets of one sender beyond which those of the others are the few that healthy links lose."""
    uplink_speed: Share = 0.95
    """Speed relative to its past below which a job that spans pods is slower."""


class LinkThresholds(Struct, frozen=True, kw_only=True):
    """Links of NICs."""

    min_bit_errors: Amount = 1e-6
    """Bit error rate before correction from which on a transceiver may be degraded."""
    certain_bit_errors: Amount = 1e-5
    """Bit error rate from which on it is degraded, whatever its peers have."""
    critical_bit_errors: Amount = 1e-4
    """Bit error rate from which on an incident is critical."""
    bit_error_factor: Factor = 30.0
    """A degraded transceiver has this many times the bit errors of its peers and its past."""
    certain_factor: Factor = 3.0
    """As `bit_error_factor`, with a rate of at least `certain_bit_errors`."""
    critical_uncorrected: Amount = 0.05
    """Uncorrected symbol errors per second from which on an incident is critical."""
    low_speed: Share = 0.9
    """Share of the usual speed below which a link is slow."""
    leaf_share: Share = 0.7
    """Share of the NICs below a leaf that are down if the leaf itself is."""
    reload_share: Share = 0.7
    """Share of a node's NICs; if as many flap at once, the driver was loaded again or the node restarted."""
    min_naks: Amount = 0.3
    """Negative acknowledgements per second that a sender with transmit errors receives."""
    naks_factor: Factor = 4.0
    """Such a sender receives this many times those of its past."""
    strong_loss_factor: Factor = 5.0
    """Losses relative to their limit below which one burst may cause them: then, more evaluations must show them."""
    min_out_of_order: Amount = 0.1
    """Packets out of order per second at another NIC below the leaf that show the losses of such a sender."""


class GpuThresholds(Struct, frozen=True, kw_only=True):
    """GPUs."""

    min_limited: Share = 0.4
    """Share of time in which heat or hardware limits the clock."""
    min_hot_share: Share = 0.5
    """Share of the GPUs of a node from which on their heat has a common cause."""
    slow_clock: Share = 0.95
    """Share of the clock of its peers below which a GPU is slow."""
    min_clock_use: Share = 0.3
    """Utilization above which the clock of a GPU counts for its model."""
    unexplained_clock: Share = 0.9
    """Share of its usual clock below which a GPU that reports no reason is slow: GPUs of one model differ by less under the same limit of power."""
    min_generation_use: Share = 0.1
    """Utilization above which the generation of the PCIe link of a GPU counts."""
    straggler_deviations: Amount = 4.0
    """Activity of a straggler, beyond that of its peers, in standard deviations."""
    min_excess: Share = 0.04
    """Activity of a straggler, beyond that of its peers, both relative to their past."""
    unknown_excess: Share = 0.1
    """Excess that may be usual for a job whose past is too short to show it."""
    min_explained_activity: Share = 0.5
    """Share of the fall of its peers' activity that a straggler leaves out, as it works while they wait."""
    min_explained_power: Share = 0.33
    """As `min_explained_activity`, for power: a GPU that does less draws less."""
    max_peer_change: Share = 0.98
    """Activity, or else power, of the usual GPU of a job relative to its past: that of the peers of a straggler falls."""
    max_stragglers: Share = 0.25
    """Share of the GPUs of a job that may be stragglers at once."""
    max_straggling_nodes: Share = 0.25
    """Share of the nodes of a job that may have a straggler at once: what one rank of each node does alone is by design."""
    min_slowed_use: Share = 0.9
    """Utilization, relative to its past, of a job that a straggler slows: its GPUs run as long as before."""
    max_slowed_change: Share = 0.985
    """Activity, or else power, of such a job relative to its past: its GPUs do less."""
    min_slowed_speed: Share = 0.1
    """Speed of such a job relative to its past: with less, it waits for something else than slow steps."""
    max_slowed_speed: Share = 0.985
    """Speed of such a job relative to its past, beyond the noise of a minute."""


class StepThresholds(Struct, frozen=True, kw_only=True):
    """Steps of jobs, by which training differs from services and from other phases."""

    max_step_spread: Share = 0.06
    """Standard deviation of the change of the exchange between the nodes of a job, relative to its mean, below which they take common steps."""
    max_gap_spread: Share = 0.03
    """Spread of the utilization of nearly all ranks, relative to it, up to which their gaps are equal by their cause."""
    max_use_with_gaps: Share = 0.9
    """Utilization relative to its past below which ranks may have such gaps."""
    min_busy_use: Share = 0.9
    """Utilization above which a rank works or spins, absolute or relative to its past or to that of its peers."""
    max_loss_factor: Factor = 3.0
    """Loss of speed, relative to the gaps in the work of a rank, beyond which they do not explain it: a step takes longer by its gap."""
    loss_noise: Share = 0.1
    """Loss of speed that noise may add to this."""
    uneven_factor: Factor = 2.0
    """Maximum ratio of the exchange relative to the past over NICs and over NVLink, or in two halves of a window, in equal steps."""
    min_progress: Share = 0.12
    """Exchange relative to the past, below which no steps end."""
    max_serving_use: Share = 0.95
    """Usual utilization below which a job may be a service: its GPUs wait for requests, and the ranks of training spin."""
    max_serving_send: Share = 0.1
    """Load below which the NICs of a job may be those of a service, whose nodes exchange little."""
    max_busy_serving_use: Share = 0.98
    """As `max_serving_use`, for a job whose load varies: a service may be nearly as busy as training."""
    max_serving_steadiness: Share = 0.985
    """Low utilization relative to high utilization of GPUs below which the load of a job varies as that of such a service."""
    max_varying_steadiness: Share = 0.9
    """As `max_serving_steadiness`, below which a job may be a service, however busy: checkpoints vary it far less."""


class JobThresholds(Struct, frozen=True, kw_only=True):
    """Jobs, their hosts and their storage."""

    slow_speed: Share = 0.93
    """Speed relative to its past below which a job is slow."""
    slow_variation_factor: Factor = 2.0
    """A slow job has lost this many times its usual variation of speed."""
    max_losing_speed: Share = 0.95
    """Speed relative to its past below which a job loses time: beyond the noise of a minute."""
    more_work_factor: Factor = 1.05
    """A job whose GPUs have more than this many times their past activity, or else power, does other work and is not slow."""
    idle_use: Share = 0.02
    """Utilization of GPUs without work: kernels that wait for other ranks keep them busy."""
    stalled_speed: Share = 0.1
    """Exchange relative to the past, below which a job makes no progress."""
    min_waiting_use: Share = 0.7
    """Utilization above which the ranks of such a job wait for others: those of one that has ended are idle."""
    majority: Share = 0.6
    """Share of clients or ranks that must be affected alike."""
    steady: Share = 0.8
    """Low utilization relative to high utilization of GPUs from which on a job is steady."""
    min_training_use: Share = 0.8
    """Utilization of a job that trains, in most minutes: that of a service, or of alternating phases, varies."""
    min_spinning_use: Share = 0.92
    """Utilization of ranks that spin while they wait for others: their gaps count although they are small, unlike those of a service with less load."""
    min_input: Share = 0.15
    """Utilization relative to its past below which a job is idle rather than without input."""
    max_input: Share = 0.78
    """Utilization relative to its past above which a job has its input."""
    max_small_input: Share = 0.88
    """As `max_input`, for jobs that slow down as much as their gaps explain: other phases exchange far less, or as before."""
    min_gap_speed: Share = 0.75
    """Speed of such a job relative to its utilization, both relative to their past."""
    max_long_step_use: Share = 0.7
    """Utilization relative to its past below which minutes show the gaps of long steps: a single evaluation suffices."""
    max_starved_speed: Share = 0.95
    """Speed relative to its past below which a job may wait for its input."""
    progress_share: Share = 0.5
    """Exchange of a job that waits for its input, relative to its utilization, both relative to their past: starved steps still end."""
    min_starved_loss: Share = 0.25
    """Loss of exchange of such a job, relative to the loss of its utilization: with less, it makes as much progress as before."""
    max_rank_deviation: Share = 0.12
    """Difference of the utilization of a rank, relative to its past, from the usual one of its job, up to which it waits alike."""
    alike_share: Share = 0.9
    """Share of the ranks of a job that must wait alike."""
    min_gap: Share = 0.035
    """Utilization of a late host below that of the other nodes of its job."""
    pressed_gap_share: Share = 0.5
    """Share of `min_gap` that suffices for a node with tasks that wait for processors."""
    gap_factor: Factor = 1.5
    """A late host has this many times its usual variation below its usual utilization."""
    other_gap_factor: Factor = 3.0
    """A late host has this many times the gap of any other node of its job."""
    min_gap_loss: Share = 0.5
    """Loss of speed of a job relative to the gap of its late host: all ranks wait for it."""
    min_others_use: Share = 0.8
    """Utilization of the other nodes of a job, usual or of a moment, above which they show that one node is late."""
    min_late_use: Share = 0.05
    """Utilization above which a late host still works."""
    min_late_speed: Share = 0.3
    """Speed of a job relative to its past below which it takes no steps, and its nodes may do different work."""
    late_share: Share = 0.8
    """Share of the readings of a minute that must show a late host."""
    late_alone_share: Share = 0.6
    """As `late_share`, while no other node of the job has a gap: some readings miss the gap of a long step."""
    late_deviations: Amount = 4.0
    """Utilization of a late host below that of the other nodes, in standard errors."""
    min_pressure: Share = 0.05
    """CPU pressure of a late host of two."""
    pressure_factor: Factor = 2.0
    """A late host has this many times its usual CPU pressure, beyond `min_pressure`."""
    other_pressure_factor: Factor = 2.0
    """A late host has this many times the CPU pressure of the other nodes of its job: what all have delays none alone."""
    hung_activity: Share = 0.3
    """Activity of spinning GPUs of a job that hangs."""
    hung_activity_change: Share = 0.7
    """Activity relative to its past below which all ranks of a job may hang, and above which one works while the others wait."""
    hung_power_change: Share = 0.55
    """Power relative to its past below which a spinning GPU without a measure of activity does no work."""
    working_power_change: Share = 0.75
    """Power relative to its past above which such a GPU works while the others wait."""
    max_unlaunched_use: Share = 0.05
    """Utilization below which no work was launched on a rank of a job that hangs."""
    hung_exchange: Share = 0.002
    """Load of the NICs of a job below which nothing moves."""
    hung_nvlink_bytes_per_second: Amount = 1e9
    """Bytes per second over NVLink of each GPU below which nothing moves."""
    wait_factor: Factor = 1.5
    """A hang lasts this many times the longest wait that ended."""


class NodeThresholds(Struct, frozen=True, kw_only=True):
    """Nodes that do not report, and their clocks."""

    max_missed_receipts: Annotated[float, Meta(ge=1)] = 3.0
    """Frames of a node that may be missing."""
    min_stale_seconds: Annotated[float, Meta(gt=0)] = 15.0
    """Seconds without frames after which a node may be stale."""
    max_restart_seconds: Annotated[float, Meta(ge=0)] = 90.0
    """Seconds without frames that a restart of the agent may explain: a separated node is reported as `info` until then."""
    max_stale_nodes: Share = 0.5
    """Share of the nodes that may be stale at once, if they are several: of more, none is reported."""
    min_exchange: Share = 0.001
    """Load below which the NICs of a job, or of a node, exchange nothing."""
    working_speed: Share = 0.3
    """Exchange relative to the past, above which a job works while its window may contain the last moments of a stale node."""
    max_clock_offset_seconds: Annotated[float, Meta(gt=0)] = 0.05
    """Difference of a node's clock from that of the others."""
    critical_clock_offset_seconds: Annotated[float, Meta(gt=0)] = 2.0
    """Difference from which on an incident is critical."""
    delay_factor: Factor = 3.0
    """A wrong clock differs by this many times the variation of the delays in addition: few receipts show a part of them only."""


class AdviceThresholds(Struct, frozen=True, kw_only=True):
    """Advice about settings, rails and placement."""

    majority: Share = 0.75
    """Share of peers with the same setting from which on another one is a drift."""
    rollout_seconds: Annotated[float, Meta(gt=0)] = 1800.0
    """Time in which several nodes that change a setting are a rollout."""
    rollout_nodes: Annotated[int, Meta(ge=2)] = 2
    """Number of these nodes."""
    min_late_paused: Share = 0.001
    """Share of time in which senders are paused before any packet is marked."""
    certain_late_paused: Share = 0.01
    """As `min_late_paused`, without other rails to compare with."""
    min_late_nics: Share = 0.65
    """Share of a leaf's NICs that must be paused: pause of fewer may be due to a receiver without an agent."""
    paused_per_marked: Factor = 3.0
    """Share of pause relative to the highest share of marks from which on ECN acts too late."""
    late_factor: Factor = 8.0
    """Such a rail is paused this many times as long as the others."""
    max_rail_ratio: Factor = 1.3
    """Load of a rail relative to the median rail above which it is unequal."""
    min_rail_ratio: Share = 0.7
    """Load of a rail relative to the median rail below which it is unequal."""
    agreeing_nodes: Share = 0.7
    """Share of a job's nodes that must show the same unequal rail."""
    min_placed_paused: Share = 0.002
    """Share of time in which a job that spans pods is paused."""
    min_placed_marked: Share = 0.01
    """Share of marked packets of a job that spans pods."""
    placed_factor: Factor = 4.0
    """Such a job has this many times the pause, or the marks, of jobs in one pod."""


class DetectorThresholds(Struct, frozen=True, kw_only=True):
    """Thresholds of all detectors."""

    network: NetworkThresholds = NetworkThresholds()
    leaves: LeafThresholds = LeafThresholds()
    links: LinkThresholds = LinkThresholds()
    gpus: GpuThresholds = GpuThresholds()
    steps: StepThresholds = StepThresholds()
    jobs: JobThresholds = JobThresholds()
    nodes: NodeThresholds = NodeThresholds()
    advice: AdviceThresholds = AdviceThresholds()
