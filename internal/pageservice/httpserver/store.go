package httpserver

import "context"

// StoreState says where the page index of a host is kept, and which host answers from it.
type StoreState struct {
	Store string `json:"store"` // embedded, or the URL of etcd without a password
	// Role is what this host does: leading (it answers), following (it forwards to the leader),
	// electing (it is becoming the leader), or waiting (nobody answers). Why says what is wrong, whatever the role.
	Role   string  `json:"role"`
	Why    string  `json:"why,omitempty"`
	Host   string  `json:"host,omitempty"` // this one
	Leader *Leader `json:"leader,omitempty"`
	// Applied and Head are the last index of the log that this host has applied, and that there is.
	Applied uint64 `json:"applied,omitempty"`
	Head    uint64 `json:"head,omitempty"`
	// Conflict says which hosts have different states at the same place of the log, as the leader has found.
	Conflict string `json:"conflict,omitempty"`
	// LeaderChanges is how often another host has taken the lead since this daemon started.
	LeaderChanges int64         `json:"leader_changes,omitempty"`
	Hosts         []Peer        `json:"hosts,omitempty"`
	Members       []StoreMember `json:"members,omitempty"`
}

// Leader is the host that leads.
type Leader struct {
	Host    string `json:"host"`
	Address string `json:"address,omitempty"` // for other hosts
	Version string `json:"version,omitempty"`
	// ForSeconds is for how long it has led, as far as this host has seen.
	ForSeconds float64 `json:"for_seconds,omitempty"`
}

// Peer is a host of the page service.
type Peer struct {
	Host    string `json:"host"`
	Address string `json:"address,omitempty"` // for other hosts
	Version string `json:"version,omitempty"`
	Role    string `json:"role,omitempty"`
	Applied uint64 `json:"applied,omitempty"` // as it reported lately
}

// StoreMember is a member of etcd.
type StoreMember struct {
	Address    string   `json:"address"`
	Version    string   `json:"version,omitempty"`
	Bytes      int64    `json:"bytes"`                 // of its database
	UsedBytes  int64    `json:"used_bytes"`            // of these: the rest is free inside of it
	QuotaBytes int64    `json:"quota_bytes,omitempty"` // of Bytes; 0: unknown
	Alarms     []string `json:"alarms,omitempty"`
	Error      string   `json:"error,omitempty"` // it did not answer
}

// Embedded is the store of an index that one process has.
const Embedded = "embedded"

// StoreState returns where the index is, and who leads. It may ask etcd.
func (s *Server) StoreState(ctx context.Context) StoreState {
	if s.store != nil {
		return s.store(ctx)
	}
	state := StoreState{Store: Embedded, Role: "leading"}
	if _, err := s.source.Load().index(); err != nil {
		state.Role, state.Why = "waiting", err.Error()
	}
	return state
}
