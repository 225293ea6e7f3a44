"""Current jobs: the GPUs that they hold, and the readings of those.

    job_roster     holders of the parts of a GPU at a time; the jobs of all GPUs, updated GPU by GPU
    job_readings   the GPU and job of each column of the fleet, readings of jobs' GPUs, and their means
    job_view       the GPU of each job that is furthest behind; the result as a view, and as JSON

Job lists of schedulers, which describe the past, are in `railscope_collector.jobs`.
"""
