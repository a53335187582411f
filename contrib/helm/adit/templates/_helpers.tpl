{{- /* A DNS label that begins with a letter, since a Service needs one. */}}
{{- define "adit.fullname" -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $release -}}{{ printf "adit-%s" $release | trunc 63 | trimSuffix "-" }}
{{- else if contains "adit" $release -}}{{ $release | trunc 63 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-adit" $release | trunc 63 | trimSuffix "-" }}{{- end -}}
{{- end }}

{{- define "adit.selector" -}}
app.kubernetes.io/name: adit
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "adit.labels" -}}
{{ include "adit.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "adit.configSecret" -}}
{{ .Values.existingSecret | default (include "adit.fullname" .) }}
{{- end }}

{{- define "adit.image" -}}
{{- if .Values.image.digest -}}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end -}}
{{- end }}

{{- /* The ports of all inbounds: a name of at most 15 characters, a port and a protocol each. */}}
{{- define "adit.ports" -}}
{{- $names := list -}}
{{- $ports := list -}}
{{- range $inbound := .Values.inbounds -}}
{{- range $protocol := $inbound.protocols -}}
{{- $name := printf "%s-%s" ($inbound.name | trunc 11 | trimSuffix "-") (lower $protocol) -}}
{{- if has $name $names }}{{ fail (printf "two inbounds have the port name %s: names must differ in their first 11 characters" $name) }}{{ end -}}
{{- $names = append $names $name -}}
{{- $ports = append $ports (dict "name" $name "port" ($inbound.port | int) "protocol" (upper $protocol)) -}}
{{- end -}}
{{- end -}}
{{- toJson $ports -}}
{{- end }}
