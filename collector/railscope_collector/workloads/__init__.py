"""Current jobs: the GPUs that they hold, and the readings of those.

    job_roster        the jobs of all GPUs, updated GPU by GPU
    job_holdings, pod_jobs   the jobs that hold a GPU at a time; the job of a pod
    fleet_positions   the GPU and job of each column of the fleet
    job_readings, measure_averages   readings of jobs' GPUs, and their means
    job_view          the GPU of each job that is furthest behind; the result as a view, and as JSON

Job lists of schedulers, which describe the past, are in `railscope_collector.jobs`.
"""
