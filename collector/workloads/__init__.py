"""Jobs as they are now: what holds which GPUs, and what those do.

    holding   who holds which part of a GPU at an instant
    roster    the jobs of all GPUs, kept up to date GPU by GPU
    columns   which columns of a schema are told of jobs, and of which GPU or rail each is
    seating   which GPU of which job each column of the fleet is of
    gathered  what was read of them, as arrays
    averages  means over the last minute of what GPUs are compared by
    straggler the GPU of each job that is furthest behind
    view      all of it as a view, and as JSON
    api       what readers are told

Books of schedulers, which are of the past, are in `collector.jobs`.
"""
