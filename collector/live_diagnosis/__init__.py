"""Diagnosis of the running collector: `collector.diagnosis` with frames, files, audit records and events."""
