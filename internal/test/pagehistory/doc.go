// Package pagehistory tests the page service by histories. Clients of one or more hosts
// reserve, write, confirm, locate and read pages of one file while processes are killed,
// stopped and cut off. They record what they asked, what was answered, and when, by one
// monotonic clock. Check says afterwards whether the answers can all be right:
//
//   - no two clients may write a page at once, and none may write it while another may
//     still read it (a pass over intervals);
//   - the answers about each key are those of one register, in an order that agrees with
//     the clock (porcupine);
//   - a page has the bytes of the key for which it was located (checked while it is read).
//
// TestManyHosts has three machines in network namespaces, each with an etcd member, for this; TestFullEtcd has their etcd run out of space.
// No clock of a machine is set: a namespace has the host's wall clock. Nothing of what is tested reads that one, which
// internal/test/architecture checks.
//
// A request that was not answered may have been executed at any later time, or never. A key whose deletion was not answered may be missed, and found again.
package pagehistory
