package main

import (
	"bufio"
	"cmp"
	"time"

	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

// keepReport is the JSON of "keep".
type keepReport struct {
	Files []keepFile `json:"files"`
	keepSummary
}

type keepFile struct {
	Path    string `json:"path"`
	Goes    bool   `json:"goes"`
	Why     string `json:"why"`
	Layout  string `json:"layout"`
	Bytes   int64  `json:"bytes"`
	UnusedS int64  `json:"unused_s"`
	Uses    int    `json:"uses"`
}

type keepSummary struct {
	Directory     string `json:"directory"`
	DryRun        bool   `json:"dry_run"`
	Held          bool   `json:"held"`
	Holder        string `json:"holder,omitempty"`
	CapacityBytes int64  `json:"capacity_bytes"`
	BytesBefore   int64  `json:"bytes_before"`
	BytesAfter    int64  `json:"bytes_after"`
	FilesAfter    int64  `json:"files_after"`
	Unreadable    int64  `json:"unreadable"`
	Atime         string `json:"atime"`
}

// keepJSON prints a keepReport.
type keepJSON struct {
	stream *jsonStream
	dry    bool
	err    error // the first one of writing
}

func newKeepJSON(out *bufio.Writer, dry bool) *keepJSON {
	stream, err := newJSONStream(out, "keep", "files")
	return &keepJSON{stream: stream, dry: dry, err: err}
}

func (j *keepJSON) file(e keeper.Entry, goes bool) {
	err := j.stream.add(keepFile{
		Path: e.Path, Goes: goes, Why: string(e.Why), Layout: e.Owner.String(), Bytes: e.Bytes, UnusedS: int64(e.Unused / time.Second), Uses: e.Uses,
	})
	j.err = cmp.Or(j.err, err)
}

func (j *keepJSON) end(p daemon.KeepPass, interrupted bool) error {
	err := j.stream.end(interrupted, keepSummary{
		Directory: p.Dir, DryRun: j.dry, Held: p.Held, Holder: p.Holder, CapacityBytes: p.LimitBytes, BytesBefore: p.BytesWere, BytesAfter: p.Bytes,
		FilesAfter: p.Files, Unreadable: p.Unreadable, Atime: p.Atimes,
	})
	return cmp.Or(j.err, err)
}
