{{- /* A folder at the same path of each node's own disk, and the claim of it: bound to each other, and to nothing else.
Nobody counts the storage of a local volume, so what is asked for says nothing. Services outlive the release, and so do
their volumes, or no new pod of theirs could start. */}}
{{- define "millrace.nodeVolume" }}
apiVersion: v1
kind: PersistentVolume
metadata:
  name: {{ .name }}
  {{- if .keep }}
  annotations: {helm.sh/resource-policy: keep}
  {{- end }}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  claimRef: {apiVersion: v1, kind: PersistentVolumeClaim, namespace: {{ .namespace }}, name: {{ .claim }}}
  local:
    path: {{ .path | quote }}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions:
        {{- range $key, $value := .nodes }}
        - {key: {{ $key | quote }}, operator: In, values: [{{ $value | quote }}]}
        {{- end }}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ .claim }}
  namespace: {{ .namespace }}
  {{- if .keep }}
  annotations: {helm.sh/resource-policy: keep}
  {{- end }}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: {{ .name }}
  resources: {requests: {storage: 1Gi}}
{{- end }}
