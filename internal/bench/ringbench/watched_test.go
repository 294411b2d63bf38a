package ringbench

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// What is measured as an open dashboard is what the dashboard asks for.
func TestAsksAsDashboard(t *testing.T) {
	text, err := os.ReadFile("../../admin/dashboard/static/main.js")
	if err != nil {
		t.Fatal(err)
	}
	begin := regexp.MustCompile(`(?s)const polls = \[(.*?)\n\];`).FindSubmatch(text)
	if begin == nil {
		t.Fatal("the dashboard has no list of polls")
	}
	want := page()
	names := map[string]string{"minutes": "history", "logPath": "log"}
	for _, m := range regexp.MustCompile(`(?m)^  (?:new Poll\(|ask\("\w+", (\d+), )(?:\(\) => "(\w+)"(?:, (\d+))?|(\w+))`).FindAllSubmatch(begin[1], -1) {
		path, period := string(m[2])+names[string(m[4])], string(m[1])+string(m[3])
		seconds, err := strconv.Atoi(period)
		if err != nil || want[path] != time.Duration(seconds)*time.Second {
			t.Errorf("%q every %q s: %v here", path, period, want[path])
		}
		delete(want, path)
	}
	if len(want) > 0 {
		t.Errorf("the dashboard does not ask for %v", want)
	}
}
