"""Commands below `railscope agent`, and `railscope claim`."""
