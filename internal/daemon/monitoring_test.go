package daemon

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

const monitoring = "../../deploy/monitoring"

// metricNames returns the names of all metrics of a daemon.
func metricNames(t *testing.T) map[string]bool {
	t.Helper()
	all, err := Metrics()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{"up": true}
	for _, m := range all {
		names[m.Name] = true
	}
	return names
}

// The dashboard, the alert rules and the documents name no metric that there is not, and the documents name all.
func TestMonitoringNamesMetrics(t *testing.T) {
	names := metricNames(t)
	used := regexp.MustCompile(`\bkv3fs_[a-z0-9_]+\b`)
	for _, file := range []string{"alerts.yaml", "alerts_test.yaml", "dashboard.json", "../../docs/metrics.md"} {
		text, err := os.ReadFile(filepath.Join(monitoring, file))
		if err != nil {
			t.Fatal(err)
		}
		all := used.FindAllString(string(text), -1)
		if len(all) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range all {
			base := name
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, part)
			}
			if !names[name] && !names[base] && !strings.HasSuffix(name, "_") {
				t.Errorf("%s names %s, which there is not", file, name)
			}
		}
		if strings.HasSuffix(file, "metrics.md") {
			for name := range names {
				if strings.HasPrefix(name, "kv3fs_") && !strings.HasPrefix(name, "kv3fs_pages_") && !slices.Contains(all, name) {
					t.Errorf("%s does not name %s", file, name)
				}
			}
		}
	}
}

// promtool finds nothing wrong with the alert rules, and each of them fires when it should, and not otherwise.
func TestAlertRules(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		daemontest.NotTested(t, "scripts/need test installs promtool")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		check := exec.Command(promtool, args...)
		check.Dir = monitoring
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v: %s", args, err, out)
		}
	}
	rules, err := os.ReadFile(filepath.Join(monitoring, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(filepath.Join(monitoring, "alerts_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var alerts, sections []string
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		alerts = append(alerts, alert[1])
		if strings.Count(string(tests), "alertname: "+alert[1]) < 2 {
			t.Errorf("%s has no test for when it fires and when not", alert[1])
		}
		if link := "/docs/operations.md#" + strings.ToLower(alert[1]) + "\n"; strings.Count(string(rules), link) != 1 {
			t.Errorf("%s does not lead to its section of docs/operations.md", alert[1])
		}
	}
	for _, section := range regexp.MustCompile(`(?m)^### (Kv3fs\w+)$`).FindAllStringSubmatch(string(doc), -1) {
		sections = append(sections, section[1])
	}
	slices.Sort(alerts)
	slices.Sort(sections)
	if !slices.Equal(alerts, sections) {
		t.Errorf("alerts are %q, and docs/operations.md has sections of %q", alerts, sections)
	}
}

// The expressions of the dashboard are ones that Prometheus understands.
func TestDashboardExpressions(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Title  string
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil || board.Title == "" || len(board.Panels) < 10 {
		t.Fatalf("%v: %+v", err, board)
	}
	rules := "groups:\n- name: dashboard\n  rules:\n"
	for _, p := range board.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("%q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			expr, err := json.Marshal(strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
			if err != nil {
				t.Fatal(err)
			}
			rules += "  - {record: 'x', expr: " + string(expr) + "}\n"
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		daemontest.NotTested(t, "scripts/need test installs promtool")
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "check", "rules", "--lint=none", file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
