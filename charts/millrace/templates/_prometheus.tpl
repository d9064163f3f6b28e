{{- /* Files that say who asks Prometheus and whom it trusts: what to mount, by the folder's name. Mounted whole,
never by subPath, so that what is renewed is seen. */}}
{{- define "millrace.prometheusFiles" -}}
{{- if .Values.prometheus.tokenSecret }}
token: {secret: {secretName: {{ .Values.prometheus.tokenSecret | quote }}}}
{{- end }}
{{- if .Values.prometheus.basicAuthSecret }}
basic-auth: {secret: {secretName: {{ .Values.prometheus.basicAuthSecret | quote }}}}
{{- end }}
{{- if .Values.prometheus.headersSecret }}
headers: {secret: {secretName: {{ .Values.prometheus.headersSecret | quote }}}}
{{- end }}
{{- if .Values.prometheus.caConfigMap }}
ca: {configMap: {name: {{ .Values.prometheus.caConfigMap | quote }}}}
{{- end }}
{{- if .Values.prometheus.clientCertificateSecret }}
certificate: {secret: {secretName: {{ .Values.prometheus.clientCertificateSecret | quote }}}}
{{- end }}
{{- end }}

{{- define "millrace.prometheusFlags" -}}
{{- $files := "/etc/millrace/prometheus" }}
{{- $own := ternary "own" "" .Values.prometheus.serviceAccountToken }}
{{- if gt (len (compact (list $own .Values.prometheus.tokenSecret .Values.prometheus.basicAuthSecret))) 1 }}
{{- fail "set one of prometheus.tokenSecret, prometheus.serviceAccountToken and prometheus.basicAuthSecret" }}
{{- end }}
{{- with .Values.prometheus.matchers }}
- {{ printf "--prometheus-matchers=%s" . | quote }}
{{- end }}
{{- with .Values.prometheus.tenant }}
- {{ printf "--prometheus-tenant=%s" . | quote }}
{{- end }}
{{- if .Values.prometheus.tokenSecret }}
- --prometheus-token-file={{ $files }}/token/token
{{- end }}
{{- if .Values.prometheus.serviceAccountToken }}
- --prometheus-token-file=/var/run/secrets/kubernetes.io/serviceaccount/token
{{- end }}
{{- if .Values.prometheus.basicAuthSecret }}
- --prometheus-username-file={{ $files }}/basic-auth/username
- --prometheus-password-file={{ $files }}/basic-auth/password
{{- end }}
{{- if .Values.prometheus.headersSecret }}
- --prometheus-headers-file={{ $files }}/headers/headers
{{- end }}
{{- if .Values.prometheus.caConfigMap }}
- {{ printf "--prometheus-ca-file=%s/ca/%s" $files .Values.prometheus.caKey | quote }}
{{- end }}
{{- if .Values.prometheus.clientCertificateSecret }}
- --prometheus-certificate-file={{ $files }}/certificate/tls.crt
- --prometheus-key-file={{ $files }}/certificate/tls.key
{{- end }}
{{- if .Values.prometheus.insecureSkipVerify }}
- --prometheus-insecure
{{- end }}
{{- end }}
