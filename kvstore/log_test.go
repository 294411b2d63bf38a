package kvstore

import (
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

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
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
	for _, back := range []string{"Posix", "Segment", "Ds3fs"} {
		t.Run("Cache|"+back, func(t *testing.T) {
			var log logged
			change := func(c *Config) { c.Logger = slog.New(ucmlog.NewHandler(&log, slog.LevelDebug)) }
			dir := t.TempDir()
			var mount string
			if back == "Ds3fs" {
				mount = daemontest.Serve(t).Mount
			}
			open := func() *Store {
				return openTest(t, "Cache|"+back, func(c *Config) {
					change(c)
					switch back {
					case "Posix":
						c.Posix.Dirs = []string{dir}
					case "Segment":
						c.Segment.Dir = dir
					case "Ds3fs":
						c.Ds3fs = &Ds3fsOptions{Mount: mount, RingOptions: RingOptions{BufferBytes: 1 << 20}}
					}
				})
			}
			want := func(which string, want map[string]moved) {
				t.Helper()
				text := log.take()
				if got := tasksOf(t, text); !maps.Equal(got, want) {
					t.Errorf("%s: %v, want %v:\n%s", which, got, want, text)
				}
			}
			requests := func(want ...string) {
				t.Helper()
				text := log.take()
				for _, line := range want {
					if !strings.Contains(text, "[UC][D] "+line+" [") {
						t.Errorf("no %q in\n%s", line, text)
					}
				}
				if n := strings.Count(text, "request_id"); n != len(want) {
					t.Errorf("%d requests, want %d:\n%s", n, len(want), text)
				}
			}
			lookup := func(s *Store, id string, blocks []Key) {
				t.Helper()
				ctx := t.Context()
				if id != "" {
					ctx = WithRequestID(ctx, id)
				}
				if _, err := s.LookupPrefix(ctx, blocks); err != nil {
					t.Fatal(err)
				}
			}
			const blocks, more = 5, 8
			all := testKeys(more)
			s := open()
			lookup(s, "cold", all)
			requests(fmt.Sprintf("request_id: cold, total_blocks_num: %d, hit memory: 0, hit external: 0", more))
			save(t, s, all[:blocks]...)
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			once := moved{blocks * testLayout.Shards(), blocks * int(testLayout.BlockBytes)}
			want("save", map[string]moved{"Cache DUMP": once, back + " Cache2Backend": once})
			lookup(s, "", all)
			requests(fmt.Sprintf("request_id: 1, total_blocks_num: %d, hit memory: %d, hit external: 0", more, blocks))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}

			s = open()
			log.take()
			lookup(s, "warm", all)
			requests(fmt.Sprintf("request_id: warm, total_blocks_num: %d, hit memory: 0, hit external: %d", more, blocks))
			load(t, s, all[:blocks]...)
			want("load", map[string]moved{"Cache LOAD": once, back + " Backend2Cache": once})
			load(t, s, all[:blocks]...)
			want("load from memory", map[string]moved{"Cache LOAD": once})
			lookup(s, "hot", all)
			requests(fmt.Sprintf("request_id: hot, total_blocks_num: %d, hit memory: %d, hit external: 0", more, blocks))
		})
	}
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

// A store alone has UCM's words of a front.
func TestOneStoreLogsAsFront(t *testing.T) {
	var log logged
	s := openTest(t, "Posix", func(c *Config) { c.Logger = slog.New(ucmlog.NewHandler(&log, slog.LevelDebug)) })
	save(t, s, testKeys(2)...)
	load(t, s, testKeys(2)...)
	once := moved{2 * testLayout.Shards(), 2 * int(testLayout.BlockBytes)}
	if got, want := tasksOf(t, log.take()), (map[string]moved{"Posix DUMP": once, "Posix LOAD": once}); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
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
