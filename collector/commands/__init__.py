"""Commands below `railscope collector`, `railscope bill` and `railscope audit`, and `railscope diagnose`."""
