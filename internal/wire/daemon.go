package wire

import (
	"encoding/json"
	"unicode/utf8"
)

// DaemonXattr is the extended attribute of a mount's root that identifies a kv3fs
// daemon. It can be read but is not listed, so that copying programs do not copy it. A
// real 3FS has no such attribute.
const DaemonXattr = "user.kv3fs.daemon"

// Daemon is the value of that attribute, in JSON.
type Daemon struct {
	Version string `json:"version"`
	PID     int    `json:"pid"` // in the daemon's PID namespace
	Data    string `json:"data"`
	Cluster string `json:"cluster"`
	IO      string `json:"io"`      // auto, buffered or direct
	Started string `json:"started"` // RFC 3339

	// Capacity is within what the daemon keeps the data directory, as its flag says; empty: any.
	Capacity string `json:"capacity,omitempty"`

	// Outlives is what goes on when another daemon follows: OutlivesRings, OutlivesMount, or why nothing does, with the cure. Empty: an
	// older daemon, which does not say.
	Outlives string `json:"outlives,omitempty"`
	// NoHandles says that files cannot be opened without a name: one that is removed while it is open ends with the daemon.
	NoHandles bool `json:"no_handles,omitempty"`

	// Passthrough is PassthroughOn, or why the mount has none, with the cure. Empty: an
	// older daemon, which does not say.
	Passthrough string `json:"passthrough"`

	// Unseen says that the daemon cannot see the process that has asked: it is in a PID
	// namespace that does not contain the process.
	Unseen bool `json:"unseen,omitempty"`
}

// PassthroughOn is Daemon.Passthrough where the kernel itself reads, writes and maps files.
const PassthroughOn = "on"

// daemonJSON is how Daemon is written. DataBytes holds Data, in base64, if it is not
// UTF-8, which JSON cannot express.
type daemonJSON struct {
	plainDaemon
	DataBytes []byte `json:"data_bytes,omitempty"`
}

type plainDaemon Daemon

// MarshalJSON writes d so that UnmarshalJSON reads the same.
func (d Daemon) MarshalJSON() ([]byte, error) {
	out := daemonJSON{plainDaemon: plainDaemon(d)}
	if !utf8.ValidString(d.Data) {
		out.DataBytes = []byte(d.Data)
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (d *Daemon) UnmarshalJSON(text []byte) error {
	var in daemonJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*d = Daemon(in.plainDaemon)
	if in.DataBytes != nil {
		d.Data = string(in.DataBytes)
	}
	return nil
}

// Values of Daemon.Outlives.
const (
	OutlivesRings = "rings" // and, over an upgrade in place, the mount
	OutlivesMount = "mount" // and rings: somebody keeps its descriptor
)
