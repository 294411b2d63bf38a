// Package cluster makes daemons on many hosts one cluster, by an etcd that is there already: which
// data directory the cluster belongs to, which host leads, which hosts there are. It knows nothing of pages.
//
// # What is proof
//
// A lease only says when to try, and so do watches and reads: etcd 3.4 has known faults in all three. Proof
// that a host leads is a transaction that went through etcd's log and compared the create revision of the host's
// election key (Term.Fence). The candidate with the lowest create revision leads, so a key that still exists means
// that no later candidate leads yet.
//
// # Answers from memory
//
// A leader may answer from memory while Term.Valid holds. That ends one lease time, less a margin, after the
// last proof was sent, and as long after the last renewal of the lease was sent; both are repeated all the time. No
// question is asked for it, so a leader that was paused finds itself invalid as soon as it runs again. Time is
// CLOCK_BOOTTIME of this host: what other hosts' clocks show does not matter, and suspended machines count.
//
// A lease that etcd ends early, by a fault or because somebody deleted its key, makes two terms overlap in memory, by
// less than LeaseTTL: the older one's last proof was sent before the newer one's election. So whoever is elected
// honours what may have been promised up to LeaseTTL after its election. Appends never overlap, as each compares the fence.
//
// # Keys
//
// Below Config.Prefix: cluster (whose it is), election/LEASE (candidates, oldest first), hosts/ID (hosts that are
// alive), fence (never there: deleting it is the write of a proof, and takes no space). What package etcdlog keeps is beside them.
package cluster
