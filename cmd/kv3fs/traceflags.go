package main

import (
	"net/url"
	"os"

	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/tracing"
)

// traceFlags say where traces go, with the prefix trace-.
type traceFlags struct {
	OTLP   string  `name:"otlp" placeholder:"URL" help:"OpenTelemetry collector that gets traces of ring batches and page requests, over OTLP and HTTP, such as http://127.0.0.1:4318. Default: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT, if set; else nothing is traced. docs/logs.md"`
	Sample float64 `default:"0.01" range:"0..1" placeholder:"PART" help:"The part of ring batches and page requests that is traced. A page request whose client traces it is always traced; with 0, nothing else is."`
}

// The variables of OpenTelemetry's specification: the first is the address as it is, the second one below which it is, of all signals.
const (
	tracesVariable = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	allVariable    = "OTEL_EXPORTER_OTLP_ENDPOINT"
)

// config returns where traces go. The variables are for all programs of a host or container, so one that this program cannot use is no error.
func (f *traceFlags) config() (daemon.Tracing, error) {
	if f.OTLP != "" {
		if err := tracing.CheckEndpoint(f.OTLP); err != nil {
			return daemon.Tracing{}, bad("trace-otlp", "%v", err)
		}
		return daemon.Tracing{Endpoint: f.OTLP, Sample: f.Sample}, nil
	}
	name := tracesVariable
	if os.Getenv(name) == "" {
		name = allVariable
	}
	text := os.Getenv(name)
	if text == "" {
		return daemon.Tracing{}, nil
	}
	at, err := url.Parse(text)
	if err == nil {
		err = tracing.CheckEndpoint(text)
	}
	if err != nil {
		return daemon.Tracing{Unusable: name, Why: err}, nil
	}
	if name == allVariable {
		at = at.JoinPath(tracing.Path)
	} else if at.Path == "" {
		at.Path = "/"
	}
	return daemon.Tracing{Endpoint: at.String(), Sample: f.Sample}, nil
}
