package logging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kv3fs/kv3fs/internal/logging"
)

func TestFormats(t *testing.T) {
	var out bytes.Buffer
	l := logging.New(&out, slog.LevelInfo, logging.Text)
	log := l.Logger().With("data", "/d")
	log.Info("slow", "took", 1500*time.Microsecond, "err", errors.New("it hangs"))
	if line := out.String(); !strings.Contains(line, "level=INFO msg=slow data=/d took=1.5ms err=\"it hangs\"\n") {
		t.Errorf("text: %s", line)
	}
	out.Reset()
	l.SetFormat(logging.JSON)
	log.WithGroup("of").Info("slow", "took", 1500*time.Microsecond, "err", errors.New("it hangs"))
	var line struct {
		Time  time.Time
		Level string
		Msg   string
		Data  string
		Of    struct {
			Took float64
			Err  string
		}
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	if line.Time.IsZero() || line.Level != "INFO" || line.Msg != "slow" || line.Data != "/d" || line.Of.Took != 0.0015 || line.Of.Err != "it hangs" {
		t.Errorf("JSON: %s", out.String())
	}
	last, _ := l.Tail(1, 10)
	if len(last) != 1 || last[0].Number != 2 || fmt.Sprint(last[0].Attributes) != "[{data /d} {of.took 1.5ms} {of.err it hangs}]" {
		t.Errorf("tail: %+v", last)
	}
}

// The level holds for loggers that were made before, and not for what operators did.
func TestLevel(t *testing.T) {
	var out bytes.Buffer
	l := logging.New(&out, slog.LevelInfo, logging.Text)
	log := l.Logger()
	log.Debug("one")
	l.Level().Set(slog.LevelDebug)
	log.Debug("two")
	l.Level().Set(slog.LevelError)
	log.Warn("three")
	l.Audit().Info("four", "uid", 0)
	var got []string
	lines, _ := l.Tail(0, 10)
	for _, line := range lines {
		got = append(got, line.Message)
	}
	if want := "[two four]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
	if text := out.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "level=INFO msg=four audit=true uid=0\n") {
		t.Errorf("written:\n%s", text)
	}
}

// The tail is bounded, whatever is logged, and what is in it is text.
func TestTailIsBounded(t *testing.T) {
	l := logging.New(&bytes.Buffer{}, slog.LevelInfo, logging.JSON)
	hostile := "\xff\n<script>\"" + strings.Repeat("é", 600)
	for range 1199 {
		l.Logger().Info(hostile, "key", hostile)
	}
	var many []any
	for i := range 100 {
		many = append(many, fmt.Sprint("key", i), hostile)
	}
	l.Logger().Info(hostile, many...)
	lines, missed := l.Tail(0, 1<<20)
	if len(lines) != 500 || missed != 700 || lines[0].Number != 701 || lines[499].Number != 1200 {
		t.Fatalf("%d lines, from %d to %d", len(lines), lines[0].Number, lines[len(lines)-1].Number)
	}
	for _, line := range lines {
		if len(line.Message) > 1100 || !utf8.ValidString(line.Message) || !strings.HasPrefix(line.Message, "\uFFFD\n<script>\"é") || !strings.HasSuffix(line.Message, "…") {
			t.Fatalf("message %q", line.Message)
		}
		if len(line.Attributes) > 32 || len(line.Attributes[0].Value) > 1100 || !utf8.ValidString(line.Attributes[0].Value) {
			t.Fatalf("%d attributes", len(line.Attributes))
		}
	}
	if few, missed := l.Tail(1190, 4); len(few) != 4 || few[3].Number != 1200 || missed != 6 {
		t.Errorf("%d of the last four, and %d others", len(few), missed)
	}
	for _, after := range []int64{1200, 1 << 60} {
		if none, missed := l.Tail(after, 10); len(none) != 0 || missed != 0 {
			t.Errorf("%d after %d, and %d others", len(none), after, missed)
		}
	}
}

// panics has a String method that a nil pointer does not survive.
type panics struct{ text string }

func (p *panics) String() string { return p.text }

func TestNilValue(t *testing.T) {
	var none *panics
	l := logging.New(&bytes.Buffer{}, slog.LevelInfo, logging.Text)
	l.Logger().Info("value", "of", none)
	if lines, _ := l.Tail(0, 1); len(lines) != 1 || len(lines[0].Attributes) != 1 {
		t.Errorf("%+v", lines)
	}
}

// Loggers, changes of level and format, and readers of the tail may meet; lines stay whole.
func TestAtOnce(t *testing.T) {
	var out bytes.Buffer
	l := logging.New(&out, slog.LevelInfo, logging.Text)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			log := l.Logger().With("i", i)
			for range 200 {
				log.Info("line")
				l.SetFormat([]logging.Format{logging.Text, logging.JSON}[i%2])
				l.Level().Set(slog.LevelInfo)
				l.Tail(0, 5)
			}
		})
	}
	all.Wait()
	for line := range strings.Lines(out.String()) {
		if strings.Count(line, "line") != 1 || !strings.HasSuffix(line, "\n") {
			t.Fatalf("%q", line)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 800 {
		t.Errorf("%d lines", n)
	}
}
