package etcdlog

// Role is what a log does.
type Role string

// The roles, as State has them.
const (
	Following Role = "following" // another host leads, or none
	Electing  Role = "electing"  // this host was elected, and applies the last of the log
	Leading   Role = "leading"
	Demoted   Role = "demoted" // it has led, and another host may lead now
)

// State is how far a log is.
type State struct {
	Role    Role
	Applied uint64 // index of the last batch that was passed to the owner, or appended
	Head    uint64 // index of the newest batch, as far as this host knows
	Term    int64  // of the leader that appended the newest batch

	// Warm: this host has applied everything that it knows of, and nothing contradicts it, so that it can lead.
	Warm   bool
	Reason string // why it is not warm, or does not lead although it was elected

	// Partial: the owner has forgotten some for lack of memory, so that others lead if they can.
	Partial bool

	// Conflict says which hosts disagree about the state, while this one leads and takes no snapshot because of it.
	Conflict string

	epoch      uint64 // see position
	checkpoint point  // the last one that this host has passed
}

// Lag returns how many batches are to be applied.
func (s State) Lag() uint64 { return max(s.Head, s.Applied) - s.Applied }

// State returns how far the log is.
func (l *Log) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

func (l *Log) setState(change func(*State)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.state)
}
