package transformer

import (
	"encoding/csv"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// notFound are the entries of known.json of which no copy was found, so that only their
// number of parameters is held against a published figure. docs/plan.md names them.
func notFound() []string { return []string{"Jamba-1.5-Large"} }

// known.json says what public copies of each configuration say. docs/plan.md says where
// each copy was read, and which entries have none.
func TestCopies(t *testing.T) {
	f, err := os.Open("testdata/copies.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../../../docs/plan.md")
	if err != nil {
		t.Fatal(err)
	}
	all := keysOf(t)
	read := map[string]bool{}
	for _, row := range rows[1:] {
		name, source := row[0], row[1]
		entry := all[name]
		if entry == nil {
			t.Errorf("%s: no such entry", name)
			continue
		}
		figures := map[string]string{}
		for i, figure := range row[2:9] {
			figures[rows[0][i+2]] = figure
		}
		for _, further := range strings.Fields(row[9]) {
			key, figure, _ := strings.Cut(further, "=")
			figures[key] = figure
		}
		for key, figure := range figures {
			if got := valueOf(t, entry, key); figure != "" && got != figure {
				t.Errorf("%s: %s is %s; %s has %s", name, key, got, source, figure)
			}
		}
		read[name] = read[name] || figures["num_hidden_layers"] != "" && figures["num_attention_heads"] != "" && figures["num_key_value_heads"] != ""
		if !strings.Contains(string(docs), "\n| "+source+" | ") {
			t.Errorf("docs/plan.md does not say what %q is", source)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if read[name] == slices.Contains(notFound(), name) {
			t.Errorf("%s: read in a copy: %v", name, read[name])
		}
	}
	for _, name := range notFound() {
		if !strings.Contains(string(docs), "No copy was found of "+name) {
			t.Errorf("docs/plan.md does not say that no copy of %s was found", name)
		}
	}
}

// keysOf returns the keys of each entry, with those of the entry that it is the same as.
func keysOf(t *testing.T) map[string]map[string]json.RawMessage {
	t.Helper()
	var all map[string]map[string]json.RawMessage
	if err := json.Unmarshal(known, &all); err != nil {
		t.Fatal(err)
	}
	for name, entry := range all {
		if as, ok := entry["same_as"]; ok {
			all[name] = all[strings.Trim(string(as), `"`)]
		}
	}
	return all
}

// valueOf returns a key's value as JSON. A head dimension may be left out.
func valueOf(t *testing.T, entry map[string]json.RawMessage, key string) string {
	t.Helper()
	value, ok := entry[key]
	if !ok && key == "head_dim" {
		hidden, err1 := strconv.Atoi(string(entry["hidden_size"]))
		heads, err2 := strconv.Atoi(string(entry["num_attention_heads"]))
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		return strconv.Itoa(hidden / heads)
	}
	return string(value)
}
