"""Benchmarks: ratios that are measured side by side in one run, and the figures behind them."""
