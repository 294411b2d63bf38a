package main

import (
	"encoding/json"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/kv3fs/kv3fs/internal/advise/doctor"
	"github.com/kv3fs/kv3fs/internal/bench/enginebench"
	"github.com/kv3fs/kv3fs/internal/bench/hostsbench"
	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/bench/pagesbench"
	"github.com/kv3fs/kv3fs/internal/bench/policybench"
	"github.com/kv3fs/kv3fs/internal/bench/ringbench"
	"github.com/kv3fs/kv3fs/internal/bench/storebench"
	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/internal/exactjson"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// reports are the types that the commands with --json print.
func reports() map[string]reflect.Type {
	return map[string]reflect.Type{
		"plan":              reflect.TypeFor[plan](),
		"keep":              reflect.TypeFor[keepReport](),
		"replay":            reflect.TypeFor[replayTable](),
		"doctor":            reflect.TypeFor[doctor.Report](),
		"version":           reflect.TypeFor[buildInfo](),
		"bench ring":        reflect.TypeFor[ringbench.Report](),
		"bench pages":       reflect.TypeFor[pagesbench.Report](),
		"bench store":       reflect.TypeFor[storebench.Report](),
		"bench policy":      reflect.TypeFor[policybench.Report](),
		"bench engine":      reflect.TypeFor[enginebench.Report](),
		"bench hosts":       reflect.TypeFor[hostsbench.Report](),
		"status":            reflect.TypeFor[statusReport](),
		"top":               reflect.TypeFor[topReport](),
		"stat":              reflect.TypeFor[statReport](),
		"du":                reflect.TypeFor[duReport](),
		"ls":                reflect.TypeFor[lsReport](),
		"reload":            reflect.TypeFor[reloadReport](),
		"upgrade":           reflect.TypeFor[upgradeReport](),
		"scrub":             reflect.TypeFor[scrubReport](),
		"evict":             reflect.TypeFor[evictReport](),
		"pin":               reflect.TypeFor[pinsReport](),
		"unpin":             reflect.TypeFor[pinsReport](),
		"ttl set":           reflect.TypeFor[ttlsReport](),
		"ttl ls":            reflect.TypeFor[ttlsReport](),
		"ttl rm":            reflect.TypeFor[ttlsReport](),
		"quota set":         reflect.TypeFor[quotasReport](),
		"quota ls":          reflect.TypeFor[quotasReport](),
		"quota rm":          reflect.TypeFor[quotasReport](),
		"pages stat":        reflect.TypeFor[pagesStat](),
		"pages ls":          reflect.TypeFor[pagesLists](),
		"pages evict":       reflect.TypeFor[pagesRemovals](),
		"pages clear":       reflect.TypeFor[pagesRemovals](),
		"pages forget-rank": reflect.TypeFor[pagesForgotten](),
	}
}

// shared are the objects that docs/json.md describes once, for several fields.
func shared() map[string]reflect.Type {
	return map[string]reflect.Type{
		"every report":    reflect.TypeFor[envelope](),
		"spread":          reflect.TypeFor[measure.Spread](),
		"latency summary": reflect.TypeFor[workload.LatencySummary](),
		"range":           reflect.TypeFor[between](),
		"request":         reflect.TypeFor[planRow](),
		"listed file":     reflect.TypeFor[keeper.Listed](),
		"quota":           reflect.TypeFor[keeper.Quota](),
		"space":           reflect.TypeFor[pageservice.Space](),
	}
}

// fieldsOf returns the fields of a type's JSON, such as "pipes[].contexts[].tokens". It
// does not look into shared objects.
func fieldsOf(t reflect.Type, prefix string, found []string) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	isShared := slices.ContainsFunc(mapValues(shared()), func(s reflect.Type) bool { return s == t })
	switch {
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		return fieldsOf(t.Elem(), prefix+"[]", found)
	case t.Kind() != reflect.Struct || exactjson.Own(t) || isShared && prefix != "":
		return append(found, prefix)
	}
	for _, f := range exactjson.Fields(t) {
		name := prefix
		if f.Name != "" {
			name = strings.TrimPrefix(prefix+"."+f.Name, ".")
		}
		found = fieldsOf(t.FieldByIndex(f.Index).Type, name, found)
	}
	return found
}

func mapValues(m map[string]reflect.Type) (all []reflect.Type) {
	for _, t := range m {
		all = append(all, t)
	}
	return all
}

// documented returns the fields in the tables of docs/json.md, by the sections' titles.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/json.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	row := regexp.MustCompile("^\\| `([^`]+)` \\| (.*) \\|$")
	var section string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.ToLower(strings.TrimPrefix(strings.Trim(title, "`"), "kv3fs "))
			all[section] = nil
		}
		if found := row.FindStringSubmatch(line); found != nil {
			all[section] = append(all[section], found[1])
			if len(found[2]) < 3 {
				t.Errorf("docs/json.md: %s: %s has no meaning", section, found[1])
			}
		}
	}
	return all
}

