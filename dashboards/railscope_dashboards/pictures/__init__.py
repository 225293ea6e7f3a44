"""Pictures of the dashboards, drawn from their JSON and from the answers of a Prometheus.

    fields     numbers as texts: unit, thresholds, mappings, overrides
    tables     tables and grids, and the transformations of tables
    drawing    boxes, lines, texts and colours on a picture; small files of few colours
    plot       the axes that curves and bands share
    curves     curves, states, single numbers
    layout     positions of all parts; returns the panels with and without data
    site       a small cluster with faults and a Prometheus, as a source of data

A feature of the JSON that this package cannot draw is an error, never a blank.
"""
