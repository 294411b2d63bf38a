package kvstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/ucmlog"
)

// logged is a log that stores may write to while a test reads it.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// take returns what was written since the last call.
func (l *logged) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// taskLine is what UCM's documentation says of its four lines.
var taskLine = regexp.MustCompile(`(?m)^\[[-0-9]{10} [:.0-9]{15}\]\[UC\]\[D\] (\w+) task\((\d+),(\w+),(\d+),(\d+)\) (dispatching\.|finished, cost \d+\.\d{3}ms\.) \[\d+,\d+\]$`)

// moved is the shards and bytes of the tasks of one store in one direction.
type moved struct{ shards, bytes int }

// tasksOf adds up the tasks of a log by "store operation", and checks that each has two
// lines with the same numbers, the second one at its end.
func tasksOf(t *testing.T, log string) map[string]moved {
	t.Helper()
	open, sum := map[string]string{}, map[string]moved{}
	for _, m := range taskLine.FindAllStringSubmatch(log, -1) {
		name, what := m[1]+" "+m[2], m[3]+","+m[4]+","+m[5]
		if strings.HasPrefix(m[6], "dispatching") {
			if open[name] != "" {
				t.Errorf("two tasks are %s", name)
			}
			open[name] = what
			continue
		}
		if open[name] != what {
			t.Errorf("task %s began as %q and finished as %q", name, open[name], what)
		}
		open[name] = "finished"
		shards, _ := strconv.Atoi(m[4])
		bytes, _ := strconv.Atoi(m[5])
		was := sum[m[1]+" "+m[3]]
		sum[m[1]+" "+m[3]] = moved{was.shards + shards, was.bytes + bytes}
	}
	for name, what := range open {
		if what != "finished" {
			t.Errorf("task %s has not finished", name)
		}
	}
	if lines := strings.Count(log, " task("); lines != len(taskLine.FindAllString(log, -1)) {
		t.Errorf("%d lines are about tasks, and not all read as UCM's:\n%s", lines, log)
	}
	return sum
}

// At debug level every chain prints the lines of UCM's documentation, for the cache and for
// the store behind it, and what each request has found where.
func TestChainsLogAsUCM(t *testing.T) {
	w := newDeviceWorld(t)
	for _, chain := range Chains() {
		back, cached := strings.CutPrefix(chain, "Cache|")
		if names, err := parseChain(chain); err != nil || hasNear(names) {
			continue // blocks go from store to store in the background, too
		}
		t.Run(chain, func(t *testing.T) {
			l := &loggingChain{t: t, config: w.config(chain), chain: chain}
			l.config.Logger = slog.New(ucmlog.NewHandler(&l.log, slog.LevelDebug))
			if cached {
				l.asCacheAndNext(back)
			} else {
				l.asFront()
			}
		})
	}
}

const logBlocks, logMore = 5, 8

// loggingChain is a chain whose log is read.
type loggingChain struct {
	t      *testing.T
	chain  string
	config Config
	log    logged
}

// once is what a task moves that has every block once.
func (l *loggingChain) once() moved {
	return moved{logBlocks * l.config.Layout.Shards(), logBlocks * int(l.config.Layout.BlockBytes)}
}

func (l *loggingChain) open() *Store {
	l.t.Helper()
	s, err := Open(l.chain, l.config)
	if err != nil {
		l.t.Fatal(err)
	}
	l.log.take()
	return s
}

func (l *loggingChain) close(s *Store) {
	l.t.Helper()
	if err := s.Close(); err != nil {
		l.t.Fatal(err)
	}
}

// tasks checks what the tasks that were logged have moved.
func (l *loggingChain) tasks(which string, want map[string]moved) {
	l.t.Helper()
	text := l.log.take()
	if got := tasksOf(l.t, text); !maps.Equal(got, want) {
		l.t.Errorf("%s: %v, want %v:\n%s", which, got, want, text)
	}
}

// lookup looks all keys up, and checks the line about it.
func (l *loggingChain) lookup(s *Store, id, logsAs string, memory, external int) {
	l.t.Helper()
	ctx := l.t.Context()
	if id != "" {
		ctx = WithRequestID(ctx, id)
	}
	if _, err := s.LookupPrefix(ctx, testKeys(logMore)); err != nil {
		l.t.Fatal(err)
	}
	text := l.log.take()
	line := fmt.Sprintf("[UC][D] request_id: %s, total_blocks_num: %d, hit memory: %d, hit external: %d [", logsAs, logMore, memory, external)
	if !strings.Contains(text, line) || strings.Count(text, "request_id") != 1 {
		l.t.Errorf("no %q, or more, in\n%s", line, text)
	}
}

