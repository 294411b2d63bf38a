// Package hostsbench measures what a store that several hosts share brings: the time to the
// first token on the host that fills it, on one that has just joined, and on one whose own disk
// has the blocks; how reading from the hosts' own disks scales; rings in shared mode beside plain
// reads; and page services of followers beside the leader's.
//
// A host is a process with a directory of its own and a view of the directory that all share. It
// may be started by a command, so that it runs elsewhere: scripts/hosts exec 2.
package hostsbench
