"""Diagnosis of the running collector: `railscope_collector.diagnosis` with frames, files, audit records and events."""
