// Package logging writes a server's log, as text or JSON, and holds its last lines in memory. Level and format may change while it is written.
package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
)

// Format is how lines are written.
type Format string

// The formats. In JSON, durations are numbers of seconds; in text they are written as 1.5ms.
const (
	Text Format = "text"
	JSON Format = "json"
)

// Log is a log. Its methods may be called concurrently.
type Log struct {
	level slog.LevelVar
	json  atomic.Bool
	out   pen
	text  slog.Handler
	jsons slog.Handler
	tail  tail
}

// New returns a log that is written to out.
func New(out io.Writer, level slog.Level, format Format) *Log {
	l := &Log{out: pen{to: out}}
	l.level.Set(level)
	l.SetFormat(format)
	all := slog.Level(-1 << 10) // the log's own level decides
	l.text = slog.NewTextHandler(&l.out, &slog.HandlerOptions{Level: all})
	l.jsons = slog.NewJSONHandler(&l.out, &slog.HandlerOptions{Level: all, ReplaceAttr: inSeconds})
	return l
}

// inSeconds gives durations a unit that readers of JSON expect; slog's is the nanosecond.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	}
	return a
}

// Level is below which nothing is logged; it may be set at any time.
func (l *Log) Level() *slog.LevelVar { return &l.level }

// SetFormat has further lines be written in a format.
func (l *Log) SetFormat(f Format) { l.json.Store(f == JSON) }

// Logger returns a logger that writes to the log.
func (l *Log) Logger() *slog.Logger {
	return slog.New(&handler{log: l, text: l.text, json: l.jsons})
}

// Always returns a logger whose lines no level silences: scripts wait for them.
func (l *Log) Always() *slog.Logger {
	return slog.New(&handler{log: l, text: l.text, json: l.jsons, always: true})
}

// Audit returns a logger for what operators do to a server. Its lines have the attribute audit=true, and no level silences them.
func (l *Log) Audit() *slog.Logger { return l.Always().With("audit", true) }

// pen writes one line at a time.
type pen struct {
	mu sync.Mutex
	to io.Writer
}

// Write writes a line. Two handlers share the pen, and each only keeps its own lines apart.
func (p *pen) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.to.Write(line)
}

// handler writes to a log, with the attributes of a logger.
type handler struct {
	log        *Log
	text, json slog.Handler
	always     bool
	known      []Attribute // of the logger, for the tail
	group      string      // before the keys of further ones
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	return h.always || level >= h.log.level.Level()
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	h.log.tail.add(h, r)
	if h.log.json.Load() {
		return h.json.Handle(ctx, r)
	}
	return h.text.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	next.text, next.json = h.text.WithAttrs(attrs), h.json.WithAttrs(attrs)
	next.known = h.known[:len(h.known):len(h.known)]
	for _, a := range attrs {
		next.known = flatten(next.known, h.group, a)
	}
	return &next
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	next := *h
	next.text, next.json = h.text.WithGroup(name), h.json.WithGroup(name)
	next.group = h.group + name + "."
	return &next
}

// flatten appends an attribute, and those in a group one by one.
func flatten(to []Attribute, group string, a slog.Attr) []Attribute {
	v := a.Value.Resolve()
	if v.Kind() != slog.KindGroup {
		if a.Equal(slog.Attr{}) {
			return to // as slog's own handlers do
		}
		return append(to, Attribute{Key: cut(group + a.Key), Value: cut(textOf(v))})
	}
	if a.Key != "" {
		group += a.Key + "."
	}
	for _, in := range v.Group() {
		to = flatten(to, group, in)
	}
	return to
}

// textOf is a value as people read it.
func textOf(v slog.Value) (text string) {
	defer func() {
		if p := recover(); p != nil { // a nil pointer with a String method, say
			text = fmt.Sprintf("!PANIC: %v", p)
		}
	}()
	return v.String()
}
