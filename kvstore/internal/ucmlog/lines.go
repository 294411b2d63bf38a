package ucmlog

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Groups of attributes whose values the text of their record has as well.
const (
	taskGroup    = "task"
	requestGroup = "request"
)

// Operations of tasks. The first two are those of the store in front, the others those of
// a store behind Cache.
const (
	Load        = "LOAD"
	Dump        = "DUMP"
	LoadBackend = "Backend2Cache"
	DumpBackend = "Cache2Backend"
)

// A Task is a batch of Load or Save.
type Task struct {
	Store     string
	ID        int64 // unique in its store
	Operation string
	Subtasks  int // shards
	Bytes     int64
}

func (t Task) String() string {
	return fmt.Sprintf("%s task(%d,%s,%d,%d)", t.Store, t.ID, t.Operation, t.Subtasks, t.Bytes)
}

func (t Task) group(more ...any) slog.Attr {
	return slog.Group(taskGroup, append([]any{"store", t.Store, "id", t.ID, "operation", t.Operation, "subtasks", t.Subtasks, "bytes", t.Bytes}, more...)...)
}

// Dispatching logs that a store is given a task.
func Dispatching(to *slog.Logger, t Task) {
	debug(to, t.String()+" dispatching.", t.group())
}

// Refused logs that a store has not taken a task.
func Refused(to *slog.Logger, t Task, err error) {
	debug(to, t.String()+" refused: "+err.Error(), t.group("err", err.Error()))
}

// Finished logs the end of a task: how long it took from Dispatching on, and how many of
// its shards were misses or failed.
func Finished(to *slog.Logger, t Task, cost time.Duration, missed, failed int64) {
	ms := float64(cost) / float64(time.Millisecond)
	debug(to, fmt.Sprintf("%v finished, cost %.3fms.", t, ms), t.group("cost_ms", ms, "missed", missed, "failed", failed))
}

// A Request is a lookup.
type Request struct {
	ID                      string
	Blocks, Memory, Outside int // blocks asked about, and how many were found where
}

// Found logs what a lookup has found.
func Found(to *slog.Logger, r Request) {
	debug(to, fmt.Sprintf("request_id: %s, total_blocks_num: %d, hit memory: %d, hit external: %d", r.ID, r.Blocks, r.Memory, r.Outside),
		slog.Group(requestGroup, "id", r.ID, "total_blocks", r.Blocks, "hit_memory", r.Memory, "hit_external", r.Outside))
}

func debug(to *slog.Logger, text string, group slog.Attr) {
	to.LogAttrs(context.Background(), slog.LevelDebug, text, group)
}

// Enabled reports whether the lines would be written. Callers ask before they gather what
// the lines say.
func Enabled(to *slog.Logger) bool { return to.Enabled(context.Background(), slog.LevelDebug) }
