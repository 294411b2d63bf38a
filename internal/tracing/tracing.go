// Package tracing sends spans of what a daemon does to an OpenTelemetry collector, over OTLP and HTTP. What the collector does not take in time is dropped: nothing of
// the daemon waits for it.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/kv3fs/kv3fs/internal/logpace"
)

const (
	mostQueued  = 2048 // spans that wait to be sent; further ones are dropped
	sendTime    = 5 * time.Second
	closeTime   = 3 * time.Second
	tracerName  = "github.com/kv3fs/kv3fs"
	serviceName = "kv3fs"
)

// Path is where collectors take traces.
const Path = "/v1/traces"

// Options of Start.
type Options struct {
	// Endpoint is the collector's URL, such as http://127.0.0.1:4318; without a path, that is Path.
	Endpoint string
	// Sample is the part of what happens that is traced, from 0 to 1. What belongs to a trace of a client is traced if that is.
	Sample  float64
	Version string
	Log     *slog.Logger
}

// Tracer traces. Its methods may be called concurrently; they do not wait.
type Tracer struct {
	sample   float64
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	from     propagation.TraceContext
}

// CheckEndpoint reports an endpoint that is no URL of a collector.
func CheckEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return errors.New("it is no URL of a collector: give one such as http://127.0.0.1:4318")
	}
	if u.User != nil {
		return errors.New("it has a user or password, which everybody would see in the log and the list of processes: leave them out")
	}
	return nil
}

// Start begins to trace. It does not wait for the collector, which may come later.
func Start(o Options) (*Tracer, error) {
	if err := CheckEndpoint(o.Endpoint); err != nil {
		return nil, err
	}
	at, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, err
	}
	if at.Path == "" {
		at.Path = Path
	}
	exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(at.String()), otlptracehttp.WithTimeout(sendTime), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}))
	if err != nil {
		return nil, fmt.Errorf("traces to %s: %w", o.Endpoint, err)
	}
	about := resource.NewSchemaless(attribute.String("service.name", serviceName), attribute.String("service.version", o.Version))
	return start(o, &complaining{SpanExporter: exporter, log: o.Log, to: o.Endpoint}, about), nil
}

func start(o Options, to sdktrace.SpanExporter, about *resource.Resource) *Tracer {
	p := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(to, sdktrace.WithMaxQueueSize(mostQueued), sdktrace.WithExportTimeout(sendTime)),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())), // of what has been chosen
		sdktrace.WithResource(about),
	)
	return &Tracer{sample: o.Sample, provider: p, tracer: p.Tracer(tracerName, trace.WithInstrumentationVersion(o.Version))}
}

// Close sends what it can within a few seconds.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // the rest is lost
}

// chosen reports whether something is to be traced that belongs to no trace yet.
func (t *Tracer) chosen() bool { return t.sample >= 1 || rand.Float64() < t.sample }

// Batch is what a worker did with requests of one ring.
type Batch struct {
	Admitted    time.Time // when the first of them came
	Began       time.Time
	Ended       time.Time
	Write       bool
	Requests    int
	Failed      int
	Bytes       int64
	File        uint64 // inode of the first request
	UID, PID    int
	WaitsDevice bool // it waited for a device
}

// Batch traces one.
func (t *Tracer) Batch(b Batch) {
	if !t.chosen() {
		return
	}
	name := "ring read"
	if b.Write {
		name = "ring write"
	}
	ctx, whole := t.tracer.Start(context.Background(), name, trace.WithTimestamp(b.Admitted), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.Int("kv3fs.requests", b.Requests), attribute.Int("kv3fs.failed", b.Failed), attribute.Int64("kv3fs.bytes", b.Bytes), attribute.Int64("kv3fs.inode", int64(b.File)),
		attribute.Int("kv3fs.uid", b.UID), attribute.Int("process.pid", b.PID), attribute.Bool("kv3fs.waits_for_device", b.WaitsDevice)))
	_, queued := t.tracer.Start(ctx, "queued", trace.WithTimestamp(b.Admitted))
	queued.End(trace.WithTimestamp(b.Began))
	_, moved := t.tracer.Start(ctx, "moved", trace.WithTimestamp(b.Began))
	moved.End(trace.WithTimestamp(b.Ended))
	if b.Failed > 0 {
		whole.SetStatus(codes.Error, fmt.Sprintf("%d of %d requests failed", b.Failed, b.Requests))
	}
	whole.End(trace.WithTimestamp(b.Ended))
}

// Request traces a request of the page service until end is called with the status of its answer. A client that sends traceparent finds it in its own trace.
func (t *Tracer) Request(r *http.Request, route, namespace string) (end func(status int)) {
	ctx := t.from.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	if !trace.SpanContextFromContext(ctx).IsValid() && !t.chosen() {
		return func(int) {}
	}
	_, span := t.tracer.Start(ctx, "pages "+route, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.route", route), attribute.String("kv3fs.namespace", strings.ToValidUTF8(namespace, "\uFFFD"))))
	return func(status int) {
		span.SetAttributes(attribute.Int("http.response.status_code", status))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(status))
		}
		span.End()
	}
}

// complaining logs, now and then, that spans cannot be sent.
type complaining struct {
	sdktrace.SpanExporter
	log  *slog.Logger
	to   string
	pace logpace.Pace
}

// ExportSpans implements sdktrace.SpanExporter.
func (c *complaining) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := c.SpanExporter.ExportSpans(ctx, spans); err != nil {
		if more, now := c.pace.Log("send"); now {
			c.log.Warn("traces cannot be sent and are dropped", "collector", c.to, "spans", len(spans), "err", err, "more", more)
		}
	}
	return nil
}
