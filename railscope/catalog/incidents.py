"""Incidents that the diagnosis of the collector found, and the diagnosis itself.

Incidents that another one explains have no metrics; the API lists them.
"""

# fmt: off
from railscope.catalog import declare, entities
from railscope.catalog.collector import START

_DIAGNOSIS = declare.MetricTable(entities.CLUSTER, resets=START, detail=declare.BASIC)
FIRST_START = "Counts from the first start of the collector."

INCIDENTS = _DIAGNOSIS.gauge("railscope_incidents", "Open incidents that no other one explains, by class and severity; no series while there are none.", "diagnosis", about=entities.INCIDENT_CLASS)
ONSET = _DIAGNOSIS.gauge("railscope_incident_onset_timestamp_seconds", "Onset of an open incident that no other one explains, with its cause in the labels; of the 500 most severe and oldest.", "diagnosis", about=entities.INCIDENT)
TITLE = _DIAGNOSIS.gauge("railscope_incident_title", "1 for each incident of railscope_incident_onset_timestamp_seconds, with its title and action as labels for the texts of alerts.", "diagnosis", about=entities.INCIDENT_TITLE)
CAUSE = _DIAGNOSIS.gauge("railscope_incident_cause", "1 for each node, GPU or NIC that causes an open incident, those of which a larger cause consists included; except incidents of severity info; at most 500.", "diagnosis", about=entities.INCIDENT_CAUSE)
REACH = _DIAGNOSIS.gauge("railscope_incident_reach", "1 for each node, rail and job on which an open incident may have symptoms, so that alerts on them are inhibited; except incidents of severity info; at most 5000.", "diagnosis", about=entities.INCIDENT_REACH)
JOB_INCIDENT = _DIAGNOSIS.gauge("railscope_job_incident", "1 for each job that an open incident affects, as the API lists them, ended ones included; at most 5000.", "diagnosis", about=entities.JOB_INCIDENT)
OPENED = _DIAGNOSIS.counter("railscope_incidents_opened_total", "Incidents opened, those explained later included.", "diagnosis", about=entities.INCIDENT_NAME, resets=FIRST_START)
LOST_TIME = _DIAGNOSIS.counter("railscope_tenant_incident_lost_gpu_seconds_total", "Estimated GPU-seconds that jobs of the tenant lost to incidents of a class, by what they exchange relative to their past; a job's loss counts for one incident.", "diagnosis", about=entities.INCIDENT_LOSS, resets=FIRST_START)
JOB_STEP = _DIAGNOSIS.gauge("railscope_job_step_seconds", "Period of the steps of a job, by what its NICs send second by second in the last two minutes; no series where samples are more than 2.5 seconds apart, for steps below three seconds, and for jobs on one GPU or without steps.", "diagnosis, RDMA bytes sent", about=entities.JOB)
JOB_STEP_JITTER = _DIAGNOSIS.gauge("railscope_job_step_jitter_seconds", "Deviation of single steps of a job from their period.", "diagnosis, RDMA bytes sent", about=entities.JOB)
JOB_EXCHANGE = _DIAGNOSIS.gauge("railscope_job_exchange_ratio", "Share of a step in which the job exchanges: mean of what it sends, relative to its 95th percentile.", "diagnosis, RDMA bytes sent", about=entities.JOB)
EVALUATION_TIME = _DIAGNOSIS.gauge("railscope_diagnosis_evaluation_seconds", "Duration of the last evaluation, reading of its frames included.", "diagnosis", scale=declare.NANO)
EVALUATION_AGE = _DIAGNOSIS.gauge("railscope_diagnosis_age_seconds", "Time since the end of the last slot of 10 seconds that was evaluated, or since the start of the collector if none was ever evaluated.", "diagnosis", scale=declare.NANO)
MAX_DIAGNOSIS_AGE_SECONDS = 180.0
"""Age from which the incidents are not those of now; a collector diagnoses every 10 seconds."""
DIAGNOSIS_FAULTS = _DIAGNOSIS.counter("railscope_diagnosis_failures_total", "Envelopes and evaluations that the diagnosis could not process because of a defect; the log names them.", "diagnosis")
DIAGNOSIS_DROPPED = _DIAGNOSIS.counter("railscope_diagnosis_dropped_envelopes_total", "Envelopes that the diagnosis did not use because it was too late or they were missing in the frame log; all other uses of the frames are unaffected.", "diagnosis")
DIAGNOSIS_RUNNING = _DIAGNOSIS.gauge("railscope_diagnosis_running", "1 while the process of the diagnosis runs, 0 while the collector waits to start it again.", "diagnosis")
DIAGNOSIS_RESTARTS = _DIAGNOSIS.counter("railscope_diagnosis_restarts_total", "Times that the process of the diagnosis ended or was silent for 3 minutes, and was started again.", "diagnosis")
DIAGNOSIS_LAG = _DIAGNOSIS.gauge("railscope_diagnosis_lag_seconds", "Age of the last record that the diagnosis has read, 0 at the end of the frame log; as it last stated.", "diagnosis", scale=declare.NANO)
DIAGNOSIS_LAG_BYTES = _DIAGNOSIS.gauge("railscope_diagnosis_lag_bytes", "Bytes of the frame log that the diagnosis has not read; as it last stated.", "diagnosis")
FINDINGS_IGNORED = _DIAGNOSIS.counter("railscope_diagnosis_ignored_findings_total", "Findings beyond the 64 that one node may have at a time.", "diagnosis")
WEBHOOK_FAILURES = _DIAGNOSIS.counter("railscope_incident_webhook_failures_total", "Notifications that the webhook did not accept; they are repeated.", "diagnosis")
