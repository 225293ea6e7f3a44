"""Simulated cluster: nodes, jobs and a fabric from one physical model, with faults and their ground truth.

scenario        scenario files: cluster, jobs and faults
topology        nodes, pods, leaf switches; the flows of collectives between them
flow_rates      rates of all flows; queues, congestion marks and pause that result from them
job_model       iterations of jobs: compute, exchange, checkpoints, input
cluster_model   all of them advance together, with the nodes (`railscope_simulator.node_model`)
collectives     progress of collectives: which ranks launched and ended them, and when
collective_records  records that they leave on nodes: logs, dumps, answers
arrivals        heartbeats of the nodes, as the collector receives them
captures        a capture per node
ground_truth    what a diagnosis should conclude
"""
