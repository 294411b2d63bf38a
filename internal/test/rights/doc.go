// Package rights tests that a client may do through the mount and its rings what it may do
// in the data directory, and nothing more: permission bits, ACLs, set-id bits, and the space
// that a disk keeps for the super-user.
//
// Each test runs the same steps as the same user directly and through kv3fs.
package rights
