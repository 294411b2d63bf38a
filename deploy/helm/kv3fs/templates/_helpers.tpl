{{- define "kv3fs.name" -}}
{{- if contains "kv3fs" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-kv3fs" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "kv3fs.selector" -}}
app.kubernetes.io/name: kv3fs
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kv3fs.labels" -}}
{{ include "kv3fs.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}

{{- define "kv3fs.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "kv3fs.adminSecret" -}}
{{ .Values.admin.secret | default (printf "%s-admin" (include "kv3fs.name" .)) }}
{{- end }}

{{/* The name in the daemons' certificate. Daemons are reached by address. */}}
{{- define "kv3fs.serverName" -}}
{{ printf "%s.%s.svc" (include "kv3fs.name" .) .Release.Namespace }}
{{- end }}

{{- define "kv3fs.mountDirectory" -}}
{{ .Values.node.runDirectory }}/mnt
{{- end }}

{{- define "kv3fs.mount" -}}
{{ .Values.sidecar.enabled | ternary .Values.sidecar.mountDirectory (include "kv3fs.mountDirectory" .) }}/3fs
{{- end }}

{{/* The volume of the files. */}}
{{- define "kv3fs.dataVolume" -}}
{{- if .Values.data.claim -}}
{name: data, persistentVolumeClaim: {claimName: {{ .Values.data.claim }}}}
{{- else if .Values.data.mustBeMount -}}
{name: data, hostPath: {path: {{ dir .Values.data.hostPath }}, type: Directory}}
{{- else -}}
{name: data, hostPath: {path: {{ .Values.data.hostPath }}, type: DirectoryOrCreate}}
{{- end }}
{{- end }}

{{- define "kv3fs.dataMount" -}}
{name: data, mountPath: /data{{ if and .Values.data.mustBeMount (not .Values.data.claim) }}, mountPropagation: HostToContainer{{ end }}}
{{- end }}

{{/* Where the daemon has its files in its container. A disk is seen in the directory above its mount point: the directory itself would
     be a mount point in the container in any case. */}}
{{- define "kv3fs.data" -}}
{{- if and .Values.data.mustBeMount (not .Values.data.claim) }}/data/{{ base .Values.data.hostPath }}{{ else }}/data{{ end }}
{{- end }}

{{- define "kv3fs.pod" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
priorityClassName: {{ .Values.node.priorityClassName }}
nodeSelector:
  {{- merge (dict "kubernetes.io/os" "linux") .Values.node.selector | toYaml | nindent 2 }}
{{- with .Values.node.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.node.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A size of Kubernetes, in Mi, Gi or Ti, as a number of bytes. */}}
{{- define "kv3fs.bytes" -}}
{{- $shift := dict "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- mul (trunc (sub (len .) 2 | int) . | int64) (get $shift (trunc -2 .)) }}
{{- end }}

{{/* Which pods the policies are about, and what of them. */}}
{{- define "kv3fs.usesVolume" -}}
matchConditions:
  - name: has-the-volume
    expression: has(object.spec.volumes) && object.spec.volumes.exists(v, has(v.csi) && {{ include "kv3fs.isDriver" . }})
  - name: not-skipped
    expression: "!has(object.metadata.annotations) || !('kv3fs.io/admission' in object.metadata.annotations) || object.metadata.annotations['kv3fs.io/admission'] != 'skip'"
variables:
  - name: volumes
    expression: object.spec.volumes.filter(v, has(v.csi) && {{ include "kv3fs.isDriver" . }}).map(v, v.name)
  # Init containers may wait for the mount; they have no rings.
  - name: containers
    expression: object.spec.containers.filter(c, has(c.volumeMounts) && c.volumeMounts.exists(m, m.name in variables.volumes))
  - name: memory
    expression: object.spec.volumes.filter(v, has(v.emptyDir) && has(v.emptyDir.medium) && v.emptyDir.medium == 'Memory')
  - name: ownShm
    expression: "!has(object.spec.hostIPC) || !object.spec.hostIPC"
{{- end }}

{{/* Whether the chart itself makes the DaemonSets of nodes. */}}
{{- define "kv3fs.onNodes" -}}
{{- if not (or .Values.sidecar.enabled .Values.operator.enabled) }}yes{{ end }}
{{- end }}

{{/* Whether v is a volume of a cache: each cache of the operator has a driver of its own. */}}
{{- define "kv3fs.isDriver" -}}
{{- if .Values.operator.enabled }}v.csi.driver.endsWith('.kv3fs.io'){{ else }}v.csi.driver == {{ .Values.csi.driver | squote }}{{ end }}
{{- end }}

{{- define "kv3fs.operatorImage" -}}
{{- with .Values.operator.image }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
