{{- define "adit.fullname" -}}
{{- if contains "adit" .Release.Name -}}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-adit" .Release.Name | trunc 63 | trimSuffix "-" }}{{- end -}}
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
