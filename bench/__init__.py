"""Benchmarks: ratios measured side by side in one run, and the figures behind them."""
