{{/* Labels of every object, beside app.kubernetes.io/name. */}}
{{- define "railscope.labels" -}}
app.kubernetes.io/part-of: railscope
app.kubernetes.io/version: {{ quote .Chart.AppVersion }}
{{- end }}

{{- define "railscope.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Token in a Secret that exists, otherwise a new one: an upgrade changes no token. */}}
{{- define "railscope.token" -}}
{{- $secret := lookup "v1" "Secret" .namespace .secret -}}
{{- dig "data" "token" (randAlphaNum 43 | b64enc) $secret | b64dec -}}
{{- end }}

{{/* Token of an agent in a trial: a variable, as the name of the node is a part of it. */}}
{{- define "railscope.trialToken" -}}
- name: TRIAL_TOKEN
  valueFrom:
    secretKeyRef:
      name: railscope-trial
      key: token
# Kubernetes inserts the values of both variables.
- name: RAILSCOPE_AGENT_COLLECTOR__TOKEN
  value: $(TRIAL_TOKEN)/$(RAILSCOPE_AGENT_NODE)
{{- end }}

{{- define "railscope.agentProbes" -}}
startupProbe:
  httpGet:
    path: /-/healthy
    port: metrics
  periodSeconds: 2
  failureThreshold: 30
livenessProbe:
  httpGet:
    path: /-/healthy
    port: metrics
  periodSeconds: 10
  failureThreshold: 6
  timeoutSeconds: 5
readinessProbe:
  httpGet:
    path: /-/ready
    port: metrics
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}
