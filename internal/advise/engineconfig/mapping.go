package engineconfig

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/lmcachekeys"
	"github.com/kv3fs/kv3fs/internal/pyyaml"
	"github.com/kv3fs/kv3fs/internal/spelling"
	"github.com/kv3fs/kv3fs/internal/ucmkeys"
)

// mapping is one level of a configuration's keys and values. Reading it adds problems
// to out.
type mapping struct {
	values map[string]any
	where  string // prefix of keys in problems, e.g. "extra_config."
	out    *Config
	known  map[string]bool // keys that have been looked up
	// name returns what problems call a key that another source than the file may have set;
	// nil: where and the key.
	name func(key string) string
}

func newMapping(values map[string]any, where string, out *Config) *mapping {
	return &mapping{values: values, where: where, out: out, known: map[string]bool{}}
}

func (c *Config) add(s Severity, key, what, fix string) {
	c.Problems = append(c.Problems, Problem{s, key, what, fix})
}

func (m *mapping) problem(s Severity, key, what, fix string) { m.out.add(s, m.nameOf(key), what, fix) }

func (m *mapping) nameOf(key string) string {
	if m.name == nil || key == "" {
		return m.where + key
	}
	return m.name(key)
}

// get returns the value of a key; null counts as missing.
func (m *mapping) get(key string) (any, bool) {
	m.known[key] = true
	v, ok := m.values[key]
	return v, ok && v != nil
}

func (m *mapping) has(key string) bool { _, ok := m.get(key); return ok }

// text returns the text of a key, "" if it has none.
func (m *mapping) text(key string) string {
	v, ok := m.get(key)
	if !ok {
		return ""
	}
	s, ok := v.(string)
	if !ok {
		m.problem(Failure, key, "is "+kindOf(v)+", not text", "write it in quotes")
	}
	return s
}

// choice returns the value of a key, which must be one of words; the first is the
// default.
func (m *mapping) choice(key string, words ...string) string {
	s := m.text(key)
	if s == "" {
		return words[0]
	}
	if !slices.Contains(words, s) {
		m.problem(Failure, key, fmt.Sprintf("is %.80q", s), "write one of: "+strings.Join(words, ", "))
		return words[0]
	}
	return s
}

// bounds limit a whole number.
type bounds struct {
	fallback, min, max int64
	converts           bool // the engine converts text and fractions
}

// number returns the whole number of a key. It returns the default if the key is missing,
// and also, after reporting a failure, if the value is out of bounds or not a whole
// number.
func (m *mapping) number(key string, b bounds) int64 {
	v, ok := m.get(key)
	if !ok {
		return b.fallback
	}
	fix := fmt.Sprintf("write a whole number, %d to %d", b.min, b.max)
	n, ok := whole(v, b.converts)
	switch {
	case !ok:
		m.problem(Failure, key, "is "+kindOf(v)+", not a whole number", fix)
	case n < b.min || n > b.max:
		m.problem(Failure, key, fmt.Sprintf("is %d", n), fix)
	default:
		return n
	}
	return b.fallback
}

// lmcacheNumber returns the whole number of a key of LMCache's, and the default after a failure.
func (m *mapping) lmcacheNumber(key string, fallback int64) int64 {
	return readValue(m, key, fallback, lmcachekeys.Number)
}

// lmcacheFlag returns the flag of a key of LMCache's, and the default after a failure.
func (m *mapping) lmcacheFlag(key string, fallback bool) bool {
	return readValue(m, key, fallback, lmcachekeys.Flag)
}

// lmcacheCheck checks the value of a key of LMCache's that is not used here.
func (m *mapping) lmcacheCheck(key string) { m.check(key, lmcachekeys.Check) }

// ucmNumber returns the whole number of a key of UCM's, and the default after a failure.
func (m *mapping) ucmNumber(key string, fallback int64) int64 {
	return readValue(m, key, fallback, ucmkeys.Number)
}

// ucmFlag returns the flag of a key of UCM's, and the default after a failure.
func (m *mapping) ucmFlag(key string, fallback bool) bool {
	return readValue(m, key, fallback, ucmkeys.Flag)
}

