package logging

import (
	"log/slog"
	"strings"
	"testing"
)

func TestParseLevel(t *testing.T) {
	for text, want := range map[string]slog.Level{"debug": slog.LevelDebug, "INFO": slog.LevelInfo, "WARN+1": slog.LevelWarn + 1, "error": slog.LevelError} {
		if got, err := ParseLevel(text); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{"ERROR+4": "would silence errors", "WARN+5": "would silence errors", "loud": "there is no level"} {
		if _, err := ParseLevel(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
