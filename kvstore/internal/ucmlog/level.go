package ucmlog

import (
	"log/slog"
	"os"
	"strings"
)

// Off is a level above all others.
const Off = slog.Level(64)

// levels are the names of levels that UCM has.
var levels = map[string]slog.Level{
	"trace": slog.LevelDebug, "debug": slog.LevelDebug, "info": slog.LevelInfo,
	"warn": slog.LevelWarn, "warning": slog.LevelWarn,
	"err": slog.LevelError, "error": slog.LevelError, "critical": slog.LevelError,
	"off": Off,
}

// FromEnvironment returns the level that UCM_LOG_LEVEL sets, or the older UC_LOGGER_LEVEL
// where that is not set. Without either, set is false and the level UCM's default, info. It
// is info also where the value is none of UCM's, which unknown then describes.
func FromEnvironment() (level slog.Level, set bool, unknown string) {
	for _, name := range []string{"UCM_LOG_LEVEL", "UC_LOGGER_LEVEL"} {
		value := os.Getenv(name)
		if value == "" {
			continue
		}
		level, known := levels[strings.ToLower(value)]
		if !known {
			return slog.LevelInfo, true, name + " is not one of trace, debug, info, warning, error, critical and off, so it is info"
		}
		return level, true, ""
	}
	return slog.LevelInfo, false, ""
}
