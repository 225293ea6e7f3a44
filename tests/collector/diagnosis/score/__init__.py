"""Score of the diagnosis: random clusters with faults, the incidents that it reports, and the truth.

score_scenarios random scenarios of each class of incidents, and healthy ones
scoring         comparison of a diagnosis with the ground truth
score_table     table of the results
"""
