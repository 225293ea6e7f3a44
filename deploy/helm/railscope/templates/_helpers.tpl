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
