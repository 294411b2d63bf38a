package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/logging"
)

// teller is between a command and whoever has started it. It says why a command ends: in a line of its own on standard error, or in the log
// of a server, which all of its lines are in.
type teller struct {
	stderr  io.Writer
	log     atomic.Pointer[slog.Logger] // nil: there is no log yet
	hangups *hangups
	again   *again
	// inherited is what whoever has started the process has left to it; nil: nothing.
	inherited *fdstore.Store
}

func newTeller(stderr io.Writer) *teller {
	return &teller{stderr: stderr, hangups: newHangups(), again: newAgain()}
}

// fails says what has failed. msg is for the log.
func (t *teller) fails(msg string, err error) {
	if log := t.log.Load(); log != nil {
		log.Error(msg, "err", err)
		return
	}
	fmt.Fprintln(t.stderr, "kv3fs:", err)
}

// logFlags say how a server logs.
type logFlags struct {
	Level  logLevel       `default:"INFO" help:"DEBUG, INFO, WARN or ERROR."`
	Format logging.Format `default:"text" enum:"text,json" help:"Format of the log on standard error. json: a JSON object a line; durations are in seconds."`
}

// logLevel is a level that silences no error.
type logLevel struct{ slog.Level }

// UnmarshalText parses it.
func (l *logLevel) UnmarshalText(text []byte) (err error) {
	l.Level, err = logging.ParseLevel(string(text))
	return err
}

// open begins the log, at a level of at least least. From then on all that the process says goes there.
func (f *logFlags) open(t *teller, least slog.Level) *logging.Log {
	lines := logging.New(t.stderr, max(f.Level.Level, least), f.Format)
	log := lines.Logger()
	t.log.Store(log)
	slog.SetDefault(log) // what libraries say
	return lines
}

// everything is a level that all lines reach.
const everything = slog.LevelDebug

// begin has errors before the log is open be lines of JSON, if that is what was asked for.
func (t *teller) begin(values *flagValues) {
	if t.log.Load() == nil && values.wantsJSON() {
		t.log.Store(logging.New(t.stderr, slog.LevelInfo, logging.JSON).Logger())
	}
}

// wantsJSON reports whether the values ask for a log in JSON, as far as they are known.
func (s *flagValues) wantsJSON() bool {
	value, ok := s.known["log-format"]
	if !ok {
		return false
	}
	if given, ok := s.given[value]; ok {
		return fmt.Sprint(given) == string(logging.JSON)
	}
	for flag, text := range s.texts {
		if flag.Value == value {
			return text == string(logging.JSON)
		}
	}
	return os.Getenv("KV3FS_LOG_FORMAT") == string(logging.JSON)
}
