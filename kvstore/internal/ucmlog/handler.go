package ucmlog

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Handler writes records in the form of UCM's log. It is a slog.Handler.
type Handler struct {
	level  slog.Level
	out    *output
	attrs  string // those given to WithAttrs, as they are written
	groups string // names of open groups, each with a dot
}

// output is where a handler, and those made of it, write lines.
type output struct {
	mu sync.Mutex
	w  io.Writer
}

var _ slog.Handler = (*Handler)(nil)

// NewHandler returns a handler that writes records from a level on, each with one Write.
func NewHandler(w io.Writer, level slog.Level) *Handler {
	return &Handler{level: level, out: &output{w: w}}
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

// Handle implements slog.Handler.
func (h *Handler) Handle(_ context.Context, r slog.Record) error {
	var line strings.Builder
	if !r.Time.IsZero() {
		line.WriteString(r.Time.Format("[2006-01-02 15:04:05.000000]"))
	}
	line.WriteString("[UC][" + letter(r.Level) + "] ")
	line.WriteString(oneLine(r.Message))
	line.WriteString(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != taskGroup && a.Key != requestGroup {
			appendAttr(&line, h.groups, a)
		}
		return true
	})
	line.WriteString(" [" + strconv.Itoa(os.Getpid()) + "," + strconv.Itoa(unix.Gettid()) + "]\n")
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	_, err := io.WriteString(h.out.w, line.String())
	return err
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var text strings.Builder
	for _, a := range attrs {
		appendAttr(&text, h.groups, a)
	}
	with := *h
	with.attrs += text.String()
	return &with
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	with := *h
	with.groups += name + "."
	return &with
}

func letter(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return "E"
	case level >= slog.LevelWarn:
		return "W"
	case level >= slog.LevelInfo:
		return "I"
	}
	return "D"
}

func appendAttr(line *strings.Builder, groups string, a slog.Attr) {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		if a.Key != "" {
			groups += a.Key + "."
		}
		for _, inner := range value.Group() {
			appendAttr(line, groups, inner)
		}
		return
	}
	if a.Equal(slog.Attr{}) {
		return
	}
	text := value.String()
	if text == "" || text != oneLine(text) || strings.ContainsAny(text, " =\"") {
		text = strconv.Quote(text)
	}
	line.WriteString(" " + groups + a.Key + "=" + text)
}

// oneLine keeps a message from looking like two, and from commanding a terminal.
func oneLine(message string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return ' '
	}, message)
}
