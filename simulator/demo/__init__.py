"""The demo: a collector, this machine's own agent and several replayed GPU servers, all real."""