// docs/json.md names every command with --json and every field that it prints, and
// nothing else.
func TestJSONIsDocumented(t *testing.T) {
	docs := documented(t)
	types := reports()
	app, err := newParser(&flagValues{}, io.Discard, &teller{stderr: io.Discard}, nil)
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	err = kong.Visit(app.Model, func(node kong.Visitable, next kong.Next) error {
		if command, ok := node.(*kong.Node); ok && slices.ContainsFunc(command.Flags, func(f *kong.Flag) bool { return f.Name == "json" }) {
			commands++
			name := strings.TrimPrefix(command.FullPath(), "kv3fs ")
			if types[name] == nil {
				t.Errorf("kv3fs %s has --json, and reports() does not name its type", name)
			}
		}
		return next(nil)
	})
	if err != nil || commands != len(types) {
		t.Errorf("%d commands with --json, %d in reports(), %v", commands, len(types), err)
	}
	for name, typ := range shared() {
		types[name] = typ
	}
	for name, typ := range types {
		want, got := fieldsOf(typ, "", nil), docs[name]
		for _, field := range want {
			if !slices.Contains(got, field) {
				t.Errorf("docs/json.md: section %q lacks `%s`", name, field)
			}
		}
		for i, field := range got {
			if !slices.Contains(want, field) || slices.Contains(got[:i], field) {
				t.Errorf("docs/json.md: section %q: `%s` does not exist, or twice", name, field)
			}
		}
		for _, field := range want { // they would hide those of the envelope
			if name != "every report" && (field == "schema" || field == "command" || field == "not_utf8") {
				t.Errorf("%s has a field %s of its own", name, field)
			}
		}
	}
	for name := range docs {
		if types[name] == nil {
			t.Errorf("docs/json.md: section %q is of no command", name)
		}
	}
}

// checkJSON checks what a command has printed: it begins as every report does, and
// docs/json.md has all of its fields.
func checkJSON(t *testing.T, command, text string) {
	t.Helper()
	docs := documented(t)
	var whole map[string]any
	if err := json.Unmarshal([]byte(text), &whole); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, text)
	}
	if whole["schema"] != 1.0 || whole["command"] != command || whole["interrupted"] == nil {
		t.Errorf("%s: schema %v, command %v, interrupted %v", command, whole["schema"], whole["command"], whole["interrupted"])
	}
	known := append(slices.Clone(docs["every report"]), docs[command]...)
	var walk func(v any, path string)
	walk = func(v any, path string) {
		if slices.Contains(known, path) {
			return // also an object that is described once for several fields
		}
		switch v := v.(type) {
		case map[string]any:
			for key, inner := range v {
				walk(inner, strings.TrimPrefix(path+"."+key, "."))
			}
		case []any:
			for _, inner := range v {
				walk(inner, path+"[]")
			}
		case nil:
			if !slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(k, path) }) {
				t.Errorf("docs/json.md: section %q lacks `%s`", command, path)
			}
		default:
			t.Errorf("docs/json.md: section %q lacks `%s`", command, path)
		}
	}
	walk(map[string]any(whole), "")
	checkNotUTF8(t, command, whole)
}

// checkNotUTF8 checks that not_utf8 has the bytes of each text that JSON could not express.
func checkNotUTF8(t *testing.T, command string, report map[string]any) {
	t.Helper()
	var head envelope
	text, err := json.Marshal(map[string]any{"not_utf8": report["not_utf8"]})
	if err != nil || json.Unmarshal(text, &head) != nil {
		t.Fatalf("%s: not_utf8: %v, %v", command, report["not_utf8"], err)
	}
	var walk func(v any, pointer string)
	walk = func(v any, pointer string) {
		switch v := v.(type) {
		case map[string]any:
			for key, inner := range v {
				if pointer != "" || key != "not_utf8" {
					walk(inner, pointer+"/"+exactjson.Escape(key))
				}
			}
		case []any:
			for i, inner := range v {
				walk(inner, pointer+"/"+strconv.Itoa(i))
			}
		case string:
			exact, ok := head.NotUTF8[pointer]
			if ok != strings.Contains(v, "\ufffd") || ok && (utf8.Valid(exact) || string([]rune(string(exact))) != v) {
				t.Errorf("%s: %s is %q, and its bytes %q", command, pointer, v, exact)
			}
			delete(head.NotUTF8, pointer)
		}
	}
	walk(report, "")
	if len(head.NotUTF8) > 0 {
		t.Errorf("%s: not_utf8 has fields that do not exist: %q", command, head.NotUTF8)
	}
}
