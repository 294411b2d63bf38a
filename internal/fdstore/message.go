package fdstore

import (
	"fmt"
	"strconv"
	"strings"
)

// What only kv3fs says. systemd passes over it.
const (
	tagConnection = "X_KV3FS_CONNECTION" // goes with a FUSE device
	tagMark       = "X_KV3FS_MARK"       // of Hold to itself
)

// message is what a process tells its manager.
type message struct {
	store, remove bool
	name          string
	of            Connection
	ready         bool
	main          int // the process that the manager shall watch from now on; 0: as before
	mark          string
	rest          []string // for the manager's own manager
}

// parse reads a message. What it does not know it passes over.
func parse(text string) (m message) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		tag, value, _ := strings.Cut(line, "=")
		switch tag {
		case "FDSTORE":
			m.store = value == "1"
		case "FDSTOREREMOVE":
			m.remove = value == "1"
		case "FDNAME":
			m.name = value
		case tagConnection:
			if n, err := fmt.Sscanf(value, "%d %q", &m.of.Minor, &m.of.Point); err != nil || n != 2 {
				m.of = Connection{}
			}
		case tagMark:
			m.mark = value
		case "MAINPID":
			m.main, _ = strconv.Atoi(value)
		case "READY":
			m.ready = value == "1"
			m.rest = append(m.rest, line)
		case "STATUS", "STOPPING", "RELOADING", "MONOTONIC_USEC":
			m.rest = append(m.rest, line)
		}
	}
	return m
}
