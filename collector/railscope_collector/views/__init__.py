"""Tables computed from the fleet state: roll-ups, and the list of GPUs."""
