{{- /* A folder at the same path of each node's own disk, and the claim of it: bound to each other, and to nothing else.
Nobody counts the storage of a local volume, so what is asked for says nothing. */}}
{{- define "millrace.nodeVolume" }}
apiVersion: v1
kind: PersistentVolume
metadata:
  name: {{ .name }}
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
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: {{ .name }}
  resources: {requests: {storage: 1Gi}}
{{- end }}
