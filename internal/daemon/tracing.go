package daemon

import (
	"log/slog"

	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/tracing"
)

// Tracing says where traces go, and how much is traced.
type Tracing struct {
	Endpoint string // see tracing.Options; "": nothing is traced
	Sample   float64
	// Unusable is a variable of the environment from which no endpoint could be taken, and Why; "": there is none.
	Unusable string
	Why      error
}

// start returns what traces, nil if nothing does.
func (t Tracing) start(version string, log *slog.Logger) (*tracing.Tracer, error) {
	if t.Unusable != "" {
		log.Warn("no traces are sent", "variable", t.Unusable, "err", t.Why, "cure", "--trace-otlp http://HOST:4318, or unset the variable")
	}
	if t.Endpoint == "" {
		return nil, nil
	}
	log.Info("sending traces", "collector", t.Endpoint, "sample", t.Sample)
	return tracing.Start(tracing.Options{Endpoint: t.Endpoint, Sample: t.Sample, Version: version, Log: log})
}

// traceRings has the rings' batches be traced.
func traceRings(o *ringserver.Options, t *tracing.Tracer) {
	if t == nil {
		return
	}
	o.Trace = func(b ringserver.Batch) {
		t.Batch(tracing.Batch{Admitted: b.Admitted, Began: b.Began, Ended: b.Ended, Write: b.Write, Requests: b.Requests, Failed: b.Failed, Bytes: b.Bytes, File: b.Inode,
			UID: b.UID, PID: b.PID, WaitsDevice: b.WaitsDevice})
	}
}
