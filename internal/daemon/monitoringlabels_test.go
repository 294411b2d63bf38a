package daemon

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What alert rules, their tests and the dashboard choose series by is a label of that metric, which nobody else notices if it is not: an
// expression that finds nothing raises nothing.
func TestMonitoringNamesLabels(t *testing.T) {
	all, err := Metrics()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string][]string{}
	for _, m := range all {
		for _, part := range []string{"", "_bucket", "_sum", "_count"} {
			labels[m.Name+part] = append([]string{"job", "instance", "le"}, m.Labels...)
		}
	}
	chosen := regexp.MustCompile(`(kv3fs_[a-z0-9_]+)\{([^}]*)\}`)
	values := regexp.MustCompile(`\\?"[^"]*"`)
	label := regexp.MustCompile(`(\w+)\s*[=!]`)
	for _, file := range []string{"alerts.yaml", "alerts_test.yaml", "dashboard.json"} {
		text, err := os.ReadFile(filepath.Join(monitoring, file))
		if err != nil {
			t.Fatal(err)
		}
		found := chosen.FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			t.Errorf("%s chooses no series", file)
		}
		for _, series := range found {
			for _, one := range label.FindAllStringSubmatch(values.ReplaceAllString(series[2], ""), -1) {
				if !slices.Contains(labels[series[1]], one[1]) {
					t.Errorf("%s: %s has no label %s, but %s", file, series[0], one[1], strings.Join(labels[series[1]], ", "))
				}
			}
		}
	}
}
