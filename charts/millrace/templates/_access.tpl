{{/* The flags of operator and gateway about who may use services; nothing where the chart's defaults stand. */}}
{{- define "millrace.accessFlags" -}}
{{- $values := .Values.gateway.access | default dict }}
{{- $access := dict }}
{{- with $values.authentication }}
{{- if and (eq (.mode | default "None") "APIKey") (not .secretName) }}
{{- fail "gateway.access.authentication.mode is APIKey: name the Secret with the keys in gateway.access.authentication.secretName" }}
{{- end }}
{{- if .secretName }}
{{- $_ := set $access "authentication" (dict "mode" .mode "secretName" .secretName) }}
{{- end }}
{{- end }}
{{- with $values.rateLimits }}
{{- $_ := set $access "rateLimits" . }}
{{- end }}
{{- with $access }}
- --default-access
- {{ toJson . | quote }}
{{- end }}
{{- with .Values.gateway.secretNamespaces }}
- --secret-namespaces
- {{ join "," . | quote }}
{{- end }}
{{- end }}
