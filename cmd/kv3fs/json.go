package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/exactjson"
)

// jsonSchema is the version of the reports that docs/json.md describes. It rises when a
// field is removed or changes its meaning, but not when one is added.
const jsonSchema = 1

// envelope is how the JSON of every command begins.
type envelope struct {
	Schema      int    `json:"schema"`
	Command     string `json:"command"`
	Interrupted bool   `json:"interrupted"` // by a signal: the report holds what was complete
	// NotUTF8 holds the bytes, in base64, of texts that JSON cannot express, such as some
	// paths, by the JSON pointer of the field. In the field itself, U+FFFD stands for what
	// is not UTF-8.
	NotUTF8 map[string][]byte `json:"not_utf8,omitempty"`
	// Measured is of commands that measure.
	Measured *measure.Circumstances `json:"measured,omitempty"`
}

// writeJSON prints the report of a command for programs. report is a struct, or nil if the
// command was interrupted before there was one.
func writeJSON(out io.Writer, command string, interrupted bool, report any) error {
	return writeReport(out, envelope{Command: command, Interrupted: interrupted}, report)
}

// writeReport prints a report after what it begins with.
func writeReport(out io.Writer, head envelope, report any) error {
	head.Schema = jsonSchema
	body := []byte("{}")
	head.NotUTF8 = exactjson.NotUTF8(report)
	if head.NotUTF8 == nil {
		head.NotUTF8 = map[string][]byte{}
	}
	for pointer, text := range exactjson.NotUTF8(head.Measured) { // its command may name a path
		head.NotUTF8["/measured"+pointer] = text
	}
	if report != nil {
		var err error
		if body, err = json.Marshal(report); err != nil {
			return err
		}
		// A report may have a field of its own for it.
		var own struct{ Interrupted *bool }
		if err := json.Unmarshal(body, &own); err != nil {
			return fmt.Errorf("%s: the report is no object: %w", head.Command, err)
		}
		if own.Interrupted != nil {
			return writeObject(out, struct {
				Schema   int                    `json:"schema"`
				Command  string                 `json:"command"`
				NotUTF8  map[string][]byte      `json:"not_utf8,omitempty"`
				Measured *measure.Circumstances `json:"measured,omitempty"`
			}{head.Schema, head.Command, head.NotUTF8, head.Measured}, body)
		}
	}
	return writeObject(out, head, body)
}

// writeObject prints the fields of an object in front of those of another.
func writeObject(out io.Writer, head any, body []byte) error {
	first, err := json.Marshal(head)
	if err != nil {
		return err
	}
	whole := first
	if rest := bytes.TrimPrefix(body, []byte("{")); len(rest) > 1 {
		whole = append(append(bytes.TrimSuffix(first, []byte("}")), ','), rest...)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, whole, "", "  "); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err = b.WriteTo(out)
	return err
}

// printMeasured prints what a command has measured, even if it failed or was interrupted,
// and returns its error, or that it was interrupted.
func printMeasured[R any, P interface {
	*R
	WriteTable(io.Writer) error
}](ctx context.Context, out io.Writer, values *flagValues, command string, report P, err error, asJSON bool) error {
	interrupted := ctx.Err() != nil
	if interrupted && !errors.Is(err, ctx.Err()) {
		err = errors.Join(err, ctx.Err())
	}
	with := values.circumstances()
	switch {
	case report != nil && asJSON:
		return cmp.Or(err, writeReport(out, envelope{Command: command, Interrupted: interrupted, Measured: &with}, report))
	case report != nil:
		_, wrong := io.WriteString(out, measure.Wrap(strings.Join(with.Lines(), "\n")+"\n"))
		return cmp.Or(err, wrong, report.WriteTable(out))
	case interrupted && asJSON:
		return cmp.Or(err, writeJSON(out, command, true, nil))
	}
	return err
}
