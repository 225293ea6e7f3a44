"""Subcommands of `railscope agent`, and `railscope claim`."""
