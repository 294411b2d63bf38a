// Package hogs runs honest clients beside hostile ones: users that take whatever they can
// get of every resource, change shared memory under the daemon, and die in the middle. Each
// client and each hog is a process of its own, as a user of its own, and the daemon runs as
// root.
//
// An honest client checks every byte that it reads against what it has written. The test
// fails if one is wrong, if any honest call fails or takes longer than the daemon's deadline,
// if the daemon dies, or if something is left behind. It prints how long honest calls took
// alone and with the hogs; it asserts nothing about that, since machines differ.
//
// Hogs have the lowest priority for processors: what they cost others is then what the
// daemon spends on them, not what the kernel's scheduler gives them.
//
//	KV3FS_SOAK=5m            how long hogs run; scripts/test has 10s; skipped without it
//	KV3FS_HOGS=stuck,words   only these; none: the honest clients alone
package hogs
