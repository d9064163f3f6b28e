{{/* What to write where an image is not named. */}}
{{- define "millrace.imageAdvice" -}}
write --set images.{{ . }}=REGISTRY/millrace/{{ . }}:TAG, as the images are in no public registry: docs/how-to/install.md says how to build them
{{- end }}

{{/* Security of the pod and of its container: the restricted profile. */}}
{{- define "millrace.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "millrace.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}
