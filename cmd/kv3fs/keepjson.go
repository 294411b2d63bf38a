package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

// keepReport is the JSON of "keep". It is written a file at a time, so the fields of the envelope that are
// known at the end only come last.
type keepReport struct {
	keepHead
	Files []keepFile `json:"files"`
	keepSummary
}

type keepHead struct {
	Directory string `json:"directory"`
	DryRun    bool   `json:"dry_run"`
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
	Held          bool   `json:"held"`
	Holder        string `json:"holder,omitempty"`
	CapacityBytes int64  `json:"capacity_bytes"`
	BytesBefore   int64  `json:"bytes_before"`
	BytesAfter    int64  `json:"bytes_after"`
	FilesAfter    int64  `json:"files_after"`
	Unreadable    int64  `json:"unreadable"`
	Atime         string `json:"atime"`
}

// keepJSON prints a keepReport. Errors of writing show at the end.
type keepJSON struct {
	out     *bufio.Writer
	files   int
	notUTF8 map[string][]byte
}

func (j *keepJSON) begin(dir string, dry bool) {
	j.note("/directory", dir)
	fmt.Fprintf(j.out, "{\n  \"schema\": %d,\n  \"command\": \"keep\",\n  %s,\n  \"files\": [", jsonSchema, inner(keepHead{dir, dry}))
}

func (j *keepJSON) file(e keeper.Entry, goes bool) {
	j.note(fmt.Sprintf("/files/%d/path", j.files), e.Path)
	separator := ","
	if j.files++; j.files == 1 {
		separator = ""
	}
	fmt.Fprintf(j.out, "%s\n    {%s}", separator, inner(keepFile{
		Path: e.Path, Goes: goes, Why: string(e.Why), Layout: e.Owner.String(), Bytes: e.Bytes, UnusedS: int64(e.Unused / time.Second), Uses: e.Uses,
	}))
}

func (j *keepJSON) end(p daemon.KeepPass, interrupted bool) {
	rest := struct {
		keepSummary
		Interrupted bool              `json:"interrupted"`
		NotUTF8     map[string][]byte `json:"not_utf8,omitempty"`
	}{keepSummary{
		Held: p.Held, Holder: p.Holder, CapacityBytes: p.LimitBytes, BytesBefore: p.BytesWere, BytesAfter: p.Bytes, FilesAfter: p.Files,
		Unreadable: p.Unreadable, Atime: p.Atimes,
	}, interrupted, j.notUTF8}
	fmt.Fprintf(j.out, "\n  ],\n  %s\n}\n", inner(rest))
}

// note keeps the bytes of a text that JSON cannot express.
func (j *keepJSON) note(pointer, text string) {
	if utf8.ValidString(text) {
		return
	}
	if j.notUTF8 == nil {
		j.notUTF8 = map[string][]byte{}
	}
	j.notUTF8[pointer] = []byte(text)
}

// inner returns the fields of a struct as JSON, without the braces.
func inner(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // it has texts, numbers and booleans only
	}
	return string(b[1 : len(b)-1])
}
