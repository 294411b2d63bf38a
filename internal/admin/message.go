package admin

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/exactjson"
)

// message is a request, or a line of an answer.
type message struct {
	Value   json.RawMessage   `json:"value,omitempty"`
	NotUTF8 map[string][]byte `json:"not_utf8,omitempty"`
	End     bool              `json:"end,omitempty"`
	Error   string            `json:"error,omitempty"`
}

// encode returns a line with a value.
func encode(v any) ([]byte, error) {
	value, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return line(message{Value: value, NotUTF8: exactjson.NotUTF8(v)})
}

func line(m message) ([]byte, error) {
	b, err := json.Marshal(m)
	return append(b, '\n'), err
}

// decode reads the value of a message, as far as v has fields for it.
func (m *message) decode(v any) error { return m.read(json.NewDecoder(bytes.NewReader(m.Value)), v) }

// decodeAll is decode for a v that must have a field for all that is there.
func (m *message) decodeAll(v any) error {
	d := json.NewDecoder(bytes.NewReader(m.Value))
	d.DisallowUnknownFields()
	return m.read(d, v)
}

func (m *message) read(d *json.Decoder, v any) error {
	if len(m.Value) == 0 {
		return fmt.Errorf("a message without a value")
	}
	if err := d.Decode(v); err != nil {
		return err
	}
	return exactjson.Restore(v, m.NotUTF8)
}
