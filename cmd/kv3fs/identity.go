package main

import "github.com/kv3fs/kv3fs/internal/daemon"

// identityName is the value of --identity.
type identityName string

// UnmarshalText parses such a name.
func (n *identityName) UnmarshalText(text []byte) error {
	*n = identityName(text)
	return daemon.ValidIdentity(string(text))
}
