"""Pictures of the dashboards, drawn from their JSON and from the answers of a Prometheus.

For readers without a Grafana, and to review the effect of a change to a dashboard.

    units      numbers as texts
    colours    Grafana's colours by name
    fields     the format of a number: unit, thresholds, mappings, overrides
    frames     tables of answers, and the transformations of tables
    canvas     boxes, lines and texts on a picture
    shades     small files of few colours
    plot       the axes that curves and bands share
    stats, curves, bands, tables   one kind of panel each
    layout     positions of all parts; returns the panels with and without data
    site       a small cluster with faults and a Prometheus, as a source of data

A picture shows the content of the JSON. A feature that this package cannot draw is an error, never
a blank.
"""
