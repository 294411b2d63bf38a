package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
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
}

// writeJSON prints the report of a command for programs. report is a struct, or nil if the
// command was interrupted before there was one.
func writeJSON(out io.Writer, command string, interrupted bool, report any) error {
	head := envelope{Schema: jsonSchema, Command: command, Interrupted: interrupted}
	body := []byte("{}")
	if report != nil {
		head.NotUTF8 = notUTF8Texts(reflect.ValueOf(report), "", nil)
		var err error
		if body, err = json.Marshal(report); err != nil {
			return err
		}
		// A report may have a field of its own for it.
		var own struct{ Interrupted *bool }
		if err := json.Unmarshal(body, &own); err != nil {
			return fmt.Errorf("%s: the report is no object: %w", command, err)
		}
		if own.Interrupted != nil {
			return writeObject(out, struct {
				Schema  int               `json:"schema"`
				Command string            `json:"command"`
				NotUTF8 map[string][]byte `json:"not_utf8,omitempty"`
			}{head.Schema, head.Command, head.NotUTF8}, body)
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
}](ctx context.Context, out io.Writer, command string, report P, err error, asJSON bool) error {
	interrupted := ctx.Err() != nil
	if interrupted && !errors.Is(err, ctx.Err()) {
		err = errors.Join(err, ctx.Err())
	}
	switch {
	case report != nil && asJSON:
		return cmp.Or(err, writeJSON(out, command, interrupted, report))
	case report != nil:
		return cmp.Or(err, report.WriteTable(out))
	case interrupted && asJSON:
		return cmp.Or(err, writeJSON(out, command, true, nil))
	}
	return err
}

// notUTF8Texts adds to found the texts in a value that are not UTF-8, by their JSON
// pointers.
func notUTF8Texts(v reflect.Value, pointer string, found map[string][]byte) map[string][]byte {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return notUTF8Texts(v.Elem(), pointer, found)
		}
	case reflect.String:
		if text := v.String(); !utf8.ValidString(text) {
			if found == nil {
				found = map[string][]byte{}
			}
			found[pointer] = []byte(text)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			found = notUTF8Texts(v.Index(i), pointer+"/"+strconv.Itoa(i), found)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			found = notUTF8Texts(v.MapIndex(key), pointer+"/"+pointerEscape(fmt.Sprint(key)), found)
		}
	case reflect.Struct:
		if ownJSON(v.Type()) {
			return found
		}
		for _, f := range jsonFields(v.Type()) {
			found = notUTF8Texts(v.FieldByIndex(f.index), pointer+f.pointer(), found)
		}
	}
	return found
}

func pointerEscape(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

// ownJSON reports whether a type writes its JSON itself.
func ownJSON(t reflect.Type) bool {
	for _, own := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if t.Implements(own) || reflect.PointerTo(t).Implements(own) {
			return true
		}
	}
	return false
}

// jsonField is a field of a struct as encoding/json writes it. name is empty for one whose
// own fields take its place.
type jsonField struct {
	name  string
	index []int
}

func (f jsonField) pointer() string {
	if f.name == "" {
		return ""
	}
	return "/" + pointerEscape(f.name)
}

func jsonFields(t reflect.Type) (all []jsonField) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case name == "" && !f.Anonymous:
			name = f.Name
		}
		all = append(all, jsonField{name, f.Index})
	}
	return all
}
