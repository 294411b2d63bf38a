package transformer

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// config is a config.json, or an object in one. The first error sticks: later reads
// return zero.
type config struct {
	path   string // of an object in the file: "text_config."
	fields map[string]json.RawMessage
	err    error
	notes  []string
}

func (c *config) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *config) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// has reports whether a key has a value other than null.
func (c *config) has(key string) bool {
	value, ok := c.fields[key]
	return ok && string(value) != "null"
}

// wrong reports a value of another type than expected.
func (c *config) wrong(key, expected string) {
	c.fail("%s%s is %s, not %s", c.path, key, found(c.fields[key]), expected)
}

// found describes a JSON value for an error.
func found(value json.RawMessage) string {
	value = bytes.TrimSpace(value)
	var text string
	switch {
	case len(value) == 0:
		return "nothing"
	case value[0] == '{':
		return "an object"
	case value[0] == '[':
		return "a list"
	case json.Unmarshal(value, &text) == nil && value[0] == '"':
		return fmt.Sprintf("the text %.40q", text)
	}
	return fmt.Sprintf("%.40s", value)
}

// read reads a value into v, which has the expected type. It reports whether there is one.
func (c *config) read(key, expected string, v any) bool {
	if !c.has(key) {
		return false
	}
	if err := json.Unmarshal(c.fields[key], v); err != nil {
		c.wrong(key, expected)
		return false
	}
	return true
}

// number reads the first of the keys that has a value, as a count of at least 0, or
// returns fallback if none has.
func (c *config) number(fallback int, keys ...string) int {
	for _, key := range keys {
		if !c.has(key) {
			continue
		}
		var n int
		if err := json.Unmarshal(c.fields[key], &n); err != nil || n < 0 || n > maxWindow {
			c.wrong(key, fmt.Sprintf("a whole number of 0 to %d", maxWindow))
			return 0
		}
		return n
	}
	return fallback
}

// positive is number for a value that must be there.
func (c *config) positive(what string, keys ...string) int {
	n := c.number(-1, keys...)
	if n < 0 {
		c.fail("%s%s is missing (%s)", c.path, keys[0], what)
	} else if n == 0 {
		c.fail("%s%s is 0 (%s)", c.path, keys[0], what)
	}
	return max(n, 1)
}

// measure reads a number that need not be whole, 0 if there is none.
func (c *config) measure(key string) (x float64) {
	if c.read(key, "a number", &x); x < 0 {
		c.wrong(key, "a number of 0 or more")
	}
	return max(x, 0)
}

func (c *config) text(key string) (s string) {
	c.read(key, "a text", &s)
	return s
}

func (c *config) truth(key string, fallback bool) bool {
	b := fallback
	if !c.read(key, "true or false", &b) {
		return fallback
	}
	return b
}

func (c *config) numbers(key string) (list []int) {
	c.read(key, "a list of whole numbers", &list)
	return list
}

func (c *config) texts(key string) (list []string) {
	c.read(key, "a list of texts", &list)
	return list
}

// object reads an object in this one, which is empty if there is none. Errors and notes
// that this one has are also those of the object.
func (c *config) object(key string) *config {
	o := &config{path: c.path + key + ".", notes: c.notes}
	c.read(key, "an object", &o.fields)
	o.err = c.err
	return o
}
