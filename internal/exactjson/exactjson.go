// Package exactjson carries texts that are not UTF-8, such as some paths, through JSON, which
// cannot express them: encoding/json puts U+FFFD for what is not UTF-8, and the exact bytes
// go beside the value, by the JSON pointer (RFC 6901) of the text.
package exactjson

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// NotUTF8 returns the texts in a value that are not UTF-8, by their JSON pointers; nil if there
// are none.
func NotUTF8(v any) map[string][]byte {
	of := reflect.ValueOf(v)
	if plain(of) {
		return nil
	}
	return notUTF8(of, "", nil)
}

// plain reports whether all texts of a value are UTF-8, as nearly always, more quickly than with their
// pointers.
func plain(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return v.IsNil() || plain(v.Elem())
	case reflect.String:
		return utf8.ValidString(v.String())
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return true
		}
		for i := range v.Len() {
			if !plain(v.Index(i)) {
				return false
			}
		}
	case reflect.Map:
		return v.Len() == 0
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); (f.IsExported() || f.Anonymous) && !plain(v.Field(i)) {
				return false
			}
		}
	}
	return true
}

func notUTF8(v reflect.Value, pointer string, found map[string][]byte) map[string][]byte {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return notUTF8(v.Elem(), pointer, found)
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
			found = notUTF8(v.Index(i), pointer+"/"+strconv.Itoa(i), found)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			found = notUTF8(v.MapIndex(key), pointer+"/"+Escape(fmt.Sprint(key)), found)
		}
	case reflect.Struct:
		if Own(v.Type()) {
			return found
		}
		for _, f := range Fields(v.Type()) {
			found = notUTF8(v.FieldByIndex(f.Index), pointer+f.pointer(), found)
		}
	}
	return found
}

// Escape returns a key as it stands in a JSON pointer.
func Escape(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}

// Own reports whether a type writes its JSON itself.
func Own(t reflect.Type) bool {
	for _, own := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if t.Implements(own) || reflect.PointerTo(t).Implements(own) {
			return true
		}
	}
	return false
}

// Field is a field of a struct as encoding/json writes it. Name is empty for one whose
// own fields take its place.
type Field struct {
	Name  string
	Index []int
}

func (f Field) pointer() string {
	if f.Name == "" {
		return ""
	}
	return "/" + Escape(f.Name)
}

// Fields returns the fields of a struct.
func Fields(t reflect.Type) (all []Field) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case name == "" && !f.Anonymous:
			name = f.Name
		}
		all = append(all, Field{name, f.Index})
	}
	return all
}

// Restore puts texts back into the value that their JSON was decoded into. Pointers that lead
// nowhere are an error: the JSON is of another type.
func Restore(v any, texts map[string][]byte) error {
	for pointer, text := range texts {
		if !restore(reflect.ValueOf(v), pointer, string(text)) {
			return fmt.Errorf("there is no text at %q", pointer)
		}
	}
	return nil
}

func restore(v reflect.Value, pointer, text string) bool {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if pointer == "" {
		if v.Kind() != reflect.String || !v.CanSet() {
			return false
		}
		v.SetString(text)
		return true
	}
	first, rest, more := strings.Cut(strings.TrimPrefix(pointer, "/"), "/")
	if more {
		rest = "/" + rest
	}
	switch v.Kind() {
	case reflect.Slice:
		i, err := strconv.Atoi(first)
		return err == nil && i >= 0 && i < v.Len() && restore(v.Index(i), rest, text)
	case reflect.Struct:
		for _, f := range Fields(v.Type()) {
			switch {
			case f.Name == "":
				if restore(v.FieldByIndex(f.Index), pointer, text) {
					return true
				}
			case Escape(f.Name) == first:
				return restore(v.FieldByIndex(f.Index), rest, text)
			}
		}
	}
	return false
}
