package wire

// DaemonXattr is the extended attribute of a mount's root by which a kv3fs
// daemon says who it is. It can be read and is not listed, so that no copying
// program carries it along. A real 3FS has no such attribute.
const DaemonXattr = "user.kv3fs.daemon"

// Daemon is the attribute's value, as JSON.
type Daemon struct {
	Version string `json:"version"`
	PID     int    `json:"pid"` // in the daemon's PID namespace
	Data    string `json:"data"`
	Cluster string `json:"cluster"`
	IO      string `json:"io"`      // auto, buffered or direct
	Started string `json:"started"` // RFC 3339
}
