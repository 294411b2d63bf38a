{{/* The configuration file of the daemons. What differs between nodes is in their environment. */}}
{{- define "kv3fs.config" -}}
{{- $name := include "kv3fs.name" . }}
{{- $service := printf "%s.%s" $name .Release.Namespace }}
{{- $set := dict
  "data" (include "kv3fs.data" .)
  "data-must-exist" true
  "mount" (include "kv3fs.mount" .)
  "capacity" .Values.capacity
  "log-format" "json" }}
{{- if .Values.sidecar.enabled }}
{{- $_ := set $set "admin-listen" "127.0.0.1:9180" }}
{{- $_ := set $set "pages-listen" "127.0.0.1:18000" }}
{{- else }}
{{- $_ := set $set "restart-state" (printf "%s/state/daemon" .Values.node.runDirectory) }}
{{- $_ := set $set "on-term" "handover" }}
{{- $_ := set $set "admin-listen" (printf "0.0.0.0:%v" .Values.admin.port) }}
{{- $_ := set $set "admin-token-file" "/etc/kv3fs-admin/token" }}
{{- $_ := set $set "admin-cert" "/etc/kv3fs-admin/tls.crt" }}
{{- $_ := set $set "admin-key" "/etc/kv3fs-admin/tls.key" }}
{{- end }}
{{- if and .Values.data.mustBeMount (not .Values.data.claim) }}
{{- $_ := set $set "data-must-be-mount" true }}
{{- end }}
{{- if .Values.sidecar.enabled }}
{{- else if .Values.pages.enabled }}
{{- $listen := list (printf "0.0.0.0:%v" .Values.pages.port) }}
{{- range .Values.pages.namespaces }}
{{- $listen = append $listen (printf "%s=unix:%s/pages/%s/pages.sock" . $.Values.node.runDirectory .) }}
{{- end }}
{{- $_ := set $set "pages-listen" $listen }}
{{- $_ := set $set "pages-host" (list $name $service (printf "%s.svc" $service) (printf "%s.svc.cluster.local" $service)) }}
{{- if .Values.pages.tokenSecret }}
{{- $_ := set $set "pages-token-file" "/etc/kv3fs-pages/token" }}
{{- end }}
{{- with .Values.pages.etcd }}
{{- if .endpoints }}
{{- if not $.Values.data.claim }}
{{- fail "pages.etcd is for nodes that share one directory: give data.claim, or leave out pages.etcd.endpoints" }}
{{- end }}
{{- if not .peerSecret }}
{{- fail "pages.etcd needs peerSecret, the name of a Secret whose key token the nodes show each other: kubectl create secret generic kv3fs-peers --from-literal=token=$(openssl rand -hex 32)" }}
{{- end }}
{{- $_ := set $set "pages-store" (printf "etcd://%s/%s" (join "," .endpoints) (.prefix | default (printf "kv3fs/%s" $.Release.Name))) }}
{{- $_ := set $set "pages-peer-listen" (printf "0.0.0.0:%v" .peerPort) }}
{{- $_ := set $set "pages-peer-token-file" "/etc/kv3fs-peers/token" }}
{{- if has "ca" .secretHas }}
{{- $_ := set $set "pages-store-ca" "/etc/kv3fs-etcd/ca.crt" }}
{{- end }}
{{- if has "certificate" .secretHas }}
{{- $_ := set $set "pages-store-cert" "/etc/kv3fs-etcd/tls.crt" }}
{{- $_ := set $set "pages-store-key" "/etc/kv3fs-etcd/tls.key" }}
{{- end }}
{{- if has "password" .secretHas }}
{{- $_ := set $set "pages-store-password-file" "/etc/kv3fs-etcd/password" }}
{{- end }}
{{- end }}
{{- end }}
{{- else }}
{{- $_ := set $set "pages-listen" "off" }}
{{- end }}
{{- merge $set .Values.config | toYaml }}
{{- end }}
