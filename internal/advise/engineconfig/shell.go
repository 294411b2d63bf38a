package engineconfig

import (
	"errors"
	"strings"

	"github.com/kv3fs/kv3fs/internal/shellwords"
)

// flagValues returns all values of a flag, written --flag value or --flag=value.
func flagValues(words []string, names ...string) []string {
	var values []string
	for i, w := range words {
		for _, name := range names {
			if v, ok := strings.CutPrefix(w, name+"="); ok {
				values = append(values, v)
			} else if w == name && i+1 < len(words) {
				values = append(values, words[i+1])
			}
		}
	}
	return values
}

// lastFlag returns the last value of a flag, which is the one that takes effect.
func lastFlag(words []string, names ...string) string {
	if v := flagValues(words, names...); len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

// envFile reads KEY=VALUE lines as in a shell script (with export and quotes) or in a
// container's environment file. A value that does not begin with a quote is taken
// literally, so that bare JSON keeps its quotes.
func envFile(out *Config, content []byte) (map[string]any, error) {
	values := map[string]any{}
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "export ")), "=")
		if !ok || !isName(key) {
			return nil, errors.New("has a line that is not KEY=VALUE: " + clip(line))
		}
		if n := len(value); n >= 2 && (value[0] == '\'' || value[0] == '"') {
			words, err := shellwords.Split(value)
			if err != nil || len(words) != 1 {
				return nil, errors.New("has a line whose quotes do not enclose the whole value: " + clip(line))
			}
			value = words[0]
		}
		if _, twice := values[key]; twice {
			out.add(Warning, key, "is set twice; the last value takes effect", "remove one")
		}
		values[key] = value
	}
	return values, nil
}

func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c == '_' || c == '.' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || i > 0 && c >= '0' && c <= '9') {
			return false
		}
	}
	return s != ""
}