// ucmText returns the text of a key of UCM's, "" if it has none and after a failure.
func (m *mapping) ucmText(key string) string { return readValue(m, key, "", ucmkeys.Text) }

// ucmCheck checks the value of a key of UCM's that is not used here.
func (m *mapping) ucmCheck(key string) { m.check(key, ucmkeys.Check) }

func (m *mapping) check(key string, refuse func(string, any) *pyyaml.Refusal) {
	readValue(m, key, struct{}{}, func(key string, value any) (struct{}, *pyyaml.Refusal) {
		return struct{}{}, refuse(key, value)
	})
}

// readValue reads a key whose engine knows what it may be. No value is a value, too.
func readValue[T any](m *mapping, key string, fallback T, read func(string, any) (T, *pyyaml.Refusal)) T {
	m.known[key] = true
	v, ok := m.values[key]
	if !ok {
		return fallback
	}
	value, refused := read(key, v)
	if refused != nil {
		m.problem(Failure, key, refused.What, refused.Fix)
		return fallback
	}
	return value
}

// child returns the mapping below a key, or an empty one.
func (m *mapping) child(key string) *mapping {
	v, ok := m.get(key)
	values, isMap := v.(map[string]any)
	if ok && !isMap {
		m.problem(Failure, key, "is "+kindOf(v)+", not a mapping", "write keys and values below it")
	}
	return newMapping(values, m.nameOf(key)+".", m.out)
}

// words returns the list of strings of a key. A single string is split at commas.
func (m *mapping) words(key string) []string {
	v, ok := m.get(key)
	if !ok {
		return nil
	}
	if s, ok := v.(string); ok {
		return splitList(s)
	}
	list, ok := v.([]any)
	if !ok {
		m.problem(Failure, key, "is "+kindOf(v)+", not a list", `write a list, ["a", "b"]`)
		return nil
	}
	var all []string
	for _, item := range list {
		s, ok := item.(string)
		if !ok {
			m.problem(Failure, key, "has "+kindOf(item)+" in its list", "write text in quotes")
			continue
		}
		all = append(all, s)
	}
	return all
}

// ignored reports a key that the engine does not use, if it is present.
func (m *mapping) ignored(s Severity, key, what, fix string) {
	if m.has(key) {
		m.problem(s, key, what, fix)
	}
}

// maxUnknown bounds the number of problems about unknown keys.
const maxUnknown = 20

// unknown reports keys that were never looked up. An engine may have many other keys that
// do not matter here, so keys for which ours is false are reported only if they look like
// misspelt known keys.
func (m *mapping) unknown(ours func(key string) bool) {
	known := slices.Sorted(maps.Keys(m.known))
	count := 0
	for _, key := range slices.Sorted(maps.Keys(m.values)) {
		if m.known[key] {
			continue
		}
		mine := ours(key)
		near := spelling.Nearest(key, known, 1)
		if !mine {
			near = spelling.Misspelt(key, known)
		}
		if !mine && len(near) == 0 {
			continue
		}
		if count++; count > maxUnknown {
			m.problem(Warning, "", "has more unknown keys", "")
			return
		}
		fix := "remove it"
		if len(near) > 0 {
			fix = "write " + near[0]
		}
		m.problem(Warning, clip(key), "is not a key that the engine reads, so it does nothing", fix)
	}
}

func all(string) bool { return true }

func about3FS(key string) bool { return strings.Contains(strings.ToLower(key), "3fs") }

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

// splitList splits text at commas, as engines do with lists of paths.
func splitList(s string) []string {
	var parts []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// whole returns a value as a whole number. If convert is set, it converts text and
// fractions as Python's int does.
func whole(v any, convert bool) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= 1<<63-1
	case float64:
		if convert && v > -1<<62 && v < 1<<62 {
			return int64(v), true
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, true
		}
		if f, err := v.Float64(); err == nil {
			return whole(f, convert)
		}
	case string:
		if convert {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// kindOf describes a value for a sentence: its type, and the value if it is short.
func kindOf(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("the text %.80q", v)
	case bool:
		return fmt.Sprint(v)
	case []any:
		return "a list"
	case map[string]any:
		return "a mapping"
	case nil:
		return "nothing"
	}
	return clip(fmt.Sprint(v))
}
