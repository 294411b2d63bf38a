package ucmlog

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/slogtest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var task = Task{Store: "Ds3fs", ID: 7, Operation: LoadBackend, Subtasks: 64, Bytes: 33554432}

// lines writes each kind of line.
func lines(to *slog.Logger) {
	Dispatching(to, task)
	Finished(to, task, 12345678*time.Nanosecond, 1, 2)
	Refused(to, task, errors.New("closed"))
	Found(to, Request{ID: "cmpl-1", Blocks: 125, Memory: 25, Outside: 100})
}

func TestLinesReadAsUCMs(t *testing.T) {
	var log strings.Builder
	lines(slog.New(NewHandler(&log, slog.LevelDebug)).With("rank", 3).WithGroup("g"))
	got := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
	want := []string{
		"Ds3fs task(7,Backend2Cache,64,33554432) dispatching. rank=3",
		"Ds3fs task(7,Backend2Cache,64,33554432) finished, cost 12.346ms. rank=3",
		"Ds3fs task(7,Backend2Cache,64,33554432) refused: closed rank=3",
		"request_id: cmpl-1, total_blocks_num: 125, hit memory: 25, hit external: 100 rank=3",
	}
	if len(got) != len(want) {
		t.Fatalf("%d lines:\n%s", len(got), log.String())
	}
	for i, line := range got {
		when, rest, _ := strings.Cut(line, "[UC][D] ")
		if _, err := time.Parse("[2006-01-02 15:04:05.000000]", when); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		text, place, _ := strings.Cut(rest, " [")
		var pid, tid int
		if _, err := fmt.Sscanf(place, "%d,%d]", &pid, &tid); err != nil || pid != os.Getpid() || tid <= 0 || text != want[i] {
			t.Errorf("%q; want %q and process %d, %v", line, want[i], os.Getpid(), err)
		}
	}
}

// What the text of a line says is in its attributes, too.
func TestLinesAreStructured(t *testing.T) {
	var log strings.Builder
	lines(slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	const of = `"store":"Ds3fs","id":7,"operation":"Backend2Cache","subtasks":64,"bytes":33554432`
	for _, want := range []string{
		`"task":{` + of + `}}`,
		`"task":{` + of + `,"cost_ms":12.345678,"missed":1,"failed":2}}`,
		`"task":{` + of + `,"err":"closed"}}`,
		`"request":{"id":"cmpl-1","total_blocks":125,"hit_memory":25,"hit_external":100}}`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in\n%s", want, log.String())
		}
	}
}

func TestHandlerKeepsOtherAttributes(t *testing.T) {
	var log strings.Builder
	l := slog.New(NewHandler(&log, slog.LevelInfo))
	l.Debug("not this")
	l.WithGroup("a").With("b", 1).Warn("two\nlines", "c", "d e", slog.Group("f", "g", ""), slog.Attr{})
	l.Error("gone")
	got := log.String()
	if !strings.Contains(got, `[UC][W] two lines a.b=1 a.c="d e" a.f.g="" [`) || !strings.Contains(got, "[UC][E] gone [") || strings.Count(got, "\n") != 2 {
		t.Error(got)
	}
}

// The handler behaves as log/slog requires.
func TestHandlerIsOne(t *testing.T) {
	var log strings.Builder
	slogtest.Run(t, func(*testing.T) slog.Handler {
		log.Reset()
		return NewHandler(&log, slog.LevelDebug)
	}, func(t *testing.T) map[string]any { return read(t, log.String()) })
}

// read returns what a line says, as slogtest wants it.
func read(t *testing.T, line string) map[string]any {
	all := map[string]any{}
	when, rest, _ := strings.Cut(strings.TrimSpace(line), "[UC]")
	if when != "" {
		all[slog.TimeKey] = when
	}
	level, rest, _ := strings.Cut(rest, " ")
	all[slog.LevelKey] = level
	fields := strings.Fields(rest[:strings.LastIndex(rest, " [")])
	for _, field := range fields {
		name, value, isAttr := strings.Cut(field, "=")
		if !isAttr {
			all[slog.MessageKey] = field
			continue
		}
		in := all
		for group, inner, ok := strings.Cut(name, "."); ok; group, inner, ok = strings.Cut(name, ".") {
			if in[group] == nil {
				in[group] = map[string]any{}
			}
			in, name = in[group].(map[string]any), inner
		}
		in[name] = value
	}
	return all
}

func TestFromEnvironment(t *testing.T) {
	for _, c := range []struct {
		newer, older string
		level        slog.Level
		set, unknown bool
	}{
		{"", "", slog.LevelInfo, false, false},
		{"", "debug", slog.LevelDebug, true, false},
		{"", "DEBUG", slog.LevelDebug, true, false},
		{"", "trace", slog.LevelDebug, true, false},
		{"", "warning", slog.LevelWarn, true, false},
		{"", "err", slog.LevelError, true, false},
		{"", "critical", slog.LevelError, true, false},
		{"", "off", Off, true, false},
		{"error", "debug", slog.LevelError, true, false},
		{"", "loud", slog.LevelInfo, true, true},
	} {
		t.Setenv("UCM_LOG_LEVEL", c.newer)
		t.Setenv("UC_LOGGER_LEVEL", c.older)
		level, set, unknown := FromEnvironment()
		if level != c.level || set != c.set || (unknown != "") != c.unknown {
			t.Errorf("%q, %q: %v, %v, %q", c.newer, c.older, level, set, unknown)
		}
	}
}

// Lines that are not written cost nothing.
func TestNothingIsSpentOnWhatIsNotLogged(t *testing.T) {
	for name, l := range map[string]*slog.Logger{
		"discarded": slog.New(slog.DiscardHandler),
		"at info":   slog.New(NewHandler(&strings.Builder{}, slog.LevelInfo)),
	} {
		if n := testing.AllocsPerRun(100, func() {
			if Enabled(l) {
				lines(l)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// A request's id comes from outside: it can neither begin a line nor command a terminal.
func TestControlCharactersStayOut(t *testing.T) {
	var log strings.Builder
	const id = "a\x1b[2Jb\x00c\u0085d\u2028e\r\nf"
	Found(slog.New(NewHandler(&log, slog.LevelDebug)).With("id", id), Request{ID: id})
	for _, r := range strings.TrimSuffix(log.String(), "\n") {
		if !strconv.IsPrint(r) {
			t.Errorf("%q has %q", log.String(), r)
			break
		}
	}
}
