package logging

import (
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// What the tail takes: at most mostLines lines of mostAttributes values of mostBytes each.
const (
	mostLines      = 500
	mostAttributes = 32
	mostBytes      = 1 << 10
)

// Line is a line of a log. All of its texts are UTF-8, whatever names were logged; they may hold control characters, quotes and markup.
type Line struct {
	Number     int64 // 1 for the first one since the start
	Time       time.Time
	Level      slog.Level
	Message    string
	Attributes []Attribute
}

// Attribute is one of a line; a long value is cut.
type Attribute struct{ Key, Value string }

// tail holds the last lines. Its zero value is ready for use.
type tail struct {
	mu    sync.Mutex
	last  int64  // number of the last line
	lines []Line // those of number n at n % mostLines
}

func (t *tail) add(h *handler, r slog.Record) {
	line := Line{Time: r.Time, Level: r.Level, Message: cut(r.Message), Attributes: h.known[:len(h.known):len(h.known)]}
	r.Attrs(func(a slog.Attr) bool {
		line.Attributes = flatten(line.Attributes, h.group, a)
		return true
	})
	if len(line.Attributes) > mostAttributes {
		line.Attributes = line.Attributes[:mostAttributes:mostAttributes]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lines == nil {
		t.lines = make([]Line, mostLines)
	}
	t.last++
	line.Number = t.last
	t.lines[t.last%mostLines] = line
}

// Tail returns the last lines with a number above after, oldest first and at most that many, and how many it leaves out that have such a number, too. The caller must
// not change their attributes.
func (l *Log) Tail(after int64, most int) (lines []Line, missed int64) {
	t := &l.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	first := max(after, t.last-mostLines, t.last-int64(most), 0) + 1
	for n := first; n <= t.last; n++ {
		lines = append(lines, t.lines[n%mostLines])
	}
	return lines, max(0, min(first, t.last+1)-1-max(after, 0))
}

// cut bounds a text and makes it UTF-8.
func cut(text string) string {
	if len(text) > mostBytes {
		at := mostBytes - len("…")
		for at > 0 && !utf8.RuneStart(text[at]) {
			at--
		}
		text = text[:at] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
