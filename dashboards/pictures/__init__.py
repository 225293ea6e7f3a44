"""Pictures of the boards, drawn from their JSON and from what a Prometheus answers.

For readers who have no Grafana at hand, and to see what a change of a board does.

    units      numbers as texts
    colours    Grafana's colours by name
    fields     what a number looks like: unit, thresholds, mappings, overrides
    frames     tables of answers, and the transformations of tables
    canvas     boxes, lines and texts on a picture
    shades     small files of few colours
    plot       the axes that curves and bands share
    stats, curves, bands, tables   a kind of panel each
    layout     where everything goes; says what was drawn and what had no data
    site       a small cluster with faults and a Prometheus, to have something to draw

A picture shows what is in the JSON. What this package cannot draw is an error, never a blank.
"""
