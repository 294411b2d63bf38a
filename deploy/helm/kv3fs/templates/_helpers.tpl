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
