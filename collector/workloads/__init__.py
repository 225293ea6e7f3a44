"""Current jobs: the GPUs that they hold, and the readings of those.

  holding   holders of the parts of a GPU at a time
  roster    the jobs of all GPUs, updated GPU by GPU
  seating   the GPU and the job of each column of the fleet
  gathered  readings of jobs' GPUs, as arrays
  averages  means over the last minute of the measures that GPUs are compared by
  straggler the GPU of each job that is furthest behind
  view      the result as a view, and as JSON

Job lists of schedulers, which describe the past, are in `collector.jobs`.
"""
