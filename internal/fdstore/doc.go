// Package fdstore lets descriptors outlive the process that opened them: the FUSE device, without which a mount is dead, and
// listeners, whose clients are refused while nobody holds them. The protocol is systemd's, whoever is at the other end:
//
//   - A process inherits descriptors 3 and up; LISTEN_FDS says how many, LISTEN_FDNAMES their names.
//   - It has its manager keep one with the message FDSTORE=1 and FDNAME= over the socket NOTIFY_SOCKET, and forget it with
//     FDSTOREREMOVE=1. The manager passes what it keeps to the next process that it starts.
//
// Store is the end of the process. Hold is a manager for hosts and containers without systemd. A process that replaces itself, or
// hands over to another one, uses the same names: see Store.Exec, Store.Send and Receive.
//
// What is ours: the numbers of descriptors that are not 3 and up are in KV3FS_LISTEN_AT; and with a FUSE device goes X_KV3FS_CONNECTION,
// the connection that a manager must abort if it gives up while a process that is stuck holds the device, too.
package fdstore

// The names of descriptors.
const (
	Mount = "kv3fs-mount" // the FUSE device
	Admin = "kv3fs-admin" // the listener of the admin address
	// Peers begins the name of the listener for page services of other hosts.
	Peers = "kv3fs-peers"
	// Pages begins the names of the page service's listeners.
	Pages = "kv3fs-pages"
)
