package tracing

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// collecting is a collector that decodes what it gets.
type collecting struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*tracepb.Span
	about string
}

func newCollecting(t *testing.T) *collecting {
	c := &collecting{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			in = z
		}
		body, err := io.ReadAll(in)
		var request collector.ExportTraceServiceRequest
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" || proto.Unmarshal(body, &request) != nil {
			t.Errorf("a request to %s of %q: %v", r.URL.Path, r.Header.Get("Content-Type"), err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, of := range request.ResourceSpans {
			c.about = of.Resource.String()
			for _, scope := range of.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collecting) byName() map[string]*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]*tracepb.Span{}
	for _, s := range c.spans {
		all[s.Name] = s
	}
	return all
}

// A real collector's protocol: batches with their parts, and page requests within the trace of whoever has asked.
func TestCollector(t *testing.T) {
	c := newCollecting(t)
	tracer, err := Start(Options{Endpoint: c.URL, Sample: 1, Version: "1.2.3", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_800_000_000, 0)
	tracer.Batch(Batch{Admitted: at, Began: at.Add(time.Second), Ended: at.Add(3 * time.Second), Write: true, Requests: 16, Failed: 1, Bytes: 1 << 20, File: 7, UID: 1000, PID: 42})
	r := httptest.NewRequest(http.MethodPost, "/ns/a/exists", nil)
	r.Header.Set("traceparent", "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	tracer.Request(r, "exists", "a\xff")(http.StatusServiceUnavailable)
	flush(t, tracer)

	got := c.byName()
	whole, queued, moved, request := got["ring write"], got["queued"], got["moved"], got["pages exists"]
	if len(got) != 4 || whole == nil || queued == nil || moved == nil || request == nil {
		t.Fatalf("%v", got)
	}
	if whole.StartTimeUnixNano != uint64(at.UnixNano()) || whole.EndTimeUnixNano-whole.StartTimeUnixNano != uint64(3*time.Second) || whole.Status.Code != tracepb.Status_STATUS_CODE_ERROR {
		t.Errorf("the batch: %v", whole)
	}
	if string(queued.ParentSpanId) != string(whole.SpanId) || queued.EndTimeUnixNano != moved.StartTimeUnixNano || moved.EndTimeUnixNano != whole.EndTimeUnixNano {
		t.Errorf("its parts: %v, %v", queued, moved)
	}
	if fmt.Sprintf("%x %x", request.TraceId, request.ParentSpanId) != "0123456789abcdef0123456789abcdef 0123456789abcdef" {
		t.Errorf("the request: %v", request)
	}
}

// flush sends all that is traced, however slow this machine is, and closes.
func flush(t *testing.T, tracer *Tracer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := tracer.provider.ForceFlush(ctx); err != nil {
		t.Error(err)
	}
	tracer.Close()
}

// stuck is a collector that never answers.
type stuck struct{ release chan struct{} }

func (s stuck) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	<-s.release
	return nil
}
func (s stuck) Shutdown(context.Context) error { return nil }

// Nobody waits for a collector that hangs, although the queue before it is full.
func TestCollectorHangs(t *testing.T) {
	s := stuck{make(chan struct{})}
	tracer := start(Options{Sample: 1}, s, nil)
	for range 4 * mostQueued { // would never end
		tracer.Batch(Batch{Requests: 1})
		tracer.Request(httptest.NewRequest(http.MethodGet, "/", nil), "exists", "")(http.StatusOK)
	}
	close(s.release)
	tracer.Close()
}

// What is not chosen costs next to nothing and is not sent; what a client traces is.
func TestSample(t *testing.T) {
	c := newCollecting(t)
	tracer, err := Start(Options{Endpoint: c.URL, Sample: 0, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		tracer.Batch(Batch{Requests: 1})
		tracer.Request(httptest.NewRequest(http.MethodGet, "/", nil), "exists", "")(http.StatusOK)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("traceparent", "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	tracer.Request(r, "exists", "")(http.StatusOK)
	flush(t, tracer)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.spans) != 1 {
		t.Errorf("%d spans", len(c.spans))
	}
}

func TestEndpoints(t *testing.T) {
	for _, bad := range []string{"", "localhost:4318", "ftp://x", "http://", "://"} {
		if _, err := Start(Options{Endpoint: bad}); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	if err := CheckEndpoint("http://me:secret@collector:4318"); err == nil || strings.Contains(err.Error(), "secret") { // it would be in the log
		t.Error(err)
	}
}
