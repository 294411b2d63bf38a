package daemon

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/logging"
)

// shownLog is api.Tail and api.Leveler over a log.
type shownLog struct{ *logging.Log }

// Lines implements api.Tail.
func (l shownLog) Lines(after uint64, most int) ([]api.LogLine, uint64) {
	found, missed := l.Tail(int64(after), most)
	lines := make([]api.LogLine, 0, len(found))
	for _, is := range found {
		one := api.LogLine{Seq: uint64(is.Number), Time: is.Time, Level: nameOf(is.Level), Message: is.Message, Attributes: []api.Attribute{}}
		for _, a := range is.Attributes {
			one.Attributes = append(one.Attributes, api.Attribute(a))
		}
		lines = append(lines, one)
	}
	return lines, uint64(missed)
}

// Level implements api.Leveler.
func (l shownLog) Level() string { return nameOf(l.Log.Level().Level()) }

// SetLevel implements api.Leveler.
func (l shownLog) SetLevel(name string) error {
	level, err := logging.ParseLevel(name)
	if err != nil {
		return err
	}
	if nameOf(level) != strings.ToLower(name) {
		return fmt.Errorf("there is no level %q", name)
	}
	l.Log.Level().Set(level)
	return nil
}

func nameOf(level slog.Level) string { return strings.ToLower(level.String()) }
