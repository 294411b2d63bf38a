package main

import (
	"cmp"
	"os"

	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/tracing"
)

// traceFlags say where traces go, with the prefix trace-.
type traceFlags struct {
	OTLP   string  `name:"otlp" placeholder:"URL" help:"OpenTelemetry collector that gets traces of ring batches and page requests, over OTLP and HTTP, such as http://127.0.0.1:4318. Default: OTEL_EXPORTER_OTLP_ENDPOINT, if that is set; else nothing is traced. docs/logs.md"`
	Sample float64 `default:"0.01" range:"0.000001..1" placeholder:"PART" help:"The part of ring batches and page requests that is traced. A page request whose client traces it is always traced."`
}

// config returns where traces go.
func (f *traceFlags) config() (daemon.Tracing, error) {
	to := cmp.Or(f.OTLP, os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if to != "" {
		if err := tracing.CheckEndpoint(to); err != nil {
			return daemon.Tracing{}, bad("trace-otlp", "%v", err)
		}
	}
	return daemon.Tracing{Endpoint: to, Sample: f.Sample}, nil
}
