"""OTLP: export of the agent's metrics to OpenTelemetry receivers, by HTTP and protobuf.

Protobuf is imported only by an agent that exports.
"""
