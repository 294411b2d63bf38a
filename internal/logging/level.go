package logging

import (
	"fmt"
	"log/slog"
)

// ParseLevel reads a level as slog writes it, in any case. None is above ERROR: it would silence why a server has ended.
func ParseLevel(text string) (slog.Level, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return 0, fmt.Errorf("there is no level %q: give DEBUG, INFO, WARN or ERROR", text)
	}
	if level > slog.LevelError {
		return 0, fmt.Errorf("the level %q would silence errors, and so why a server has ended: give ERROR for the fewest lines", text)
	}
	return level, nil
}