// save saves blocks whose content is their key, and waits until they have reached the last store.
func (l *loggingChain) save(s *Store) {
	l.t.Helper()
	bufs := l.buffers()
	for i, key := range testKeys(logBlocks) {
		copy(bufs[i], key[:])
	}
	l.do(s.Save(l.t.Context(), l.config.Layout.ByBlock(testKeys(logBlocks), bufs)))
	if err := s.Flush(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
}

func (l *loggingChain) load(s *Store) {
	l.t.Helper()
	bufs := l.buffers()
	l.do(s.Load(l.t.Context(), l.config.Layout.ByBlock(testKeys(logBlocks), bufs)))
	for i, key := range testKeys(logBlocks) {
		if !bytes.HasPrefix(bufs[i], key[:]) {
			l.t.Errorf("block %s: wrong bytes", key)
		}
	}
}

func (l *loggingChain) buffers() [][]byte {
	bufs := make([][]byte, logBlocks)
	for i := range bufs {
		bufs[i] = make([]byte, l.config.Layout.BlockBytes)
	}
	return bufs
}

func (l *loggingChain) do(task *Task, err error) {
	l.t.Helper()
	if err == nil {
		err = task.Wait(l.t.Context())
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// asCacheAndNext checks a chain with Cache. Empty behind it takes all and has nothing.
func (l *loggingChain) asCacheAndNext(back string) {
	s := l.open()
	l.lookup(s, "cold", "cold", 0, 0)
	l.save(s)
	l.tasks("save", map[string]moved{"Cache DUMP": l.once(), back + " Cache2Backend": l.once()})
	l.lookup(s, "", "1", logBlocks, 0)
	if back == "Empty" {
		l.load(s)
		l.tasks("load", map[string]moved{"Cache LOAD": l.once()})
		l.close(s)
		return
	}
	l.close(s)

	s = l.open()
	l.lookup(s, "warm", "warm", 0, logBlocks)
	l.load(s)
	l.tasks("load", map[string]moved{"Cache LOAD": l.once(), back + " Backend2Cache": l.once()})
	l.load(s)
	l.tasks("load from memory", map[string]moved{"Cache LOAD": l.once()})
	l.lookup(s, "hot", "hot", logBlocks, 0)
	l.close(s)
}

// asFront checks a store alone, which has UCM's words of a front.
func (l *loggingChain) asFront() {
	s := l.open()
	l.lookup(s, "cold", "cold", 0, 0)
	l.save(s)
	l.tasks("save", map[string]moved{l.chain + " DUMP": l.once()})
	if l.chain != "Empty" {
		l.lookup(s, "warm", "warm", 0, logBlocks)
		l.load(s)
		l.tasks("load", map[string]moved{l.chain + " LOAD": l.once()})
	}
	l.close(s)
}

// load loads blocks and checks their bytes.
func load(t *testing.T, s *Store, blocks ...Key) {
	t.Helper()
	bufs := make([][]byte, len(blocks))
	for i := range bufs {
		bufs[i] = make([]byte, testLayout.BlockBytes)
	}
	task, err := s.Load(t.Context(), testLayout.ByBlock(blocks, bufs))
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, want := range buffers(blocks) {
		if string(bufs[i]) != string(want) {
			t.Errorf("block %s: wrong bytes", blocks[i])
		}
	}
}

// Programs read the same from the attributes.
func TestLogIsStructured(t *testing.T) {
	var log logged
	s := openTest(t, "Cache|Posix", func(c *Config) {
		c.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	save(t, s, testKeys(2)...)
	if _, err := s.LookupPrefix(WithRequestID(t.Context(), "r"), testKeys(3)); err != nil {
		t.Fatal(err)
	}
	type record struct {
		Level string
		Task  *struct {
			Store, Operation string
			ID               int64
			Subtasks, Bytes  int
			CostMs           *float64 `json:"cost_ms"`
			Missed, Failed   int
		}
		Request *struct {
			ID      string
			Total   int `json:"total_blocks"`
			Memory  int `json:"hit_memory"`
			Outside int `json:"hit_external"`
		}
	}
	begun, done, requests := 0, 0, 0
	for line := range strings.Lines(log.take()) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		switch {
		case r.Task != nil && r.Task.Store == "Cache":
			if r.Level != "DEBUG" || r.Task.ID != 1 || r.Task.Operation != "DUMP" || r.Task.Subtasks != 4 || r.Task.Bytes != 4*4096 || r.Task.Missed != 0 || r.Task.Failed != 0 {
				t.Errorf("%s", line)
			}
			if r.Task.CostMs == nil {
				begun++
			} else if done++; *r.Task.CostMs < 0 {
				t.Errorf("%s", line)
			}
		case r.Request != nil:
			if requests++; r.Request.ID != "r" || r.Request.Total != 3 || r.Request.Memory != 2 || r.Request.Outside != 0 {
				t.Errorf("%s", line)
			}
		}
	}
	if begun != 1 || done != 1 || requests != 1 {
		t.Errorf("%d began, %d finished, %d requests", begun, done, requests)
	}
}

// A chain without a Logger logs to the standard error output what UC_LOGGER_LEVEL says.
func TestUCLoggerLevel(t *testing.T) {
	for value, want := range map[string]struct{ tasks, opened, unknown bool }{
		"":        {},
		"off":     {},
		"warning": {},
		"info":    {opened: true},
		"debug":   {opened: true, tasks: true},
		"verbose": {opened: true, unknown: true},
	} {
		t.Run(value, func(t *testing.T) {
			t.Setenv("UCM_LOG_LEVEL", "")
			t.Setenv("UC_LOGGER_LEVEL", value)
			file := filepath.Join(t.TempDir(), "stderr")
			f, err := os.Create(file)
			if err != nil {
				t.Fatal(err)
			}
			was := os.Stderr
			os.Stderr = f
			s, err := Open("Cache|Empty", Config{Namespace: namespace, Layout: testLayout, Cache: &CacheOptions{CapacityBytes: 64 * testLayout.BlockBytes}})
			os.Stderr = was
			if err != nil {
				t.Fatal(err)
			}
			save(t, s, testKeys(1)...)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			log := string(text)
			if strings.Contains(log, "[UC][D] Cache task(1,DUMP,2,8192) dispatching.") != want.tasks ||
				strings.Contains(log, "[UC][I] opened block store chain=Cache|Empty") != want.opened ||
				strings.Contains(log, "[UC][W] UC_LOGGER_LEVEL is not one of") != want.unknown {
				t.Errorf("UC_LOGGER_LEVEL=%s: %q", value, log)
			}
		})
	}
}
