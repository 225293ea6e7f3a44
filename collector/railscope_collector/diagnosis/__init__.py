"""Diagnosis: cause, victims and evidence of each fault, from the readings of all nodes on one clock."""
