package httpserver

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Statuses has every status that the sources of this package name as a refusal, and no other.
func TestStatuses(t *testing.T) {
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string]bool{}
	for _, source := range sources {
		if source == "statuses.go" || strings.HasSuffix(source, "_test.go") {
			continue
		}
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`(?:refusal\{|sendRefusal\(w, )http\.Status(\w+)`).FindAllStringSubmatch(string(text), -1) {
			refused[found[1]] = true
		}
	}
	for _, s := range Statuses() {
		name := strings.NewReplacer(" ", "", "-", "").Replace(http.StatusText(s.Status))
		if !refused[name] {
			t.Errorf("no request is refused with %d %s", s.Status, name)
		}
		delete(refused, name)
	}
	if len(refused) > 0 {
		t.Errorf("Statuses lacks %v", refused)
	}
}
